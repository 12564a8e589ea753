"""Which runs a worker takes next, with what it needs of them, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from signoff.engine.journal import Loaded, News, load, load_news, rows_of
from signoff.engine.outcomes import R, Row, S
from signoff.store.tables import Worker, WorkerDefinition
from signoff.store.tx import Tx
from signoff.workflow.kinds import Requested, RunState

W = Worker.__table__
WD = WorkerDefinition.__table__


@dataclass(slots=True)
class Claimed:
    loaded: list[Loaded] = field(default_factory=list)  # taken, with the whole journal
    news: list[News] = field(default_factory=list)  # known runs (held, or kept in the cache) with what happened to them
    woken: list[int] = field(default_factory=list)  # busy runs that may have to be looked at once they are not
    delayed: list[int] = field(default_factory=list)  # delayed starts that are due and must be let in first
    skipped: bool = False  # some could not be taken because somebody (a sender, another worker) had their row locked
    more: bool = False  # there may be more to take
    next_wake: datetime | None = None


def claim(
    tx: Tx,
    worker_id: int,
    definitions: Sequence[int],
    known: Mapping[int, tuple[int, int, int]],
    held: Sequence[int],
    busy: Sequence[int],
    limit: int,
) -> Claimed:
    """Take up to `limit` runs that need a worker.

    `known`: run id -> (generation, last outcome) of runs whose program is in memory; of these only news are loaded.
    `held`: those of them that this worker holds already; `busy`: those that an advance of this worker is just changing
    or taking, which are left alone. On SQLite the file's one worker owns every run, so taking writes nothing; on
    PostgreSQL it writes owner and epoch.
    """
    claimed = Claimed()
    # code that could not go on with a run leaves it to other code, also while workers of both are there
    tried = sa.exists().where(
        WD.c.worker_id == worker_id, WD.c.definition_id == R.c.definition_id, R.c.blocked_hash.contains(WD.c.code_hash)
    )
    canceled = R.c.requested == Requested.CANCEL.value  # what is undone then needs no handler
    mine = sa.and_(R.c.definition_id.in_(definitions), sa.or_(R.c.blocked_hash.is_(None), canceled, ~tried))
    awake = sa.and_(R.c.blocked_reason.is_(None), R.c.requested != "pause")
    due = sa.and_(R.c.wake_at <= tx.now, R.c.ready.is_(None), awake, R.c.worker_id.is_(None), mine)
    rows: list[Row] = []
    if tx.dialect.name == "sqlite":
        waking, taken = set(held), {*held, *busy}
        ready = sa.select(R.c.id).where(R.c.ready.is_not(None), mine)
        ready = ready.order_by(R.c.ready, R.c.priority.desc(), R.c.id).limit(limit + len(taken) + 1)
        found = tx.conn.execute(ready).scalars().all()
        fresh = [run_id for run_id in found if run_id not in taken]
        claimed.more = len(fresh) > limit
        if claimed.more:  # those that are held may stand behind the others
            told = sa.select(R.c.id).where(R.c.worker_id == worker_id, R.c.ready.is_not(None))
            found = [*found, *tx.conn.execute(told).scalars()]
        news = list(dict.fromkeys(run_id for run_id in found if run_id in waking))
        claimed.woken = [run_id for run_id in found if run_id in taken and run_id not in waking]
        wanted_ids = fresh[:limit]
        left = limit - len(wanted_ids)
        if left > 0:
            late_ids = tx.conn.execute(sa.select(R.c.id).where(due).order_by(R.c.wake_at).limit(left)).scalars().all()
            wanted_ids += [run_id for run_id in late_ids if run_id not in taken]
            claimed.more = claimed.more or len(late_ids) == left
        by_id = rows_of(tx, wanted_ids)
        rows = [by_id[run_id] for run_id in wanted_ids]
    else:
        claimed.woken = list(busy)
        if busy:
            mine = sa.and_(mine, R.c.id.not_in(busy))
            due = sa.and_(due, mine)
        ready = sa.select(R.c.id).where(R.c.ready.is_not(None), R.c.worker_id.is_(None), mine)
        ready = ready.order_by(R.c.ready, R.c.priority.desc(), R.c.id).limit(limit)
        rows = list(_take(tx, tx.dialect.claim(ready), worker_id))
        left = limit - len(rows)
        claimed.more = left <= 0
        free = sa.or_(sa.and_(R.c.ready.is_not(None), R.c.worker_id.is_(None), mine), due)
        if left > 0:
            late = _take(
                tx, tx.dialect.claim(sa.select(R.c.id).where(due).order_by(R.c.wake_at).limit(left)), worker_id
            )
            rows += late
            claimed.more = len(late) == left
        if not claimed.more:
            claimed.skipped = tx.conn.execute(sa.select(sa.exists().where(free))).scalar_one()
        news = []
        if held:
            news = list(
                tx.conn.execute(
                    sa.select(R.c.id).where(R.c.worker_id == worker_id, R.c.ready.is_not(None), R.c.id.in_(held))
                ).scalars()
            )
    claimed.delayed = [row.id for row in rows if row.state == "queued" and row.ready is None and not row.admitted]
    if claimed.delayed:
        waiting = set(claimed.delayed)
        if tx.dialect.name != "sqlite":  # taken by mistake: they are claimed again when they are let in
            tx.conn.execute(sa.update(R).where(R.c.id.in_(claimed.delayed)).values(worker_id=None))
        rows = [row for row in rows if row.id not in waiting]
    step = 0 if tx.dialect.name == "sqlite" else 1  # what taking it added: nobody else held it in between
    kept = [
        row.id
        for row in rows
        if (same := known.get(row.id)) is not None and (same[0], same[2] + step) == (row.generation, row.epoch)
    ]
    wanted = {run_id: known[run_id][1] for run_id in (*kept, *news) if run_id in known}
    if wanted:
        claimed.news = list(load_news(tx, wanted).values())
    unknown = [row.id for row in rows if row.id not in wanted]
    if unknown:
        claimed.loaded = list(load(tx, unknown, {row.id: row for row in rows}).values())
    claimed.next_wake = tx.conn.execute(
        sa.select(sa.func.min(R.c.wake_at)).where(
            R.c.wake_at.is_not(None), R.c.wake_at > tx.now, R.c.worker_id.is_(None), awake, mine
        )
    ).scalar()
    return claimed


def _take(tx: Tx, ids: sa.Select[tuple[int]], worker_id: int) -> Sequence[Row]:
    # a worker that others took for lost, and that does not know it yet, must take nothing
    alive = sa.exists().where(W.c.id == worker_id, W.c.lost_at.is_(None))
    return tx.conn.execute(
        sa.update(R).where(R.c.id.in_(ids), alive).values(worker_id=worker_id, epoch=R.c.epoch + 1).returning(R)
    ).all()


def free_strays(tx: Tx, worker_id: int, held: Sequence[int]) -> None:
    """Let others claim what the store says this worker has, but the worker does not know of.

    So it is after a claim whose commit happened without an answer.
    """
    strays = sa.and_(R.c.worker_id == worker_id, R.c.id.not_in(held))
    tx.conn.execute(sa.update(R).where(strays).values(worker_id=None, epoch=R.c.epoch + 1))


def release(tx: Tx, runs: Sequence[tuple[int, int, Sequence[int]]]) -> None:
    """Hand runs (id, epoch, steps that were under way) back: another worker takes them at once.

    The attempts of these steps count as lost.
    """
    for run_id, epoch, steps in runs:
        handed = tx.conn.execute(
            sa.update(R)
            .where(R.c.id == run_id, R.c.epoch == epoch, R.c.state != RunState.FINAL.value)
            .values(worker_id=None, ready=0)
        )
        if handed.rowcount and steps:
            tx.conn.execute(
                sa.update(S)
                .where(S.c.run_id == run_id, S.c.no.in_(steps), S.c.outcome_no.is_(None), S.c.started.is_(True))
                .values(lost=S.c.lost + 1)
            )
    tx.notify("ready")
