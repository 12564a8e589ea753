"""The page of one question: what is asked, what each answer does, the form, and what became of it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath
from markupsafe import Markup

from signoff.approvals.drafts import DraftView, approval_key
from signoff.approvals.inbox import InboxRow
from signoff.approvals.outlook import Outlook
from signoff.approvals.views import ApprovalView, DecisionView
from signoff.web import forms, say
from signoff.web.addresses import name_of, number_of
from signoff.web.api_approvals import as_json
from signoff.web.backend import Inbox
from signoff.web.pages import AnyRequest, backend_of, fragment, redirect, render, scope_of, send_fragment
from signoff.web.pages.choices import Choice, choices_of, chosen, told
from signoff.web.pages.inbox import Asked, chips_of, list_of, next_of, read_list
from signoff.workflow.errors import LimitExceeded, NotFound, Refused

# Characters of the question as data: the page is small, and whoever wants it whole has it as a file.
DATA_SHOWN = 8_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an answer was not taken, and what the person had before them when they sent it."""

    http: int
    text: str = ""
    revision: int | None = None


@get("/approvals")
async def inbox_page(request: AnyRequest) -> Response[Any]:
    """The list; on wide screens with its first question beside it, so that it can be answered at once."""
    asked = Asked.of(request)
    inbox = await read_list(request, asked)
    if not inbox.rows:
        return await _render(request, asked, inbox, "", {"item": None})
    item, draft = await _open(request, inbox.rows[0].id)
    return await _page(
        request, asked, inbox, item, choices_of(item, draft.data if draft else None), draft=draft, of_list=True
    )


@get("/approvals/{approval:str}")
async def approval_page(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    asked = Asked.of(request)
    item, draft = await _open(request, name_of(approval))
    inbox = await read_list(request, asked)
    return await _page(request, asked, inbox, item, choices_of(item, draft.data if draft else None), draft=draft)


async def _open(request: AnyRequest, approval: str) -> tuple[ApprovalView, DraftView | None]:
    """A question, with what the person typed for it and did not send, also when it is over by now."""
    backend, scope = backend_of(request), scope_of(request)
    item = await backend.approval(scope, approval, whole_thread=_whole_thread(request))
    return item, await backend.draft(scope, approval_key(approval))


def _whole_thread(request: AnyRequest) -> bool:
    return request.query_params.get("thread") == "all"


@get("/approvals/{approval:str}/state")
async def approval_state(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    """What became of the question while the page was open; what was typed there stays."""
    asked = Asked.of(request)
    item = await backend_of(request).approval(scope_of(request), name_of(approval), whole_thread=_whole_thread(request))
    seen = number_of(request.query_params.get("revision", ""))
    revision = item.revision if seen is None else seen
    following = None
    if item.state != "open" or (item.why_not is not None and item.why_not.reason == "voted"):
        following = next_of((await read_list(request, asked)).rows, item.id)
    outlook = await backend_of(request).outlook(scope_of(request), item.id) if item.state == "decided" else None
    return send_fragment(request, _state(request, asked, item, revision, following, outlook, live=True))


@get("/approvals/{approval:str}/question.json")
async def question_file(request: AnyRequest, approval: FromPath[str]) -> Response[bytes]:
    """The whole question as the API gives it, as a file."""
    item = await backend_of(request).approval(scope_of(request), name_of(approval), whole_thread=True)
    headers = {"content-disposition": f'attachment; filename="{item.id}.json"'}
    return Response(as_json(item), media_type="application/json", headers=headers)


@post("/approvals/{approval:str}")
async def decide(request: AnyRequest, approval: FromPath[str]) -> Response[Any]:
    backend, scope, name, asked = backend_of(request), scope_of(request), name_of(approval), Asked.of(request)
    sent = await read_form(request)
    try:
        item = await backend.approval(scope, name)
    except NotFound:
        await backend.decide(scope, name, None, revision=0, via="page")  # refuses too, and has it on record
        raise
    choices = choices_of(item)
    choice = chosen(choices, _last(sent, "option"))
    if choice is not None and choice.edit(sent):
        await keep_if_small(request, item, sent)
        return await _page(request, asked, await read_list(request, asked), item, choices)
    answer = choice.read(sent) if choice is not None else forms.MISSING
    revision = number_of(_last(sent, "revision")) or 0
    asked = Asked(asked.tab, asked.filters, asked.q, asked.after, next=bool(_last(sent, "then")))
    if item.why_not is None and (choice is None or answer is forms.MISSING):
        await backend.refuse(scope, name, Refused("form"), via="page")
        await keep_if_small(request, item, sent)
        return await _page(request, asked, await read_list(request, asked), item, choices, problem=Problem(422))
    following = next_of((await read_list(request, asked)).rows, name) if asked.next else None
    try:
        await backend.decide(
            scope, name, None if answer is forms.MISSING else answer, revision=revision, via="page",
            option=choice.option if choice is not None else None, comment=_last(sent, "comment").strip() or None,
        )  # fmt: skip
    except Refused as refusal:
        item = await backend.approval(scope, name)
        if _sent_twice(item, scope.actor, choice, answer):
            return _on_to(request, asked.item(name))
        problem = Problem(int(refusal.to_problem()["status"]), say.sentence(refusal.message), revision)
        if refusal.reason == "form":
            problem = Problem(422)
            if choice is not None:
                choice.blame(refusal)
        await keep_if_small(request, item, sent)
        return await _page(request, asked, await read_list(request, asked), item, choices, problem=problem)
    if following is not None:
        return _on_to(request, asked.item(following.id, receipt=name))
    return _on_to(request, asked.item(name))


def _on_to(request: AnyRequest, path: str) -> Response[Any]:
    """To the next page. A script that sent the form is told where it is: it could not read a redirect."""
    if request.headers.get("x-sent-by") == "script":
        return Response(b"", status_code=204, headers={"x-next": path})
    return redirect(path)


async def keep(request: AnyRequest, item: ApprovalView, sent: Mapping[str, Sequence[str]]) -> None:
    """What was typed for a question, as the person's draft; never its secrets, and nothing once they have answered."""
    backend, scope = backend_of(request), scope_of(request)
    key = approval_key(item.id)
    if any(one.person == scope.actor and not one.lapsed for one in item.decisions):
        return
    typed = {name: list(sent[name]) for name in forms.BESIDE if sent.get(name)}
    for choice in choices_of(item):
        typed |= choice.form.keeps(sent)
    await backend.save_draft(scope, key, typed, number_of(_last(sent, "revision")))


async def keep_if_small(request: AnyRequest, item: ApprovalView, sent: Mapping[str, Sequence[str]]) -> None:
    """As `keep`, before a page that shows what was typed: too much for a draft is still no reason to show it not."""
    with contextlib.suppress(LimitExceeded):
        await keep(request, item, sent)


async def read_form(request: AnyRequest) -> dict[str, list[str]]:
    sent: dict[str, list[str]] = defaultdict(list)
    for key, value in (await request.form()).multi_items():
        if isinstance(value, str):
            sent[key].append(value)
    return sent


def _last(sent: Mapping[str, Sequence[str]], name: str) -> str:
    return (sent.get(name) or [""])[-1]


def _sent_twice(item: ApprovalView, actor: str, choice: Choice | None, answer: Any) -> bool:
    """Whether just this answer of this person was taken already: a second press of the button is no error."""
    mine = next((one for one in item.decisions if one.person == actor and not one.lapsed), None)
    if mine is None or choice is None or answer is forms.MISSING or mine.option != choice.option:
        return False
    return choice.form.told(answer) == choice.form.told(mine.answer)


async def _page(
    request: AnyRequest,
    asked: Asked,
    inbox: Inbox,
    item: ApprovalView,
    choices: list[Choice],
    *,
    problem: Problem | None = None,
    draft: DraftView | None = None,
    of_list: bool = False,
) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    outlook = await backend.outlook(scope, item.id)
    receipt = request.query_params.get("receipt")
    former = None
    if receipt:
        with contextlib.suppress(NotFound):  # an address that somebody typed
            former = await backend.approval(scope, receipt)
    following = next_of(inbox.rows, item.id)
    seen = item.revision if problem is None or problem.revision is None else problem.revision
    data, is_cut = say.laid_out(as_json(item).decode(), DATA_SHOWN)
    return await _render(request, asked, inbox, item.id, {
        "item": item, "choices": choices, "outlook": outlook, "following": following,
        "problem": problem, "draft": draft, "draft_key": approval_key(item.id), "form_action": asked.item(item.id),
        "data": data, "data_is_cut": is_cut,
        "kept": item.why_not is not None and (problem is not None or draft is not None), "of_list": of_list,
        "state": _state(request, asked, item, seen, following, outlook),
        "former_answer": told(item, item.former.decisions[-1]) if item.former else [],
        "former": former, "former_lines": _lines(former, scope.actor) if former is not None else [],
    }, http=200 if problem is None else problem.http)  # fmt: skip


async def _render(
    request: AnyRequest, asked: Asked, inbox: Inbox, current: str, values: dict[str, Any], *, http: int = 200
) -> Response[Any]:
    return render(
        request, "approvals/page.html", http=http, place="inbox", badge=inbox.counts["mine"], asked=asked,
        rows=list_of(request, asked, inbox, current), items=inbox.rows, chips=chips_of(asked, inbox.workflows),
        # what the form's own buttons are sent to, also where the question stands beside its list
        here=asked.item(current) if current else asked.href(), **{"of_list": True, **values},
    )  # fmt: skip


def _state(
    request: AnyRequest,
    asked: Asked,
    item: ApprovalView,
    seen: int,
    following: InboxRow | None,
    outlook: Outlook | None,
    *,
    live: bool = False,
) -> Markup:
    scope = scope_of(request)
    over = ""
    if item.why_not is not None:
        over = say.sentence(item.why_not.text)
        if item.why_not.reason == "claim" and item.claimed_by is not None:
            release = (
                "release the claim to answer it"
                if item.can["release"] is None
                else "they or an operator can release it"
            )
            over = f"{say.person(item.claimed_name)} works on it; {release}."
    elif seen != item.revision:
        over = "The question changed after you opened it."
    decided = [(one, told(item, one)) for one in item.decisions if not one.lapsed]
    return fragment(
        request, "approvals/_state.html", item=item, asked=asked, seen=seen, over=over, following=following,
        decided=decided, actor=scope.actor, live=live, outlook=outlook,
        thread="all" if _whole_thread(request) else "",
    )  # fmt: skip


def _lines(item: ApprovalView, actor: str) -> list[tuple[str, str]]:
    mine: DecisionView | None = next((one for one in item.decisions if one.person == actor and not one.lapsed), None)
    return told(item, mine) if mine is not None else []


HANDLERS = [inbox_page, approval_page, approval_state, question_file, decide]
