"""The REST surface of approvals: lists, one question, answering it, and everything else that people do about it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.serialization import encode_json
from pydantic import BaseModel, ConfigDict, Field

from signoff.approvals.abilities import Doing
from signoff.approvals.inbox import Tab, inbox
from signoff.approvals.notes import MAX_TEXT
from signoff.approvals.views import ApprovalView
from signoff.store.scope import Scope
from signoff.web.addresses import name_of
from signoff.web.backend import Backend

ApiRequest = Request[Scope, str, State]
VIA = "api"

Who = Annotated[
    dict[Literal["user", "group", "role"], str] | str, Field(description="A selector, or the address of a user.")
]
Reason = Annotated[str, Field(max_length=MAX_TEXT)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DecideBody(_Body):
    """An answer. `revision`: of the question as it was looked at; without it the question is taken as it is now."""

    answer: Any = None
    option: str | None = None
    comment: Reason | None = None
    revision: int | None = None


class ClaimBody(_Body):
    """`take_over`: an operator takes a claim from somebody else."""

    take_over: bool = False


class ReasonBody(_Body):
    reason: Reason = ""


class ReassignBody(_Body):
    """With `from` only what was put to that person, group or role goes to the others."""

    to: list[Who]
    from_: Annotated[Who | None, Field(alias="from")] = None
    reason: Reason


class DelegateBody(_Body):
    to: str
    reason: Reason


class AddBody(_Body):
    to: list[Who]
    reason: Reason


class ExtendBody(_Body):
    """`by`: seconds, for operators; without it what the question allows."""

    by: float | None = None
    reason: Reason = ""


class CommentBody(_Body):
    text: str


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class WhyBody(_View):
    reason: str
    text: str


class DecisionBody(_View):
    person: str
    name: str
    at: datetime
    via: str
    answer: Any
    comment: str | None
    revision: int
    ledger_id: int
    option: str | None
    rejects: bool
    on_behalf_of: str | None
    lapsed: bool


class NoteBody(_View):
    """What somebody wrote or did; `actor` is null where the server did it by itself."""

    id: int
    at: datetime
    actor: str | None
    name: str | None
    via: str | None
    kind: str
    text: str | None
    data: dict[str, Any]


class RowBody(_View):
    id: str
    run: str
    workflow: str
    ask: str
    title: str
    requester: str | None
    business_key: str | None
    who: str
    state: str
    created_at: datetime
    due_at: datetime | None
    timeout_at: datetime | None
    closed_at: datetime | None
    decided_by: str | None
    progress: str
    claimed_by: str | None
    stuck: str | None
    revision: int
    mine: bool


class PageBody(BaseModel):
    """`after` leads to the next page."""

    rows: list[RowBody]
    after: str | None


class FormerBody(_View):
    """Decisions of an earlier round of the run. `kept`: they hold here too; `same`: it was just this question."""

    decisions: list[DecisionBody]
    kept: bool
    same: bool
    title: str


class PartBody(_View):
    """A part of the rule: how many decisions of whom. `takes`: a further one would count for it now."""

    words: str
    have: int
    need: int
    takes: bool


class ProgressBody(_View):
    """How many decisions there are of how many; `waits_for`: whose are missing, in words; `parts`: how many of whom."""

    have: int
    need: int
    text: str
    waits_for: str
    parts: list[PartBody]


class OptionBody(_View):
    """An outcome to choose from: with a form of its own (`answer_schema`), with a fixed `value`, or the ask's form."""

    name: str
    label: str
    consequence: str
    rejects: bool
    reason: bool
    style: str | None
    answer_schema: Annotated[dict[str, Any] | None, Field(validation_alias="schema")]
    has_value: bool
    value: Any


class ApprovalBody(_View):
    """A question as it is now. `why_not`: why whoever asks may not answer it; null: they may. `notes` are the newest
    of its thread, oldest first; `more_notes`: there are older ones.
    """

    id: str
    run: str
    workflow: str
    business_key: str | None
    step_no: int
    ask: str
    title: str
    body_html: str
    facts: dict[str, Any]
    answer_schema: Annotated[dict[str, Any], Field(validation_alias="schema")]
    options: list[OptionBody]
    sensitive: bool
    to: list[dict[str, str]]
    who: str
    kept_from: str
    not_requester: bool
    progress: ProgressBody
    requester: str | None
    state: str
    created_at: datetime
    due_at: datetime | None
    timeout_at: datetime | None
    closed_at: datetime | None
    closed_because: str | None
    on_timeout: str | None
    reminders: list[datetime]
    escalate_at: datetime | None
    extend: float | None
    claim: str
    claimed_by: str | None
    claimed_at: datetime | None
    stuck: str | None
    revision: int
    content_hash: str
    decisions: list[DecisionBody]
    former: FormerBody | None
    notes: list[NoteBody]
    more_notes: bool
    why_not: WhyBody | None


def as_json(item: ApprovalView) -> bytes:
    """A question just as `GET /approvals/{approval}` answers it."""
    return encode_json(ApprovalBody.model_validate(item).model_dump(mode="json"))


class ReceiptBody(_View):
    """What an answer was taken as. `complete`: the question is answered by now."""

    ledger_id: int
    approval: str
    run: str
    person: str
    at: datetime
    content_hash: str
    effect: str
    complete: bool
    progress: str


PROBLEMS = {
    status: ResponseSpec(dict[str, Any], description=text, media_type="application/problem+json")
    for status, text in {
        401: "No valid token",
        403: "Not by this person; `reason` says why",
        404: "Unknown, or not yours",
        409: "Too late, claimed, or seen in another state; `reason` says which",
        422: "Does not fit; `errors` lists fields",
    }.items()
}


def _backend(request: ApiRequest) -> Backend:
    return cast(Backend, request.app.state.backend)


async def _look(request: ApiRequest, approval: str, *, whole_thread: bool = False) -> ApprovalBody:
    item = await _backend(request).approval(request.user, name_of(approval), whole_thread=whole_thread)
    return ApprovalBody.model_validate(item)


async def _do(request: ApiRequest, doing: Doing, approval: str, **arguments: Any) -> ApprovalBody:
    """A deed, and the question as it is afterwards."""
    await _backend(request).act_on_approval(request.user, name_of(approval), doing, arguments, via=VIA)
    return await _look(request, approval)


@get("/approvals", responses=PROBLEMS, summary="List questions", operation_id="listApprovals")
async def list_approvals(
    request: ApiRequest, tab: FromQuery[Tab] = "mine", q: FromQuery[str] = "", after: FromQuery[str | None] = None
) -> PageBody:
    """The tabs of the inbox: mine, groups, requested, decided; all and stuck for operators. `q` searches."""
    page = await _backend(request).store.read(inbox, request.user, tab, q=q, after=after)
    return PageBody(rows=[RowBody.model_validate(row) for row in page.rows], after=page.after)


@get("/approvals/{approval:str}", responses=PROBLEMS, summary="Look at a question", operation_id="getApproval")
async def get_approval(
    request: ApiRequest, approval: FromPath[str], thread: FromQuery[Literal["newest", "all"]] = "newest"
) -> ApprovalBody:
    """The question with its decisions and the newest entries of its thread, or with all of them."""
    return await _look(request, approval, whole_thread=thread == "all")


def _told(deed: str, summary: str) -> dict[str, Any]:
    return {"status_code": 200, "responses": PROBLEMS, "summary": summary, "operation_id": f"{deed}Approval"}


@post("/approvals/{approval:str}/decide", **_told("decide", "Answer a question"))
async def decide(request: ApiRequest, approval: FromPath[str], data: JSONBody[DecideBody]) -> ReceiptBody:
    """Through the gate that every channel goes through; a refusal says by `reason` what was in the way."""
    receipt = await _backend(request).decide(
        request.user, name_of(approval), data.answer, revision=data.revision, via=VIA, option=data.option,
        comment=data.comment,
    )  # fmt: skip
    return ReceiptBody.model_validate(receipt)


@post("/approvals/{approval:str}/claim", **_told("claim", "Claim a question"))
async def claim(request: ApiRequest, approval: FromPath[str], data: JSONBody[ClaimBody]) -> ApprovalBody:
    """So that others need not look at it."""
    return await _do(request, "claim", approval, take_over=data.take_over)


@post("/approvals/{approval:str}/release", **_told("release", "Release a claim"))
async def release(request: ApiRequest, approval: FromPath[str], data: JSONBody[ReasonBody]) -> ApprovalBody:
    """One's own; operators release anybody's."""
    return await _do(request, "release", approval, reason=data.reason)


@post("/approvals/{approval:str}/reassign", **_told("reassign", "Put a question to others"))
async def reassign(request: ApiRequest, approval: FromPath[str], data: JSONBody[ReassignBody]) -> ApprovalBody:
    """Operators; whoever may decide hands on their own place."""
    return await _do(request, "reassign", approval, to=data.to, from_=data.from_, reason=data.reason)


@post("/approvals/{approval:str}/delegate", **_told("delegate", "Let somebody answer in one's place"))
async def delegate(request: ApiRequest, approval: FromPath[str], data: JSONBody[DelegateBody]) -> ApprovalBody:
    """Their decision says on whose behalf it is."""
    return await _do(request, "delegate", approval, to=data.to, reason=data.reason)


@post("/approvals/{approval:str}/escalate", **_told("escalate", "Escalate a question"))
async def escalate(request: ApiRequest, approval: FromPath[str], data: JSONBody[ReasonBody]) -> ApprovalBody:
    """Ask now those whom the question names for that."""
    return await _do(request, "escalate", approval, reason=data.reason)


@post("/approvals/{approval:str}/extend", **_told("extend", "Move a deadline"))
async def extend(request: ApiRequest, approval: FromPath[str], data: JSONBody[ExtendBody]) -> ApprovalBody:
    """By what the question allows; operators by as much as they say."""
    return await _do(request, "extend", approval, by=data.by, reason=data.reason)


@post("/approvals/{approval:str}/add", **_told("add", "Let others answer besides"))
async def add(request: ApiRequest, approval: FromPath[str], data: JSONBody[AddBody]) -> ApprovalBody:
    """For operators."""
    return await _do(request, "add", approval, to=data.to, reason=data.reason)


@post("/approvals/{approval:str}/comments", **_told("comments", "Write a comment"))
async def comment(request: ApiRequest, approval: FromPath[str], data: JSONBody[CommentBody]) -> ApprovalBody:
    """It stands in the question's thread, and the run can read it."""
    return await _do(request, "comment", approval, text=data.text)


HANDLERS = [list_approvals, get_approval, decide, claim, release, reassign, delegate, escalate, extend, add, comment]
