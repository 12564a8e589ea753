"""Limits of workflows (S5): concurrent runs, starts in a time, and how many may queue.

A run of a workflow that limits concurrency or rate is *let in* once: at its start if there is room, else when another
ends, or when a worker claims it after its delay. Until then it is held: queued, and claimed by nobody. From letting in
to its end it counts in the workflow's row, on which admissions queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from signoff.engine.definitions import D, KnownDefinition, WorkflowLimits, definition_by_id
from signoff.engine.lookup import insert_new
from signoff.engine.outcomes import R, Row, lock_run
from signoff.engine.status import OPEN
from signoff.store.tables import Limit
from signoff.store.tx import Tx
from signoff.workflow.errors import LimitExceeded
from signoff.workflow.kinds import Requested, RunState

L = Limit.__table__


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket. Below zero stand the tokens that are promised already."""

    tokens: float
    at: datetime

    def refilled(self, now: datetime, count: int, per: float) -> Bucket:
        seconds = max(0.0, (now - self.at).total_seconds())
        return Bucket(min(float(count), self.tokens + seconds * count / per), max(now, self.at))

    def promise(self, now: datetime, count: int, per: float) -> tuple[Bucket, datetime]:
        """Takes a token, one of the future if need be, and says when it is there: `count` in any `per` seconds."""
        full = self.refilled(now, count, per)
        left = full.tokens - 1
        wait = max(0.0, -left) * per / count
        return Bucket(left, full.at), full.at + timedelta(seconds=wait) if wait else now

    def take(self, now: datetime, count: int, per: float) -> tuple[Bucket, float]:
        """Takes a token if there is one; else says in how many seconds there will be."""
        full = self.refilled(now, count, per)
        if full.tokens >= 1:
            return Bucket(full.tokens - 1, full.at), 0.0
        return full, max((1 - full.tokens) * per / count, 0.001)


@dataclass(frozen=True, slots=True)
class Admission:
    """What a start writes into the run's row."""

    admitted: bool = False
    ready: int | None = 1
    wake_at: datetime | None = None


def admit_new(
    tx: Tx, tenant_id: int, definition: KnownDefinition, delays: Sequence[datetime | None]
) -> list[Admission | LimitExceeded]:
    """Decides on new runs of one workflow, in order; `delays` has the moment of each that starts later."""
    limits = definition.limits
    late = [moment if moment is not None and moment > tx.now else None for moment in delays]
    if limits is None:
        return [Admission(ready=1 if moment is None else None, wake_at=moment) for moment in late]
    gate = _Gate.lock(tx, tenant_id, definition.name, limits)
    queued = _queue_length(tx, gate) if limits.max_queued is not None else 0
    decided: list[Admission | LimitExceeded] = []
    for moment in late:
        if moment is not None:
            decided.append(Admission(ready=None, wake_at=moment))
            continue
        waits = gate.would_wait(tx.now)
        if limits.max_queued is not None and waits:
            if queued >= limits.max_queued:
                decided.append(_queue_full(definition.name, limits.max_queued))
                continue
            queued += 1
        if not limits.holds:
            decided.append(Admission())
        else:
            decided.append(gate.admit(tx.now) if gate.has_room else Admission(ready=None))
    gate.save(tx)
    return decided


def admit_due(tx: Tx, run_ids: Sequence[int]) -> None:
    """Runs whose delay is over start, or are held if their workflow has no room.

    For those that a worker finds queued, not admitted, and not `ready`.
    """
    for run_id in sorted(run_ids):
        run = lock_run(tx, run_id)
        if run is not None and run.state == RunState.QUEUED and run.ready is None and run.requested == Requested.NONE:
            let_in(tx, run)


def let_in(tx: Tx, run: Row) -> Row:
    """Makes a locked queued run ready if it is admitted or may be; else it is held."""
    definition = definition_by_id(tx, run.definition_id)
    admission = Admission(run.admitted)
    if not run.admitted and definition.limits is not None and definition.limits.holds:
        gate = _Gate.lock(tx, run.tenant_id, definition.name, definition.limits)
        admission = gate.admit(tx.now) if gate.has_room else Admission(ready=None)
        gate.save(tx)
    tx.notify("run", run.id)
    tx.notify("ready")
    return tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run.id)
        .values(
            admitted=admission.admitted,
            ready=admission.ready,
            wake_at=admission.wake_at,
            worker_id=None,
            touch_no=R.c.touch_no + 1,
        )
        .returning(R)
    ).one()


def release(tx: Tx, run: Row) -> None:
    """An admitted run ended: the next ones may start."""
    give_back(tx, run.tenant_id, definition_by_id(tx, run.definition_id))


def give_back(tx: Tx, tenant_id: int, definition: KnownDefinition) -> None:
    """A run that was let in is not there after all."""
    gate = _Gate.lock(tx, tenant_id, definition.name, definition.limits or WorkflowLimits())
    gate.running = max(0, gate.running - 1)
    _admit_held(tx, gate)
    gate.save(tx)


def recount(tx: Tx, definition_id: int) -> None:
    """The limits of a workflow have changed: count its runs anew and let in those that have room now."""
    row = tx.conn.execute(sa.select(D.c.name, D.c.settings).where(D.c.id == definition_id)).one()
    limits = definition_by_id(tx, definition_id).limits or WorkflowLimits()
    counted = sa.select(R.c.tenant_id, sa.func.count().filter(R.c.admitted)).where(
        _of_workflow(row.name), R.c.state != "final"
    )
    for tenant_id, running in tx.conn.execute(counted.group_by(R.c.tenant_id)).all():
        gate = _Gate.lock(tx, tenant_id, row.name, limits)
        gate.running = running
        _admit_held(tx, gate)
        gate.save(tx)


@dataclass(slots=True)
class _Gate:
    """A workflow's row of counters in one tenant, locked."""

    tenant_id: int
    workflow: str
    limits: WorkflowLimits
    running: int
    bucket: Bucket

    @classmethod
    def lock(cls, tx: Tx, tenant_id: int, workflow: str, limits: WorkflowLimits) -> _Gate:
        select = sa.select(L).where(L.c.tenant_id == tenant_id, L.c.workflow == workflow).with_for_update()
        row = tx.conn.execute(select).one_or_none()
        if row is None:
            tx.conn.execute(insert_new(tx, L).values(tenant_id=tenant_id, workflow=workflow))
            row = tx.conn.execute(select).one()
        full = float(limits.rate[0]) if limits.rate else 0.0
        bucket = Bucket(full if row.tokens is None else row.tokens, row.tokens_at or tx.now)
        return cls(tenant_id, workflow, limits, row.running, bucket)

    @property
    def has_room(self) -> bool:
        return self.limits.max_concurrent is None or self.running < self.limits.max_concurrent

    def would_wait(self, now: datetime) -> bool:
        if not self.limits.holds or not self.has_room:
            return True
        return self.limits.rate is not None and self.bucket.refilled(now, *self.limits.rate).tokens < 1

    def promised(self, now: datetime) -> int:
        """Runs that are let in and wait for their turn of the rate."""
        if self.limits.rate is None:
            return 0
        return max(0, -int(self.bucket.refilled(now, *self.limits.rate).tokens // 1))

    def admit(self, now: datetime) -> Admission:
        self.running += 1
        if self.limits.rate is None:
            return Admission(admitted=True)
        self.bucket, start = self.bucket.promise(now, *self.limits.rate)
        return Admission(True, 1, None) if start <= now else Admission(True, None, start)

    def save(self, tx: Tx) -> None:
        rate = self.limits.rate is not None
        values = {"running": self.running, "tokens": self.bucket.tokens if rate else None}
        tx.conn.execute(
            sa.update(L)
            .where(L.c.tenant_id == self.tenant_id, L.c.workflow == self.workflow)
            .values(**values, tokens_at=self.bucket.at if rate else None)
        )


def _admit_held(tx: Tx, gate: _Gate) -> None:
    while gate.has_room:
        room = 100 if gate.limits.max_concurrent is None else min(100, gate.limits.max_concurrent - gate.running)
        held = sa.select(R.c.id).where(_held(gate)).order_by(R.c.priority.desc(), R.c.id).limit(room)
        ids = tx.conn.execute(held).scalars().all()
        if not ids:
            return
        for run_id in ids:
            admission = gate.admit(tx.now) if gate.limits.holds else Admission()
            written = tx.conn.execute(
                sa.update(R)
                .where(R.c.id == run_id, _held(gate))
                .values(admitted=admission.admitted, ready=admission.ready, wake_at=admission.wake_at)
            )
            if written.rowcount == 0:  # canceled in between: its place is free again
                gate.running -= admission.admitted
                continue
            tx.notify("run", run_id)
        tx.notify("ready")


def _of_workflow(name: str) -> Any:
    return R.c.definition_id.in_(sa.select(D.c.id).where(D.c.tenant_id == 0, D.c.name == name))


def _held(gate: _Gate) -> sa.ColumnElement[bool]:
    # The literal makes SQLite use the partial index.
    state = R.c.state == sa.literal_column("'queued'")
    free = (R.c.ready.is_(None), R.c.wake_at.is_(None), R.c.worker_id.is_(None), R.c.requested == "none", ~R.c.admitted)
    return sa.and_(_of_workflow(gate.workflow), R.c.tenant_id == gate.tenant_id, state, *free)


def _queue_length(tx: Tx, gate: _Gate) -> int:
    """Runs that are held or promised; where nothing is ever held, those that no worker has claimed yet."""
    if gate.limits.holds:
        waiting = _held(gate)
    else:
        waiting = sa.and_(R.c.ready == 1, R.c.tenant_id == gate.tenant_id, _of_workflow(gate.workflow), OPEN)
    length = tx.conn.execute(sa.select(sa.func.count()).select_from(R).where(waiting)).scalar_one()
    return int(length) + gate.promised(tx.now)


def _queue_full(workflow: str, most: int) -> LimitExceeded:
    return LimitExceeded(
        f"{most} runs of workflow {workflow!r} are waiting to start, which is its limit (max_queued)",
        workflow=workflow,
        limit=most,
    )
