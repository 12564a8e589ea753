"""Driving runs that are held: from what arrived to an advance that is written, and on; letting them go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from signoff.engine import blocking, events
from signoff.engine.active import ActiveRun, OpenStep
from signoff.engine.advance import Advance, Applied, Record
from signoff.engine.building import Builder
from signoff.engine.driver import Overrun
from signoff.engine.holding import RETRY_PAUSE, Holding
from signoff.engine.journal import load
from signoff.engine.programs import make_replayer
from signoff.engine.solo import commit_alone
from signoff.replay.messages import Finish
from signoff.store.errors import DiskFull, StoreError, TransactionConflict
from signoff.store.promise import Promise
from signoff.workflow.kinds import FUNCTION_KINDS, ResultKind, RunState

if TYPE_CHECKING:
    from signoff.engine.worker import Worker

logger = structlog.get_logger(__name__)

FULL_PAUSE = 2.0  # seconds before a full disk is tried again: somebody has to free space


class Driving(Holding):
    """Drives one run at a time on the driver's thread; at most one advance of a run is under way."""

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
        promise, run.promise = run.promise, None
        self._driver.submit(
            partial(self._drive, run, [*recorded, *fresh], now, force_cancel, promise), partial(self._overran, run)
        )

    def _drive(
        self, run: ActiveRun, records: list[Record], now: datetime, force_cancel: bool, promise: Promise | None
    ) -> None:
        """On the driver thread."""
        try:
            known = self._known[run.definition_id]
            builder = Builder(run, known, self.registry, self.settings, self.id, now)
            builder.build(records, partial(make_replayer, run, known, self.registry, self.settings))
            if force_cancel and builder.finish is None:
                builder.finish = Finish(ResultKind.CANCELED)
            alone = bool(builder.inline)
            if not alone:
                builder.done()
                alone = builder.advance.finished is not None and bool(run.options.get("on_complete"))
        except Exception as error:  # ours, not the author's: shown on the run, never swallowed
            if not self._driver.interrupted:
                logger.exception("driving a run failed", run=run.public_id)
                self._post(self._broken, run, f"{type(error).__name__}: {error}")
            return
        if self._driver.interrupted:
            return
        if promise is None:
            self._write(run, builder, alone, True)
        else:
            promise.then(partial(self._write, run, builder, alone))

    def _write(self, run: ActiveRun, builder: Builder, alone: bool, kept: bool) -> None:
        """On any thread, once what the advance rests on is committed (`kept` False: it is not)."""
        advance = builder.advance
        if not kept:
            self._post(self._committed, run, advance, Applied(False))
        elif alone:
            self._post(self._alone, run, builder)
        else:
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
        task = asyncio.create_task(commit_alone(cast("Worker", self), run, builder))  # every Driving is one
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
            blamed = not (isinstance(result, StoreError) and result.passes)  # else it is the database's fault
            failures = self._failures[run.id] = self._failures.get(run.id, 0) + blamed
            logger.error("an advance could not be written", run=run.public_id, error=str(result), tries=failures)
            self._take_back(run)
            if failures >= 5:
                self._broken(run, f"its progress cannot be written: {result}")
            else:
                pause = FULL_PAUSE if isinstance(result, DiskFull) else RETRY_PAUSE * max(failures, 1)
                self._call_later(pause, partial(self._reload, run))
            return
        self._failures.pop(run.id, None)
        if not result.ok:
            self._take_back(run)
            if result.contested:
                self._judge(run)
            else:
                self._reload(run)
            return
        run.in_flight.clear()
        columns = result.columns
        run.state, run.outcome_no, run.outcome_at = columns["state"], columns["outcome_no"], columns["outcome_at"]
        run.epoch, run.adopted = columns["epoch"], None
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

    # -- steps

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

    # -- turns

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
        if run.pending:
            self._claim_wanted.set()
        self._left(run)

    def _drop(self, run: ActiveRun) -> None:
        self.active.pop(run.id, None)
        self.spoilers.pop(run.id, None)
        self._forget(run)
        self._left(run)

    def _left(self, run: ActiveRun) -> None:
        if run.stale:
            # a claim of ours may have taken it before this was heard of: then only the store knows
            self._strays, run.stale = True, False
            self._claim_wanted.set()
        self.check_quiet()

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
            self._call_later(RETRY_PAUSE, partial(self._reload, run))
            return
        finally:
            self._loading -= 1
        run.busy = False
        self._advanced.set()
        mine = loaded is not None and self._owns(loaded.row)
        if loaded is not None and loaded.row.worker_id is None:
            self._claim_wanted.set()  # adopted in vain: somebody was faster, or it is claimed now
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
        asyncio.ensure_future(writing).add_done_callback(partial(self._marked, run))

    def _judge(self, run: ActiveRun) -> None:
        """An event that its sender could not judge may have been sent before a timer fell due."""
        run.busy = run.load_again = True
        self._loading += 1
        writing = self.store.write(events.judge, run.id, self.id, misfit=events.misfit_by(self.registry))
        asyncio.ensure_future(writing).add_done_callback(partial(self._marked, run))

    def _marked(self, run: ActiveRun, task: asyncio.Future[bool]) -> None:
        self._loading -= 1
        run.busy = False
        self._advanced.set()
        if task.cancelled() or task.exception() is not None:
            logger.error("what became of a run could not be written; loading it again", run=run.public_id)
            self._call_later(RETRY_PAUSE, partial(self._reload, run))
        else:
            self._reload(run)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
