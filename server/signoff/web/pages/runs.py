"""The list of runs, and the page of one: its state, its timeline, and what may be done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.engine.rounds import Prospect
from signoff.engine.status import Status
from signoff.engine.views import RunFilter, RunSummary, RunView, StepView
from signoff.people.permissions import may
from signoff.store.scope import Scope
from signoff.web import say, wording
from signoff.web.addresses import name_of, segment
from signoff.web.backend import ROWS, RunDetails
from signoff.web.fragments import Fragments, Rendering
from signoff.web.pages import (
    AnyRequest,
    backend_of,
    badge_of,
    fragment,
    impersonal,
    is_htmx,
    redirect,
    render,
    scope_of,
    send_fragment,
    shared_fragment,
)  # fmt: skip
from signoff.web.timeline import lay_out
from signoff.workflow.errors import Conflict, InvalidInput, NotFound

CHIPS = ("running", "waiting", "sleeping", "queued", "paused", "blocked", "completed", "failed", "canceled")
# a chip stands for the states that people see as one
_SAME = {"paused": ("paused", "pausing"), "canceled": ("canceled", "canceling")}


@dataclass(frozen=True, slots=True)
class Asked:
    """The list as the address asks for it."""

    status: tuple[str, ...]
    workflow: str | None
    label: str | None
    q: str | None

    @classmethod
    def of(cls, request: AnyRequest) -> Asked:
        query = request.query_params
        statuses = tuple(value for value in query.getall("status", []) if value in say.STATUS_WORDS)
        workflow, label, q = (query.get(name, "").strip()[:300] or None for name in ("workflow", "label", "q"))
        return cls(statuses, workflow, label if label and "=" in label else None, q)

    @property
    def any(self) -> bool:
        return bool(self.status or self.workflow or self.label or self.q)

    def filter(self) -> RunFilter:
        statuses = [Status(state) for chip in self.status for state in _SAME.get(chip, (chip,))]
        labels = dict([self.label.split("=", 1)]) if self.label else {}
        return RunFilter(status=statuses, workflow=self.workflow, labels=labels, text=self.q)

    def href(self, path: str = "/runs", **changes: Any) -> str:
        values = {"status": self.status, "workflow": self.workflow, "label": self.label, "q": self.q, **changes}
        query = urlencode([(key, value) for key, value in values.items() if value], doseq=True)
        return f"{path}?{query}" if query else path


def _chips(asked: Asked) -> dict[str, Any]:
    def toggled(status: str) -> tuple[str, ...]:
        without = tuple(item for item in asked.status if item != status)
        return without if status in asked.status else (*asked.status, status)

    others = []
    if asked.workflow:
        others.append({"label": asked.workflow, "href": asked.href(workflow=None)})
    if asked.label:
        others.append({"label": asked.label, "href": asked.href(label=None)})
    if asked.q:
        others.append({"label": f"“{asked.q}”", "href": asked.href(q=None)})
    statuses = [{"status": status, "on": status in asked.status, "href": asked.href(status=toggled(status))}
                for status in CHIPS]  # fmt: skip
    return {"all": asked.href(status=()), "statuses": statuses, "others": others}


async def _rows(request: AnyRequest, asked: Asked) -> dict[str, Any]:
    """The rows to show. `top` is the newest run that the reader has seen: newer ones wait behind a bar."""
    backend, scope = backend_of(request), scope_of(request)
    after, top = request.query_params.get("after"), request.query_params.get("top")
    page = await backend.runs(scope, asked.filter(), after, ROWS)
    items: list[RunSummary] = list(page.items)
    fresh = 0
    if top and not after:
        known = next((index for index, run in enumerate(items) if run.id == top), None)
        if known is None:
            top = None  # more new ones than a page holds, or the run is gone: begin anew
        elif known:
            fresh = known
            items = items[known:]
    first = top or (items[0].id if items else None)
    live = asked.href("/runs/rows", **({"after": after} if after else {"top": first}))
    older = asked.href(after=page.next) if page.next else None
    return {"page": items, "older": older, "live_href": live, "fresh": fresh, "newest": asked.href(),
            "filter": asked, "unattended": page.unattended}  # fmt: skip


@get("/runs")
async def runs_page(request: AnyRequest) -> Response[Any]:
    asked = Asked.of(request)
    rows = await _rows(request, asked)
    return render(
        request, "runs/list.html", place="runs", badge=await badge_of(request), filter=asked, chips=_chips(asked),
        q=asked.q or "", rows=impersonal(request, "runs/_rows.html", **rows),
    )  # fmt: skip


@get("/runs/rows")
async def runs_rows(request: AnyRequest) -> Response[Any]:
    asked, query, tenant = Asked.of(request), request.query_params, scope_of(request).tenant_id

    async def make() -> Rendering:
        return Rendering(impersonal(request, "runs/_rows.html", **await _rows(request, asked)))

    return await shared_fragment(request, ("runs", tenant), (asked, query.get("after"), query.get("top")), make)


# -- one run


def _live(request: AnyRequest, details: RunDetails, all_steps: bool) -> Any:
    now, run = backend_of(request).now(), details.run
    return impersonal(
        request,
        "runs/_live.html",
        run=run,
        sentence=wording.sentence(details, now),
        detail=wording.detail(details, now),
        actions=actions_for(scope_of(request), details),
        timeline=lay_out(run, details.steps, details.rounds, now),
        events=details.events,
        logs=details.logs,
        hidden=details.hidden,
        all_steps=all_steps,
    )


@get("/runs/{run:str}")
async def run_page(request: AnyRequest, run: FromPath[str]) -> Response[Any]:
    backend, scope, name = backend_of(request), scope_of(request), name_of(run)
    all_steps = request.query_params.get("steps") == "all"
    details = await backend.run_details(scope, name, all_steps=all_steps)
    cast("Fragments", request.app.state.fragments).learn(scope.tenant_id, name, details.key)
    panel = ""
    step = request.query_params.get("step", "")
    if step.isdecimal() and len(step) < 9:
        panel = await _panel(request, name, int(step))
    return render(
        request, "runs/run.html", place="runs", badge=await badge_of(request), run=details.run, panel=panel,
        favicon=str(details.run.status), live=_live(request, details, all_steps),
    )  # fmt: skip


@get("/runs/{run:str}/live")
async def run_live(request: AnyRequest, run: FromPath[str]) -> Response[Any]:
    all_steps = request.query_params.get("steps") == "all"
    scope, name, fragments = scope_of(request), name_of(run), cast("Fragments", request.app.state.fragments)
    key = fragments.key_of(scope.tenant_id, name)

    async def make() -> Rendering:
        details = await backend_of(request).run_details(scope, name, all_steps=all_steps)
        fragments.learn(scope.tenant_id, name, details.key)
        # who may answer a question that it waits for is a matter of more than the role
        return Rendering(_live(request, details, all_steps), details.key == key and not details.questions)

    if key is None:
        return send_fragment(request, (await make()).content)
    return await shared_fragment(request, ("run", key), all_steps, make)


async def _panel(request: AnyRequest, run: str, no: int) -> Any:
    view, step, logs = await backend_of(request).step(scope_of(request), run, no)
    restartable = view.status in say.FINAL or view.status in ("blocked", "paused")
    may_restart = restartable and step.retired_in is None and may(scope_of(request), "run.restart")
    return fragment(request, "runs/_panel.html", run=view, step=step, logs=logs, may_restart=may_restart)


@get("/runs/{run:str}/steps/{no:int}")
async def step_panel(request: AnyRequest, run: FromPath[str], no: FromPath[int]) -> Response[Any]:
    if not is_htmx(request):
        return redirect(f"/runs/{segment(name_of(run))}?step={no}")
    return send_fragment(request, await _panel(request, name_of(run), no))


# -- what may be done to it


@dataclass(frozen=True, slots=True)
class Deed:
    label: str
    href: str
    icon: str
    main: bool = False
    dialog: bool = True
    danger: bool = False


def actions_for(scope: Scope, details: RunDetails) -> list[Deed]:
    """What this person may do to the run in its state; the one that the state calls for is the main one."""
    run, here = details.run, f"/runs/{segment(details.run.id)}"
    deeds: list[Deed] = []
    for item in run.awaiting:
        question = details.questions.get(item.approval_id or "")
        if question is not None and question.mine:
            deeds.append(Deed("Answer", f"/approvals/{segment(question.id)}", "ask", not deeds, dialog=False))
    final = run.status in say.FINAL
    restartable = final or run.status in ("blocked", "paused")
    if may(scope, "run.control") and not final:
        if run.requested == "pause":
            deeds.append(Deed("Resume", f"{here}/resume", "running", not deeds))
        elif run.status not in ("canceling", "compensating"):
            deeds.append(Deed("Pause", f"{here}/pause", "paused"))
    if may(scope, "run.restart") and restartable:
        deeds.append(Deed("Restart", f"{here}/restart", "restart", run.status in ("failed", "blocked") and not deeds))
    if may(scope, "run.control") and not final and run.status != "canceling":
        deeds.append(Deed("Cancel the run", f"{here}/cancel", "canceled", danger=True))
    return deeds


def _consequences(action: str, details: RunDetails, prospect: Prospect | None) -> list[str]:
    run = details.run
    open_steps = [step for step in details.steps if step.ended_at is None and step.retired_in is None]
    asks = sum(step.kind == "ask" for step in open_steps)
    running = len(run.running)
    match action:
        case "cancel":
            lines = [f"Tells {say.count(running, 'running step')} to stop." if running else "Nothing more starts."]
            if asks:
                lines.append(f"Withdraws {say.count(asks, 'open question')}.")
            return [*lines, "What is done stays done, unless you have it undone. This cannot be taken back."]
        case "pause":
            lines = [f"{say.count(running, 'running step')} may finish." if running else "Nothing runs right now."]
            return [*lines, "Nothing new starts until somebody resumes it. Deadlines go on."]
        case "resume":
            return ["Goes on where it stopped. What arrived in between is taken up at once."]
        case _:
            return _restart_consequences(details, prospect) if prospect is not None else []


def _restart_consequences(details: RunDetails, prospect: Prospect) -> list[str]:
    live = [step for step in details.steps if step.retired_in is None]
    again = [step for step in live if step.no in prospect.retired]
    kept = len(live) - len(again)
    lines = [f"Keeps {say.count(kept, 'step')} with what came of {'it' if kept == 1 else 'them'}."] if kept else []
    if again:
        lines.append(f"Retires {say.count(len(again), 'step')}, which may run again.")
    done = [step for step in again if step.no in prospect.starts and step.kind == "action" and step.state == "success"]
    names = list(dict.fromkeys(step.name for step in done))
    if names:
        lines.append(f"Does {say.listed(names[:4], 'and')}{' and more' if len(names) > 4 else ''} a second time.")
    if kept_answers := len(prospect.answers):
        lines.append(f"Keeps {say.count(kept_answers, 'answer')}, where just the same is asked again.")
    if asks := sum(step.kind == "ask" and step.no not in prospect.answers for step in again):
        lines.append(f"Asks {say.count(asks, 'question')} again.")
    return [*lines, "The former round stays visible, and nothing is deleted."]


_HEADINGS = {
    "cancel": ("Cancel this run?", "Cancel the run"),
    "pause": ("Pause this run?", "Pause the run"),
    "resume": ("Resume this run?", "Resume the run"),
    "restart": ("Restart this run?", "Restart the run"),
}


def _why_not(action: str, run: RunView) -> str:
    """Why the state of the run leaves nothing to do, for a dialog that was open, or is come to by its address."""
    if action != "restart" and run.status in say.FINAL:
        return f"This run is over: it {_ENDS[run.status]}. Nothing is left to {action}."
    if action == "cancel" and run.status == "canceling":
        return "This run is being canceled already."
    return ""


_ENDS = {"completed": "is completed", "failed": "failed", "canceled": "was canceled"}


async def _dialog(
    request: AnyRequest,
    run: str,
    action: str,
    typed: dict[str, str],
    refusal: str = "",
    http: int = 200,
    again: Sequence[int] = (),
) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    details = await backend.run_details(scope, run, all_steps=action == "restart")
    heading, button = _HEADINGS[action]
    prospect, steps = None, [step for step in details.steps if step.retired_in is None]
    answers: list[StepView] = []
    if action == "restart":
        start = _step_no(typed["from_step"])
        prospect = await backend.restart_prospect(scope, run, start)
        answers = [step for step in details.steps if step.no in prospect.answers]
        steps = [step for step in steps if step.no in prospect.starts]
        if start is not None:
            heading, button = f"Restart from step {start}?", f"Restart from step {start}"
    return render(
        request,
        "runs/action.html",
        http=http,
        place="runs",
        run=details.run,
        action=action,
        heading=heading,
        button=button,
        consequences=_consequences(action, details, prospect),
        steps=steps,
        answers=answers,
        again=again,
        can_undo=details.can_undo,
        typed=typed,
        default_from=_default_from(details.run.status, steps),
        refusal=refusal,
        why_not=_why_not(action, details.run),
        in_dialog=is_htmx(request),
    )


def _default_from(status: str, steps: list[StepView]) -> str:
    if status == "failed" and (failed := next((step for step in reversed(steps) if step.state == "failure"), None)):
        return f"Where it failed: step {failed.no}, {failed.name}"
    return "Where it stopped"


def _step_no(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 9 else None


@get("/runs/{run:str}/{action:str}")
async def action_dialog(request: AnyRequest, run: FromPath[str], action: FromPath[str]) -> Response[Any]:
    if action not in _HEADINGS:
        raise NotFound(f"there is no page {action!r} of a run")
    typed = {"reason": "", "compensate": "", "from_step": request.query_params.get("from", "")}
    return await _dialog(request, name_of(run), action, typed)


@post("/runs/{run:str}/{action:str}")
async def act(request: AnyRequest, run: FromPath[str], action: FromPath[str]) -> Response[Any]:
    if action not in _HEADINGS:
        raise NotFound(f"there is no page {action!r} of a run")
    backend, scope, name = backend_of(request), scope_of(request), name_of(run)
    form = await request.form()
    typed = {key: str(form.get(key, ""))[:2000] for key in ("reason", "from_step", "compensate")}
    reason = typed["reason"].strip() or None
    again = [no for text in form.getall("ask_again", []) if (no := _step_no(str(text))) is not None]
    try:
        match action:
            case "cancel":
                await backend.cancel(scope, name, reason=reason, compensate=bool(typed["compensate"]), via="page")
            case "pause":
                await backend.pause(scope, name, via="page")
            case "resume":
                await backend.resume(scope, name, via="page")
            case _:
                step = _step_no(typed["from_step"])
                await backend.restart(scope, name, from_step=step, ask_again=again, reason=reason, via="page")
    except (Conflict, InvalidInput) as error:
        if isinstance(error, InvalidInput):
            typed["from_step"] = ""
        http = 409 if isinstance(error, Conflict) else 422
        return await _dialog(request, name, action, typed, say.sentence(str(error)), http=http, again=again)
    return redirect(f"/runs/{segment(name)}")


HANDLERS = [runs_page, runs_rows, run_page, run_live, step_panel, action_dialog, act]
