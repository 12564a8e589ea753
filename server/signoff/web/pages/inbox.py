"""The inbox of open questions, and the page on which one is decided."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.approvals.views import ApprovalView
from signoff.web import forms, say
from signoff.web.addresses import name_of, segment
from signoff.web.backend import Inbox
from signoff.web.pages import (
    AnyRequest,
    backend_of,
    badge_of,
    fragment,
    redirect,
    render,
    scope_of,
    send_fragment,
)  # fmt: skip
from signoff.workflow.errors import Refused

HISTORY = 30


def _list(request: AnyRequest, inbox: Inbox, current: str = "") -> Any:
    return fragment(request, "approvals/_rows.html", rows=inbox.rows, total=inbox.total, current=current)


@get("/")
async def start_page(request: AnyRequest) -> Response[Any]:
    scope = scope_of(request)
    person = scope.person
    return redirect("/approvals" if person is None or person.role != "viewer" else "/runs")


@get("/badge")
async def badge(request: AnyRequest) -> Response[Any]:
    return send_fragment(request, fragment(request, "_badge.html", badge=await badge_of(request)))


@get("/approvals")
async def inbox_page(request: AnyRequest) -> Response[Any]:
    inbox = await backend_of(request).inbox(scope_of(request))
    return render(request, "approvals/list.html", place="inbox", badge=inbox.total, items=inbox.rows,
                  rows=_list(request, inbox))  # fmt: skip


@get("/approvals/rows")
async def inbox_rows(request: AnyRequest) -> Response[Any]:
    inbox = await backend_of(request).inbox(scope_of(request))
    return send_fragment(request, _list(request, inbox, request.query_params.get("open", "")))


@get("/approvals/{approval:str}")
async def approval_page(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    item = await backend_of(request).approval(scope_of(request), name_of(approval))
    return await _page(request, item, forms.build(item.schema))


@get("/approvals/{approval:str}/state")
async def approval_state(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    """What became of the question while the page was open; what was typed there stays."""
    item = await backend_of(request).approval(scope_of(request), name_of(approval))
    seen = request.query_params.get("revision", "")
    inbox = await backend_of(request).inbox(scope_of(request)) if item.state != "open" else None
    return send_fragment(request, _state(request, item, int(seen) if seen.isdecimal() else item.revision, inbox))


@post("/approvals/{approval:str}")
async def decide(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    backend, scope, name = backend_of(request), scope_of(request), name_of(approval)
    sent: dict[str, list[str]] = defaultdict(list)
    for key, value in (await request.form()).multi_items():
        if isinstance(value, str):
            sent[key].append(value)
    item = await backend.approval(scope, name)
    form = forms.build(item.schema)
    answer = form.read(sent)
    revision = sent["revision"][-1] if sent["revision"] else ""
    if answer is forms.MISSING and item.why_not is None:
        return await _page(request, item, form, http=422)
    try:
        await backend.decide(scope, name, None if answer is forms.MISSING else answer,
                             revision=int(revision) if revision.isdecimal() else 0, via="page")  # fmt: skip
    except Refused as refusal:
        item = await backend.approval(scope, name)
        if (
            refusal.reason == "already_decided"
            and item.decision is not None
            and scope.person is not None
            and item.decision.person == scope.person.actor
            and answer is not forms.MISSING
            and form.told(answer) == form.told(item.decision.answer)
        ):
            return redirect(f"/approvals/{segment(name)}")  # sent twice: the first was taken
        if refusal.reason == "form":
            form.blame(refusal.fields)
            if not refusal.fields:
                form.errors.append(say.sentence(refusal.message))
            return await _page(request, item, form, http=422)
        problem = refusal.to_problem()
        return await _page(request, item, form, http=int(problem["status"]), refusal=say.sentence(refusal.message),
                           seen=int(revision) if revision.isdecimal() else item.revision)  # fmt: skip
    return redirect(f"/approvals/{segment(name)}")


async def _page(
    request: AnyRequest,
    item: ApprovalView,
    form: forms.Form,
    *,
    http: int = 200,
    refusal: str = "",
    seen: int | None = None,
) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    inbox = await backend.inbox(scope)
    before = await backend.steps_before(scope, item.run, item.step_no, HISTORY) if item.step_no else []
    steps = [step for step in before if step.retired_in is None and step.no < item.step_no]
    now = backend.now()
    return render(
        request, "approvals/approval.html", http=http, place="inbox", badge=inbox.total, item=item, form=form,
        rows=_list(request, inbox, item.id), late=item.due_at is not None and item.due_at < now, refusal=refusal,
        state=_state(request, item, item.revision if seen is None else seen, inbox), history=steps,
        kept=http != 200 and item.why_not is not None,
    )  # fmt: skip


def _state(request: AnyRequest, item: ApprovalView, seen: int, inbox: Inbox | None) -> Any:
    scope = scope_of(request)
    mine = item.decision is not None and scope.person is not None and item.decision.person == scope.person.actor
    following = next((row for row in inbox.rows if row.id != item.id), None) if inbox is not None else None
    over = ""
    if item.why_not is not None:
        over = say.sentence(item.why_not.text)
    elif seen != item.revision:
        over = "The question changed after you opened it."
    return fragment(
        request, "approvals/_state.html", item=item, mine=mine, seen=seen, over=over, following=following,
        lines=forms.build(item.schema).told(item.decision.answer) if item.decision is not None else [],
    )  # fmt: skip


HANDLERS = [start_page, badge, inbox_page, inbox_rows, approval_page, approval_state, decide]
