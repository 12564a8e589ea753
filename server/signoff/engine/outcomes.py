"""One order of outcomes: every outcome gets the run's next number under the run's row lock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from signoff.engine.questions import close_questions
from signoff.store import payloads
from signoff.store.tables import Run, Step
from signoff.store.tx import Tx
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, RunState, StepKind

R = Run.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes
S = Step.__table__  # type: ignore[attr-defined]

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


# built once: building and hashing a statement costs more than running it
_END_STEP = (
    sa.update(S)
    .where(
        S.c.run_id == sa.bindparam("b_run"),
        S.c.no == sa.bindparam("b_no"),
        S.c.outcome_no.is_(None),
        S.c.retired_in.is_(None),
    )
    .values({name: sa.bindparam(name) for name in ("outcome_no", "outcome_kind", "ended_at", "value")})
)
_MOVE = (
    sa.update(R)
    .where(R.c.id == sa.bindparam("b_run"))
    .values(outcome_no=sa.bindparam("outcome_no"), outcome_at=sa.bindparam("outcome_at"), touch_no=R.c.touch_no + 1)
    .returning(R)
)
_WAKE = _MOVE.values(ready=sa.case((R.c.state == RunState.FINAL.value, sa.null()), else_=0))
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

    Called before an outcome from outside is recorded, so that a late sender finds an expired wait expired.
    """
    if run.state == RunState.FINAL or run.wake_at is None or run.wake_at > tx.now:
        return run
    due = tx.conn.execute(
        sa.select(S.c.no, S.c.kind, S.c.due_at)
        .where(
            S.c.run_id == run.id,
            S.c.outcome_no.is_(None),
            S.c.retired_in.is_(None),
            S.c.kind.in_(TIMED),
            S.c.due_at <= tx.now,
        )
        .order_by(S.c.due_at, S.c.no)
    ).all()
    for step in due:
        kind = OutcomeKind.SUCCESS if step.kind == StepKind.SLEEP else OutcomeKind.TIMEOUT
        run = record_outcome(tx, run, step.no, kind, at=step.due_at) or run
        if step.kind == StepKind.ASK:
            close_questions(tx, run.id, [step.no], "expired", step.due_at)
    return run


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
    number = run.outcome_no + 1
    moment = max(at or tx.now, run.outcome_at or run.created_at)
    stored = json.dumps(error.to_json()) if error is not None else value
    if stored is not None:
        stored = payloads.put(tx, run.id, stored)
    outcome = {"outcome_no": number, "outcome_kind": kind.value, "ended_at": moment, "value": stored}
    written = tx.conn.execute(_END_STEP, {"b_run": run.id, "b_no": step_no, **outcome})
    if written.rowcount == 0:
        return None
    if wake:
        told = Told(step_no, number, kind, moment, value, error, run.epoch, run.generation, run.requested)
        tx.notify("run", run.id, outcome=told)
        tx.notify("ready")
    else:
        tx.notify("run", run.id)
    moved = {"b_run": run.id, "outcome_no": number, "outcome_at": moment}
    return tx.conn.execute(_WAKE if wake else _MOVE, moved).one()
