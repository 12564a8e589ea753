"""Signing in at an identity provider: the way there, and the way back."""

from __future__ import annotations

from dataclasses import asdict
from hmac import compare_digest
from typing import Any, cast

import structlog
from litestar import Response, get, post
from litestar.params import FromPath

from signoff.people import identities, limits, sessions
from signoff.people.sign_in import Visitor
from signoff.store.tx import Tx
from signoff.web import say
from signoff.web.addresses import local
from signoff.web.oidc import Flow, Provider, Providers
from signoff.web.pages import AnyRequest, backend_of, caller_of, outer_url, redirect, render, whence
from signoff.workflow.errors import NotFound, Refused

log = structlog.get_logger(__name__)

MINUTES = 10  # between leaving and coming back

_HINTS = {
    "flow": "A sign-in can be used once, and within ten minutes. Begin again.",
    "state": "What came back does not belong to the sign-in that began here. Begin again.",
    "provider_error": "Nothing was changed. You can begin again.",
    "account_exists": "Sign in with its password, or ask an admin of your team.",
    "email_unverified": "Verify the address there first, or ask an admin of your team for an account.",
    "no_email": "Ask whoever runs the provider to send your address, or an admin of your team for an account.",
    "no_role": "Ask an admin of your team to give you access.",
    "inactive": "Ask an admin of your team.",
    "unreachable": "",
    "too_many_attempts": "This protects accounts from guessing.",
}


def providers_of(request: AnyRequest) -> Providers:
    return cast("Providers", request.app.state.providers)


def _provider(request: AnyRequest, name: str) -> Provider:
    found = providers_of(request).get(name)
    if found is None:
        raise NotFound(f"There is no provider {name!r}")
    return found


def _callback(request: AnyRequest, provider: str) -> str:
    return f"{outer_url(request)}/sign-in/{provider}/callback"


def leaving(request: AnyRequest, address: str, name: str, deed: str) -> Response[Any]:
    """A page that leads on by itself. A redirect would not do: browsers hold redirects of forms to `form-action`."""
    return render(request, "leaving.html", address=address, name=name, deed=deed)


async def _tenant(request: AnyRequest, provider: Provider) -> int:
    return (await backend_of(request).engine.scope_of(provider.config.tenant)).tenant_id


@post("/sign-in/{provider:str}")
async def leave(request: AnyRequest, provider: FromPath[str]) -> Response[Any]:
    """Begin: what the way back must fit is kept on the server, under a cookie of its own."""
    chosen, backend, cookies = _provider(request, provider), backend_of(request), caller_of(request).cookies
    form = await request.form()
    flow = Flow.begin(provider, local(str(form.get("next", "/"))))
    try:
        await _count(request)
        address = await chosen.address(flow, _callback(request, provider))
    except Refused as refusal:
        return await _refused(request, chosen, refusal)
    secret, _ = await backend.store.write(sessions.open_session, data=asdict(flow), minutes=MINUTES)
    answer = leaving(request, address, chosen.config.name, "sign in")
    answer.headers["set-cookie"] = cookies.line(cookies.oidc, secret, max_age=MINUTES * 60)
    return answer


@get("/sign-in/{provider:str}/callback")
async def come_back(request: AnyRequest, provider: FromPath[str]) -> Response[Any]:
    """The way back. Whatever does not fit is refused with a page, an audit row, and nothing kept."""
    chosen, caller = _provider(request, provider), caller_of(request)
    who: str | None = None
    try:
        await _count(request)
        flow, code = await _fitting(request, chosen)
        token = await chosen.exchange(flow, code, _callback(request, provider))
        claims = await chosen.claims(token, flow.nonce, backend_of(request).now())
        arrival = chosen.arrival(claims)
        who = arrival.email or arrival.subject
        visitor: Visitor = await backend_of(request).store.write(
            identities.admit, await _tenant(request, chosen), arrival, **whence(request), old=caller.secret,
            data={"id_token": token["id_token"]},
        )  # fmt: skip
    except Refused as refusal:
        return await _refused(request, chosen, refusal, who)
    answer = redirect(flow.next)
    answer.headers["set-cookie"] = caller.cookies.line(caller.cookies.session, visitor.secret or "")
    return answer


async def _fitting(request: AnyRequest, provider: Provider) -> tuple[Flow, str]:
    """The flow that this callback belongs to, used up: of two callbacks one gets it."""
    cookies, query = caller_of(request).cookies, request.query_params
    secret = cookies.sent.get(cookies.oidc)
    found = await backend_of(request).store.write(_take_flow, secret) if secret else None
    if found is None or found.provider != provider.config.id:
        raise Refused("flow", "This sign-in was used already, or took too long")
    if not compare_digest(query.get("state", "").encode(), found.state.encode()):
        raise Refused("state", "This sign-in was not begun here")
    named = query.get("iss")
    promised = (await provider.metadata()).get("authorization_response_iss_parameter_supported") is True
    if named != provider.config.issuer and (named is not None or promised):
        raise Refused("issuer", "The answer comes from another provider than the one that was asked")
    if error := query.get("error"):
        spoken = "You did not sign in there" if error == "access_denied" else "The provider refused the sign-in"
        raise Refused("provider_error", spoken)
    if not (code := query.get("code")):
        raise Refused("code", "The provider did not accept the sign-in")
    return found, code


def _take_flow(tx: Tx, secret: str) -> Flow | None:
    session = sessions.end_session(tx, secret)
    if session is None or session.expires_at <= tx.now or session.user_id is not None:
        return None
    return Flow(**session.data)


async def _count(request: AnyRequest) -> None:
    """Ways there and back are counted by network address, like passwords."""
    address = whence(request)["address"]
    blocked = await backend_of(request).store.write(limits.take_arrival, address)
    if blocked is not None:
        raise _Blocked(blocked.seconds, first=blocked.first)


class _Blocked(limits.TooManyAttempts):
    def __init__(self, seconds: int, *, first: bool) -> None:
        super().__init__(seconds)
        self.first = first


async def _refused(request: AnyRequest, provider: Provider, refusal: Refused, who: str | None = None) -> Response[Any]:
    address = whence(request)["address"]
    cause = str(refusal.__cause__ or "")[:300]
    log.warning("a sign-in was refused", provider=provider.config.id, reason=refusal.reason, cause=cause)
    if not isinstance(refusal, _Blocked) or refusal.first:  # those after it would only fill the log
        tenant = await _tenant(request, provider)
        await backend_of(request).store.write(
            identities.record_refusal, tenant, provider.config.id, refusal.reason, address, who
        )
    caller = caller_of(request)
    answer = render(
        request, "sign_in.html", http=refusal.to_problem()["status"], next="/", email="",
        error=say.sentence(refusal.message), error_hint=_HINTS.get(refusal.reason, _HINTS["flow"]), reason="",
        providers=providers_of(request).buttons,
    )  # fmt: skip
    answer.headers["set-cookie"] = caller.cookies.line(caller.cookies.oidc, "", max_age=0)
    return answer


HANDLERS = [leave, come_back]
