"""Who asks: sessions by cookie for pages, tokens for the API; and what protects both (CSRF, headers)."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, replace
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from litestar import Request
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.exceptions import PermissionDeniedException
from litestar.middleware.base import ASGIMiddleware

from signoff.people.links import SETUP_PATH

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

    from signoff.web.backend import Backend

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
THEMES = ("auto", "light", "dark")
CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
_YEAR = 365 * 86_400


@dataclass(slots=True)
class Caller:
    """What the middleware found out about a request for a page. `scope` is None for a stranger."""

    cookies: Cookies
    csrf: str
    theme: str
    secret: str | None = None
    scope: Any = None  # store.Scope
    visitor: Any = None
    typed: list[tuple[str, str]] = field(default_factory=list)  # what one of our own pages sent
    _masked: str = ""

    @property
    def token(self) -> str:
        """What forms carry against forgery: another text each time, so that compressed pages tell nothing of it."""
        if not self._masked and self.csrf:
            self._masked = mask(self.csrf)
        return self._masked

    @property
    def mark(self) -> str:
        """Tells one session's pages from another's, and nothing else."""
        return sha256(self.csrf.encode()).hexdigest()[:16] if self.csrf else ""


def mask(secret: str) -> str:
    pad = secrets.token_bytes(len(secret))
    return urlsafe_b64encode(pad + bytes(a ^ b for a, b in zip(pad, secret.encode(), strict=True))).decode()


def unmask(token: str) -> str:
    """The secret inside; empty for what `mask` did not make."""
    try:
        both = urlsafe_b64decode(token.encode())
        half = len(both) // 2
        return bytes(a ^ b for a, b in zip(both[:half], both[half:], strict=True)).decode()
    except ValueError:
        return ""


class Forged(PermissionDeniedException):
    """A form that another site sent, or nobody of ours."""

    reason = "another_site"


class PageTooOld(Forged):
    """A form from a session that is over. What was typed into it need not be lost."""

    reason = "page_too_old"


class NotSignedIn(Exception):
    """A page that needs a person; the answer leads to the sign-in page and back."""


class Cookies:
    """Names and attributes of our cookies: bound to this host under https, told apart by port under http."""

    def __init__(self, scope: Scope) -> None:
        host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "")
        self.secure = scope["scheme"] == "https"
        port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else "80"
        self.session = "__Host-signoff" if self.secure else f"signoff-{port}"
        self.csrf = "__Host-signoff-csrf" if self.secure else f"signoff-csrf-{port}"
        self.oidc = "__Host-signoff-oidc" if self.secure else f"signoff-oidc-{port}"  # a sign-in under way elsewhere
        self.theme = "signoff-theme"
        # One at a time: other programs on this host have cookies too, and http.cookies gives up at the first odd one.
        lines = [value.decode("latin-1") for key, value in scope["headers"] if key == b"cookie"]
        pairs = [pair.partition("=") for pair in ";".join(lines).split(";")]
        self.sent = {name.strip(): value.strip() for name, _, value in pairs if value.isascii()}

    def line(self, name: str, value: str, *, max_age: int | None = None, readable: bool = False) -> str:
        parts = [f"{name}={value}", "Path=/", "SameSite=Lax"]
        parts += ["Secure"] if self.secure else []
        parts += [] if readable else ["HttpOnly"]
        parts += [] if max_age is None else [f"Max-Age={max_age}"]
        return "; ".join(parts)

    def theme_line(self, theme: str) -> str:
        return self.line(self.theme, theme, max_age=_YEAR)


class Gatekeeper(ASGIMiddleware):
    """Finds the caller, and refuses forged posts."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if scope["path"].startswith(("/static/", "/api/", "/health")):  # a cookie counts for nothing there
            await next_app(scope, receive, send)
            return
        cookies = Cookies(scope)
        caller = Caller(cookies, "", cookies.sent.get(cookies.theme, "auto"))
        caller.theme = caller.theme if caller.theme in THEMES else "auto"
        fresh: list[str] = []
        scope["state"]["caller"] = caller

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                for line in fresh:
                    headers.add("set-cookie", line)
            await send(message)

        await self._recognise(caller, fresh)
        if scope["type"] == ScopeType.HTTP and scope["method"] not in SAFE:
            await _check_forgery(Request(scope, receive, send), caller)
        await next_app(scope, receive, finish)

    async def _recognise(self, caller: Caller, fresh: list[str]) -> None:
        cookies = caller.cookies
        secret = cookies.sent.get(cookies.session)
        if secret:
            visitor = await self.backend.visitor(secret)
            if visitor is not None:
                caller.visitor, caller.scope, caller.csrf, caller.secret = (
                    visitor,
                    replace(visitor.scope, via="page"),
                    visitor.session.csrf,
                    secret,
                )
                if visitor.secret is not None:
                    caller.secret = visitor.secret
                    fresh.append(cookies.line(cookies.session, visitor.secret))
                return
        caller.csrf = cookies.sent.get(cookies.csrf, "")
        if len(caller.csrf) < 32:
            caller.csrf = secrets.token_urlsafe(32)
            fresh.append(cookies.line(cookies.csrf, caller.csrf))


def with_headers(scope: HTTPScope, send: Send) -> Send:
    """Sets the security headers on whatever answers, also where no route was found."""
    path = scope["path"]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            ours = list(_HEADERS)
            if scope["scheme"] == "https":
                ours.append((b"strict-transport-security", b"max-age=31536000"))
            if not path.startswith("/static/"):
                ours.append((b"cache-control", b"no-store" if path.startswith("/api/") else b"private, no-cache"))
            message["headers"] = [*given, *(pair for pair in ours if pair[0] not in names)]
        await send(message)

    return sending


def with_record(scope: HTTPScope, send: Send, backend: Backend) -> Send:
    """Has a refusal that `refused` noted in the audit log before whoever was refused reads of it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            noted = scope.get("state", {}).pop("refused", None)
            if noted is not None:
                await backend.record_refused_request(*noted)
        await send(message)

    return sending


def refused(request: Request[Any, Any, Any], action: str, reason: str) -> None:
    """Note for the audit log that this request was refused: one row, whatever it was.

    Only of those who are signed in, or have a token. Strangers are sent to the sign-in page, where attempts are counted
    and kept; were each of their requests a row, anybody could fill the table without an account.
    """
    caller: Caller | None = request.scope["state"].get("caller")
    scope = caller.scope if caller is not None else request.scope.get("user")
    if scope is None:
        return
    path = request.url.path
    if path.startswith(SETUP_PATH):
        path = f"{SETUP_PATH}..."  # the rest is a secret
    request.scope["state"]["refused"] = (scope, action, f"{request.method} {path}", reason)


async def _check_forgery(request: Request[Any, Any, Any], caller: Caller) -> None:
    """A post counts only when it comes from our own pages: by the browser's own word, and with the session's token."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise Forged("This request came from another site.")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Forged("This request came from another site.")
    token = request.headers.get("x-csrf-token")
    if token is None:
        form = await request.form()
        token = str(form.get("csrf", ""))
        if site == "same-origin" or origin is not None:
            caller.typed = [(name, text) for name, text in form.multi_items() if isinstance(text, str)]
    if not caller.csrf or not compare_digest(unmask(token).encode(), caller.csrf.encode()):
        raise PageTooOld(
            "The page was open too long, or you signed in again in between. Load it again and repeat what you did."
        )
