"""on_complete: first tried in the transaction that ends the run, then again with back-off for up to a day."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog

from signoff.engine.ending import DONE
from signoff.engine.lookup import find_locked
from signoff.engine.outcomes import R, lock_run
from signoff.store import payloads
from signoff.store.errors import StoreError
from signoff.store.scope import Scope
from signoff.store.session import AuthorSession
from signoff.store.tx import Tx
from signoff.workflow.codec import dump
from signoff.workflow.errors import NotFound
from signoff.workflow.kinds import ErrorInfo, RunState
from signoff.workflow.retry import Retry, backoff

if TYPE_CHECKING:
    from signoff.engine.worker import Worker

logger = structlog.get_logger(__name__)

POLICY = Retry(max_attempts=None, initial=1.0, cap=3600.0)
GIVE_UP_AFTER = timedelta(days=1)
PAUSE = timedelta(seconds=1)  # before the database is asked again


@dataclass(frozen=True, slots=True)
class Completed:
    """What an on_complete is called with: `fn(session, run_id, result_kind, value, context)`."""

    fn: str
    run_id: str
    kind: str
    value: Any  # plain JSON; of a failed run its error
    context: Any
    ended_at: datetime
    attempts: int


def read_completed(tx: Tx, run_id: int, generation: int) -> Completed | None:
    """The on_complete that is due for a run, its row locked; None if it is done or the run goes on."""
    run = lock_run(tx, run_id)
    if run is None or run.state != RunState.FINAL or run.generation != generation or not run.options:
        return None
    row = tx.conn.execute(
        tx.dialect.lock(sa.select(DONE).where(DONE.c.run_id == run_id, DONE.c.generation == generation))
    ).one_or_none()
    wanted = json.loads(run.options).get("on_complete")
    if row is None or row.done or not wanted:
        return None
    text = payloads.get(tx, run.value) if run.value is not None else run.error
    value = json.loads(text) if text is not None else None
    context = wanted.get("context")
    context = json.loads(context) if isinstance(context, str) else context
    return Completed(wanted["name"], run.public_id, run.result_kind, value, context, run.ended_at, row.attempts)


def record_done(tx: Tx, run_id: int, generation: int) -> None:
    key = sa.and_(DONE.c.run_id == run_id, DONE.c.generation == generation)
    tx.conn.execute(sa.update(DONE).where(key).values(done=True, next_at=None, error=None))
    tx.notify("run", run_id)


def record_problem(tx: Tx, run_id: int, generation: int, error: str, next_at: datetime | None) -> None:
    """The run keeps its result; the failure is visible, `next_at` None leaves it to be tried by hand."""
    key = sa.and_(DONE.c.run_id == run_id, DONE.c.generation == generation)
    tx.conn.execute(sa.update(DONE).where(key).values(attempts=DONE.c.attempts + 1, next_at=next_at, error=error))
    tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(touch_no=R.c.touch_no + 1))
    tx.notify("run", run_id)
    tx.notify("completion")


def retry_completion(tx: Tx, scope: Scope, run: str) -> None:
    """By hand: try again now. Nothing happens if it succeeded, or there is none. Raises NotFound."""
    row = find_locked(tx, scope, run)
    key = sa.and_(DONE.c.run_id == row.id, DONE.c.generation == row.generation, DONE.c.done.is_(False))
    tx.conn.execute(sa.update(DONE).where(key).values(next_at=tx.now))
    tx.notify("completion")


def due_completions(tx: Tx, limit: int) -> tuple[list[tuple[int, int]], datetime | None]:
    """Those due now (run id, generation), and when the next one is."""
    open_ones = sa.and_(DONE.c.done.is_(False), DONE.c.next_at.is_not(None))
    rows = tx.conn.execute(
        sa.select(DONE.c.run_id, DONE.c.generation).where(open_ones, DONE.c.next_at <= tx.now).limit(limit)
    ).all()
    following = tx.conn.execute(
        sa.select(sa.func.min(DONE.c.next_at)).where(open_ones, DONE.c.next_at > tx.now)
    ).scalar()
    return [(row.run_id, row.generation) for row in rows], following


def _next(completed: Completed, now: datetime, random: Random) -> datetime | None:
    if now - completed.ended_at > GIVE_UP_AFTER:
        return None
    return now + timedelta(seconds=backoff(POLICY, completed.attempts + 1, random))


async def complete_inside(worker: Worker, session: AuthorSession, run_id: int, generation: int) -> None:
    """Run the on_complete of a final run in the open transaction; if it raises, only its own writes are undone."""
    completed = await session.run(read_completed, run_id, generation)
    if completed is None:
        return
    try:
        fn = worker.registry.find_function(completed.fn)
        if fn is None:
            raise NotFound(f"on_complete {completed.fn!r} is not registered in this worker")
        async with session.begin_nested():
            given = (completed.run_id, completed.kind, completed.value, completed.context)
            named = dict(zip(fn.codec.parameters, given, strict=False))
            args, kwargs = fn.codec.decode_call(dump(named) if named else None)
            await fn.fn(session, *args, **kwargs)
            await session.flush()
    except StoreError as error:
        if error.transient:
            raise
        await _problem(worker, session, run_id, generation, completed, error)
    except Exception as error:  # noqa: BLE001  # an author's function: the run keeps its result
        await _problem(worker, session, run_id, generation, completed, error)
    else:
        await session.run(record_done, run_id, generation)


async def _problem(
    worker: Worker, session: AuthorSession, run_id: int, generation: int, completed: Completed, error: Exception
) -> None:
    logger.warning("on_complete failed", run=completed.run_id, fn=completed.fn, error=str(error))
    text = json.dumps(ErrorInfo(type(error).__name__, str(error)).to_json())
    next_at = _next(completed, worker.store.clock.now(), worker.completions.random)
    await session.run(record_problem, run_id, generation, text, next_at)


class Completions:
    """Tries again what failed, when it is due."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.working = False
        self.random = Random()

    def start(self) -> None:
        self._wake.set()
        self._task = asyncio.create_task(self._loop(), name="signoff-completions")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        self._wake.set()

    async def _complete(self, run_id: int, generation: int) -> bool:
        """Whether it was tried; one that cannot be does not keep the others waiting."""
        try:
            async with self._worker.store.session() as session:
                await complete_inside(self._worker, session, run_id, generation)
        except Exception:  # also what is no fault of the author's: told, and tried again with the next round
            logger.exception("an on_complete could not be tried", run=run_id)
            return False
        return True

    async def _loop(self) -> None:
        store = self._worker.store
        following: datetime | None = None
        while True:
            await store.clock.wait_until(following, self._wake)
            self._wake.clear()
            self.working = True
            try:
                due, following = await store.read(due_completions, 100)
                done = [await self._complete(run_id, generation) for run_id, generation in due]
                if any(done):
                    self._wake.set()
                elif due:
                    following = store.clock.now() + PAUSE
            except StoreError as error:
                logger.warning("on_complete waits for the database", error=str(error))
                following = store.clock.now() + PAUSE
            finally:
                self.working = False
            self._worker.check_quiet()
