"""The worker: claims runs, drives their programs, executes their steps, keeps their timers."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from signoff.engine import blocking, limits, recovery, registration
from signoff.engine.active import ActiveRun, OpenStep
from signoff.engine.advance import Advance, Applied, Record, apply_advances
from signoff.engine.building import Builder
from signoff.engine.claims import Claimed, claim, free_strays, release
from signoff.engine.completion import Completions
from signoff.engine.driver import Driver, Overrun
from signoff.engine.events import misfit_by
from signoff.engine.execution import Executor, StepReplacements
from signoff.engine.journal import Loaded, load
from signoff.engine.outcomes import Told
from signoff.engine.programs import Known, make_replayer
from signoff.engine.settings import EngineSettings
from signoff.engine.solo import commit_alone
from signoff.replay.messages import Finish
from signoff.store.errors import CommitUnknown, StoreError, TransactionConflict
from signoff.store.liveness import Liveness
from signoff.store.store import Store
from signoff.store.tx import Notice
from signoff.workflow.kinds import FUNCTION_KINDS, OutcomeKind, ResultKind, RunState, StepKind
from signoff.workflow.registry import Registry

logger = structlog.get_logger(__name__)

CLAIM_BATCH = 200
RECOVERY_EVERY = 2.0  # seconds between looks for lost workers
LOCKED_PAUSE = 0.003  # seconds before rows that somebody had locked are looked at again
TIMERS = 10_000  # in memory before those that nobody waits for are thrown away
QUIET_LOOK = 0.05  # seconds between looks whether a worker is quiet that tests wait for
RETRY_PAUSE = 0.2  # seconds before an advance that the store could not write is tried again


class Worker:
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
        self.store, self.registry, self.liveness = store, registry, liveness
        self.settings = settings or EngineSettings()
        self.executor = Executor(self, replacements)
        self.completions = Completions(self)
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
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None
        self._quiet_waiters: list[asyncio.Future[None]] = []
        self._failures: dict[int, int] = {}
        self._advanced = asyncio.Event()  # set whenever a run is no longer busy

    # -- life

    async def start(self) -> None:
        """Take over what lost workers left, register the code, begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(self.settings.handler_limit)
        self.id = await self.liveness.start()
        if self.store.dialect.name == "sqlite":
            await self._take_over(None)
        self._known = await self.store.write(registration.register, self.id, self.registry)
        self._unsubscribe = self.store.subscribe(self._heard)
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
        held = [(run.id, run.epoch, list(run.tasks)) for run in self.active.values()]
        for attempt in self._running():
            attempt.cancel()
        await asyncio.gather(*self._running(), return_exceptions=True)
        while any(run.busy for run in self.active.values()):  # what attempts brought is written
            self._advanced.clear()
            await self._advanced.wait()
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

    def value_limit(self, run: ActiveRun) -> int:
        """Of one value of the run, in bytes."""
        return self._known[run.definition_id].max_value_bytes or self.settings.max_value_bytes

    def check_quiet(self) -> None:
        if self._quiet_waiters and self._is_quiet():
            waiters, self._quiet_waiters = self._quiet_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # -- claiming

    def _heard(self, notices: Sequence[Notice]) -> None:
        ready, told = 0, 0
        woken: dict[int, ActiveRun] = {}
        for notice in notices:
            if notice.kind == "run":
                data = notice.data or {}
                if (outcome := data.get("outcome")) is not None:
                    if (run := self._tell(notice.key, outcome)) is not None:
                        told += 1
                        woken[run.id] = run
                elif (begun := data.get("begun")) is not None and self._may_begin(begun):
                    told += 1
                    self._begin(ActiveRun(begun))
            elif notice.kind == "ready":
                ready += (notice.data or {}).get("begun", 1)
            elif notice.kind == "resync":
                ready = told + 1
                break
            elif notice.kind == "pool":
                self.executor.pool_changed(notice.key)
            elif notice.kind == "completion":
                self.completions.wake()
        if ready > told:
            self._claim_wanted.set()
        for run in woken.values():
            self.pump(run)

    def _may_begin(self, loaded: Loaded) -> bool:
        """Whether a run that this process has just started can be driven without being claimed first (see `_tell`)."""
        return (
            loaded.row.definition_id in self._known
            and loaded.row.id not in self.active
            and len(self.active) < self.settings.max_active
            and self.liveness.healthy
            and self.liveness.worker_id == self.id
            and not self.stopping
        )

    def _tell(self, run_id: int | str, told: Told) -> ActiveRun | None:
        """Hands an outcome that this process recorded straight to a program in memory; None: it must be claimed.

        The run need not be claimed first: its next advance is written only if nobody else has claimed it meanwhile.
        """
        run = self.active.get(int(run_id))
        parked = run is None
        if run is None:
            run = self._cache.get(int(run_id))
            if run is None or len(self.active) >= self.settings.max_active or self.stopping:
                return None
        fits = (
            not (
                run.busy
                or run.load_again
                or run.drains
                or run.ending is not None
                or run.definition_id not in self._known
            )
            and (run.epoch, run.generation, run.requested) == (told.epoch, told.generation, told.requested)
            and told.no == run.outcome_no + 1
            and self.liveness.healthy
        )
        if not fits:
            run.stale = run.stale or run.busy
            return None
        if parked:
            del self._cache[run.id]
            self.active[run.id] = run
            run.closing = False
        run.outcome_no, run.outcome_at = told.no, told.at
        run.pending.append(Record(told.step_no, told.kind, told.at, told.value, told.error, no=told.no))
        return run

    async def _claim_loop(self) -> None:
        while True:
            await self._claim_wanted.wait()
            self._claim_wanted.clear()
            if self.stopping:
                return
            room = max(0, min(self.settings.max_active - len(self.active), CLAIM_BATCH))
            if not self.liveness.healthy or self.liveness.worker_id != self.id:
                self._call_later(0.05, self._claim_wanted.set)
                continue
            self._claiming = True
            try:
                claimed = await self._claim(room)
                if claimed.delayed:
                    await self.store.write(limits.admit_due, claimed.delayed)
                    self._claim_wanted.set()
            except Exception:  # the store is away: its callers hear of it, this loop goes on when it is back
                logger.exception("claiming runs failed; trying again")
                self._strays = True  # its commit may have happened all the same
                self._call_later(RETRY_PAUSE, self._claim_wanted.set)
                continue
            finally:
                self._claiming = False
            if not room:  # only news of those that are held
                self._call_later(0.05, self._claim_wanted.set)
            elif claimed.more:
                self._claim_wanted.set()
            elif claimed.skipped:
                self._call_later(LOCKED_PAUSE, self._claim_wanted.set)
            try:
                self._take(claimed)
            except Exception:  # whatever it is, the other runs go on
                logger.exception("claimed runs could not be taken; trying again")
                self._strays = True
                self._call_later(RETRY_PAUSE, self._claim_wanted.set)
            self.check_quiet()

    async def _claim(self, room: int) -> Claimed:
        held = (*self._cache.values(), *self.active.values())
        known = {run.id: (run.generation, run.outcome_no, run.epoch) for run in held}
        if self.store.dialect.name != "sqlite" and self._strays:
            await self.store.write(free_strays, self.id, list(self.active))
            self._strays = False
        call = self.store.read if self.store.dialect.name == "sqlite" else self.store.write
        return await call(claim, self.id, list(self._known), known, list(self.active), room)

    def _take(self, claimed: Claimed) -> None:
        if claimed.next_wake is not None:  # else what runs said that were let go meanwhile still holds
            self._wake_at(claimed.next_wake)
        for loaded in claimed.loaded:
            run = self.active.get(loaded.row.id)
            if run is None:
                self._cached(loaded.row.id, drop=True)
                self._begin(ActiveRun(loaded))
            elif run.busy:
                run.stale = True
            else:
                self._reload(run)  # it was let go and came back while the claim was under way
        for news in claimed.news:
            run = self.active.get(news.row.id)
            if run is not None:
                self._refresh(run, news.row, news.entries)
                continue
            run = self._cached(news.row.id)
            if run is None:  # evicted between the question and the answer
                self._claim_wanted.set()
                self._reload_later(news.row.id)
                continue
            self.active[run.id] = run
            run.closing = False
            run.forced = True
            self._refresh(run, news.row, news.entries)

    def _cached(self, run_id: int, *, drop: bool = False) -> ActiveRun | None:
        run = self._cache.pop(run_id, None)
        if run is not None and drop:
            self._forget(run)
            return None
        return run

    def _begin(self, run: ActiveRun) -> None:
        run.code_hash = self._known[run.definition_id].code_hash
        self.active[run.id] = run
        self.pump(run)

    def _refresh(self, run: ActiveRun, row: Any, entries: Sequence[Any]) -> None:
        """Something from outside happened to a run that is in memory."""
        if run.busy:
            run.stale = True  # the advance under way is refused if it must be; then look again
            return
        unblocked = (row.blocked_reason is None) != (run.blocked is None)
        if row.generation != run.generation or unblocked or not self._owns(row):
            self._reload(run)
            return
        if row.outcome_no <= run.outcome_no and row.requested == run.requested and row.epoch == run.epoch:
            if row.ready is not None and any(step.kind is StepKind.EVENT for step in run.open.values()):
                run.forced = True  # there may be an event that its sender could not judge
            self.pump(run)
            return
        if run.drains or (row.requested != run.requested and row.requested != "cancel") or row.ending is not None:
            self._reload(run)
            return
        known = run.outcome_no
        run.take_row(row)
        if run.replayer is not None:
            run.replayer.next_no = row.next_no  # a cancel request takes a number
        for entry in entries:
            if entry.outcome_no <= known:
                continue  # told already
            if entry.kind is StepKind.CANCEL:
                run.take_cancel(entry)
            kind = OutcomeKind.SUCCESS if entry.outcome_kind is None else entry.outcome_kind
            run.pending.append(
                Record(
                    entry.no,
                    kind,
                    entry.ended_at,
                    entry.value,
                    entry.error,
                    no=entry.outcome_no,
                    cancel_request=entry.kind is StepKind.CANCEL,
                )
            )
        run.forced = True
        self.pump(run)

    # -- one run

    def pump(self, run: ActiveRun) -> None:
        """Drive the run if there is anything to hand over or to write."""
        if run.busy or run.closing:
            return
        if run.load_again:
            self._reload(run)
            return
        while run.turn_waiters:
            waiter = run.turn_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                run.busy = True
                return
        now = self.store.clock.now()
        recorded = [record for record in run.pending if record.no is not None]
        recorded.sort(key=lambda record: record.no or 0)
        fresh = [record for record in run.pending if record.no is None]
        fresh += run.due_records(now)
        fresh.sort(key=lambda record: record.at)
        force_cancel = (
            run.grace_at is not None and run.grace_at <= now and run.requested == "cancel" and run.ending is None
        )
        if not (recorded or fresh or run.forced or force_cancel):
            self._start_due(run, now)
            if not run.tasks and (run.drains or not any(step.executable(now) for step in run.open.values())):
                run.forced = True  # nothing runs any more: the advance that lets it go
            else:
                return
        run.in_flight = [record for record in run.pending if record.no is None]
        run.pending.clear()
        run.busy = True
        self._driver.submit(
            partial(self._drive, run, [*recorded, *fresh], now, force_cancel), partial(self._overran, run)
        )

    def _drive(self, run: ActiveRun, records: list[Record], now: datetime, force_cancel: bool) -> None:
        """On the driver thread."""
        try:
            known = self._known[run.definition_id]
            builder = Builder(run, known, self.registry, self.settings, self.id, now)
            builder.build(records, partial(make_replayer, run, known, self.registry, self.settings))
            if force_cancel and builder.finish is None:
                builder.finish = Finish(ResultKind.CANCELED)
            if builder.inline:
                self._post(self._alone, run, builder)
                return
            builder.done()
            advance = builder.advance
            if advance.finished is not None and run.options.get("on_complete"):
                self._post(self._alone, run, builder)
                return
        except Exception as error:  # ours, not the author's: shown on the run, never swallowed
            if not self._driver.interrupted:
                logger.exception("driving a run failed", run=run.public_id)
                self._post(self._broken, run, f"{type(error).__name__}: {error}")
            return
        if not self._driver.interrupted:
            self._committer.submit(advance, partial(self._committed, run, advance))

    async def drive_on(self, call: Callable[[], None]) -> None:
        """Run a piece of driving on the driver thread and wait for it."""
        done: asyncio.Future[None] = self._loop.create_future()

        def job() -> None:
            try:
                call()
            except Overrun:
                raise
            except Exception as error:  # noqa: BLE001  # handed to the awaiting side
                self._post(_fail, done, error)
            else:
                self._post(_finish, done)

        self._driver.submit(job, lambda line: self._post(_fail, done, Overrun(line)))
        await done

    def _post(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _alone(self, run: ActiveRun, builder: Builder) -> None:
        # A mutation that waits for its turn holds the author's rows, which the code in this advance may want.
        run.alone = asyncio.Event()
        while run.turn_waiters:
            waiter = run.turn_waiters.popleft()
            if not waiter.done():
                waiter.set_exception(TransactionConflict("an advance with an author's code comes first"))
        task = asyncio.create_task(commit_alone(self, run, builder))
        self._loading += 1
        task.add_done_callback(partial(self._alone_done, run))

    def _alone_done(self, run: ActiveRun, task: asyncio.Task[tuple[Advance, Applied]]) -> None:
        self._loading -= 1
        alone, run.alone = run.alone, None
        if alone is not None:
            alone.set()
        error = task.exception() if not task.cancelled() else asyncio.CancelledError()
        if error is not None:
            if isinstance(error, Overrun):
                self._overran(run, str(error))
                return
            self._committed(run, None, error)
        else:
            advance, applied = task.result()
            self._committed(run, advance, applied)

    def _committed(self, run: ActiveRun, advance: Advance | None, result: Applied | BaseException) -> None:
        run.busy = False
        self._advanced.set()
        if run.closing or self.active.get(run.id) is not run:
            return  # this worker stops, or was taken for lost meanwhile
        if isinstance(result, BaseException) or advance is None:
            away = isinstance(result, CommitUnknown) or (isinstance(result, StoreError) and result.transient)
            failures = self._failures[run.id] = self._failures.get(run.id, 0) + (not away)  # else the database's fault
            logger.error("an advance could not be written", run=run.public_id, error=str(result), tries=failures)
            self._take_back(run)
            if failures >= 5:
                self._broken(run, f"its progress cannot be written: {result}")
            else:
                self._call_later(RETRY_PAUSE * max(failures, 1), partial(self._reload, run))
            return
        self._failures.pop(run.id, None)
        if not result.ok:
            self._take_back(run)
            self._reload(run)
            return
        run.in_flight.clear()
        columns = result.columns
        run.state, run.outcome_no, run.outcome_at = columns["state"], columns["outcome_no"], columns["outcome_at"]
        run.started_at, run.blocked, run.wake_at = columns["started_at"], columns["blocked_reason"], columns["wake_at"]
        run.driven_no, run.next_no = columns["driven_no"], columns["next_no"]
        run.forced = False
        run.pending.extend(result.arrived)
        if run.state == RunState.FINAL:
            self._drop(run)
            return
        if run.load_again and not result.parks:
            self._reload(run)  # it was blocked while steps run: what they bring is recorded
            return
        for no, task in list(run.tasks.items()):
            if no not in run.open and not task.cancelling():  # once: its cleanup may take a while
                task.cancel()
        if result.parks:
            self._park(run)
            return
        if run.wake_at is not None:
            self.timer(run, run.wake_at)
        if run.turn_waiters or run.pending:
            self._start_new(run, advance)
            self.pump(run)
            return
        self._start_new(run, advance)
        if run.stale:
            run.stale = False
            self._claim_wanted.set()
        now = self.store.clock.now()
        if (run.wake_at is not None and run.wake_at <= now) or not run.tasks:
            self.pump(run)
        self.check_quiet()

    def _take_back(self, run: ActiveRun) -> None:
        """Nothing was written: what attempts brought is recorded after the run was loaded again."""
        for record in run.in_flight:
            record.no = None
        run.pending.extend(run.in_flight)
        run.in_flight.clear()
        run.load_again = True

    def _start_new(self, run: ActiveRun, advance: Advance) -> None:
        if run.drains or self.stopping:
            return
        now = self.store.clock.now()
        if len(run.tasks) == 0:
            self._start_due(run, now)
        else:
            for step in advance.steps:
                found = run.open.get(step["no"])
                if found is not None and found.executable(now) and found.no not in run.tasks:
                    self._execute(run, found)

    def _start_due(self, run: ActiveRun, now: datetime) -> None:
        if run.drains or self.stopping:
            return
        for step in list(run.open.values()):
            if step.executable(now) and step.no not in run.tasks and step.ask is not None:
                self._execute(run, step)

    def _execute(self, run: ActiveRun, step: OpenStep) -> None:
        if step.ended or step.kind not in FUNCTION_KINDS:
            return
        if not self.liveness.healthy:
            self._call_later(RETRY_PAUSE, partial(self._start_later, run))
            return
        task = asyncio.create_task(self.executor.attempt(run, step))
        run.tasks[step.no] = task
        task.add_done_callback(partial(self._attempt_done, run, step.no))

    def _start_later(self, run: ActiveRun) -> None:
        if self.active.get(run.id) is run and not run.busy:
            self._start_due(run, self.store.clock.now())

    def _attempt_done(self, run: ActiveRun, step_no: int, task: asyncio.Task[None]) -> None:
        if run.tasks.get(step_no) is task:
            del run.tasks[step_no]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an attempt ended without an outcome", run=run.public_id, step=step_no, exc_info=error)
            run.load_again = True
            self._call_later(RETRY_PAUSE, partial(self.pump, run))
            return
        if self.active.get(run.id) is run:
            self.pump(run)
        self.check_quiet()

    def arrived(self, run: ActiveRun, record: Record) -> None:
        """A step of this worker ended."""
        if record.no is not None:
            if record.no != run.outcome_no + 1:  # what others recorded before it was not seen yet
                run.load_again = True
                return
            run.outcome_no, run.outcome_at = record.no, record.at
        run.pending.append(record)
        step = run.open.get(record.step_no)
        if step is not None:
            step.ended = True

    async def turn(self, run: ActiveRun) -> None:
        """Wait until no advance of the run is under way, and keep it so until `turn_over`."""
        if run.busy:
            if run.alone is not None:
                raise TransactionConflict("an advance with an author's code comes first")
            waiter = self._loop.create_future()
            run.turn_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():  # granted at the same moment
                    self.turn_over(run)
                elif waiter in run.turn_waiters:
                    run.turn_waiters.remove(waiter)
                raise
        run.busy = True

    def turn_over(self, run: ActiveRun) -> None:
        run.busy = False
        self._advanced.set()
        if run.turn_waiters:
            self.pump(run)  # else the end of the attempt does

    def timer(self, run: ActiveRun, moment: datetime) -> None:
        heapq.heappush(self._timers, (moment, run.id))
        if len(self._timers) > self._timers_limit:  # most are of runs that went on or were let go
            self._timers = [item for item in set(self._timers) if item[1] in self.active]
            heapq.heapify(self._timers)
            self._timers_limit = max(TIMERS, 2 * len(self._timers))
        self._timer_wake.set()

    # -- letting go

    def _park(self, run: ActiveRun) -> None:
        self.active.pop(run.id, None)
        if run.wake_at is not None and run.blocked is None and run.requested != "pause":
            self._wake_at(run.wake_at)
        if run.replayer is not None and not run.load_again and self.settings.cached_programs:
            self._cache[run.id] = run
            self._cache.move_to_end(run.id)
            while len(self._cache) > self.settings.cached_programs:
                _, oldest = self._cache.popitem(last=False)
                self._forget(oldest)
        else:
            self._forget(run)
        if run.pending or run.stale:
            run.stale = False
            self._claim_wanted.set()
        self.check_quiet()

    def _drop(self, run: ActiveRun) -> None:
        self.active.pop(run.id, None)
        self._forget(run)
        if len(self.active) < self.settings.max_active // 2:
            pass
        self.check_quiet()

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

    def _reload(self, run: ActiveRun) -> None:
        if run.busy or self.active.get(run.id) is not run:
            return
        run.busy = run.load_again = True  # until it was loaded: a failed load leaves half of it
        self._loading += 1
        asyncio.create_task(self._reload_now(run)).add_done_callback(lambda task: task.exception())

    async def _reload_now(self, run: ActiveRun) -> None:
        """Take the run as the store has it; what its attempts brought and is not written yet is kept."""
        try:
            if run.replayer is not None:
                self._driver.submit(run.replayer.close, lambda line: None)
                run.replayer = None
            loaded = (await self.store.read(load, [run.id])).get(run.id)
        except Exception:  # the store is away
            logger.exception("loading a run failed; trying again", run=run.public_id)
            run.busy = False
            self._advanced.set()
            self._advanced.set()
            self._call_later(RETRY_PAUSE, partial(self._reload, run))
            return
        finally:
            self._loading -= 1
        run.busy = False
        self._advanced.set()
        mine = loaded is not None and self._owns(loaded.row)
        if loaded is not None and loaded.row.worker_id is None:
            self._claim_wanted.set()  # not claimed before it was driven: now it is
        if loaded is None or not mine:
            self._drop(run)
            return
        again = loaded.row.generation != run.generation
        kept = [record for record in run.pending if record.no is None and not again]
        former = run.open
        run.take(loaded)
        for no in run.tasks:  # what a running attempt changes must be seen here
            if no in run.open and no in former:
                run.open[no] = former[no]
        run.pending.clear()
        run.pending.extend(record for record in kept if record.step_no in run.open)
        for record in run.pending:
            run.open[record.step_no].ended = True
        run.load_again = run.stale = False
        run.forced = True
        for no in list(run.tasks):
            if no not in run.open or again:
                run.tasks[no].cancel()
        self.pump(run)

    def _owns(self, row: Any) -> bool:
        """Whether the row says that this worker has claimed the run; a SQLite file has no other."""
        return row.state != RunState.FINAL and (self.store.dialect.name == "sqlite" or row.worker_id == self.id)

    def _reload_later(self, run_id: int) -> None:
        async def again() -> None:
            loaded = (await self.store.read(load, [run_id])).get(run_id)
            if loaded is not None and run_id not in self.active and self._owns(loaded.row):
                self._begin(ActiveRun(loaded))

        self._loading += 1
        asyncio.create_task(again()).add_done_callback(self._loaded_later)

    def _loaded_later(self, task: asyncio.Task[None]) -> None:
        self._loading -= 1
        if not task.cancelled() and task.exception() is not None:
            self._claim_wanted.set()

    def _overran(self, run: ActiveRun, line: str) -> None:
        """From the watchdog's thread: a handler computes without awaiting."""
        text = f"the handler computed for more than {self.settings.handler_limit:g} s without awaiting, at {line}"
        self._post(self._block, run, {"code": "stuck", "message": text, "line": line})

    def _broken(self, run: ActiveRun, text: str) -> None:
        self._block(run, {"code": "internal", "message": text})

    def _block(self, run: ActiveRun, reason: dict[str, Any]) -> None:
        known = self._known.get(run.definition_id)
        run.replayer = None  # its thread may still be inside
        run.busy = True
        self._take_back(run)
        run.load_again = True
        self._loading += 1
        self._failures.pop(run.id, None)
        writing = self.store.write(
            blocking.block, run.id, run.epoch, run.generation, json.dumps(reason), known.code_hash if known else ""
        )
        asyncio.ensure_future(writing).add_done_callback(partial(self._block_done, run))

    def _block_done(self, run: ActiveRun, task: asyncio.Future[bool]) -> None:
        self._loading -= 1
        run.busy = False
        self._advanced.set()
        if task.cancelled() or task.exception() is not None:
            logger.error("a blocked run could not be marked", run=run.public_id)
            self._call_later(RETRY_PAUSE, partial(self._reload, run))
        else:
            self._reload(run)

    # -- time

    def _wake_at(self, moment: datetime) -> None:
        if self._next_wake is None or moment < self._next_wake:
            self._next_wake = moment
            self._timer_wake.set()

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

    def _call_later(self, delay: float, call: Callable[[], Any]) -> None:
        def run() -> None:
            self._later.discard(handle)
            if not self.stopping:
                call()

        handle = self._loop.call_later(delay, run)
        self._later.add(handle)

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


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
