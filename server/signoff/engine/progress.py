"""Progress and log lines of attempts, written in batches beside the journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import structlog

from signoff.engine.outcomes import R, S
from signoff.store.errors import StoreClosed, StoreError
from signoff.store.store import Store
from signoff.store.tables import LogLine
from signoff.store.tx import Tx

logger = structlog.get_logger(__name__)

L = LogLine.__table__

EVERY = 0.2  # seconds between two writes of one worker

Line = tuple[int, int, int, datetime, str, str, str | None]


class Reporter:
    """Collects what attempts say, from any thread, and writes it a few times a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._progress: dict[tuple[int, int], str] = {}
        self._lines: list[Line] = []
        self._due: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Future[None] | None = None

    def log(self, run_id: int, step_no: int, attempt: int) -> Callable[[str, str, dict[str, Any] | None], None]:
        def write(level: str, message: str, data: dict[str, Any] | None) -> None:
            text = json.dumps(data, default=repr) if data else None
            self._lines.append((run_id, step_no, attempt, self._store.clock.now(), level, message, text))
            self._loop.call_soon_threadsafe(self._soon)

        return write

    def progress(self, run_id: int, step_no: int) -> Callable[[float, str], None]:
        def write(fraction: float, text: str) -> None:
            self._progress[run_id, step_no] = json.dumps({"fraction": fraction, "text": text})
            self._loop.call_soon_threadsafe(self._soon)

        return write

    def forget(self, run_id: int, step_no: int) -> None:
        """The step ended: progress that was not written is not worth it any more."""
        if self._progress:
            self._progress.pop((run_id, step_no), None)

    def _soon(self) -> None:
        if self._due is None:
            self._due = self._loop.call_later(EVERY, self._flush_later)

    def _flush_later(self) -> None:
        self._due = None
        self._flushing = asyncio.ensure_future(self.flush())

    async def flush(self) -> None:
        """Write what was collected. It is not lost when the store is away, but tried again."""
        lines, self._lines = self._lines, []
        progress, self._progress = self._progress, {}
        if not lines and not progress:
            return
        try:
            await self._store.write(write_reports, lines, progress)
        except StoreError as error:
            logger.warning("progress could not be written", error=str(error))
            self._lines = lines + self._lines
            self._progress = progress | self._progress
            if not isinstance(error, StoreClosed):
                self._soon()


def write_reports(tx: Tx, lines: list[Line], progress: dict[tuple[int, int], str]) -> None:
    touched = sorted({line[0] for line in lines} | {run_id for run_id, _ in progress})
    tx.conn.execute(tx.dialect.lock(sa.select(R.c.id).where(R.c.id.in_(touched)).order_by(R.c.id)))  # as advances do
    if lines:
        names = ("run_id", "step_no", "attempt", "at", "level", "message", "data")
        tx.conn.execute(sa.insert(L), [dict(zip(names, line, strict=True)) for line in lines])
    for (run_id, step_no), text in progress.items():
        tx.conn.execute(
            sa.update(S).where(S.c.run_id == run_id, S.c.no == step_no, S.c.outcome_no.is_(None)).values(progress=text)
        )
    tx.conn.execute(sa.update(R).where(R.c.id.in_(touched)).values(touch_no=R.c.touch_no + 1))
    for run_id in touched:
        tx.notify("run", run_id)
