"""What is written about attempts outside of advances."""

from __future__ import annotations

import json
from datetime import datetime

import sqlalchemy as sa

from signoff.engine.outcomes import R, S, lock_run
from signoff.store.tables import Attempt
from signoff.store.tx import Tx
from signoff.workflow.kinds import Activity, ErrorInfo, Requested, RunState

A = Attempt.__table__


def mark_started(tx: Tx, run_id: int, epoch: int, generation: int, step_no: int) -> bool:
    """An attempt of a delayed or pooled step begins, so its run is running.

    False if the run was paused, or the step is not this worker's to try any more.
    """
    run = lock_run(tx, run_id)
    if run is None or run.state == RunState.FINAL or run.epoch != epoch or run.generation != generation:
        return False
    if run.requested == Requested.PAUSE:
        return False
    written = tx.conn.execute(
        sa.update(S)
        .where(S.c.run_id == run_id, S.c.no == step_no, S.c.outcome_no.is_(None), S.c.retired_in.is_(None))
        .values(started=True, due_at=None)
    )
    if run.activity != Activity.RUNNING:
        running = {"activity": Activity.RUNNING.value, "touch_no": R.c.touch_no + 1}
        tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(**running))
    tx.notify("run", run_id)
    return written.rowcount > 0


def back_off(
    tx: Tx,
    run_id: int,
    epoch: int,
    generation: int,
    step_no: int,
    number: int,
    started_at: datetime,
    error: ErrorInfo,
    next_at: datetime,
) -> bool:
    """Records a failed attempt and when the next one is due; False if the step is not this worker's to try any more."""
    run = lock_run(tx, run_id)
    if run is None or run.state == RunState.FINAL or run.epoch != epoch or run.generation != generation:
        return False
    written = tx.conn.execute(
        sa.update(S)
        .where(S.c.run_id == run_id, S.c.no == step_no, S.c.outcome_no.is_(None), S.c.retired_in.is_(None))
        .values(attempts=number, due_at=next_at, progress=None)
    )
    if written.rowcount == 0:
        return False
    tx.conn.execute(
        sa.insert(A).values(
            run_id=run_id,
            step_no=step_no,
            number=number,
            started_at=started_at,
            ended_at=tx.now,
            error=json.dumps(error.to_json()),
            next_at=next_at,
        )
    )
    wake_at = next_at if run.wake_at is None else min(run.wake_at, next_at)
    tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run_id)
        .values(wake_at=wake_at, activity=Activity.SLEEPING.value, touch_no=R.c.touch_no + 1)
    )
    tx.notify("run", run_id)
    return True


def has_outcome(tx: Tx, run_id: int, step_no: int) -> bool:
    return (
        tx.conn.execute(sa.select(S.c.outcome_no).where(S.c.run_id == run_id, S.c.no == step_no)).scalar() is not None
    )
