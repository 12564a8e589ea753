"""Runs whose worker is gone are taken over: attempts that were under way count as lost."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from signoff.engine.outcomes import R, S
from signoff.store.tables import PoolSlot, Worker, WorkerDefinition
from signoff.store.tx import Tx
from signoff.workflow.kinds import FUNCTION_KINDS

W = Worker.__table__
WD = WorkerDefinition.__table__
SLOT = PoolSlot.__table__

BATCH = 1_000


def take_over(tx: Tx, worker_ids: Sequence[int] | None, own_id: int) -> int:
    """Frees runs and pool slots of lost workers (None: of every worker but `own_id`); returns how many runs there were.

    Runs are freed in batches of `BATCH`: call again until it returns 0. The epoch rises, so that a lost worker that
    comes back cannot write.
    """
    dead = W.c.id.in_(worker_ids) if worker_ids is not None else W.c.id != own_id
    tx.conn.execute(sa.update(W).where(dead, W.c.lost_at.is_(None)).values(lost_at=tx.now))
    theirs = R.c.worker_id.in_(worker_ids) if worker_ids is not None else R.c.worker_id != own_id
    ids = list(
        tx.conn.execute(
            tx.dialect.lock(sa.select(R.c.id).where(R.c.worker_id.is_not(None), theirs).order_by(R.c.id).limit(BATCH))
        ).scalars()
    )
    if ids:
        tx.conn.execute(sa.update(R).where(R.c.id.in_(ids)).values(worker_id=None, ready=0, epoch=R.c.epoch + 1))
        count_lost(tx, ids)
        tx.notify("ready")
    if len(ids) < BATCH:
        gone = SLOT.c.worker_id.in_(worker_ids) if worker_ids is not None else SLOT.c.worker_id != own_id
        pools = tx.conn.execute(sa.delete(SLOT).where(gone).returning(SLOT.c.pool)).scalars().all()
        for pool in set(pools):
            tx.notify("pool", pool)
    return len(ids)


def count_lost(tx: Tx, run_ids: Sequence[int]) -> None:
    """One more lost attempt for every step that was under way: started, open and not in a delay or back-off."""
    tx.conn.execute(
        sa.update(S)
        .where(
            S.c.run_id.in_(run_ids),
            S.c.outcome_no.is_(None),
            S.c.retired_in.is_(None),
            S.c.started.is_(True),
            S.c.kind.in_(sorted(FUNCTION_KINDS)),
            sa.or_(S.c.due_at.is_(None), S.c.due_at <= tx.now),
        )
        .values(lost=S.c.lost + 1)
    )
