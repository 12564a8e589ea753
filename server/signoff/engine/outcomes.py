"""One order of outcomes: every outcome gets the run's next number under the run's row lock."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

import sqlalchemy as sa

from signoff.engine.questions import close_questions
from signoff.store import payloads
from signoff.store.tables import Event, Run, Step
from signoff.store.tx import Tx
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, RunState, StepKind

R = Run.__table__
S = Step.__table__
E = Event.__table__

# kinds whose due time is an outcome; of the others it is the time of the next attempt
TIMED = (StepKind.SLEEP, StepKind.EVENT, StepKind.ASK)

Row = sa.Row[Any]


@dataclass(frozen=True, slots=True)
class Told:
    """An outcome as it was recorded, told within the process so that a program in memory goes on without a read."""

    step_no: int
    no: int
    kind: OutcomeKind
    at: datetime
    value: str | None
    error: ErrorInfo | None
    epoch: int
    generation: int
    requested: str


RUN_COLUMNS = tuple(R.columns.keys())
RunRow: Any = namedtuple("RunRow", RUN_COLUMNS)  # type: ignore[misc]  # the table knows the names

# Sent as they are: they stand between an event or a decision and the run that waits for it.
_END_STEP = (
    "UPDATE signoff_step SET outcome_no = ?, outcome_kind = ?, ended_at = ?, value = ?"
    " WHERE run_id = ? AND no = ? AND outcome_no IS NULL AND retired_in IS NULL"
)
_IF_ENDED = " WHERE id = ? AND EXISTS (SELECT 1 FROM signoff_step WHERE run_id = ? AND no = ? AND outcome_no = ?)"
_MOVE = "UPDATE signoff_run SET outcome_no = ?, outcome_at = ?, touch_no = touch_no + 1" + _IF_ENDED
_WAKE = (
    "UPDATE signoff_run SET outcome_no = ?, outcome_at = ?, touch_no = touch_no + 1,"
    " ready = CASE state WHEN 'final' THEN NULL ELSE 0 END" + _IF_ENDED
)
# built once: building and hashing a statement costs more than running it
_LOCK = sa.select(R).where(R.c.id == sa.bindparam("run_id")).with_for_update()
_PARENT = sa.select(R.c.parent_id).where(R.c.id == sa.bindparam("run_id"))


def lock_run(tx: Tx, run_id: int, *, with_parent: bool = False) -> Row | None:
    """The run's row, locked until the transaction ends; None if there is no such run.

    `with_parent` locks the waiting parent first (locks are taken by id, and a parent is older than its child): needed
    by everything that may end the run.
    """
    if with_parent:
        parent = tx.conn.execute(_PARENT, {"run_id": run_id}).scalar()
        if parent is not None:
            tx.conn.execute(_LOCK, {"run_id": parent})
    return tx.conn.execute(_LOCK, {"run_id": run_id}).one_or_none()


def record_due(tx: Tx, run: Row) -> Row:
    """Records the timers of the run that are due by now, at their due time, and returns the run as it is then.

    Called before an outcome from outside is recorded, so that a late sender finds an expired wait expired. A wait that
    an event was sent for in time, which nobody could judge yet, is left to a worker.
    """
    if run.state == RunState.FINAL or run.wake_at is None or run.wake_at > tx.now:
        return run
    due = tx.conn.execute(
        sa.select(S.c.no, S.c.kind, S.c.due_at, S.c.options)
        .where(
            S.c.run_id == run.id,
            S.c.outcome_no.is_(None),
            S.c.retired_in.is_(None),
            S.c.kind.in_(TIMED),
            S.c.due_at <= tx.now,
        )
        .order_by(S.c.due_at, S.c.no)
    ).all()
    unjudged: set[int] = set()
    if run.ready is not None and any(step.kind == StepKind.EVENT for step in due):
        unjudged = _unjudged(tx, run.id, due)
    for step in due:
        if step.no in unjudged:
            continue
        kind = OutcomeKind.SUCCESS if step.kind == StepKind.SLEEP else OutcomeKind.TIMEOUT
        run = record_outcome(tx, run, step.no, kind, at=step.due_at) or run
        if step.kind == StepKind.ASK:
            close_questions(tx, run.id, [step.no], "expired", step.due_at)
    return run


def _unjudged(tx: Tx, run_id: int, due: Sequence[Row]) -> set[int]:
    """Of these waits those that an event is kept for which was sent before they expired."""
    kept = tx.conn.execute(
        sa.select(E.c.name, E.c.public_id, E.c.by_id, E.c.sent_at).where(E.c.run_id == run_id, E.c.state == "buffered")
    ).all()
    found = set()
    for step in due:
        if step.kind == StepKind.EVENT and kept:
            options = json.loads(step.options)
            wanted, names = options.get("event_id"), options.get("names", ())
            for event in kept:
                fits = event.public_id == wanted if event.by_id else event.name in names
                if fits and event.sent_at < step.due_at:
                    found.add(step.no)
    return found


class Ended(NamedTuple):
    """The outcome of a step that was seen open since its run was locked; the run is not over."""

    run: Row
    step_no: int
    kind: OutcomeKind
    value: str | None
    error: ErrorInfo | None


def record_together(tx: Tx, ended: Sequence[Ended]) -> None:
    """Records outcomes of different runs and wakes them, without waiting for an answer of the database."""
    steps, runs = [], []
    for run, step_no, kind, value, error in ended:
        told, stored = _told(tx, run, step_no, kind, value, error, None)
        steps.append((run.id, step_no, told.no, kind.value, told.at, stored))
        runs.append((run.id, told.no, told.at, run.touch_no + 1, 0))
        _tell(tx, run.id, told)
    tx.dialect.update_rows(tx, S, ("run_id", "no"), ("outcome_no", "outcome_kind", "ended_at", "value"), steps)
    tx.dialect.update_rows(tx, R, ("id",), ("outcome_no", "outcome_at", "touch_no", "ready"), runs)


def _told(
    tx: Tx, run: Row, step_no: int, kind: OutcomeKind, value: str | None, error: ErrorInfo | None, at: datetime | None
) -> tuple[Told, str | None]:
    """The outcome with its number and time, and what the step's row is to hold of it."""
    moment = max(at or tx.now, run.outcome_at or run.created_at)
    stored = json.dumps(error.to_json()) if error is not None else value
    if stored is not None:
        stored = payloads.put(tx, run.id, stored)
    number = run.outcome_no + 1
    return Told(step_no, number, kind, moment, value, error, run.epoch, run.generation, run.requested), stored


def _tell(tx: Tx, run_id: int, told: Told) -> None:
    tx.notify("run", run_id, outcome=told)
    tx.notify("ready")


def record_outcome(
    tx: Tx,
    run: Row,
    step_no: int,
    kind: OutcomeKind,
    value: str | None = None,
    error: ErrorInfo | None = None,
    *,
    at: datetime | None = None,
    wake: bool = True,
) -> Row | None:
    """Records the outcome of an open step of the locked `run` and wakes the run (`wake=False`: its worker knows).

    Returns the run's new row, or None if the step has its outcome already (nothing is changed then). `at` (default:
    now) is moved up to the run's last outcome if it lies before it.
    """
    told, stored = _told(tx, run, step_no, kind, value, error, at)
    when = tx.dialect.encode_time(told.at)
    end, _ = tx.dialect.run_all(
        tx,
        (_END_STEP, (told.no, kind.value, when, stored, run.id, step_no)),
        (_WAKE if wake else _MOVE, (told.no, when, run.id, run.id, step_no, told.no)),
    )
    if end.changed == 0:
        return None
    if wake:
        _tell(tx, run.id, told)
    else:
        tx.notify("run", run.id)
    ready = run.ready if not wake else None if run.state == RunState.FINAL else 0
    changed = {"outcome_no": told.no, "outcome_at": told.at, "touch_no": run.touch_no + 1, "ready": ready}
    return cast(Row, RunRow._make(run)._replace(**changed))
