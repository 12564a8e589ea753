"""How a run ends: one place for everything that must be true in the transaction that makes it final."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from signoff.engine.outcomes import R, Row, S, lock_run, record_due, record_outcome
from signoff.engine.questions import close_questions
from signoff.engine.settings import CANCEL_GRACE
from signoff.store import payloads
from signoff.store.tables import Completion, PoolSlot
from signoff.store.tx import Tx
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, RunState, StepKind

SLOT = PoolSlot.__table__
DONE = Completion.__table__

CHILD_BATCH = 50  # children that are canceled in one transaction


def finalize(
    tx: Tx,
    run: Row,
    kind: ResultKind,
    value: str | None = None,
    error: ErrorInfo | None = None,
    *,
    completed_inline: bool = False,
) -> Row:
    """Ends the locked `run` (lock it with its parent): cancels what is open, tells parent, limits and on_complete.

    `completed_inline`: on_complete is run by the caller in this very transaction.
    """
    open_steps = tx.conn.execute(
        sa.select(S.c.no, S.c.kind, S.c.child_id)
        .where(
            S.c.run_id == run.id, S.c.outcome_no.is_(None), S.c.retired_in.is_(None), S.c.kind != StepKind.MARKER.value
        )
        .order_by(S.c.no)
    ).all()
    number, at = run.outcome_no, max(tx.now, run.outcome_at or run.created_at)
    if open_steps:
        number = cancel_steps(tx, run.id, [step.no for step in open_steps], number, at)
    stored = payloads.put(tx, run.id, value) if value is not None else None
    run = tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run.id)
        .values(
            state=RunState.FINAL.value,
            result_kind=kind.value,
            requested="none",
            activity=None,
            blocked_reason=None,
            blocked_hash=None,
            worker_id=None,
            ready=None,
            wake_at=None,
            ending=None,
            outcome_no=number,
            outcome_at=at,
            ended_at=at,
            value=stored,
            error=json.dumps(error.to_json()) if error is not None else None,
            touch_no=R.c.touch_no + 1,
        )
        .returning(R)
    ).one()
    close_questions(tx, run.id, [step.no for step in open_steps if step.kind == StepKind.ASK], "run_over", at)
    tx.notify("run", run.id)
    after_end(tx, run, kind, value, error, completed_inline=completed_inline)
    children = [step.no for step in open_steps if step.kind == StepKind.CHILD]
    if children:
        cancel_open_children(tx, run.id, children)
    return run


def cancel_steps(tx: Tx, run_id: int, nos: Sequence[int], outcome_no: int, at: Any) -> int:
    """Writes a cancel outcome for each step, in order of asking, and returns the last number given out."""
    tx.conn.execute(
        sa.update(S)
        .where(S.c.run_id == run_id, S.c.no == sa.bindparam("step_no"))
        .values(outcome_no=sa.bindparam("number"), outcome_kind=OutcomeKind.CANCELED.value, ended_at=at),
        [{"step_no": no, "number": outcome_no + place} for place, no in enumerate(nos, 1)],
    )
    return outcome_no + len(nos)


def after_end(
    tx: Tx, run: Row, kind: ResultKind, value: str | None, error: ErrorInfo | None, *, completed_inline: bool = False
) -> None:
    """What others must learn of a run that has just become final."""
    slots = tx.conn.execute(sa.delete(SLOT).where(SLOT.c.run_id == run.id).returning(SLOT.c.pool)).scalars().all()
    for pool in set(slots):
        tx.notify("pool", pool)
    if run.admitted:
        from signoff.engine import limits  # limits starts runs, and starting may end one

        limits.release(tx, run)
    options = json.loads(run.options) if run.options else {}
    if options.get("on_complete"):
        values = {"done": completed_inline, "attempts": 0, "next_at": None if completed_inline else tx.now}
        tx.conn.execute(sa.insert(DONE).values(run_id=run.id, generation=run.generation, **values))
        if not completed_inline:
            tx.notify("completion")
    if run.parent_id is not None and run.parent_no is not None:
        tell_parent(tx, run, kind, value, error)


def tell_parent(tx: Tx, run: Row, kind: ResultKind, value: str | None, error: ErrorInfo | None) -> None:
    parent = lock_run(tx, run.parent_id)
    if parent is None or parent.state == RunState.FINAL:
        return
    parent = record_due(tx, parent)
    if kind is ResultKind.COMPLETED:
        record_outcome(tx, parent, run.parent_no, OutcomeKind.SUCCESS, value)
    elif kind is ResultKind.FAILED:
        told = error or ErrorInfo("RunFailed", "the child run failed")
        data = {"run": run.public_id, "error": told.to_json()}
        record_outcome(tx, parent, run.parent_no, OutcomeKind.FAILURE, error=ErrorInfo("RunFailed", told.message, data))
    else:
        told = ErrorInfo("RunCanceled", f"run {run.public_id} was canceled", {"run": run.public_id})
        record_outcome(tx, parent, run.parent_no, OutcomeKind.CANCELED, error=told)


def cancel_open_children(tx: Tx, run_id: int, step_nos: Sequence[int] | None, grace: float = CANCEL_GRACE) -> None:
    """Asks the children of a run that are not final to end too: those of `step_nos`, or the next `CHILD_BATCH` of all.

    `grace`: seconds that their handlers have.

    While there are more, the run wakes again at once.
    """
    from signoff.engine import control  # control ends runs through this module

    if step_nos is None:
        if control.cancel_children(tx, run_id, CHILD_BATCH, grace=grace):
            tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(ready=0))
            tx.notify("ready")
        return
    children = sa.select(R.c.id).where(
        R.c.parent_id == run_id, R.c.parent_no.is_not(None), R.c.state != RunState.FINAL.value
    )
    children = children.where(R.c.parent_no.in_(step_nos))
    for child_id in tx.conn.execute(children.order_by(R.c.id)).scalars().all():
        control.cancel_child(tx, child_id, grace=grace)
