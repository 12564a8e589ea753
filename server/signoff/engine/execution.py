"""Attempts: one try of a step's function, and what follows from how it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from signoff.engine import attempts, pools
from signoff.engine.active import ActiveRun, OpenStep
from signoff.engine.advance import Record
from signoff.engine.lines import PoolLine
from signoff.engine.outcomes import lock_run, record_due, record_outcome
from signoff.engine.progress import Reporter
from signoff.engine.stalls import StallWatch
from signoff.replay.messages import AskStep
from signoff.store.clock import SystemClock
from signoff.store.errors import CommitUnknown, StoreError
from signoff.store.tx import Tx
from signoff.workflow.amounts import size_of
from signoff.workflow.attempt import Attempt, attempting
from signoff.workflow.errors import LimitExceeded, NonRetryable, SignoffError
from signoff.workflow.failures import error_info
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, RunState, StepKind
from signoff.workflow.options import EMPTY, StepOptions
from signoff.workflow.retry import decide_retry

if TYPE_CHECKING:
    from signoff.engine.worker import Worker

logger = structlog.get_logger(__name__)

CONFLICT_TRIES = 20  # of a mutation that others got in the way of


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a test puts in the place of a step: a value, an error, or a timeout of the attempt."""

    value: Any = None
    error: Exception | None = None
    timeout: bool = False


class StepReplacements(Protocol):
    def find(self, run_id: str, step: str, ordinal: int, attempt: int) -> Replaced | None:
        """What replaces this attempt, None for the real function. `attempt` is 1 for the first."""
        ...


class Stale(Exception):
    """The run went on elsewhere: what was about to be written must not be."""


class Executor:
    """Executes the attempts of one worker's runs."""

    def __init__(self, worker: Worker, replacements: StepReplacements | None) -> None:
        self.worker = worker
        self.store = worker.store
        self._replacements = replacements
        self._threads = ThreadPoolExecutor(worker.settings.max_sync_threads, thread_name_prefix="signoff-step")
        self._lines: dict[str, PoolLine] = {}
        self._jobs: dict[tuple[int, int], Future[Any]] = {}  # sync functions that have not returned
        self._late: dict[tuple[int, int], asyncio.Task[None]] = {}  # ... after their attempt ended
        self._random = Random()
        self.reporter = Reporter(worker.store)
        self._stalls = StallWatch(worker.settings.loop_limit)

    def close(self) -> None:
        self._stalls.stop()
        for task in (*self._late.values(),):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def leave_lines(self) -> None:
        """Nobody waits for a pool any more: what its line is being given goes back."""
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    def pool_changed(self, name: str | int) -> None:
        line = self._lines.get(str(name))
        if line is not None:
            line.changed.set()

    def waiting(self, run_id: int) -> int:
        """How many steps of a run wait for a pool that gives nothing out before something changes."""
        return sum(line.count(run_id) for line in self._lines.values() if line.idle)

    async def attempt(self, run: ActiveRun, step: OpenStep) -> None:
        """One attempt of a step: ends with an outcome handed to the worker, or with the step backing off."""
        ask = step.ask
        assert ask is not None
        options = ask.options or EMPTY
        if (step.options and step.generation != run.generation) or step.attempts or step.lost:
            options = StepOptions.from_record(step.options, ask.options)
        number = step.attempts + 1
        if step.lost and (options.at_most_once or step.lost > self.worker.settings.max_lost):
            times = "" if options.at_most_once else f" {step.lost} times"
            error = ErrorInfo("StepLost", f"the worker of {step.name!r} was lost{times}: its outcome is unknown")
            self._done(run, step, OutcomeKind.FAILURE, error=error)
            return
        pool = options.pool
        try:
            if pool is not None:
                try:
                    await self.in_time(
                        self._left(step, options),
                        f"waiting of {step.name!r} for pool {pool!r}",
                        self._enter(run, step, pool, options.pool_key),
                    )
                except TimeoutError as error:  # schedule_to_close
                    self._done(run, step, OutcomeKind.FAILURE, error=error_info(error))
                    return
                if run.drains or step.no not in run.open:
                    return  # paused, or ended, while it stood in line
                step.placed = True
            if not step.started or pool is not None or (options.at_most_once and step.attempts):
                if not await self.store.write(attempts.mark_started, run.id, run.epoch, run.generation, step.no):
                    run.load_again = True
                    return
                step.started = True
                step.due_at = None
                item = run.compensables.get(step.no)
                if item is not None:
                    item.started = True
            await self._try(run, step, ask, number, options)
        finally:
            step.placed = False
            if pool is not None and not run.closing:
                await self._leave(run, step)

    async def _try(self, run: ActiveRun, step: OpenStep, ask: AskStep, number: int, options: StepOptions) -> None:
        started_at = self.store.clock.now()
        try:
            if step.kind is StepKind.MUTATION and self._replaced(run, step, number) is None:
                await self._mutate(run, step, number, options)
                return
            value = await self._call(run, step, number, options)
            text = self.encode(run, ask, value)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if run.closing or task is None or task.cancelling():
                raise
            error = ErrorInfo("CancelledError", f"{step.name!r} canceled itself")
            self._done(run, step, OutcomeKind.FAILURE, error=error)
        except SystemExit as error:  # the function's, not this process's
            info = ErrorInfo("SystemExit", f"{step.name!r} called sys.exit({error.code!r})")
            self._done(run, step, OutcomeKind.FAILURE, error=info)
        except StoreError as error:
            if step.kind is not StepKind.ACTION and error.passes:
                raise  # the database is away or full: no attempt, it is made again when the run was loaded anew
            await self._failed(run, step, options, number, started_at, error)
        except Exception as error:  # noqa: BLE001  # an author's function: whatever it raises is the attempt's end
            await self._failed(run, step, options, number, started_at, error)
        else:
            self._done(run, step, OutcomeKind.SUCCESS, text)

    def replacement(self, run: ActiveRun, name: str, ordinal: int, number: int) -> Replaced | None:
        """What a test put in the place of this attempt."""
        if self._replacements is None:
            return None
        return self._replacements.find(run.public_id, name, ordinal, number)

    def _replaced(self, run: ActiveRun, step: OpenStep, number: int) -> Replaced | None:
        return None if step.ask is None else self.replacement(run, step.name, step.ask.ordinal, number)

    async def _call(self, run: ActiveRun, step: OpenStep, number: int, options: StepOptions) -> Any:
        replaced = self._replaced(run, step, number)
        if replaced is not None:
            if replaced.timeout:
                raise TimeoutError(f"attempt {number} of {step.name!r} timed out")
            if replaced.error is not None:
                raise replaced.error
            return replaced.value
        ask = step.ask
        assert ask is not None
        fn = ask.fn
        args, kwargs = fn.codec.decode_call(ask.args)
        timeout = self._timeout(step, options)
        if step.kind is StepKind.QUERY:
            async with self.store.snapshot() as session:
                return await self._within(run, step, number, timeout, fn.fn(session, *args, **kwargs))
        return await self._within(run, step, number, timeout, self._invoke((run.id, step.no), fn, args, kwargs))

    def _left(self, step: OpenStep, options: StepOptions) -> float | None:
        """Seconds until `schedule_to_close` is over."""
        if options.schedule_to_close is None:
            return None
        return options.schedule_to_close - (self.store.clock.now() - step.asked_at).total_seconds()

    def _timeout(self, step: OpenStep, options: StepOptions) -> float | None:
        """Seconds that the attempt has."""
        left = self._left(step, options)
        if left is None:
            return options.timeout
        if left <= 0:
            raise NonRetryable(f"{step.name!r} did not end within schedule_to_close={options.schedule_to_close:g} s")
        return left if options.timeout is None else min(options.timeout, left)

    async def _within(
        self, run: ActiveRun, step: OpenStep, number: int, timeout: float | None, call: Coroutine[Any, Any, Any]
    ) -> Any:
        """The author's function as the current attempt, ended by its timeout."""
        deadline = None if timeout is None else self.store.clock.now() + timedelta(seconds=timeout)
        attempt = Attempt(
            number,
            f"{run.public_id}:{step.no}",
            run.public_id,
            step.no,
            step.name,
            deadline,
            on_log=self.reporter.log(run.id, step.no, number),
            on_progress=self.reporter.progress(run.id, step.no),
        )
        with attempting(attempt), self._stalls.watching():
            return await self.in_time(timeout, f"attempt {number} of {step.name!r}", call)

    async def in_time(self, timeout: float | None, what: str, call: Coroutine[Any, Any, Any]) -> Any:
        """The coroutine's result, or a TimeoutError that names it; `timeout` in seconds."""
        if timeout is None:
            return await call
        scope = asyncio.timeout(timeout)
        expiry: asyncio.Task[None] | None = None
        try:
            async with scope:
                if not isinstance(self.store.clock, SystemClock):
                    deadline = self.store.clock.now() + timedelta(seconds=timeout)
                    expiry = asyncio.create_task(self._expire(scope, deadline))
                return await call
        except TimeoutError:
            if scope.expired():
                raise TimeoutError(f"{what} timed out after {timeout:g} s") from None
            raise
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _expire(self, scope: asyncio.Timeout, deadline: datetime) -> None:
        """A clock that is moved by a test ends the attempt too."""
        await self.store.clock.wait_until(deadline, asyncio.Event())
        scope.reschedule(0)

    async def _invoke(self, key: tuple[int, int], fn: Any, args: Any, kwargs: Any) -> Any:
        if fn.is_async:
            return await fn.fn(*args, **kwargs)
        context = contextvars.copy_context()

        def call() -> Any:
            return context.run(fn.fn, *args, **kwargs)

        job = self._jobs[key] = self._threads.submit(call)
        job.add_done_callback(lambda _: self._jobs.pop(key, None))
        result = await asyncio.wrap_future(job)
        return await result if asyncio.iscoroutine(result) else result

    def encode(self, run: ActiveRun, ask: AskStep, value: Any) -> str:
        """A function's result as JSON text, within the limit of the run's workflow."""
        try:
            text: str = ask.fn.codec.encode_result(value)
        except SignoffError as error:
            raise NonRetryable(f"the result of {ask.name!r} cannot be stored: {error}") from error
        limit = self.worker.value_limit(run)
        if (size := size_of(text)) > limit:
            raise _TooLarge(f"the result of {ask.name!r} has {size} bytes, more than the limit of {limit}")
        return text

    # -- ends

    def _done(
        self,
        run: ActiveRun,
        step: OpenStep,
        kind: OutcomeKind,
        value: str | None = None,
        error: ErrorInfo | None = None,
    ) -> None:
        self.reporter.forget(run.id, step.no)
        self.worker.arrived(run, Record(step.no, kind, self.store.clock.now(), value, error))

    async def _failed(
        self,
        run: ActiveRun,
        step: OpenStep,
        options: StepOptions,
        number: int,
        started_at: datetime,
        error: Exception,
    ) -> None:
        info = error_info(error)
        policy = options.retry if options.retry is not None and not isinstance(options.retry, bool) else None
        now = self.store.clock.now()
        elapsed = (now - step.asked_at).total_seconds()
        decision = decide_retry(policy, number, error, elapsed, self._random, options.schedule_to_close)
        if isinstance(error, _TooLarge) or step.kind is not StepKind.ACTION or decision.delay is None:
            await self.reporter.flush()
            self._done(run, step, OutcomeKind.FAILURE, error=info)
            return
        next_at = now + timedelta(seconds=decision.delay)
        logger.info(
            "an attempt failed; trying again",
            run=run.public_id, step=step.no, name=step.name, attempt=number, error=info.message, next_at=str(next_at),
        )  # fmt: skip
        written = await self.store.write(
            attempts.back_off, run.id, run.epoch, run.generation, step.no, number, started_at, info, next_at
        )
        if not written:
            run.load_again = True
            return
        step.attempts = number
        step.due_at = next_at
        self.worker.timer(run, next_at)

    # -- mutations

    async def _mutate(self, run: ActiveRun, step: OpenStep, number: int, options: StepOptions) -> None:
        """The author's writes and the outcome in one transaction, exactly once."""
        ask = step.ask
        assert ask is not None
        fn = ask.fn
        args, kwargs = fn.codec.decode_call(ask.args)
        # on SQLite the write turn must be taken after the run's turn
        exclusive = self.store.dialect.name == "sqlite" or fn.takes_turn
        tries = 0
        while True:
            tries += 1
            turn = False
            while (alone := run.alone) is not None:
                await alone.wait()
            try:
                timeout = self._timeout(step, options)
                if exclusive:
                    await self.worker.turn(run)
                    turn = True
                async with self.store.session() as session:
                    value = await self._within(run, step, number, timeout, fn.fn(session, *args, **kwargs))
                    await session.flush()
                    text = self.encode(run, ask, value)
                    if not turn:
                        await self.worker.turn(run)
                        turn = True
                    number_at = await session.run(record_mutation, run.id, run.epoch, run.generation, step.no, text)
                record = Record(step.no, OutcomeKind.SUCCESS, number_at[1], text, no=number_at[0])
                self.worker.arrived(run, record)
                return
            except Stale:
                run.load_again = True
                return
            except StoreError as error:
                if tries >= CONFLICT_TRIES or not (error.transient or isinstance(error, CommitUnknown)):
                    raise
                run.load_again = run.load_again or turn
                logger.info("a mutation is run again", run=run.public_id, step=step.no, reason=str(error))
                # whether an unclear commit happened shows in the journal: the run is loaded before anything else
                if await self.store.read(attempts.has_outcome, run.id, step.no):
                    run.load_again = True
                    return
            finally:
                if turn:
                    self.worker.turn_over(run)
            await asyncio.sleep(self._random.uniform(0, 0.01 * tries))

    # -- pools

    async def _enter(self, run: ActiveRun, step: OpenStep, pool: str, key: str | None) -> None:
        """Wait for a slot, and for the thread of an earlier attempt, which still has it."""
        late = self._late.get((run.id, step.no))
        if late is not None:
            await asyncio.wait({late})
        line = self._lines.get(pool)
        if line is None:
            line = self._lines[pool] = PoolLine(
                self.store, pool, lambda: self.worker.id, lambda: self.worker.check_quiet()
            )
        await line.enter(pools.Wanted(run.id, step.no, key))

    async def _leave(self, run: ActiveRun, step: OpenStep) -> None:
        """Give the slot back, but not before a sync function that timed out has returned."""
        key = (run.id, step.no)
        job = self._jobs.pop(key, None)
        if job is None or job.done():
            await asyncio.shield(self.store.write(pools.release, *key, self.worker.id))
            return

        async def later() -> None:
            await asyncio.wait({asyncio.wrap_future(job)})
            await self.store.write(pools.release, *key, self.worker.id)

        task = self._late[key] = asyncio.create_task(later(), name="signoff-late-slot")
        task.add_done_callback(lambda _: self._late.pop(key, None))


class _TooLarge(LimitExceeded):
    """A step's result; no other attempt would make it smaller."""


_TooLarge.__name__ = LimitExceeded.__name__  # the author is to catch the one that they know


def record_mutation(tx: Tx, run_id: int, epoch: int, generation: int, step_no: int, text: str) -> tuple[int, datetime]:
    """Last before the commit: the fence, then the outcome. Raises Stale if the run is not this worker's any more."""
    row = lock_run(tx, run_id)
    if row is None or row.state == RunState.FINAL or row.epoch != epoch or row.generation != generation:
        raise Stale
    before = row.outcome_no
    row = record_due(tx, row)
    if row.outcome_no != before:
        raise Stale  # a timer came first: the run is loaded again, in the right order
    row = record_outcome(tx, row, step_no, OutcomeKind.SUCCESS, text, wake=False)
    if row is None:
        raise Stale
    return row.outcome_no, row.outcome_at
