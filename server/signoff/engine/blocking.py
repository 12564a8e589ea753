"""Marking a run blocked from outside of an advance."""

from __future__ import annotations

import sqlalchemy as sa

from signoff.engine.outcomes import R, lock_run
from signoff.engine.recovery import WD, W
from signoff.store.tx import Tx
from signoff.workflow.kinds import RunState


def tried(former: str | None, code_hash: str) -> str:
    """The code hashes that could not go on with a run, once this one could not either."""
    return " ".join(dict.fromkeys([*(former or "").split(), code_hash]))


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
            blocked_hash=tried(run.blocked_hash, code_hash),
            ready=None,
            touch_no=R.c.touch_no + 1,
        )
    )
    tx.notify("run", run_id)
    if run.worker_id is None:
        hand_over(tx, run_id)
    return True


def hand_over(tx: Tx, run_id: int) -> bool:
    """Lets a run that has just become blocked, and that nobody holds, be tried by other code that is there already."""
    other = sa.exists().where(
        WD.c.definition_id == R.c.definition_id,
        WD.c.worker_id == W.c.id,
        W.c.lost_at.is_(None),
        ~R.c.blocked_hash.contains(WD.c.code_hash),
    )
    found = tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run_id, R.c.worker_id.is_(None), R.c.blocked_reason.is_not(None), other)
        .values(blocked_reason=None, ready=0, touch_no=R.c.touch_no + 1)
    )
    if found.rowcount:
        tx.notify("ready")
    return bool(found.rowcount)
