"""What goes wrong, as a page for people and as a problem document (RFC 9457) for programs."""

from __future__ import annotations

import json
import secrets
import traceback
from http import HTTPStatus
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.serialization import decode_json

from signoff.web import say
from signoff.web.pages import caller_of, render, sign_in_redirect
from signoff.web.security import Forged, NotSignedIn, PageTooOld, refused
from signoff.workflow.errors import Refused, SignoffError

log = structlog.get_logger(__name__)

PROBLEM = "application/problem+json"
FORMS = ("/approvals/", "/workflows/")  # pages on which people type more than they like to type again
_TITLES = {
    403: "You may not do this",
    404: "Nothing here",
    405: "This is not the way in",
    409: "That is not possible now",
    413: "That is too large",
    422: "That does not fit",
    429: "Too much at once",
    500: "Something broke on our side",
    503: "The server is not ready",
}
_TEXTS = {
    404: "It may have been removed, or it belongs to a team that you are not in.",
    413: "The server takes 16 MiB at most in one request.",
    500: "Nothing of what you did was kept. The server's log has the details.",
}


def problem(
    status: int, detail: str, *, type: str = "about:blank", headers: dict[str, str] | None = None, **members: Any
) -> Response[bytes]:
    """A problem document."""
    title = members.pop("title", HTTPStatus(status).phrase)
    body = {"type": type, "title": title, "status": status, "detail": detail, **members}
    return Response(json.dumps(body, default=str).encode(), status_code=status, media_type=PROBLEM, headers=headers)


def _wants_problem(request: Request[Any, Any, Any]) -> bool:
    return request.url.path.startswith(("/api/", "/health"))


def _page(request: Request[Any, Any, Any], status: int, text: str, **more: Any) -> Response[bytes]:
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    return render(request, "error.html", status=status, title=title, text=text, http=status, **more)


def on_signoff_error(request: Request[Any, Any, Any], error: SignoffError) -> Response[bytes]:
    document = error.to_problem()
    status = int(document["status"])
    if isinstance(error, Refused) and status == 403 and not error.recorded:
        refused(request, str(error.context.get("action", "request")), error.reason)
    if _wants_problem(request):
        headers = {"retry-after": str(error.context["retry_after"])} if "retry_after" in error.context else None
        return Response(
            json.dumps(document, default=str).encode(), status_code=status, media_type=PROBLEM, headers=headers
        )
    text = _TEXTS[404] if status == 404 else say.sentence(str(error))
    return _page(request, status, text)


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    status = error.status_code
    if error.detail == "client disconnected prematurely":  # so Litestar calls it; nothing broke
        return Response(b"", status_code=400)
    if status >= 500:
        return on_unexpected(request, error)
    if isinstance(error, Forged):
        refused(request, "request", error.reason)
    detail = str(error.detail) or HTTPStatus(status).phrase
    if isinstance(error, ValidationException):
        status = 422 if _wants_problem(request) else 400
    if _wants_problem(request):
        detail = _TEXTS[413] if status == 413 else detail
        members = {"errors": _fields(error.extra)} if isinstance(error, ValidationException) and error.extra else {}
        if isinstance(error, ValidationException) and (wanted := _wanted(request, members.get("errors", []))):
            detail, members = wanted, {"errors": [{"loc": [], "message": wanted}]}
        kind = "invalid_input" if isinstance(error, ValidationException) else "about:blank"
        return problem(status, detail, type=kind, headers=dict(error.headers or {}) or None, **members)
    if isinstance(error, PageTooOld) and request.url.path.startswith(FORMS):
        # Put back into its form by whoever is signed in by then; without secrets, which no page holds.
        typed = [(name, text) for name, text in caller_of(request).typed if name != "csrf" and not name.endswith("*")]
        return render(request, "forms/too_old.html", http=status, typed=typed, action=request.url.path,
                      left=_left(request))  # fmt: skip
    return _page(request, status, detail if status in (400, 403) else _TEXTS.get(status, detail))


def _left(request: Request[Any, Any, Any]) -> Any:
    """The tenant in which a form was open, if its session is in another one by now."""
    visitor, sent = caller_of(request).visitor, dict(caller_of(request).typed).get("home")
    if visitor is None or visitor.home is None or sent in (None, visitor.home.name):
        return None
    return next((home for home in visitor.homes if home.name == sent), None)


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    reference = secrets.token_hex(4)
    log.error("request failed", reference=reference, method=request.method, path=request.url.path, exc_info=error)
    if _wants_problem(request):
        return problem(500, "Something broke on our side; the server's log has it.", reference=reference)
    return _page(request, 500, _TEXTS[500], reference=reference, retry=request.method == "GET")


def on_recursion(request: Request[Any, Any, Any], error: RecursionError) -> Response[bytes]:
    """JSON that is nested deeper than can be read is the sender's mistake; any other recursion is ours."""
    if traceback.extract_tb(error.__traceback__)[-1].name != decode_json.__name__:
        return on_unexpected(request, error)
    return on_http_error(request, ClientException("The JSON is nested too deeply"))


def on_not_signed_in(request: Request[Any, Any, Any], error: NotSignedIn) -> Response[Any]:
    return sign_in_redirect(request)


def _wanted(request: Request[Any, Any, Any], errors: list[dict[str, Any]]) -> str:
    """What a body must be that is none, or no object: what is wrong with it is not one of its fields."""
    data = request.route_handler.parsed_data_field
    model: Any = data.annotation if data is not None else None
    if not hasattr(model, "model_fields") or not any(item["loc"] in ([""], ["data"]) for item in errors):
        return ""
    fields = {item.alias or name: item.is_required() for name, item in model.model_fields.items()}
    must, may = ([name for name, needed in fields.items() if needed is wanted] for wanted in (True, False))
    with_ = f" with {say.listed(must, 'and')}" if must else ""
    besides = f"; {say.listed(may, 'and')} may be in it{' too' if must else ''}" if may else ""
    return f"Send a JSON object{with_}{besides}"


def _fields(extra: Any) -> list[dict[str, Any]]:
    items = extra if isinstance(extra, list) else [extra]
    return [
        {"loc": str(item.get("key", "")).split("."), "message": str(item.get("message", ""))}
        for item in items
        if isinstance(item, dict)
    ]


HANDLERS: dict[Any, Any] = {
    SignoffError: on_signoff_error,
    NotSignedIn: on_not_signed_in,
    HTTPException: on_http_error,
    RecursionError: on_recursion,
    Exception: on_unexpected,
}
