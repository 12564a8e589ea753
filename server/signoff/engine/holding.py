"""What a worker holds: its runs in memory, when they are due, and whether all of them are quiet."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from signoff.engine.active import ActiveRun
from signoff.engine.advance import apply_advances
from signoff.engine.driver import Driver
from signoff.engine.events import misfit_by
from signoff.engine.programs import Known
from signoff.engine.settings import EngineSettings
from signoff.store.liveness import Liveness
from signoff.store.store import Store
from signoff.workflow.kinds import ErrorInfo, RunState
from signoff.workflow.registry import Registry

if TYPE_CHECKING:
    from signoff.engine.completion import Completions
    from signoff.engine.execution import Executor

TIMERS = 10_000  # in memory before those that nobody waits for are thrown away
# An inline step that took the advance's whole transaction along when it failed: generation, name, ordinal.
Spoiler = tuple[int, str, int]

QUIET_LOOK = 0.05  # seconds between looks whether a worker is quiet that tests wait for
RETRY_PAUSE = 0.2  # seconds before what the store could not do is tried again


class Holding:
    """The state that claiming, driving and the worker's life share. Belongs to one event loop."""

    executor: Executor
    completions: Completions
    _loop: asyncio.AbstractEventLoop  # from `start()` on, and so is the driver
    _driver: Driver

    def __init__(self, store: Store, registry: Registry, liveness: Liveness, settings: EngineSettings) -> None:
        self.store, self.registry, self.liveness, self.settings = store, registry, liveness, settings
        self.id = 0
        self.active: dict[int, ActiveRun] = {}
        self.stopping = False
        self._known: dict[int, Known] = {}
        self._cache: OrderedDict[int, ActiveRun] = OrderedDict()
        self.apply = partial(apply_advances, misfit=misfit_by(registry))
        self._committer = store.committer(self.apply)
        self._claim_wanted = asyncio.Event()
        self._timer_wake = asyncio.Event()
        self._timers: list[tuple[datetime, int]] = []
        self._timers_limit = TIMERS
        self._next_wake: datetime | None = None
        self._claiming = False
        self._strays = False  # runs may be claimed in the store that are not in memory
        self._loading = 0
        self._later: set[asyncio.TimerHandle] = set()
        self._quiet_waiters: list[asyncio.Future[None]] = []
        self._failures: dict[int, int] = {}
        self.spoilers: dict[int, dict[Spoiler, ErrorInfo]] = {}  # by run, until its advance is written
        self._advanced = asyncio.Event()  # set whenever a run is no longer busy

    def _owns(self, row: Any) -> bool:
        """Whether the row says that this worker has claimed the run; a SQLite file has no other."""
        return row.state != RunState.FINAL and (self.store.dialect.name == "sqlite" or row.worker_id == self.id)

    def _forget(self, run: ActiveRun) -> None:
        run.closing = True
        for task in run.tasks.values():
            task.cancel()
        for waiter in run.turn_waiters:
            if not waiter.done():
                waiter.cancel()
        run.turn_waiters.clear()
        if run.replayer is not None:
            replayer, run.replayer = run.replayer, None
            self._driver.submit(replayer.close, lambda line: None)

    # -- time

    def timer(self, run: ActiveRun, moment: datetime) -> None:
        heapq.heappush(self._timers, (moment, run.id))
        if len(self._timers) > self._timers_limit:  # most are of runs that went on or were let go
            self._timers = [item for item in set(self._timers) if item[1] in self.active]
            heapq.heapify(self._timers)
            self._timers_limit = max(TIMERS, 2 * len(self._timers))
        self._timer_wake.set()

    def _wake_at(self, moment: datetime) -> None:
        if self._next_wake is None or moment < self._next_wake:
            self._next_wake = moment
            self._timer_wake.set()

    def _call_later(self, delay: float, call: Callable[[], Any]) -> None:
        def run() -> None:
            self._later.discard(handle)
            if not self.stopping:
                call()

        handle = self._loop.call_later(delay, run)
        self._later.add(handle)

    # -- quiet

    async def settled(self) -> None:
        """Returns when nothing can happen any more without time passing or something from outside."""
        while not self._is_quiet():
            waiter = self._loop.create_future()
            self._quiet_waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=QUIET_LOOK)  # whatever made it quiet need not have said so
            await asyncio.sleep(0)

    def _is_quiet(self) -> bool:
        if self._claim_wanted.is_set() or self._claiming or self._loading or self._later or self.completions.working:
            return False
        now = self.store.clock.now()
        if self._next_wake is not None and self._next_wake <= now:
            return False
        if self._timers and self._timers[0][0] <= now:
            return False
        return all(
            not run.busy and not run.pending and len(run.tasks) == self.executor.waiting(run.id)
            for run in self.active.values()
        )

    def check_quiet(self) -> None:
        if self._quiet_waiters and self._is_quiet():
            waiters, self._quiet_waiters = self._quiet_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
