"""Reminders and escalations at their times. Every server has a clerk; each is given once, whoever comes first.

On PostgreSQL it also looks once more who can answer, a moment after people changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import sqlalchemy as sa
import structlog

from signoff.approvals.changes import escalate_now
from signoff.approvals.notes import note
from signoff.approvals.questions import A
from signoff.approvals.schedule import escalation, next_moment, next_reminder
from signoff.approvals.settling import settle_all
from signoff.engine.outcomes import Row
from signoff.people.audit import audit
from signoff.store.errors import StoreError
from signoff.store.scope import Scope
from signoff.store.store import Notice, Store
from signoff.store.tx import Tx

log = structlog.get_logger("signoff.clerk")

BATCH: Final = 100  # questions in one transaction
AWAY: Final = 5.0  # seconds before another look when the database was away
LOCKED: Final = 0.05  # ... and when somebody had locked what is due
SETTLED: Final = 1.0  # seconds after people changed, by which what was asked at the same time has its row
VIA: Final = "clerk"

# As the index has it: SQLite does not look into parameters.
_WAITING: Final = (A.c.state == sa.text("'open'"), A.c.next_at.is_not(None))


class Clerk:
    """`start()` and `stop()` on the loop of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._next: datetime | None = None
        self._task: asyncio.Task[None] | None = None
        self._again: dict[int, asyncio.TimerHandle] = {}  # tenants whose people changed a moment ago
        self._looks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._noticed)
        self._task = asyncio.create_task(self._run(), name="signoff-clerk")

    async def stop(self) -> None:
        """What is due meanwhile is given at the next start, or by another server."""
        if self._task is not None:
            self._unsubscribe()
            for handle in self._again.values():
                handle.cancel()
            tasks = [self._task, *self._looks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._task = None

    async def settled(self) -> None:
        """Returns when nothing is to be done before time passes or something changes."""
        while self._task is not None and not self._task.done() and not self._is_quiet():
            self._idle.clear()
            await self._idle.wait()

    def _is_quiet(self) -> bool:
        due = self._next is not None and self._next <= self._store.clock.now()
        return self._idle.is_set() and not self._wake.is_set() and not due

    def _noticed(self, notices: Sequence[Notice]) -> None:
        if any(notice.kind in ("clerk", "resync") for notice in notices):
            self._idle.clear()
            self._wake.set()
        if self._store.dialect.name == "postgresql":  # on SQLite one transaction comes after the other
            for notice in notices:
                if notice.kind == "people":
                    self._look_again(int(notice.key))

    def _look_again(self, tenant_id: int) -> None:
        """A question asked in the very moment saw people as they were before, and was not seen by the change."""
        if (waiting := self._again.pop(tenant_id, None)) is not None:
            waiting.cancel()
        self._again[tenant_id] = asyncio.get_running_loop().call_later(SETTLED, self._look, tenant_id)

    def _look(self, tenant_id: int) -> None:
        del self._again[tenant_id]
        look = asyncio.create_task(self._settle(tenant_id))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _settle(self, tenant_id: int) -> None:
        try:
            await self._store.write(_settle, tenant_id)
        except StoreError as error:
            log.warning("could not see who can answer after people changed", error=str(error))

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = None
            try:
                self._next = await self._store.read(next_due)
                if self._next is not None and self._next <= self._store.clock.now():
                    if not await self._store.write(give_due):
                        pause = LOCKED  # somebody has it locked: another server's clerk, or a decision
                    self._next = await self._store.read(next_due)
            except StoreError as error:
                # The database is away or busy: what is due is stored, and keeps until it is back.
                log.warning("could not look for reminders", error=str(error))
                pause = AWAY
            if pause is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
            elif self._wake.is_set():
                continue
            else:
                self._idle.set()
                await self._store.clock.wait_until(self._next, self._wake)


def _settle(tx: Tx, tenant_id: int) -> None:
    settle_all(tx, tenant_id)
    tx.notify("approvals", tenant_id)


def next_due(tx: Tx) -> datetime | None:
    """When the next reminder or escalation of any question is due."""
    return tx.conn.execute(sa.select(sa.func.min(A.c.next_at)).where(*_WAITING)).scalar()


def give_due(tx: Tx) -> int:
    """Give what is due by now, of each question in the order of its due times; how many questions had something.

    Other servers pass over the questions that this one has locked. A question whose deadline has passed needs nobody
    any more, whether that is recorded already or not.
    """
    query = sa.select(A).where(*_WAITING, A.c.next_at <= tx.now).order_by(A.c.next_at, A.c.id).limit(BATCH)
    rows = tx.conn.execute(tx.dialect.claim(query)).all()
    for row in rows:
        if row.timeout_at is not None and row.timeout_at <= tx.now:
            tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(next_at=None))
        else:
            _give(tx, row)
    return len(rows)


def _give(tx: Tx, row: Row) -> None:
    while (moment := next_moment(row)) is not None and moment <= tx.now:
        if next_reminder(row) == moment:
            note(tx, row, "remind", via=VIA, data={"number": row.reminded + 1, "due_at": moment.isoformat()})
            row = _write(tx, row, row.reminded + 1)
        else:
            assert escalation(row) == moment
            row = escalate_now(tx, row, None, None, VIA)
            audit(tx, Scope(row.tenant_id), "approval.escalate", row.public_id, via=VIA)
    tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(next_at=moment))


def _write(tx: Tx, row: Row, reminded: int) -> Row:
    return tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(reminded=reminded).returning(A)).one()
