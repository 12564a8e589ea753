"""The web app: pages, live streams and the REST surface over an open engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Request, Response, Router, get
from litestar.config.compression import CompressionConfig
from litestar.datastructures import CacheControlHeader, State
from litestar.enums import ScopeType
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.response.base import ASGIResponse
from litestar.static_files import create_static_files_router
from litestar.types import Receive, Scope, Send

from signoff.resources import static_dir
from signoff.runtime.engine import Engine
from signoff.web import api, api_record
from signoff.web.addresses import is_host, keep_slashes
from signoff.web.backend import Backend
from signoff.web.errors import HANDLERS, problem
from signoff.web.fragments import Fragments
from signoff.web.live import LiveHub
from signoff.web.oidc import Providers
from signoff.web.pages import (
    approval,
    deeds,
    drafts,
    entrance,
    inbox,
    live,
    oidc,
    people,
    record,
    runs,
    settings,
    start,
    tenants,
    workflows,
)
from signoff.web.providers import ProviderConfig
from signoff.web.security import Gatekeeper, with_headers, with_record
from signoff.web.templating import environment

MAX_BODY = 16 * 1024 * 1024 + 64 * 1024  # bytes: one value at its limit, and what stands around it
ROOMS = (
    entrance,
    oidc,
    inbox,
    approval,
    deeds,
    drafts,
    runs,
    people,
    record,
    settings,
    tenants,
    start,
    workflows,
    live,
)
PAGES = [handler for room in ROOMS for handler in room.HANDLERS]


class App(Litestar):
    """Litestar routes by the decoded path, in which a slash inside a name is none any more: that is kept apart here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]  # Litestar's own scope types
        if scope["type"] == ScopeType.HTTP:
            scope["path"] = keep_slashes(scope.get("raw_path") or b"") or scope["path"]
            send = with_record(scope, with_headers(scope, send), self.state.backend)
            if not is_host(next((value for key, value in scope["headers"] if key == b"host"), b"")):
                answer = ASGIResponse(body=b"The Host header names no host.", status_code=400, media_type="text/plain")
                await answer(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def _could_be_a_file(request: Request[Any, Any, Any]) -> None:
    """What no file system takes for a name is no file either; it would be asked, and its answer taken for a fault."""
    if "\0" in request.scope["path"] or len(request.scope["path"]) > 250:
        raise NotFoundException


@get("/health", include_in_schema=False)
async def health(request: Request[Any, Any, Any]) -> Response[Any]:
    """200 while the database answers."""
    try:
        await request.app.state.backend.ready()
    except Exception:  # noqa: BLE001  # whatever is wrong with the database, the answer is the same
        return problem(503, "The database does not answer.")
    return Response({"status": "ok"})


def create_app(
    engine: Engine, *, backend: Backend | None = None, url: str | None = None, providers: Sequence[ProviderConfig] = ()
) -> Litestar:
    """The app over an engine that is open while the app runs. `url` is where people reach it, if a proxy stands before.

    Without it, links to be passed on begin with the address of the request that asked for them. `providers` are those
    of OpenID Connect at which people may sign in besides passwords.
    """
    backend = backend or Backend(engine)
    fragments = Fragments()
    hub = LiveHub(backend, fragments)
    static = create_static_files_router(
        "/static",
        [static_dir()],
        cache_control=CacheControlHeader(max_age=31_536_000, public=True, immutable=True),
        before_request=_could_be_a_file,
    )
    return App(
        route_handlers=[
            Router("/", route_handlers=PAGES, include_in_schema=False),
            api.router(*api_record.HANDLERS),
            health,
            static,
        ],
        middleware=[Gatekeeper(backend)],
        exception_handlers=HANDLERS,
        request_max_body_size=MAX_BODY,
        on_startup=[hub.start],
        on_shutdown=[hub.stop],
        state=State(
            {
                "backend": backend,
                "live": hub,
                "fragments": fragments,
                "templates": environment(),
                "url": url,
                "providers": Providers(providers),
            }
        ),
        openapi_config=OpenAPIConfig(
            title="Signoff",
            version="1",
            path="/api",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}),
        ),
        # streams are told word by word; what programs fetch is small, and they ask for no compression
        compression_config=CompressionConfig(backend="gzip", gzip_compress_level=6, exclude=["^/live", "^/api"]),
        logging_config=None,
        debug=False,
    )
