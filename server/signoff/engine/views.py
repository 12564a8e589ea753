"""What pages, API and handles see of runs: projections, never rows.

Every view takes one set of queries, however many rows it shows. Values are JSON text; sensitive ones are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from signoff.engine.definitions import D
from signoff.engine.lookup import find_run, in_scope
from signoff.engine.outcomes import R, Row, S
from signoff.engine.status import ATTENDED, CODELESS, FINAL_STATUSES, OPEN, Status, status_clause, status_of
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tables import Approval, Attempt, Completion, Event, Label, LogLine, PoolSlot, Round, Tenant
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput
from signoff.workflow.kinds import FUNCTION_KINDS, ErrorInfo, OutcomeKind, RunState, StepKind

T = Tenant.__table__
E = Event.__table__
APPROVAL = Approval.__table__
ATTEMPT = Attempt.__table__
DONE = Completion.__table__
LABEL = Label.__table__
LOG = LogLine.__table__
ROUND = Round.__table__
SLOT = PoolSlot.__table__

# they say themselves why they do not go on
_RESTING = FINAL_STATUSES | {Status.BLOCKED, Status.PAUSED}

REDACTED = '"[redacted]"'  # as JSON text

StepShown = Literal[
    "open", "running", "backoff", "delayed", "success", "failure", "timeout", "canceled"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """A try that failed or was lost. `next_at`: when the next one is due."""

    number: int
    started_at: datetime | None
    ended_at: datetime
    error: ErrorInfo
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepView:
    no: int
    kind: str
    name: str
    generation: int
    retired_in: int | None
    state: StepShown
    asked_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    attempts: int
    lost: int
    args: str | None
    result: str | None
    error: ErrorInfo | None
    progress: Progress | None
    child_run: str | None
    approval: str | None
    by_handler: bool
    pool: str | None
    attempt_rows: tuple[AttemptView, ...] = ()


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for. `who`: the selectors of those who may answer, as plain JSON."""

    kind: str  # event, ask, child, sleep, pool
    name: str
    step_no: int
    since: datetime
    due_at: datetime | None = None
    who: tuple[Any, ...] = ()
    approval_id: str | None = None
    child_run: str | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of a list."""

    id: str
    workflow: str
    version: int
    tenant: str
    status: Status
    generation: int
    priority: int
    labels: Mapping[str, str]
    requester: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_wake_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is now. `version_no` only grows. `hint`: why it stands still although nothing is wrong with it."""

    id: str
    workflow: str
    version: int
    tenant: str
    status: Status
    generation: int
    priority: int
    labels: Mapping[str, str]
    requester: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    args: str | None
    result: str | None
    error: ErrorInfo | None
    blocked: Mapping[str, Any] | None
    hint: str | None
    requested: str
    next_wake_at: datetime | None
    awaiting: tuple[Awaited, ...]
    running: tuple[StepView, ...]
    forked_from: str | None
    completion: CompletionView | None
    version_no: int


@dataclass(frozen=True, slots=True)
class EventView:
    id: str
    run: str
    name: str
    by_id: bool
    state: str  # created, buffered, consumed, set_aside
    value: str | None
    is_error: bool
    problem: Mapping[str, Any] | None
    sender: str | None
    channel: str | None
    idempotency_key: str | None
    created_at: datetime
    sent_at: datetime | None
    consumed_by: int | None


@dataclass(frozen=True, slots=True)
class LogView:
    id: int
    step_no: int | None
    attempt: int | None
    at: datetime
    level: str
    message: str
    data: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RoundView:
    """A restart or fork. `former` is how the round before had ended: result_kind, value, error, ended_at."""

    generation: int
    started_at: datetime
    actor: str | None
    reason: str | None
    former: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class CompletionView:
    """An on_complete that did not succeed in the transaction that ended the run."""

    done: bool
    attempts: int
    next_at: datetime | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What a list shows; all given conditions hold. `text` begins a run's id, or stands in a name or label."""

    status: Sequence[Status] = ()
    workflow: str | None = None
    version: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
    parent: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """`next` goes into the next call as `after`; None: there is no more.

    `unattended`: some of these could go on, but no worker is running.
    """

    items: tuple[RunSummary, ...]
    next: str | None
    unattended: bool = False


def run_view(tx: Tx, scope: Scope, run: str) -> RunView:
    """Raises NotFound for unknown and foreign ids alike, as every view here."""
    row = _runs_row(tx, scope, run)
    steps = tx.conn.execute(
        _steps_select(row.id)
        .where(S.c.outcome_no.is_(None), S.c.retired_in.is_(None), S.c.kind.not_in((StepKind.MARKER, StepKind.CANCEL)))
        .order_by(S.c.no)
    ).all()
    slots = _slots(tx, row.id, steps)
    texts = _texts(tx, [row.args, row.value, row.error, *_values(steps)])
    shown = [_step_view(step, tx.now, row, slots, texts, ()) for step in steps]
    options = json.loads(row.options) if row.options else {}
    secret = bool(options.get("sensitive"))
    waits = [wait for step, view in zip(steps, shown, strict=True) if (wait := _awaited(step, view)) is not None]
    return RunView(
        **_summary_fields(row),
        parent=row.parent,
        args=_text(row.args, texts, secret),
        result=_text(row.value, texts, secret),
        error=_error(row.error, texts),
        blocked=_blocked(row),
        hint=_hint(row),
        requested=row.requested,
        awaiting=tuple(waits),
        running=tuple(view for view in shown if view.state == "running"),
        forked_from=options.get("forked_from"),
        completion=_completion(tx, row) if options.get("on_complete") and row.state == RunState.FINAL else None,
        version_no=row.touch_no,
    )


def steps_view(tx: Tx, scope: Scope, run: str, *, after: int = -1, limit: int | None = None) -> list[StepView]:
    """The journal in the order of asking, retired rows too; `after` is the number of the last step seen."""
    row = find_run(tx, scope, run)
    return _shown(tx, row, _steps_select(row.id).where(S.c.no > after), limit)


def open_steps_view(tx: Tx, scope: Scope, run: str, *, limit: int | None = None) -> list[StepView]:
    """What a run has under way, in the order of asking."""
    row = find_run(tx, scope, run)
    return _shown(tx, row, _steps_select(row.id).where(S.c.outcome_no.is_(None), S.c.retired_in.is_(None)), limit)


def steps_following(tx: Tx, scope: Scope, run: str, no: int, *, limit: int | None = None) -> list[StepView]:
    """What a run asked for after step `no` had its outcome, in the order of asking; nothing while it has none."""
    row = find_run(tx, scope, run)
    came = sa.select(S.c.outcome_no).where(S.c.run_id == row.id, S.c.no == no).scalar_subquery()
    later = _steps_select(row.id).where(S.c.no > no, S.c.retired_in.is_(None), S.c.asked_after >= came)
    return _shown(tx, row, later, limit)


def _shown(tx: Tx, row: Row, select: sa.Select[Any], limit: int | None) -> list[StepView]:
    """Those of a run's steps that are no bookkeeping, with their failed tries."""
    select = select.where(S.c.kind.not_in((StepKind.MARKER, StepKind.CANCEL))).order_by(S.c.no)
    steps = tx.conn.execute(select.limit(limit)).all()
    slots = _slots(tx, row.id, steps)
    texts = _texts(tx, _values(steps))
    tries: dict[int, list[AttemptView]] = {}
    if any(step.attempts or step.lost for step in steps):
        within = ATTEMPT.c.step_no.between(steps[0].no, steps[-1].no)
        rows = tx.conn.execute(
            sa.select(ATTEMPT).where(ATTEMPT.c.run_id == row.id, within).order_by(ATTEMPT.c.step_no, ATTEMPT.c.number)
        )
        for item in rows:
            error = ErrorInfo.from_json(json.loads(item.error))
            view = AttemptView(item.number, item.started_at, item.ended_at, error, item.next_at)
            tries.setdefault(item.step_no, []).append(view)
    return [_step_view(step, tx.now, row, slots, texts, tuple(tries.get(step.no, ()))) for step in steps]


def events_view(tx: Tx, scope: Scope, run: str, *, last: int | None = None) -> list[EventView]:
    """Oldest first; `last`: only so many of the newest."""
    row = find_run(tx, scope, run)
    newest = tx.conn.execute(sa.select(E).where(E.c.run_id == row.id).order_by(E.c.id.desc()).limit(last)).all()
    rows = newest[::-1]
    texts = _texts(tx, [item.value for item in rows])
    return [_event_view(item, run, texts) for item in rows]


def event_view(tx: Tx, row: Row, run: str) -> EventView:
    return _event_view(row, run, _texts(tx, [row.value]))


def logs_view(tx: Tx, scope: Scope, run: str, *, after: int = 0, limit: int = 1_000) -> list[LogView]:
    """Oldest first; `after` is the id of the last line seen."""
    row = find_run(tx, scope, run)
    newer = sa.select(LOG).where(LOG.c.run_id == row.id, LOG.c.id > after)
    return [_log_view(line) for line in tx.conn.execute(newer.order_by(LOG.c.id).limit(limit))]


def last_logs_view(tx: Tx, scope: Scope, run: str, limit: int, *, step_no: int | None = None) -> list[LogView]:
    """The newest lines, of the whole run or of one step, the oldest of them first."""
    row = find_run(tx, scope, run)
    query = sa.select(LOG).where(LOG.c.run_id == row.id).order_by(LOG.c.id.desc()).limit(limit)
    lines = tx.conn.execute(query if step_no is None else query.where(LOG.c.step_no == step_no)).all()
    return [_log_view(line) for line in lines[::-1]]


def _log_view(line: Row) -> LogView:
    data = json.loads(line.data) if line.data else None
    return LogView(line.id, line.step_no, line.attempt, line.at, line.level, line.message, data)


def rounds_view(tx: Tx, scope: Scope, run: str) -> list[RoundView]:
    """The restarts of a run (and the fork that made it), oldest first; none for a run that was only started."""
    row = find_run(tx, scope, run)
    secret = bool(json.loads(row.options or "{}").get("sensitive"))
    rounds = tx.conn.execute(
        sa.select(ROUND).where(ROUND.c.run_id == row.id, ROUND.c.generation > 1).order_by(ROUND.c.generation)
    )
    views = []
    for item in rounds:
        former = json.loads(item.former) if item.former else None
        if former is not None and secret and former.get("value") is not None:
            former["value"] = json.loads(REDACTED)
        views.append(RoundView(item.generation, item.started_at, item.actor, item.reason, former))
    return views


def page(tx: Tx, scope: Scope, filter: RunFilter, after: str | None = None, limit: int = 50) -> RunPage:
    """The newest runs first. Every condition is one that an index serves, or is checked on the way down."""
    texts = [filter.workflow, filter.parent, filter.text, *filter.labels, *filter.labels.values()]
    if any("\0" in text for text in texts if text is not None):
        return RunPage((), None)  # no text that is stored has it, and PostgreSQL would not even look
    select = _runs_select().where(in_scope(scope, R.c.tenant_id), *_conditions(scope, filter))
    if after is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise InvalidInput(f"{after!r} is no place in a list")
        select = select.where(R.c.id < int(after))
    rows = tx.conn.execute(select.order_by(R.c.id.desc()).limit(limit + 1)).all()
    more = str(rows[limit - 1].id) if len(rows) > limit else None
    items = tuple(RunSummary(**_summary_fields(row)) for row in rows[:limit])
    unattended = bool(rows) and not rows[0].attended and any(item.status not in _RESTING for item in items)
    return RunPage(items, more, unattended)


# -- runs


def _runs_select() -> sa.Select[Any]:
    """Runs with their names; one row each."""
    parent = R.alias()
    return (
        sa.select(
            R,
            D.c.name.label("workflow"),
            D.c.version,
            sa.func.coalesce(T.c.name, "").label("tenant"),
            parent.c.public_id.label("parent"),
            CODELESS.label("codeless"),
            ATTENDED.label("attended"),
        )
        .join(D, D.c.id == R.c.definition_id)
        .outerjoin(T, T.c.id == R.c.tenant_id)
        .outerjoin(parent, parent.c.id == R.c.parent_id)
    )


def _runs_row(tx: Tx, scope: Scope, run: str) -> Row:
    found = find_run(tx, scope, run)
    return tx.conn.execute(_runs_select().where(R.c.id == found.id)).one()


def _blocked(row: Row) -> dict[str, Any] | None:
    if row.blocked_reason:
        reason: dict[str, Any] = json.loads(row.blocked_reason)
        return reason
    if not row.codeless:
        return None
    return {"code": "no_code", "message": _no_code(row)}


def _no_code(row: Row) -> str:
    return f"no live worker has {row.workflow!r} version {row.version}"


def _hint(row: Row) -> str | None:
    if status_of(row) in _RESTING:
        return None
    if not row.attended:
        return "no worker is running"
    return _no_code(row) if row.codeless else None


def _summary_fields(row: Row) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "workflow": row.workflow,
        "version": row.version,
        "tenant": row.tenant,
        "status": status_of(row),
        "generation": row.generation,
        "priority": row.priority,
        "labels": json.loads(row.labels) if row.labels else {},
        "requester": row.requester,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "next_wake_at": row.wake_at,
    }


def _conditions(scope: Scope, wanted: RunFilter) -> Iterable[sa.ColumnElement[bool]]:
    if wanted.status:
        statuses = [Status(status) for status in wanted.status]
        yield sa.or_(*(status_clause(status) for status in statuses))
        if not {Status.COMPLETED, Status.FAILED, Status.CANCELED}.intersection(statuses):
            yield OPEN  # lets the partial index of open runs be used
    if wanted.workflow is not None:
        yield R.c.definition_id.in_(sa.select(D.c.id).where(D.c.name == wanted.workflow))
    if wanted.version is not None:
        yield D.c.version == wanted.version
    for key, value in wanted.labels.items():
        yield R.c.id.in_(sa.select(LABEL.c.run_id).where(LABEL.c.key == key, LABEL.c.value == value))
    if wanted.created_after is not None:
        yield R.c.created_at >= wanted.created_after
    if wanted.created_before is not None:
        yield R.c.created_at < wanted.created_before
    if wanted.parent is not None:
        above = R.alias()
        named = sa.select(above.c.id).where(above.c.public_id == wanted.parent, in_scope(scope, above.c.tenant_id))
        yield R.c.parent_id.in_(named)
    if wanted.text:
        names = sa.select(D.c.id).where(D.c.name.icontains(wanted.text, autoescape=True))
        begins = R.c.public_id.startswith(wanted.text, autoescape=True)
        labelled = sa.exists().where(LABEL.c.run_id == R.c.id, LABEL.c.value.icontains(wanted.text, autoescape=True))
        yield sa.or_(begins, R.c.definition_id.in_(names), labelled)


def _completion(tx: Tx, row: Row) -> CompletionView | None:
    found = tx.conn.execute(
        sa.select(DONE).where(DONE.c.run_id == row.id, DONE.c.generation == row.generation)
    ).one_or_none()
    if found is None:
        return None
    return CompletionView(found.done, found.attempts, found.next_at, json.loads(found.error) if found.error else None)


# -- steps


def step_state(
    *,
    kind: str,
    outcome_kind: str | None,
    started: bool,
    tried: bool,
    due_at: datetime | None,
    now: datetime,
    running: bool,
) -> StepShown:
    """What a step shows. `tried`: an attempt failed or was lost. `running`: its run is, and it holds what it needs."""
    if outcome_kind is not None:
        return OutcomeKind(outcome_kind).value
    if kind not in FUNCTION_KINDS and kind != StepKind.CHILD:
        return "open"
    if due_at is not None and due_at > now:
        return "backoff" if tried else "delayed"
    if started and running and kind in FUNCTION_KINDS:
        return "running"
    return "open"


def _steps_select(run_id: int) -> sa.Select[Any]:
    child = R.alias()
    return (
        sa.select(
            S, child.c.public_id.label("child_run"), APPROVAL.c.public_id.label("approval"), APPROVAL.c.to.label("who")
        )
        .outerjoin(child, child.c.id == S.c.child_id)
        .outerjoin(APPROVAL, sa.and_(APPROVAL.c.run_id == S.c.run_id, APPROVAL.c.step_no == S.c.no))
        .where(S.c.run_id == run_id)
    )


def _step_view(
    step: Row, now: datetime, run: Row, slots: frozenset[int], texts: Mapping[str, str], tries: tuple[AttemptView, ...]
) -> StepView:
    options = json.loads(step.options) if step.options else {}
    secret, pool = bool(options.get("sensitive")), options.get("pool")
    failed = step.outcome_kind in (OutcomeKind.FAILURE, OutcomeKind.CANCELED)
    state = step_state(
        kind=step.kind,
        outcome_kind=step.outcome_kind,
        started=step.started,
        tried=step.attempts + step.lost > 0,
        due_at=step.due_at,
        now=now,
        running=run.activity == "running" and step.retired_in is None and (pool is None or step.no in slots),
    )
    progress = json.loads(step.progress) if step.progress else None
    return StepView(
        no=step.no,
        kind=step.kind,
        name=step.name,
        generation=step.generation,
        retired_in=step.retired_in,
        state=state,
        asked_at=step.asked_at,
        ended_at=step.ended_at,
        due_at=step.due_at,
        attempts=step.attempts,
        lost=step.lost,
        args=_text(step.args, texts, secret),
        result=None if failed else _text(step.value, texts, secret),
        error=_error(step.value, texts) if failed else None,
        progress=Progress(progress["fraction"], progress.get("text") or "") if progress else None,
        child_run=step.child_run,
        approval=step.approval,
        by_handler=step.by_handler,
        pool=pool,
        attempt_rows=tries,
    )


def _awaited(step: Row, view: StepView) -> Awaited | None:
    if step.kind in FUNCTION_KINDS:
        if view.pool is None or view.state != "open":
            return None
        return Awaited("pool", view.pool, view.no, view.asked_at)
    who = tuple(json.loads(step.who)) if step.who else ()
    return Awaited(view.kind, view.name, view.no, view.asked_at, view.due_at, who, view.approval, view.child_run)


def _slots(tx: Tx, run_id: int, steps: Sequence[Row]) -> frozenset[int]:
    """The steps that hold a place in their pool. Without pools nothing is asked."""
    if not any(step.outcome_no is None and step.options and '"pool"' in step.options for step in steps):
        return frozenset()
    return frozenset(tx.conn.execute(sa.select(SLOT.c.step_no).where(SLOT.c.run_id == run_id)).scalars())


# -- values


def _values(steps: Iterable[Row]) -> Iterable[str | None]:
    for step in steps:
        yield step.args
        yield step.value


def _texts(tx: Tx, stored: Iterable[str | None]) -> Mapping[str, str]:
    """The texts of those values that stand in the payload table."""
    large: list[str] = [text for text in stored if text is not None and text.startswith("@")]
    found = payloads.get_many(tx, large) if large else []
    return {key: text for key, text in zip(large, found, strict=True) if text is not None}


def _text(stored: str | None, texts: Mapping[str, str], secret: bool) -> str | None:
    if stored is None:
        return None
    return REDACTED if secret else texts.get(stored, stored)


def _error(stored: str | None, texts: Mapping[str, str]) -> ErrorInfo | None:
    return ErrorInfo.from_json(json.loads(texts.get(stored, stored))) if stored is not None else None


def _event_view(row: Row, run: str, texts: Mapping[str, str]) -> EventView:
    return EventView(
        id=row.public_id,
        run=run,
        name=row.name,
        by_id=row.by_id,
        state=row.state,
        value=_text(row.value, texts, row.sensitive),
        is_error=row.is_error,
        problem=json.loads(row.problem) if row.problem else None,
        sender=row.sender,
        channel=row.channel,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        sent_at=row.sent_at,
        consumed_by=row.consumed_by,
    )
