"""Waits for runs: one subscription to the store's notices serves every waiter of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from signoff.engine.definitions import definition_by_id
from signoff.store import payloads
from signoff.store.errors import StoreClosed, StoreError
from signoff.store.store import Notice, Store, Tx
from signoff.store.tables import Run
from signoff.workflow.kinds import RunState

# Notices lose nothing; this is for the case that one did all the same.
SAFETY_SECONDS = 15.0
# A run that is waited for tells of each of its steps. Looks that find nothing ended become rarer, up to this pause.
LONGEST_PAUSE = 0.02

_R = Run.__table__


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, or why it cannot go on (`blocked`); texts as stored."""

    workflow: str
    version: int
    result_kind: str | None
    value: str | None
    error: str | None
    blocked: str | None


def read_endings(tx: Tx, run_ids: Sequence[int]) -> dict[int, Ending | None]:
    """The endings of those runs that exist; None for one that still goes on."""
    columns = (_R.c.id, _R.c.definition_id, _R.c.state, _R.c.result_kind, _R.c.value, _R.c.error, _R.c.blocked_reason)
    rows = tx.conn.execute(sa.select(*columns).where(_R.c.id.in_(run_ids))).all()
    found: dict[int, Ending | None] = {}
    for row in rows:
        if row.state != RunState.FINAL and row.blocked_reason is None:
            found[row.id] = None
            continue
        known = definition_by_id(tx, row.definition_id)
        value = payloads.get(tx, row.value) if row.value is not None else None
        found[row.id] = Ending(known.name, known.version, row.result_kind, value, row.error, row.blocked_reason)
    return found


class Watcher:
    """Give it a running loop: `open()`, then `ending()` and `changes()`, then `close()`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, set[asyncio.Future[Ending | None]]] = {}
        self._dirty: set[int] = set()
        self._wake = asyncio.Event()
        self._signals: dict[int, set[asyncio.Event]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._unsubscribe = self._store.subscribe(self._on_notices)
        self._reader = asyncio.create_task(self._read(), name="signoff-watcher")

    async def close(self) -> None:
        self._unsubscribe()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        # No cancellation: who waits would take it for its own, and a task group for no error at all.
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(StoreClosed("the engine was closed while a run was waited for"))
        for signals in self._signals.values():
            for signal in signals:
                signal.set()  # who looks next is told by the store

    async def ending(self, run_id: int) -> Ending | None:
        """Return when the run is final or blocked; None when it was deleted meanwhile. `StoreClosed` by `close()`."""
        future: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        self._mark(run_id)
        try:
            return await future
        finally:
            futures = self._waiting.get(run_id, set())
            futures.discard(future)
            if not futures:
                self._waiting.pop(run_id, None)

    @contextmanager
    def changes(self, run_id: int) -> Iterator[asyncio.Event]:
        """An event that is set whenever the run may have changed; the user clears it before it looks."""
        signal = asyncio.Event()
        self._signals.setdefault(run_id, set()).add(signal)
        try:
            yield signal
        finally:
            signals = self._signals[run_id]
            signals.discard(signal)
            if not signals:
                del self._signals[run_id]

    def _mark(self, run_id: int) -> None:
        self._dirty.add(run_id)
        self._wake.set()

    def _on_notices(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            if notice.kind == "run" and isinstance(notice.key, int):
                if notice.key in self._waiting and not (notice.data and notice.data.get("open")):
                    self._mark(notice.key)
                for signal in self._signals.get(notice.key, ()):
                    signal.set()
            elif notice.kind == "resync":
                self._mark_all()
                for signals in self._signals.values():
                    for signal in signals:
                        signal.set()

    def _mark_all(self) -> None:
        self._dirty.update(self._waiting)
        if self._dirty:
            self._wake.set()

    async def _read(self) -> None:
        """Looks at all runs that changed since the last look in one query, so that thousands of waiters cost little."""
        pause = 0.0
        while True:
            if pause:
                await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(SAFETY_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._mark_all()
            self._wake.clear()
            run_ids = list(self._dirty & self._waiting.keys())
            self._dirty.clear()
            if not run_ids:
                continue
            try:
                found = await self._store.read(read_endings, run_ids)
            except StoreError:  # the database is away: waiters wait on until it is back
                await asyncio.sleep(1)
                self._dirty.update(run_ids)
                self._wake.set()
                continue
            pause = min(LONGEST_PAUSE, pause * 2 or 0.001)
            for run_id in run_ids:
                ending = found.get(run_id)
                if ending is None and run_id in found:
                    continue
                pause = 0.0
                for future in self._waiting.pop(run_id, ()):
                    if not future.done():
                        future.set_result(ending)
