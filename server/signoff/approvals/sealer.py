"""Seals new rows of the ledger and the audit log within seconds. Every server has one; a chain is sealed by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from signoff.people.chain import has_pending, seal_pending
from signoff.store.errors import StoreError
from signoff.store.store import Notice, Store

log = structlog.get_logger("signoff.sealer")

INTERVAL: Final = 5.0  # seconds between looks without a notice
GATHER: Final = 0.5  # seconds after a notice, so that one sealing serves many rows


class Sealer:
    """`start()` and `stop()` on the loop of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._noticed)
        self._task = asyncio.create_task(self._run(), name="signoff-sealer")

    async def stop(self) -> None:
        """Ends without sealing the rest: the next start does."""
        if self._task is not None:
            self._unsubscribe()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _noticed(self, notices: Sequence[Notice]) -> None:
        if any(notice.kind == "approvals" for notice in notices):
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                while await self._store.read(has_pending):
                    if not await self._store.write(seal_pending):
                        break  # another server is at it
            except StoreError as error:
                # The database is away or busy: rows keep until it is back.
                log.warning("could not seal", error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), INTERVAL)
                await asyncio.sleep(GATHER)
            self._wake.clear()
