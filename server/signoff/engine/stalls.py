"""A watch on the event loop while attempts run: a step function that blocks it is reported with its line."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from signoff.engine.driver import author_line

logger = structlog.get_logger(__name__)


class StallWatch:
    """Inside `watching()` the loop gives a sign of life several times in `limit` seconds; else it costs nothing."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._running = 0
        self._beat = time.monotonic()
        self._ticking: asyncio.TimerHandle | None = None
        self._busy = threading.Event()
        self._stopped = False
        threading.Thread(target=self._watch, name="signoff-stalls", daemon=True).start()

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._running += 1
        if self._ticking is None:
            self._tick()
            self._busy.set()
        try:
            yield
        finally:
            self._running -= 1

    def stop(self) -> None:
        self._stopped = True
        self._busy.set()
        if self._ticking is not None:
            self._ticking.cancel()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        if self._running:
            self._ticking = self._loop.call_later(self._limit / 4, self._tick)
        else:
            self._busy.clear()
            self._ticking = None

    def _watch(self) -> None:
        reported = 0.0
        while True:
            self._busy.wait()
            if self._stopped:
                return
            time.sleep(self._limit / 4)
            beat = self._beat
            if self._busy.is_set() and beat != reported and time.monotonic() - beat > self._limit:
                reported = beat  # once for each stall
                logger.warning(
                    "a step function blocks the event loop: make it a plain `def`, which runs in a thread",
                    seconds=self._limit,
                    line=author_line(sys._current_frames().get(self._ident)),
                )
