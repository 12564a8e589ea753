"""What all pages share: who looks at them, and how they are rendered."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from litestar import Request, Response
from litestar.enums import MediaType
from litestar.response import Redirect
from markupsafe import Markup

from signoff.people.permissions import may
from signoff.web.security import Caller, NotSignedIn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from jinja2 import Environment

    from signoff.store.scope import Scope
    from signoff.web.backend import Backend
    from signoff.web.fragments import Fragments, Rendering, Topic

AnyRequest = Request[Any, Any, Any]

# Texts that pages keep fresh by themselves (`3 min ago`) are no change, and neither is another mask of the same token.
_TICKING = re.compile(
    r'(?<=data-relative)>[^<]*|(?<=")>(?<=data-since="[^"]{24}">)[^<]*|(?<=name="csrf" )value="[^"]*">'
)


def caller_of(request: AnyRequest) -> Caller:
    return cast("Caller", request.scope["state"]["caller"])


def backend_of(request: AnyRequest) -> Backend:
    return cast("Backend", request.app.state.backend)


def scope_of(request: AnyRequest) -> Scope:
    """The signed-in person's scope, or the way to the sign-in page."""
    scope = caller_of(request).scope
    if scope is None:
        raise NotSignedIn
    return cast("Scope", scope)


def home_of(request: AnyRequest) -> str:
    """The name of the tenant that the session is in."""
    home = caller_of(request).visitor.home
    return "" if home is None else cast("str", home.name)


def outer_url(request: AnyRequest) -> str:
    """Where people reach this server, for links that leave it."""
    given = cast("str | None", request.app.state.url)
    return given.rstrip("/") if given else f"{request.scope['scheme']}://{request.headers.get('host', '')}"


def whence(request: AnyRequest) -> dict[str, Any]:
    """What is kept of a browser with its session."""
    address = request.client.host if request.client else ""
    return {"address": address, "agent": request.headers.get("user-agent")}


def is_htmx(request: AnyRequest) -> bool:
    return request.headers.get("hx-request") == "true"


def _places(scope: Scope | None) -> list[tuple[str, str, str]]:
    if scope is None:
        return []
    places = [("inbox", "Inbox", "/approvals")] if may(scope, "approval.view") else []
    if may(scope, "run.view"):
        places += [("runs", "Runs", "/runs"), ("workflows", "Workflows", "/workflows")]
    if may(scope, "people.view"):
        places.append(("people", "People", "/people"))
    if may(scope, "audit.view"):
        places.append(("record", "Record", "/record"))
    return [*places, ("settings", "Settings", "/settings")]


def why_not_switch(request: AnyRequest) -> str:
    """Why the session may not go on in another tenant: a provider of one must not open the others."""
    caller: Caller | None = request.scope["state"].get("caller")
    provider = caller.visitor.session.provider if caller is not None and caller.visitor is not None else None
    if provider is None:
        return ""
    known = request.app.state.providers.get(provider)
    if known is not None and known.config.switch:
        return ""
    name = known.config.name if known is not None else provider
    return f"{name}, where you signed in, leads into this one only. Sign out, and sign in with a password."


def context(request: AnyRequest) -> dict[str, Any]:
    """What every template may use."""
    caller: Caller | None = request.scope["state"].get("caller")
    scope = caller.scope if caller else None
    query = f"?{request.url.query}" if request.url.query else ""
    return {
        "person": scope.person if scope is not None else None,
        "homes": caller.visitor.homes if caller is not None and caller.visitor is not None else (),
        "home": caller.visitor.home if caller is not None and caller.visitor is not None else None,
        "why_not_switch": why_not_switch(request),
        "csrf": caller.token if caller else "",
        "session_mark": caller.mark if caller else "",
        "theme": caller.theme if caller else "auto",
        "here": f"{request.url.path}{query}" if request.method == "GET" else request.url.path,
        "now": backend_of(request).now(),
        "places": _places(scope),
        "place": "",
        "badge": 0,
        "notes": [],
        "reference": None,
        "retry": False,
    }


def render(request: AnyRequest, template: str, *, http: int = 200, **values: Any) -> Response[bytes]:
    env = cast("Environment", request.app.state.templates)
    text = env.get_template(template).render(**{**context(request), **values})
    return Response(text.encode(), status_code=http, media_type=MediaType.HTML)


def fragment(request: AnyRequest, template: str, **values: Any) -> Markup:
    """A part of a page that is fetched again when its topic changes. It carries its own tag (`data-etag`)."""
    return _tagged(request, template, {**context(request), **values})


def impersonal(request: AnyRequest, template: str, **values: Any) -> Markup:
    """As `fragment`, for all who have the same rights: it fails on whatever the template would take from the person."""
    return _tagged(request, template, {"now": backend_of(request).now(), **values})


async def shared_fragment(
    request: AnyRequest, topic: Topic, variant: Hashable, make: Callable[[], Awaitable[Rendering]]
) -> Response[bytes]:
    """A fragment that is made once for all who have the same rights in the tenant."""
    scope = scope_of(request)
    rights = (scope.tenant_id, scope.person.role if scope.person is not None else None)
    fragments = cast("Fragments", request.app.state.fragments)
    return send_fragment(request, await fragments.get(topic, (rights, variant), make))


def _tagged(request: AnyRequest, template: str, values: dict[str, Any]) -> Markup:
    env = cast("Environment", request.app.state.templates)
    text = env.get_template(template).render(**values).strip()
    tag = hashlib.sha256(_TICKING.sub(">", text).encode()).hexdigest()[:20]
    return Markup(text.replace(" data-live=", f' data-etag="{tag}" data-live=', 1))


def send_fragment(request: AnyRequest, content: Markup) -> Response[bytes]:
    """The fragment, or 304 when the page shows just that already."""
    tag = content.split('data-etag="', 1)[1].split('"', 1)[0] if 'data-etag="' in content else ""
    headers = {"etag": f'"{tag}"'} if tag else {}
    if tag and request.headers.get("if-none-match") == f'"{tag}"':
        return Response(b"", status_code=304, headers=headers)
    return Response(content.encode(), media_type=MediaType.HTML, headers=headers)


def redirect(path: str) -> Redirect:
    """After a POST: the browser fetches the page, and a reload repeats nothing."""
    return Redirect(path, status_code=303)


def sign_in_redirect(request: AnyRequest) -> Response[Any]:
    if is_htmx(request) or request.url.path.startswith("/live"):
        return Response(b"", status_code=401, headers={"hx-refresh": "true"})
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = "/sign-in" if request.method != "GET" or here == "/" else f"/sign-in?next={quote(here, safe='/')}"
    return Redirect(target, status_code=303)


async def badge_of(request: AnyRequest) -> int:
    scope = scope_of(request)
    return await backend_of(request).badge(scope) if may(scope, "approval.view") else 0
