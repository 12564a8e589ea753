"""The worker: claims runs, drives their programs, executes their steps, keeps their timers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

import structlog

from signoff.engine import recovery, registration
from signoff.engine.active import ActiveRun
from signoff.engine.claiming import Claiming
from signoff.engine.claims import release
from signoff.engine.completion import Completions
from signoff.engine.driver import Driver
from signoff.engine.execution import Executor, StepReplacements
from signoff.engine.settings import EngineSettings
from signoff.store.errors import StoreError
from signoff.store.liveness import Liveness
from signoff.store.store import Store
from signoff.workflow.registry import Registry

logger = structlog.get_logger(__name__)

RECOVERY_EVERY = 2.0  # seconds between looks for lost workers


class Worker(Claiming):
    """Runs everything that its registry has the code of, until `stop()`. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        liveness: Liveness,
        *,
        settings: EngineSettings | None = None,
        replacements: StepReplacements | None = None,
    ) -> None:
        super().__init__(store, registry, liveness, settings or EngineSettings())
        self.executor = Executor(self, replacements)
        self.completions = Completions(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    # -- life

    async def start(self) -> None:
        """Take over what lost workers left, register the code, begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(self.settings.handler_limit)
        self.id = await self.liveness.start()
        if self.store.dialect.name == "sqlite":
            await self._take_over(None)
        self._known = await self.store.write(registration.register, self.id, self.registry)
        self._unsubscribe = self.store.subscribe(self._heard, self._foretold)
        self._tasks = [
            asyncio.create_task(self._claim_loop(), name="signoff-claims"),
            asyncio.create_task(self._timer_loop(), name="signoff-timers"),
            asyncio.create_task(self._recovery_loop(), name="signoff-recovery"),
        ]
        for task in self._tasks:
            task.add_done_callback(_never_silent)
        self.completions.start()
        self._claim_wanted.set()

    async def refresh_definitions(self) -> None:
        """After code was registered while the worker runs (a reload, a notebook cell)."""
        self._known = await self.store.write(registration.register, self.id, self.registry)
        for run in self._cache.values():
            self._forget(run)
        self._cache.clear()
        self._claim_wanted.set()

    async def stop(self, grace: float = 10.0) -> None:
        """Claim no more, let running attempts end for up to `grace` seconds, hand the rest back."""
        if self.stopping:
            return
        self.stopping = True
        self._unsubscribe()
        self._claim_wanted.set()
        # what is being claimed would be nobody's until this worker is found lost
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.completions.stop()
        deadline = self._loop.time() + grace
        while (running := self._running()) and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        under_way = {run.id: list(run.tasks) for run in self.active.values()}
        for attempt in self._running():
            attempt.cancel()
        await asyncio.gather(*self._running(), return_exceptions=True)
        while any(run.busy for run in self.active.values()):  # what attempts brought is written
            self._advanced.clear()
            await self._advanced.wait()
        held = [(run.id, run.epoch, under_way.get(run.id, [])) for run in self.active.values() if run.adopted is None]
        for run in self.active.values():
            run.closing = True
        try:
            await self.store.write(release, held)
        except StoreError as error:
            logger.warning("runs could not be handed back; they go on when this worker is found lost", error=str(error))
        await self.executor.reporter.flush()
        for run in (*self.active.values(), *self._cache.values()):
            self._forget(run)
        self.active.clear()
        self._cache.clear()
        await self.executor.leave_lines()
        self.executor.close()
        self._driver.stop()
        await self.store.write(registration.unregister, self.id)
        await self.liveness.stop()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for run in self.active.values() for task in run.tasks.values() if not task.done()]

    def busy(self) -> int:
        """How many runs are held at this moment."""
        return len(self.active)

    def value_limit(self, run: ActiveRun) -> int:
        """Of one value of the run, in bytes."""
        return self._known[run.definition_id].max_value_bytes or self.settings.max_value_bytes

    # -- time

    async def _timer_loop(self) -> None:
        clock = self.store.clock
        while True:
            moments = [moment for moment in (self._next_wake, self._timers[0][0] if self._timers else None) if moment]
            self._timer_wake.clear()
            await clock.wait_until(min(moments, default=None), self._timer_wake)
            now = clock.now()
            if self._next_wake is not None and self._next_wake <= now:
                self._next_wake = None
                self._claim_wanted.set()
            while self._timers and self._timers[0][0] <= now:
                _, run_id = heapq.heappop(self._timers)
                run = self.active.get(run_id)
                if run is None or run.busy:  # it may be parking; its advance says when it is due next
                    continue
                try:
                    self._start_due(run, now)
                    if (due := run.next_due()) is not None and due > now:
                        self.timer(run, due)  # a later delay, while attempts run
                    self.pump(run)
                except Exception:  # the timers of other runs go on
                    logger.exception("waking a run failed", run=run.public_id)
            self.check_quiet()

    # -- recovery

    async def _recovery_loop(self) -> None:
        if self.store.dialect.name == "sqlite":
            return
        while True:
            try:
                if self.liveness.expelled or self.liveness.worker_id != self.id:
                    await self._begin_again()
                lost = self.liveness.lost()
                if lost:
                    await self._take_over(lost)
                    self._claim_wanted.set()  # they were the ones to wake the runs that they had let go
                for worker_id in lost:
                    self.liveness.settled(worker_id)
            except Exception:  # the store is away; lost workers are looked for when it is back
                logger.exception("looking for lost workers failed")
            await asyncio.sleep(RECOVERY_EVERY)

    async def _take_over(self, worker_ids: Sequence[int] | None) -> None:
        while await self.store.write(recovery.take_over, worker_ids, self.id):
            pass

    async def _begin_again(self) -> None:
        """Others took this worker for lost: its runs went on elsewhere, and it comes back as a new one."""
        logger.warning("this worker was taken for lost; it begins again", worker=self.id)
        for run in (*self.active.values(), *self._cache.values()):
            self._forget(run)
        self.active.clear()
        self._cache.clear()
        # each part may fail while the database is away; then the rest is done with the next look
        if self.liveness.expelled or self.liveness.worker_id is None:
            await self.liveness.stop()
            await self.liveness.start()
        worker_id = self.liveness.worker_id
        assert worker_id is not None
        self._known = await self.store.write(registration.register, worker_id, self.registry)
        self.id = worker_id
        self._claim_wanted.set()


def _never_silent(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("a loop of the worker ended; restart the process", loop=task.get_name(), exc_info=error)
