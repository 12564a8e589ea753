"""Where the steps of one worker stand in line for the places of a pool."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta

import structlog

from signoff.engine import pools
from signoff.engine.pools import MAX_QUEUED_OF_RUN, Wanted
from signoff.store.errors import StoreError
from signoff.store.store import Store

logger = structlog.get_logger(__name__)

STORE_PAUSE = 0.2  # seconds before the store is asked again after it failed

Place = asyncio.Future[None]


class PoolLine:
    """One pool's line: first come, first served, but at most 64 of one run stand in it; the others come behind them.

    All of them are asked for in one transaction, again whenever the pool changed.
    """

    def __init__(self, store: Store, pool: str, worker_id: Callable[[], int], on_idle: Callable[[], None]) -> None:
        self._store, self._pool, self._worker_id, self._on_idle = store, pool, worker_id, on_idle
        self._line: dict[Wanted, Place] = {}
        self._behind: defaultdict[int, deque[tuple[Wanted, Place]]] = defaultdict(deque)
        self._of_run: Counter[int] = Counter()
        self._task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        self.idle = False  # nothing more is granted before the pool changes or time passes

    async def enter(self, wanted: Wanted) -> None:
        """Returns when the step has its place, which its caller gives back also when this is canceled."""
        place: Place = asyncio.get_running_loop().create_future()
        if self._of_run[wanted.run_id] < MAX_QUEUED_OF_RUN:
            self._join(wanted, place)
        else:
            self._behind[wanted.run_id].append((wanted, place))
        try:
            await place
        except asyncio.CancelledError:
            if self._line.get(wanted) is place:
                self._left(wanted)
            elif (wanted, place) in self._behind[wanted.run_id]:
                self._behind[wanted.run_id].remove((wanted, place))
            raise

    def count(self, run_id: int) -> int:
        """How many steps of a run wait here."""
        return self._of_run[run_id] + len(self._behind.get(run_id, ()))

    async def close(self) -> None:
        """After the last one left: returns when nothing is asked for any more."""
        self.changed.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _join(self, wanted: Wanted, place: Place) -> None:
        self._line[wanted] = place
        self._of_run[wanted.run_id] += 1
        self.idle = False
        self.changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name=f"signoff-pool-{self._pool}")

    def _left(self, wanted: Wanted) -> None:
        run_id = wanted.run_id
        del self._line[wanted]
        self._of_run[run_id] -= 1
        if behind := self._behind.get(run_id):
            self._join(*behind.popleft())
        elif not self._of_run[run_id]:
            del self._of_run[run_id]
            self._behind.pop(run_id, None)
        self.changed.set()

    async def _serve(self) -> None:
        clock = self._store.clock
        while self._line:
            self.changed.clear()
            self.idle = False
            try:
                granted = await self._store.write(pools.acquire, self._pool, list(self._line), self._worker_id())
            except StoreError as error:
                logger.warning("a pool cannot be asked; trying again", pool=self._pool, error=str(error))
                await asyncio.sleep(STORE_PAUSE)
                continue
            for wanted in granted.places:
                place = self._line.get(wanted)
                if place is None or place.done():  # not wanted any more
                    await self._store.write(pools.release, wanted.run_id, wanted.step_no, self._worker_id())
                    continue
                self._left(wanted)
                place.set_result(None)
            if self._line and not granted.places:
                self.idle = True
                self._on_idle()
                wait = granted.retry_in
                await clock.wait_until(None if wait is None else clock.now() + timedelta(seconds=wait), self.changed)
