"""One advance: what driving a run brought, written in one transaction, many runs to a commit.

A batch holds only guarded statements: it locks its run rows in id order, compares the fence and leaves out what does
not match. Nothing in it may fail for one run's sake.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from signoff.engine import blocking, ending, events, starting
from signoff.engine.outcomes import R, Row, S, lock_run
from signoff.engine.questions import close_questions, open_question
from signoff.engine.settings import CANCEL_GRACE
from signoff.replay.messages import AskDetail, ChildDetail, EventDetail, Log
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tables import LogLine, Worker
from signoff.store.tx import Tx
from signoff.workflow.errors import SignoffError
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, RunState

L = LogLine.__table__
W = Worker.__table__


@dataclass(frozen=True, slots=True)
class Fence:
    """What an advance started from; if the run's row says otherwise it is dropped."""

    epoch: int
    generation: int
    outcome_no: int
    requested: str
    blocked: bool
    claims: int | None = None  # the worker that takes the run, which nobody holds, with this advance


@dataclass(slots=True)
class Record:
    """An outcome: of a step, or (from elsewhere) a cancel request. `no` None: not in the journal yet."""

    step_no: int
    kind: OutcomeKind
    at: datetime
    value: str | None = None
    error: ErrorInfo | None = None
    no: int | None = None
    by_handler: bool = False
    cancel_request: bool = False


@dataclass(slots=True)
class Advance:
    run_id: int
    fence: Fence
    columns: dict[str, Any]  # of the run row, see RUN_COLUMNS
    at: datetime
    steps: list[dict[str, Any]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    questions: list[tuple[int, AskDetail]] = field(default_factory=list)
    waits: list[tuple[int, EventDetail]] = field(default_factory=list)
    waits_on: bool = False  # for events, since an earlier advance
    children: list[tuple[int, str | None, ChildDetail]] = field(default_factory=list)
    closed_asks: list[int] = field(default_factory=list)
    expired_asks: list[int] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)  # steps whose child is being canceled and awaited
    closed_children: list[int] = field(default_factory=list)  # steps that waited for a child and were canceled
    grace: float = CANCEL_GRACE  # seconds that canceled children have
    cancel_children: bool = False  # the run is canceled and waits until its children are final
    used_pool: bool = False
    finished: tuple[ResultKind, str | None, ErrorInfo | None] | None = None
    completed_inline: bool = False
    parent_id: int | None = None  # of a finishing run, to be locked first
    needs_row: bool = False  # questions, children, or an end that others must hear of
    rare: bool = False  # it changes more of the run than RARE_COLUMNS' usual values
    contestable: bool = False  # timers fell due while the run waits for events: one may have been sent before
    parks: bool = False
    holder: int | None = None  # the worker that keeps the run if it cannot park after all

    @property
    def blocks(self) -> bool:
        return self.columns["blocked_reason"] is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is written by the dialect's row functions alone."""
        return not (
            self.needs_row
            or self.waits
            or self.waits_on
            or self.closed_asks
            or self.expired_asks
            or self.orphans
            or self.closed_children
            or self.cancel_children
            or self.blocks
            or len(self.columns["value"] or "") > payloads.INLINE_LIMIT
            or any(len(step["args"] or "") > payloads.INLINE_LIMIT for step in self.steps)
            or any(
                record.error is not None or len(record.value or "") > payloads.INLINE_LIMIT for record in self.records
            )
        )


@dataclass(slots=True)
class Applied:
    """What became of an advance; an advance itself never changes, because it may have to be applied again.

    `columns` is the run as it was written. `arrived`: outcomes that were recorded in the same transaction (a buffered
    event, a refused child), which keep a run that was about to park.
    """

    ok: bool
    columns: dict[str, Any] = field(default_factory=dict)
    parks: bool = False
    arrived: list[Record] = field(default_factory=list)
    contested: bool = False  # not written, because there may be an event to be judged before its timers


HOT_COLUMNS = (
    "state", "outcome_no", "outcome_at", "driven_no", "next_no", "activity", "wake_at", "ready", "worker_id",
    "epoch", "code_hash", "started_at", "journal_bytes",
)  # fmt: skip
RARE_COLUMNS = (
    "ended_at", "result_kind", "value", "error", "ending", "blocked_reason", "blocked_hash", "requested",
)  # fmt: skip
RUN_COLUMNS = HOT_COLUMNS + RARE_COLUMNS

STEP_COLUMNS = (
    "run_id", "no", "kind", "name", "generation", "asked_after", "asked_at", "due_at", "args", "options", "started",
    "attempts", "lost", "by_handler",
)  # fmt: skip
_OUTCOME_KEYS = ("run_id", "no")
_OUTCOME_COLUMNS = ("outcome_no", "outcome_kind", "ended_at", "value", "by_handler")
_LOG_COLUMNS = ("run_id", "at", "level", "message", "data")
_ID = ("id",)
_ALIVE = ("id", "lost_at")

_FENCE_COLUMNS = (
    "id", "state", "outcome_no", "epoch", "generation", "requested", "blocked_reason", "touch_no", "ready",
    "worker_id",
)  # fmt: skip


class _Fenced(NamedTuple):
    id: int
    state: str
    outcome_no: int
    epoch: int
    generation: int
    requested: str
    blocked_reason: str | None
    touch_no: int
    ready: int | None
    worker_id: int | None


def apply_advances(tx: Tx, advances: Sequence[Advance], misfit: events.Misfit | None = None) -> list[Applied]:
    """Writes every advance whose fence still holds; the others come back with `ok=False`."""
    ids = {advance.run_id for advance in advances}
    ids.update(advance.parent_id for advance in advances if advance.parent_id is not None)
    with tx.dialect.pipelined_to_end(tx) if all(advance.is_plain for advance in advances) else nullcontext():
        fetched = tx.dialect.ask_rows(tx, R, _FENCE_COLUMNS, "id", sorted(ids), lock=True)
        alive = _alive(tx, {advance.fence.claims for advance in advances if advance.fence.claims is not None})
        rows = {row[0]: _Fenced._make(row) for row in fetched()}
        results = [_judged(rows.get(advance.run_id), advance, alive) for advance in advances]
        good = [(advance, applied) for advance, applied in zip(advances, results, strict=True) if applied.ok]
        if good:
            _write(tx, good, rows, misfit)
    return results


def _judged(row: _Fenced | None, advance: Advance, alive: Collection[int]) -> Applied:
    ok = row is not None and _holds(row, advance.fence, alive)
    if ok and advance.contestable and row is not None and row.ready is not None:
        return Applied(False, contested=True)
    return Applied(ok)


def _write(
    tx: Tx, good: Sequence[tuple[Advance, Applied]], rows: Mapping[int, _Fenced], misfit: events.Misfit | None
) -> None:
    _write_steps(tx, good)
    # the whole row, for what few advances do
    whole = {advance.run_id: _whole(tx, advance.run_id) for advance, _ in good if advance.needs_row}
    waits = [
        (advance.run_id, name)
        for advance, _ in good
        for _, wait in advance.waits
        if wait.event_id is None
        for name in wait.names
    ]
    # most find none, so one look for all of them comes first; a single one is looked for by itself
    buffered = events.runs_with_buffered(tx, waits) if len(waits) > 1 else {run_id for run_id, _ in waits}
    for advance, applied in good:
        _open(tx, whole.get(advance.run_id), rows[advance.run_id], advance, applied, misfit, buffered)
    for names, rare in ((HOT_COLUMNS, False), (RUN_COLUMNS, True)):
        values = [
            (advance.run_id, *(applied.columns[name] for name in names), rows[advance.run_id].touch_no + 1)
            for advance, applied in good
            if advance.rare is rare
        ]
        tx.dialect.update_rows(tx, R, _ID, (*names, "touch_no"), values)
    for advance, applied in good:
        if advance.rare:
            tx.notify("run", advance.run_id)
        else:
            tx.notify("run", advance.run_id, open=True)
        if advance.blocks and applied.parks:
            blocking.hand_over(tx, advance.run_id)
        if advance.finished is not None:
            _end(tx, whole.get(advance.run_id), advance)
        if advance.closed_children or advance.cancel_children:
            steps = None if advance.cancel_children else advance.closed_children
            ending.cancel_open_children(tx, advance.run_id, steps, advance.grace)


def _whole(tx: Tx, run_id: int) -> Row:
    row = lock_run(tx, run_id)
    assert row is not None  # it is locked already
    return row


def holds(tx: Tx, run_id: int, fence: Fence) -> bool:
    """Locks the run (and the parent that waits for it) and tells whether the fence still stands."""
    alive = _alive(tx, set() if fence.claims is None else {fence.claims})
    return _holds(lock_run(tx, run_id, with_parent=True), fence, alive)


def _alive(tx: Tx, worker_ids: Collection[int]) -> Collection[int]:
    """Those that nobody took for lost: a worker that does not know it yet must take nothing."""
    if not worker_ids:
        return ()
    return {worker[0] for worker in tx.dialect.fetch_rows(tx, W, _ALIVE, "id", list(worker_ids)) if worker[1] is None}


def _holds(row: Any, fence: Fence, alive: Collection[int]) -> bool:
    return (
        row is not None
        and (fence.claims is None or (row.worker_id is None and fence.claims in alive))
        and row.state != RunState.FINAL
        and row.outcome_no == fence.outcome_no
        and row.epoch == fence.epoch
        and row.generation == fence.generation
        and row.requested == fence.requested
        and (row.blocked_reason is not None) == fence.blocked
    )


def _stored(tx: Tx, run_id: int, text: str | None) -> str | None:
    return text if text is None or len(text) <= payloads.INLINE_LIMIT else payloads.put(tx, run_id, text)


def _outcome(tx: Tx, run_id: int, record: Record) -> tuple[Any, ...]:
    text = json.dumps(record.error.to_json()) if record.error is not None else record.value
    kept = _stored(tx, run_id, text)
    return (run_id, record.step_no, record.no, record.kind.value, record.at, kept, record.by_handler)


def _write_steps(tx: Tx, good: Sequence[tuple[Advance, Applied]]) -> None:
    steps: list[Sequence[Any]] = []
    outcomes: list[Sequence[Any]] = []
    logs: list[Sequence[Any]] = []
    for advance, applied in good:
        run_id = advance.run_id
        for step in advance.steps:
            text = step["args"]
            if text is not None and len(text) > payloads.INLINE_LIMIT:
                step = {**step, "args": payloads.put(tx, run_id, text)}
            steps.append(tuple([step[name] for name in STEP_COLUMNS]))
        outcomes += [_outcome(tx, run_id, record) for record in advance.records]
        for line in advance.logs:
            data = json.dumps(line.data) if line.data else None
            logs.append((run_id, advance.at, line.level, line.message, data))
        applied.columns = dict(advance.columns)
        applied.columns["value"] = _stored(tx, run_id, advance.columns["value"])
        applied.parks = advance.parks
    tx.dialect.insert_rows(tx, S, STEP_COLUMNS, steps)
    tx.dialect.update_rows(tx, S, _OUTCOME_KEYS, _OUTCOME_COLUMNS, outcomes)
    tx.dialect.insert_rows(tx, L, _LOG_COLUMNS, logs)


def _open(
    tx: Tx,
    row: Row | None,
    fenced: _Fenced,
    advance: Advance,
    applied: Applied,
    misfit: events.Misfit | None,
    buffered: Collection[int],
) -> None:
    """What opening a step means beyond its row. May find an outcome at once, which then keeps the run awake."""
    if advance.orphans:
        tx.conn.execute(
            sa.update(S).where(S.c.run_id == advance.run_id, S.c.no.in_(advance.orphans)).values(by_handler=True)
        )
    if advance.closed_asks and advance.finished is None:
        close_questions(tx, advance.run_id, advance.closed_asks, "canceled", advance.at)
    if advance.expired_asks:
        close_questions(tx, advance.run_id, advance.expired_asks, "expired", advance.at)
    for step_no, detail in advance.questions:
        assert row is not None
        answer = open_question(tx, row, step_no, detail, advance.at)
        if answer is not None:
            _arrive(tx, advance, applied, step_no, OutcomeKind.SUCCESS, answer, None)
    waits = advance.waits
    if advance.waits_on and fenced.ready is not None and advance.finished is None:
        waits = events.open_waits(tx, advance.run_id)  # woken, perhaps for an event that the sender could not judge
    elif advance.run_id not in buffered:
        waits = [(step_no, wait) for step_no, wait in waits if wait.event_id is not None]
    for step_no, wait in waits:
        taken = events.take_buffered(tx, advance.run_id, step_no, wait, misfit=misfit)
        if taken is not None:
            _arrive(tx, advance, applied, step_no, taken.kind, taken.value, taken.error)
    for step_no, args, child in advance.children:
        assert row is not None
        try:
            started = starting.start_child(tx, Scope(row.tenant_id), row, step_no, args, child)
        except SignoffError as error:
            info = ErrorInfo(type(error).__name__, str(error), error.to_problem())
            _arrive(tx, advance, applied, step_no, OutcomeKind.FAILURE, None, info)
        else:
            tx.conn.execute(
                sa.update(S).where(S.c.run_id == advance.run_id, S.c.no == step_no).values(child_id=started.run_id)
            )
            if child.detached:
                _arrive(tx, advance, applied, step_no, OutcomeKind.SUCCESS, json.dumps(started.public_id), None)


def _arrive(
    tx: Tx,
    advance: Advance,
    applied: Applied,
    step_no: int,
    kind: OutcomeKind,
    value: str | None,
    error: ErrorInfo | None,
) -> None:
    columns = applied.columns
    columns["outcome_no"] += 1
    at = columns["outcome_at"] = max(advance.at, columns["outcome_at"] or advance.at)
    record = Record(step_no, kind, at, value, error, no=columns["outcome_no"])
    tx.dialect.update_rows(tx, S, _OUTCOME_KEYS, _OUTCOME_COLUMNS, [_outcome(tx, advance.run_id, record)])
    applied.arrived.append(record)
    if applied.parks:
        applied.parks = False
        columns["worker_id"] = advance.holder


def _end(tx: Tx, row: Row | None, advance: Advance) -> None:
    assert advance.finished is not None
    kind, value, error = advance.finished
    if advance.closed_asks:
        close_questions(tx, advance.run_id, advance.closed_asks, "run_over", advance.at)
    if row is not None:
        ending.after_end(tx, row, kind, value, error, completed_inline=advance.completed_inline)
