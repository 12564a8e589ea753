"""Pools: limits on how many steps run at once, and how often they start, in the whole deployment.

A pool is a row that is changed while everything runs. Code sets the initial values only. A slot is held while an
attempt runs, never during back-off, delays or waits. A step whose pool limits nothing touches no row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from signoff.engine.limits import Bucket
from signoff.engine.lookup import insert_new
from signoff.engine.outcomes import Row
from signoff.store.tables import Pool, PoolSlot
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput, NotFound
from signoff.workflow.names import check_name

P = Pool.__table__
SLOT = PoolSlot.__table__

# of one run, so that a large fan-out cannot starve others
MAX_QUEUED_OF_RUN = 64


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`max_parallel` 0 pauses the pool; `rate` is starts in seconds; `serial_keys`: one at a time for each pool key."""

    max_parallel: int | None = None
    rate: tuple[int, float] | None = None
    serial_keys: bool = False

    def check(self) -> PoolLimits:
        if self.max_parallel is not None and self.max_parallel < 0:
            raise InvalidInput(f"max_parallel is 0 or more, not {self.max_parallel}")
        if self.rate is not None and not (self.rate[0] >= 1 and 0 < self.rate[1] < float("inf")):
            raise InvalidInput(f"rate is (starts, seconds), both above 0, not {self.rate!r}")
        return self

    def to_json(self) -> dict[str, Any]:
        rate = list(self.rate) if self.rate is not None else None
        return {"max_parallel": self.max_parallel, "rate": rate, "serial_keys": self.serial_keys}

    @classmethod
    def of(cls, row: Row) -> PoolLimits:
        return cls(row.max_parallel, (row.rate, row.per) if row.rate is not None else None, row.serial_keys)

    def columns(self) -> dict[str, Any]:
        rate, per = self.rate or (None, None)
        return {"max_parallel": self.max_parallel, "rate": rate, "per": per, "serial_keys": self.serial_keys}


@dataclass(frozen=True, slots=True)
class PoolView:
    name: str
    limits: PoolLimits
    declared: PoolLimits | None  # what the code said that made it
    running: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place that a step asks for."""

    run_id: int
    step_no: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """`retry_in`: seconds after which to ask again for the rest; None: when the pool sends a notice."""

    places: frozenset[Wanted]
    retry_in: float | None = None


def declare(tx: Tx, name: str, limits: PoolLimits) -> PoolLimits | None:
    """Makes the pool if it is new. Returns what another process declared, if that differs; the pool stays as it is."""
    check_name(name, "pool")
    declared = json.dumps(limits.check().to_json())
    made = tx.conn.execute(
        insert_new(tx, P).values(name=name, declared=declared, **limits.columns()).returning(P.c.name)
    ).first()
    if made is not None:
        return None
    former = tx.conn.execute(sa.select(P.c.declared).where(P.c.name == name)).scalar()
    if former is None:  # made by hand before any code named it
        tx.conn.execute(sa.update(P).where(P.c.name == name).values(declared=declared))
        return None
    return None if former == declared else _declared(former)


def change(tx: Tx, name: str, limits: PoolLimits) -> None:
    """Sets the limits of a pool, live; makes it if there is none. Lowering lets running attempts end."""
    check_name(name, "pool")
    values = limits.check().columns()
    changed = tx.conn.execute(sa.update(P).where(P.c.name == name).values(**values, tokens=None, tokens_at=None))
    if changed.rowcount == 0:
        tx.conn.execute(sa.insert(P).values(name=name, **values))
    tx.notify("pool", name)


def acquire(tx: Tx, pool: str, wanted: Sequence[Wanted], worker_id: int) -> Granted:
    """Takes slots for attempts, in the order given. A step that has its slot already keeps it."""
    select = sa.select(P).where(P.c.name == pool)
    row = tx.conn.execute(select).one_or_none()
    free = frozenset(item for item in wanted if row is None or not _limits(row, item.key))
    if row is None or len(free) == len(wanted):
        return Granted(free)
    row = tx.conn.execute(select.with_for_update()).one()
    held = {(slot.run_id, slot.step_no): slot for slot in tx.conn.execute(sa.select(SLOT).where(SLOT.c.pool == pool))}
    left = len(wanted) if row.max_parallel is None else row.max_parallel - len(held)
    keys = {slot.key for slot in held.values()} if row.serial_keys else set()
    bucket = Bucket(float(row.rate or 0) if row.tokens is None else row.tokens, row.tokens_at or tx.now)
    wait: float | None = None
    taken: list[Wanted] = []
    kept: list[Wanted] = []
    for item in wanted:
        if item in free:
            continue
        if (item.run_id, item.step_no) in held:
            kept.append(item)
            continue
        if left <= 0 or (item.key is not None and item.key in keys):
            continue
        if row.rate is not None:
            bucket, seconds = bucket.take(tx.now, row.rate, row.per)
            if seconds:
                wait = seconds
                break
        left -= 1
        taken.append(item)
        if row.serial_keys:
            keys.add(item.key)
    if row.rate is not None:
        tx.conn.execute(sa.update(P).where(P.c.name == pool).values(tokens=bucket.tokens, tokens_at=bucket.at))
    for item in kept:
        mine = (SLOT.c.run_id == item.run_id, SLOT.c.step_no == item.step_no)
        tx.conn.execute(sa.update(SLOT).where(*mine).values(worker_id=worker_id))
    if taken:
        slots = [
            {"run_id": item.run_id, "step_no": item.step_no, "key": item.key, "pool": pool, "worker_id": worker_id,
             "since": tx.now}
            for item in taken
        ]  # fmt: skip
        tx.conn.execute(sa.insert(SLOT), slots)
    return Granted(free.union(taken, kept), wait)


def release(tx: Tx, run_id: int, step_no: int, worker_id: int) -> None:
    """Gives back the slot of a worker's ended attempt; one that has none, or went to another worker, is no error."""
    _free(tx, sa.and_(SLOT.c.run_id == run_id, SLOT.c.step_no == step_no, SLOT.c.worker_id == worker_id))


def free_slots(tx: Tx, worker_ids: Sequence[int]) -> None:
    """Gives out again what lost workers hold."""
    _free(tx, SLOT.c.worker_id.in_(worker_ids))


def pools_view(tx: Tx) -> list[PoolView]:
    running = sa.select(SLOT.c.pool, sa.func.count().label("running")).group_by(SLOT.c.pool).subquery()
    rows = tx.conn.execute(
        sa.select(P, sa.func.coalesce(running.c.running, 0).label("running"))
        .outerjoin(running, running.c.pool == P.c.name)
        .order_by(P.c.name)
    )
    return [PoolView(row.name, PoolLimits.of(row), _declared(row.declared), row.running) for row in rows]


def pool_view(tx: Tx, name: str) -> PoolView:
    found = next((pool for pool in pools_view(tx) if pool.name == name), None)
    if found is None:
        raise NotFound(f"there is no pool {name!r}", pool=name)
    return found


def _free(tx: Tx, which: sa.ColumnElement[bool]) -> None:
    freed = tx.conn.execute(sa.delete(SLOT).where(which).returning(SLOT.c.pool)).scalars().all()
    for pool in sorted(set(freed)):
        tx.notify("pool", pool)


def _limits(row: Row, key: str | None) -> bool:
    return row.max_parallel is not None or row.rate is not None or (row.serial_keys and key is not None)


def _declared(text: str | None) -> PoolLimits | None:
    if text is None:
        return None
    raw = json.loads(text)
    return PoolLimits(raw["max_parallel"], tuple(raw["rate"]) if raw["rate"] else None, raw["serial_keys"])
