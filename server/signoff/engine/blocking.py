"""Marking a run blocked from outside of an advance."""

from __future__ import annotations

import sqlalchemy as sa

from signoff.engine.outcomes import R, lock_run
from signoff.store.tx import Tx
from signoff.workflow.kinds import RunState


def block(tx: Tx, run_id: int, epoch: int, generation: int, reason: str, code_hash: str) -> bool:
    """Records why the run cannot go on with this code; nothing else of it changes. False if it is not ours any more."""
    run = lock_run(tx, run_id)
    if run is None or run.state == RunState.FINAL or run.epoch != epoch or run.generation != generation:
        return False
    tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run_id)
        .values(
            state=RunState.ACTIVE.value,
            blocked_reason=reason,
            blocked_hash=code_hash,
            ready=None,
            touch_no=R.c.touch_no + 1,
        )
    )
    tx.notify("run", run_id)
    return True
