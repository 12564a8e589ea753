"""What people do about a question beyond answering it: claims, comments, changes of who may answer and until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.approvals.abilities import DOINGS, Doing
from signoff.approvals.views import ApprovalView
from signoff.web import say
from signoff.web.addresses import name_of
from signoff.web.backend import NOBODY
from signoff.web.pages import AnyRequest, backend_of, badge_of, is_htmx, redirect, render, scope_of
from signoff.web.pages.inbox import Asked
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound, Refused

AT_ONCE: Final = frozenset({"claim", "release"})  # one press, no words
# heading, what will happen, button
_WORDS: Final[dict[str, tuple[str, str, str]]] = {
    "delegate": (
        "Let somebody answer for you",
        "They answer in your place, and the record says that it was on your behalf.",
        "Let them answer",
    ),
    "reassign": ("Ask others instead", "Those who are asked now are not asked any more.", "Ask them instead"),
    "escalate": ("Escalate this question", "", "Escalate"),
    "extend": ("Give it more time", "Its due time and its deadline move.", "Give more time"),
    "add": ("Ask somebody besides", "They may answer as well. Nobody loses their say.", "Ask them besides"),
    "comment": ("Comment", "Everybody who may look at this question reads it, and the run can.", "Comment"),
    "claim": ("Work on this question", "Others see that you are at it, and leave it to you.", "I work on it"),
    "release": ("Leave this question", "Others can take it.", "Leave it"),
}  # fmt: skip
# where nobody was chosen
_CHOOSE: Final[dict[str, str]] = {
    "delegate": "Choose who answers.", "reassign": "Choose whom to ask.", "add": "Choose whom to ask.",
}  # fmt: skip
_UNITS: Final = {"hours": 3600, "days": 86_400}


@dataclass(slots=True)
class Typed:
    """What stands in the dialog, and what is wrong with it."""

    find: str = ""  # whom to choose from
    to: str = ""
    source: str = ""
    reason: str = ""
    amount: str = "1"
    unit: str = "days"
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def of(cls, request: AnyRequest) -> Typed:
        form = await request.form()
        find, to, source, reason, amount, unit = (
            str(form.get(key, ""))[:20_000] for key in ("find", "to", "source", "reason", "amount", "unit")
        )
        return cls(find, to, source, reason, amount, unit)

    def seconds(self) -> float:
        try:
            amount = float(self.amount.strip().replace(",", "."))
        except ValueError:
            amount = 0
        if not 0 < amount <= 10_000:
            raise InvalidInput("That does not fit", [FieldError(("by",), "write by how much")])
        return amount * _UNITS.get(self.unit, 3600)


def selector_of(text: str) -> dict[str, str] | None:
    """A chosen `kind:name` of the lists of people and groups."""
    kind, _, name = text.partition(":")
    return {kind: name} if kind in ("user", "group", "role") and name else None


@get("/approvals/{approval:str}/{deed:str}")
async def deed_dialog(request: AnyRequest, approval: FromPath[str], deed: FromPath[str]) -> Response[Any]:
    doing = _known(deed)
    item = await backend_of(request).approval(scope_of(request), name_of(approval))
    if doing == "comment":
        return redirect(f"{Asked.of(request).item(item.id)}#comment")
    return await _dialog(request, item, doing, Typed(find=request.query_params.get("find", "").strip()[:200]))


@post("/approvals/{approval:str}/{deed:str}")
async def act(request: AnyRequest, approval: FromPath[str], deed: FromPath[str]) -> Response[Any]:
    doing, name, backend, scope = _known(deed), name_of(approval), backend_of(request), scope_of(request)
    typed = await Typed.of(request)
    try:
        await backend.act_on_approval(scope, name, doing, _arguments(doing, typed), via="page")
    except (Refused, Conflict, InvalidInput) as error:
        http = int(error.to_problem()["status"])
        typed.errors = {
            str(item.loc[0]): say.sentence(item.message) for item in getattr(error, "fields", ()) if item.loc
        }
        if doing in _CHOOSE and isinstance(error, InvalidInput) and selector_of(typed.to) is None:
            typed.errors["to"] = _CHOOSE[doing]
        item = await backend.approval(scope, name)
        return await _dialog(request, item, doing, typed, "" if typed.errors else say.sentence(str(error)), http)
    return redirect(Asked.of(request).item(name) + ("#thread" if doing == "comment" else ""))


def _known(deed: str) -> Doing:
    if deed not in DOINGS or deed == "decide":
        raise NotFound(f"there is no page {deed!r} of a question")
    return cast("Doing", deed)


def _arguments(doing: Doing, typed: Typed) -> dict[str, Any]:
    match doing:
        case "claim" | "release":
            return {}
        case "comment":
            return {"text": typed.reason}
        case "escalate":
            return {"reason": typed.reason}
        case "extend":
            by = {"by": typed.seconds()} if typed.amount else {}
            return {"reason": typed.reason, **by}
    chosen = selector_of(typed.to)
    if doing == "delegate":
        return {"to": chosen.get("user", "") if chosen else "", "reason": typed.reason}
    source = {"from_": selector_of(typed.source)} if doing == "reassign" and typed.source else {}
    return {"to": [chosen] if chosen else [], "reason": typed.reason, **source}


async def _dialog(
    request: AnyRequest, item: ApprovalView, doing: Doing, typed: Typed, refusal: str = "", http: int = 200
) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    heading, what, button = _WORDS[doing]
    operates = scope.person is None or scope.person.role_at_least("operator")
    why = item.can[doing]
    asks = doing in ("delegate", "reassign", "add") and why is None
    besides = item.id if doing == "delegate" else None  # who is asked anyway answers in their own name
    whom = await backend.whom_to_ask(scope, typed.find, besides) if asks else NOBODY
    if doing == "escalate":
        what = f"Asks {item.escalate_to} besides. Nobody loses their say." if item.escalate_to else ""
    if doing == "extend" and not operates and item.extend:
        what = f"Moves the deadline by {say.duration(item.extend)}."
    if doing == "reassign" and not operates:
        what = "Your place goes to them: you are not asked any more."
    return render(
        request, "approvals/deed.html", http=http, place="inbox", badge=await badge_of(request), item=item,
        doing=doing, heading=heading, what=what, button=button, typed=typed, refusal=refusal, asked=Asked.of(request),
        whom=whom, operates=operates, why=why, in_dialog=is_htmx(request),
    )  # fmt: skip


HANDLERS = [deed_dialog, act]
