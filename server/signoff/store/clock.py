"""What time it is, and waiting for a moment. Tests move a clock of their own."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Protocol

# A wall clock may jump while a timer sleeps on the monotonic one, so no sleep is longer than this many seconds.
_SLICE = 1.0


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time, aware, in UTC. Callable from any thread."""
        ...

    async def wait_until(self, moment: datetime | None, wake: asyncio.Event) -> None:
        """Return when `moment` is reached or `wake` is set. None: only when `wake` is set. Does not clear `wake`."""
        ...


def _check(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use an aware datetime such as datetime.now(UTC)")
    return moment.astimezone(UTC)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    async def wait_until(self, moment: datetime | None, wake: asyncio.Event) -> None:
        if moment is None:
            await wake.wait()
            return
        _check(moment)
        while not wake.is_set():
            left = (moment - self.now()).total_seconds()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(min(left, _SLICE)):
                    await wake.wait()
            except TimeoutError:
                continue


class ManualClock:
    """Stands still until it is moved. Thread-safe."""

    def __init__(self, start: datetime) -> None:
        self._now = _check(start)
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        self.move_to(self._now + by)

    def move_to(self, moment: datetime) -> None:
        """Set the time, forwards or backwards, and wake whoever waits for it."""
        with self._lock:
            self._now = _check(moment)
            waiting = list(self._waiting.items())
        for moved, loop in waiting:
            loop.call_soon_threadsafe(moved.set)

    async def wait_until(self, moment: datetime | None, wake: asyncio.Event) -> None:
        if moment is None:
            await wake.wait()
            return
        _check(moment)
        moved = asyncio.Event()
        with self._lock:
            self._waiting[moved] = asyncio.get_running_loop()
        waits: set[asyncio.Task[bool]] = set()
        try:
            while not wake.is_set() and self._now < moment:
                waits = {asyncio.ensure_future(wake.wait()), asyncio.ensure_future(moved.wait())}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                moved.clear()
        finally:
            for wait in waits:
                wait.cancel()
            with self._lock:
                del self._waiting[moved]
