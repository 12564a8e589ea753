"""Runs and steps in sentences: what a run does and waits for, what became of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from signoff.approvals.words import yes_or_no
from signoff.web import say
from signoff.web.addresses import segment

STEP_STATES = {
    "open": "Waiting",
    "running": "Running",
    "backoff": "Waiting to try again",
    "delayed": "Starts later",
    "success": "Done",
    "failure": "Failed",
    "timeout": "Nobody came in time",
    "canceled": "Canceled",
}
_TONES = {
    "running": "running",
    "backoff": "sleeping",
    "delayed": "sleeping",
    "success": "completed",
    "failure": "failed",
    "timeout": "canceled",
    "canceled": "canceled",
}


def tone(step: Any) -> str:
    """The status colour of a step."""
    if step.state == "open":
        return "waiting" if step.kind == "ask" else "sleeping" if step.kind == "sleep" else "queued"
    return _TONES.get(step.state, "queued")


def step_state(step: Any) -> str:
    if step.kind == "ask":
        named = {"open": "Waiting for an answer", "success": "Answered", "timeout": "Nobody answered in time"}
        if step.state in named:
            return named[step.state]
    if step.kind == "event" and step.state == "open":
        return "Waiting for the message"
    if step.kind == "child" and step.state == "open":
        return "Waiting for the child run"
    if step.kind == "sleep" and step.state == "open":
        return "Sleeping"
    if step.state == "canceled" and step.by_handler:
        return "Not needed any more"
    if step.kind in ("query", "mutation", "action") and step.state == "open":
        return "About to start"
    return STEP_STATES[step.state]


def step_note(step: Any) -> str:
    """The few words beside a step's name in the timeline."""
    parts = []
    match step.state:
        case "failure":
            parts.append(step.error.message if step.error is not None else "failed")
        case "backoff":
            parts.append(f"try {step.attempts + step.lost + 1} follows")
        case "running":
            if step.attempts or step.lost:
                parts.append(f"try {step.attempts + step.lost + 1}")
            if step.progress is not None and step.progress.text:
                parts.append(step.progress.text)
        case "success" if step.attempts:
            parts.append(f"after {say.count(step.attempts, 'failed try', 'failed tries')}")
        case "timeout":
            parts.append("nobody answered" if step.kind == "ask" else "nothing came")
        case "canceled":
            parts.append("not needed any more" if step.by_handler else "canceled")
        case "open" if step.kind == "ask":
            parts.append("waits for an answer")
        case _:
            pass
    return ", ".join(parts)


def step_title(step: Any) -> str:
    """What a step is called on approvers' pages: `payments/reserve` is `Payments: reserve`."""
    group, _, name = step.name.rpartition("/")
    if not group:
        return say.words(name)
    return f"{say.words(group.rsplit('/', 1)[-1])}: {_low(say.words(name))}"


def _low(text: str) -> str:
    """To go on with inside a sentence. An abbreviation stays as it is."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def told(step: Any) -> str:
    """A step that is over, or what it does, as approvers read it: no kinds, no numbers."""
    name = step_title(step)
    match step.state:
        case "success":
            return {"ask": f"{name}, answered", "event": f"{name}, arrived", "sleep": "Waited"}.get(step.kind, name)
        case "failure":
            return f"{name}, failed"
        case "timeout":
            return f"{name}, nobody answered in time" if step.kind == "ask" else f"{name}, did not come in time"
        case "canceled":
            return f"{name}, not needed any more"
        case _:
            return f"{name}, {_low(step_state(step))}"


@dataclass(frozen=True, slots=True)
class Line:
    """Something that goes on or follows: a sign, words, when it began or is to happen, and where it is seen."""

    icon: str
    tone: str
    text: str
    at: datetime | None
    href: str = ""


def under_way(outlook: Any) -> list[Line]:
    """What else a run has open beside a question."""
    return [_under_way(step, outlook.others.get(step.no)) for step in outlook.besides]


def _under_way(step: Any, question: Any) -> Line:
    name, moment, href = step_title(step), step.due_at, ""
    match step.kind:
        case "ask" if question is not None:
            text, href = f"“{_brief(question.title)}” waits for {question.who}", f"/approvals/{segment(question.id)}"
        case "sleep":
            text = "A timer ends" if moment is not None else "A timer runs"
        case "event":
            text = f"{name} is waited for" + (", and given up" if moment is not None else "")
        case "child":
            text, moment = f"{name}, a run of its own, is under way", step.asked_at
            href = f"/runs/{segment(step.child_run)}" if step.child_run else ""
        case _ if step.state == "backoff":
            text = f"{name} failed and is tried again"
        case _ if step.state == "delayed":
            text = f"{name} begins"
        case _:
            text, moment = f"{name} {'runs' if step.state == 'running' else 'is about to start'}", step.asked_at
    return Line(step.kind, tone(step), text, moment or step.asked_at, href)


_ENDED = {"completed": "The run completed", "failed": "The run failed", "canceled": "The run was canceled"}


def followed(last: Any) -> list[Line]:
    """What came after the same question the last time, and how that run ended."""
    lines = [Line(step.kind, tone(step), told(step), None) for step in last.steps]
    end = Line(last.ended, f"{last.ended}", _ENDED.get(last.ended, ""), None)
    return [*lines, Line("more", "queued", "More steps", None), end] if last.more else [*lines, end]


def awaiting(item: Any, questions: Mapping[str, Any]) -> str:
    """What a run waits for, as the rest of a sentence that begins with `Waits`."""
    match item.kind:
        case "ask":
            question = questions.get(item.approval_id or "")
            return (
                f"for {question.who} to answer “{_brief(question.title)}”"
                if question
                else f"for an answer to {item.name}"
            )
        case "event":
            return f"for the message {item.name}"
        case "child":
            return f"for the child run {item.name}"
        case "pool":
            return f"for room in the pool {item.name}"
        case "sleep":
            return "for its time to come"
        case _:
            return f"for {item.name}"


def doing(run: Any, now: datetime) -> str:
    """What a list says beside a run: how long it took, or when it goes on."""
    if run.ended_at is not None:
        return f"took {say.duration(run.ended_at - run.created_at)}"
    if run.status in ("sleeping", "queued") and run.next_wake_at is not None and run.next_wake_at > now:
        return Markup("goes on {}").format(say.ticking(run.next_wake_at, now))
    return Markup('for <span data-since="{}">{}</span>').format(
        say.iso(run.created_at), say.duration(now - run.created_at)
    )


_BLOCKED = {
    "mismatch": "the code no longer fits what this run recorded",
    "no_code": "no worker has the code of this workflow",
    "stuck": "its code ran on without coming to a step",
    "internal": "Signoff could not go on with it",
}


def sentence(details: Any, now: datetime) -> str:
    """The state of a run in one sentence."""
    run = details.run
    match run.status:
        case "queued":
            if run.next_wake_at is not None and run.next_wake_at > now:
                return Markup("Starts {}").format(say.ticking(run.next_wake_at, now))
            return "Queued, and starts as soon as a worker is free"
        case "running":
            names = [step.name for step in run.running]
            if not names:
                return "Running"
            if len(names) > 3:
                return f"Running {say.count(len(names), 'step')} at once"
            return f"Running {say.listed(names, 'and')}"
        case "waiting":
            asks = [item for item in run.awaiting if item.kind == "ask"]
            first = next(iter(asks or run.awaiting), None)
            if first is None:
                return "Waiting"
            rest = len(run.awaiting) - 1
            more = f", and for {say.count(rest, 'other thing')}" if rest else ""
            return f"Waits {awaiting(first, details.questions)}{more}"
        case "sleeping":
            backoff = next((step for step in details.steps if step.state == "backoff"), None)
            if backoff is not None:
                return Markup("Tries {} again {}").format(backoff.name, say.ticking(backoff.due_at, now))
            if run.next_wake_at is not None:
                return Markup("Sleeps, and goes on {}").format(say.ticking(run.next_wake_at, now))
            return "Sleeping"
        case "pausing":
            return "Pausing: what runs now is finished first"
        case "paused":
            return "Paused: nothing new starts until it is resumed"
        case "blocked":
            return f"Blocked: {_BLOCKED.get((run.blocked or {}).get('code', ''), _BLOCKED['mismatch'])}"
        case "canceling":
            return "Canceling: what it began is wound up first"
        case "compensating":
            return "Undoing what already happened"
        case "completed":
            return f"Completed in {say.duration(run.ended_at - run.created_at)}" if run.ended_at else "Completed"
        case "failed":
            failed = _failed_step(details)
            if failed is not None:
                return f"Failed at {failed.name}: {_brief(failed.error.message)}"
            return f"Failed: {_brief(run.error.message)}" if run.error is not None else "Failed"
        case _:
            return f"Canceled {say.relative(run.ended_at, now)}" if run.ended_at else "Canceled"


def _failed_step(details: Any) -> Any:
    """The step whose error ended the run, if one did."""
    error = details.run.error
    found = (step for step in details.steps if error is not None and step.no == error.step_no)
    return next((step for step in found if step.error is not None), None)


def _brief(text: str, most: int = 140) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def detail(details: Any, now: datetime) -> str:
    """A second line where one sentence is not enough: deadlines, reasons."""
    run = details.run
    if run.hint is not None:
        return f"It stands still: {run.hint}."
    if run.status == "waiting":
        due = [item.due_at for item in run.awaiting if item.due_at is not None and item.kind in ("ask", "event")]
        return Markup("It gives up {}.").format(say.ticking(min(due), now)) if due else ""
    if run.error is not None and run.status == "canceled":
        actor = run.error.data.get("actor") if isinstance(run.error.data, dict) else None
        by = f" (by {say.person(actor)})" if actor else ""
        return say.sentence(f"{run.error.message}{by}")
    if run.error is not None and run.status == "failed":
        failed = _failed_step(details)
        return f"{failed.error.type} in step {failed.no}." if failed else f"{run.error.type}."
    return ""


def problem_words(problem: Any) -> str:
    """Why an event was set aside."""
    if isinstance(problem, dict):
        problem = problem.get("errors", problem.get("fields", [problem]))
    lines = []
    for item in problem if isinstance(problem, list) else [problem]:
        if isinstance(item, dict):
            loc = ".".join(str(part) for part in item.get("loc", ()))
            lines.append(": ".join(part for part in (loc, str(item.get("message", ""))) if part))
        else:
            lines.append(str(item))
    return "; ".join(lines)


_AT_THE_END = {
    "default": "the default answer is taken",
    "raise": "the run goes on without an answer",
    "cancel_run": "the run is canceled",
}


def coming_up(item: Any) -> list[tuple[str, str, datetime]]:
    """What a question is known to bring by itself, in order of time: a sign, words, and when."""
    if item.state != "open":
        return []
    known = [("clock", "Reminder", moment) for moment in item.reminders]
    if item.due_at is not None:
        known.append(("clock", "Due", item.due_at))
    if item.escalate_at is not None:
        known.append(("people", "Others are asked too", item.escalate_at))
    if item.timeout_at is not None:
        known.append(("canceled", f"Closes: {_AT_THE_END[item.on_timeout or 'raise']}", item.timeout_at))
    return sorted(known, key=lambda line: line[2])


def timed_out(item: Any) -> str:
    """What happened when nobody answered in time."""
    return say.sentence(_AT_THE_END[item.on_timeout or "raise"].replace("is taken", "was taken").replace(
        "goes on", "went on").replace("is canceled", "was canceled"))  # fmt: skip


NOTE_ICONS = {
    "claim": "hand", "release": "hand", "reassign": "people", "add": "people", "delegate": "user", "escalate": "warn",
    "remind": "clock", "extend": "clock", "change": "mutation", "lapse": "restart", "kept": "restart",
    "again": "restart",
}  # fmt: skip


def note_words(note: Any) -> str:
    """What happened to a question, as a sentence without its reason."""
    who, data = say.person(note.name) if note.actor else "Signoff", note.data
    to, of = _those(data.get("to")), _those([data["from"]] if isinstance(data.get("from"), dict) else data.get("from"))
    match note.kind:
        case "claim":
            return f"{who} works on it"
        case "release":
            return (
                f"{who} released the claim of {say.person(data['of'])}"
                if data.get("of")
                else f"{who} left it to others"
            )
        case "reassign":
            return f"{who} asked {to} instead of {of or 'everybody'}"
        case "add":
            return f"{who} asked {to} besides"
        case "delegate":
            return f"{who} lets {to} answer"
        case "escalate":
            return f"{who} escalated it to {to}" if note.actor else f"Escalated to {to}"
        case "remind":
            return "Reminder"
        case "extend":
            return f"{who} gave it {say.duration(data['by'])} more" if data.get("by") else f"{who} gave it more time"
        case "change":
            return "The question changed"
        case "lapse":
            return "Answers that were given before do not count any more"
        case "kept":
            return "The answer of an earlier round was kept"
        case "again":
            return "Asked again"
        case _:
            return say.words(note.kind)


def _those(to: Any) -> str:
    if isinstance(to, str):
        return say.person(to)
    names = [f"anyone in {item['group']}" if "group" in item else f"every {item['role']}" if "role" in item
             else say.person(item.get("user")) for item in to or () if isinstance(item, dict)]  # fmt: skip
    return say.listed(names)


def differences(item: Any) -> list[tuple[str, str | None, str | None]]:
    """What of a question is not as it was when the person answered: a label, before, after."""
    was, lines = item.changed, []
    if was.title is not None and was.title != item.title:
        lines.append(("Question", was.title, item.title))
    if was.facts is not None:
        for key in dict.fromkeys([*was.facts, *item.facts]):
            before, after = (say.plain(facts[key]) if key in facts else None for facts in (was.facts, item.facts))
            if before != after:
                lines.append((say.words(key), before, after))
    if was.body is not None:
        lines.append(("Text", was.body, "as it stands above"))
    return lines


def verdict(content: Mapping[str, Any]) -> str:
    """What a row of the record decided, in a word or two: its option, or yes or no; empty where that says nothing."""
    if content.get("option"):
        return say.words(content["option"])
    return yes_or_no(content.get("answer"))


_EFFECTS = {
    "paused": "The run is paused and takes the answer when it is resumed.",
    "blocked": "The run is blocked and takes the answer when it goes on.",
}


def effect(outlook: Any) -> str:
    """What an answer did, on its receipt: with what the run went on, as far as it is known."""
    if outlook.after:
        return f"The run went on with “{step_title(outlook.after[0])}”."
    return _EFFECTS.get(outlook.run) or (f"{_ENDED[outlook.run]}." if outlook.run else "The run goes on.")


def stuck_words(item: Any) -> str:
    """Why a question cannot be answered as things stand."""
    match item.stuck:
        case "only_requester":
            return f"Only {say.person(item.requester_name)} could, who asked for the run and must not."
        case "too_few":
            return f"It needs {item.progress.need} answers, and there are not as many who may: {item.who}."
        case _:
            return f"It is put to {item.who}, and there is nobody of them who may."
