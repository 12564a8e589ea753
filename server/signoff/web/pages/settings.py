"""One's own sessions and password, and for admins the tokens of programs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.people import limits, sessions, tokens, users
from signoff.people.passwords import MIN_LENGTH
from signoff.people.permissions import may, require
from signoff.store.scope import ROLES, Scope
from signoff.store.tx import Tx
from signoff.web import say
from signoff.web.addresses import name_of, number_of
from signoff.web.pages import AnyRequest, backend_of, badge_of, caller_of, is_htmx, redirect, render, scope_of, whence
from signoff.web.pages.entrance import new_password_problems
from signoff.web.pages.oidc import providers_of
from signoff.web.pages.people import unkept
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound, Refused

ROWS = 50
ENDED = 20  # of those that can be used no more, the newest
DONE = {
    "revoked": "That session has ended.",
    "others": "All other sessions have ended.",
    "password": "Your password is changed. Your other sessions have ended.",
    "token": "The token is revoked. Whatever used it is refused from now on.",
}


def _notes(request: AnyRequest) -> list[dict[str, str]]:
    text = DONE.get(request.query_params.get("done", ""))
    return [{"kind": "good", "text": text}] if text else []


def _mine(tx: Tx, scope: Scope) -> tuple[list[sessions.SessionView], bool]:
    user_id = scope.person.user_id if scope.person else None
    return ([], False) if user_id is None else (sessions.sessions_of(tx, user_id), users.has_password(tx, user_id))


async def _account_page(
    request: AnyRequest, errors: dict[str, str] | None = None, error: str = "", http: int = 200
) -> Response[Any]:
    scope, session = scope_of(request), caller_of(request).visitor.session
    mine, local = await backend_of(request).look(_mine, scope)
    mine.sort(key=lambda one: one.key != session.key)
    return render(request, "settings/sessions.html", http=http, place="settings", badge=await badge_of(request),
                  sessions=mine, current=session.key, provider=session.provider, local=local, min_length=MIN_LENGTH,
                  providers=dict(providers_of(request).buttons), notes=_notes(request), errors=errors or {},
                  error=error, admin=may(scope, "token.manage"))  # fmt: skip


@get("/settings")
async def settings_page(request: AnyRequest) -> Response[Any]:
    return await _account_page(request)


@post("/settings/password")
async def change_password(request: AnyRequest) -> Response[Any]:
    """Whoever finds a screen unlocked does not know the password, and so takes no account over."""
    form, caller = await request.form(), caller_of(request)
    current, new, again = (str(form.get(name, ""))[:1000] for name in ("current", "password", "again"))
    errors = {} if current else {"current": "Enter the password that you have now."}
    errors |= new_password_problems(new, again)
    if errors:
        return await _account_page(request, errors, http=422)
    try:
        secret = await backend_of(request).change_password(
            scope_of(request), current, new, secret=caller.secret or "", address=whence(request)["address"]
        )
    except InvalidInput as error:
        return await _account_page(request, {"password": say.sentence(error.message)}, http=422)
    except Conflict as error:
        return await _account_page(request, error=say.sentence(error.message), http=409)
    except limits.TooManyAttempts as refusal:
        return await _account_page(request, error=say.sentence(refusal.message), http=refusal.status)
    except Refused as refusal:
        if refusal.reason != "bad_credentials":
            raise
        return await _account_page(request, {"current": say.sentence(refusal.message)}, http=422)
    response = redirect("/settings?done=password")
    if secret is not None:
        response.headers["set-cookie"] = caller.cookies.line(caller.cookies.session, secret)
    return response


@post("/settings/sessions/{key:str}/revoke")
async def revoke_session(request: AnyRequest, key: FromPath[str]) -> Response[Any]:
    await backend_of(request).act("session.revoke", "session", sessions.revoke_session, scope_of(request), key)
    return redirect("/settings?done=revoked")


@post("/settings/sessions/revoke-others")
async def revoke_others(request: AnyRequest) -> Response[Any]:
    scope, current = scope_of(request), caller_of(request).visitor.session.key
    await backend_of(request).act("session.revoke", "session", sessions.revoke_other_sessions, scope, current)
    return redirect("/settings?done=others")


# -- tokens


async def _tokens_page(
    request: AnyRequest, typed: dict[str, str] | None = None, error: str = "", http: int = 200
) -> Response[Any]:
    before = number_of(request.query_params.get("before", ""))
    live, ended = await backend_of(request).look(_live_and_ended, scope_of(request), before)
    return render(
        request, "settings/tokens.html", http=http, place="settings", badge=await badge_of(request), live=live[:ROWS],
        older=f"/settings/tokens?before={live[ROWS - 1].id}" if len(live) > ROWS else None, newest=before is None,
        ended=ended, notes=_notes(request), error=error, admin=True, roles=ROLES,
        typed=typed or {"name": "", "role": "operator", "email": "", "days": "90"},
    )  # fmt: skip


def _live_and_ended(tx: Tx, scope: Scope, before: int | None) -> tuple[list[tokens.TokenView], list[tokens.TokenView]]:
    live = tokens.list_tokens(tx, scope, usable=True, before=before, limit=ROWS + 1)
    return live, tokens.list_tokens(tx, scope, usable=False, limit=ENDED)


@get("/settings/tokens")
async def tokens_page(request: AnyRequest) -> Response[Any]:
    return await _tokens_page(request)


def _lifetime(days: str) -> timedelta | None:
    if not days.strip():
        return None
    if not days.strip().isdecimal() or not 1 <= len(days.strip()) <= 4 or not 1 <= int(days) <= 3650:
        message = "A token lasts 1 to 3650 days; leave it empty for one that does not end"
        raise InvalidInput(message, fields=[FieldError(("days",), message)])
    return timedelta(days=int(days))


@post("/settings/tokens")
async def create_token(request: AnyRequest) -> Response[Any]:
    form = await request.form()
    typed = {name: str(form.get(name, ""))[:320] for name in ("name", "role", "email", "days")}
    try:
        secret = await backend_of(request).act(
            "token.manage", typed["name"], tokens.create_token, scope_of(request), typed["name"], role=typed["role"],
            email=typed["email"].strip() or None, lifetime=_lifetime(typed["days"]),
        )  # fmt: skip
    except (InvalidInput, Conflict, NotFound) as error:
        http = 409 if isinstance(error, Conflict) else 422
        return await _tokens_page(request, typed, say.sentence(error.message), http)
    name = typed["name"].strip()
    return unkept(render(request, "settings/token.html", place="settings", name=name, secret_value=secret))


@get("/settings/tokens/{name:str}/revoke")
async def revoke_dialog(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
    require(scope_of(request), "token.manage")
    found = await backend_of(request).look(tokens.list_tokens, scope_of(request), usable=True, name=name_of(name))
    if not found:
        raise NotFound("There is no such token that could be revoked")
    return render(request, "settings/revoke.html", place="settings", token=found[0], in_dialog=is_htmx(request))


@post("/settings/tokens/{name:str}/revoke")
async def revoke_token(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
    await backend_of(request).act("token.manage", name_of(name), tokens.revoke_token, scope_of(request), name_of(name))
    return redirect("/settings/tokens?done=token")


HANDLERS = [
    settings_page, change_password, revoke_session, revoke_others, tokens_page, create_token, revoke_dialog,
    revoke_token,
]  # fmt: skip
