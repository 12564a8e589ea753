"""One thread, one connection, and a queue that each commit empties: the group commit of both databases.

A batch is what has queued while the last commit ran; there are no delays to wait for more. A job that fails is rolled
back alone, to its savepoint; a batch with only one job needs none. Nothing is acknowledged before the commit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from signoff.store.clock import Clock
from signoff.store.dialect import Dialect
from signoff.store.errors import CommitUnknown, DatabaseUnavailable, StoreClosed, StoreError, may_stand
from signoff.store.hub import Hub
from signoff.store.promise import Promise
from signoff.store.tx import Notice, Tx

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH = 256
PATIENCE = 10.0  # seconds that somebody who asks is let wait for a database that is away
_PAUSE = (0.05, 2.0)  # seconds between tries to reach the database, growing


class Link(Protocol):
    """The writer's connection. All calls come from the writer's thread."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def until_commit(self) -> ExitStack | None:
        """For a job that is alone in its transaction, see Tx."""
        ...

    def begin(self) -> sa.Connection: ...

    def commit(self, notices: Sequence[Notice]) -> None:
        """Send the notices with the transaction and commit it."""
        ...

    def rollback(self) -> None:
        """Never raises; after it the link is ready to begin again."""
        ...

    def stands(self) -> bool:
        """Whether the transaction still exists, so that a savepoint can be rolled back to."""
        ...

    def translate(self, error: Exception) -> StoreError | None: ...

    def close(self) -> None: ...


class Job(ABC):
    """Work of one transaction. `repeatable`: running it again after an unclear commit cannot do it twice."""

    repeatable = False

    @abstractmethod
    def run(self, tx: Tx) -> None:
        """Do it and keep the result."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Keep the error instead."""

    @abstractmethod
    def deliver(self) -> None:
        """Hand over result or error; on the loop's thread, after the commit."""

    def split(self) -> list[Job]:
        """The same work in smaller jobs, or nothing."""
        return []


class CallJob(Job):
    """A use-case that someone awaits."""

    def __init__(self, call: Callable[[Tx], Any], future: asyncio.Future[Any]) -> None:
        self._call = call
        self._future = future
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, tx: Tx) -> None:
        self._result = self._call(tx)
        self._error = None

    def fail(self, error: BaseException) -> None:
        self._error = error

    def deliver(self) -> None:
        if self._future.done():  # its awaiter was canceled
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)


class ItemsJob(Job, Generic[T, R]):
    """Items of a committer, applied together."""

    def __init__(
        self,
        apply: Callable[[Tx, list[T]], Sequence[R | BaseException]],
        items: list[tuple[T, Callable[[R | BaseException], None]]],
        repeatable: bool,
    ) -> None:
        self._apply = apply
        self._items = items
        self.repeatable = repeatable
        self._results: Sequence[R | BaseException] = ()

    def run(self, tx: Tx) -> None:
        results = self._apply(tx, [item for item, _ in self._items])
        if len(results) != len(self._items):
            raise RuntimeError(f"{self._apply!r} gave {len(results)} results for {len(self._items)} items")
        self._results = results

    def fail(self, error: BaseException) -> None:
        self._results = [error] * len(self._items)

    def deliver(self) -> None:
        for (_, done), result in zip(self._items, self._results, strict=True):
            try:
                done(result)
            except Exception:  # the others still have to hear of theirs
                logger.exception("a callback of a group commit failed")

    def split(self) -> list[Job]:
        if len(self._items) < 2:
            return []
        return [ItemsJob(self._apply, [item], self.repeatable) for item in self._items]


class Committer(Generic[T, R]):
    """Group commit of like items: `apply` gets as many as have queued and gives a result for each, in their order."""

    def __init__(
        self,
        writer: Writer,
        apply: Callable[[Tx, list[T]], Sequence[R | BaseException]],
        max_batch: int = MAX_BATCH,
        *,
        repeatable: bool,
    ) -> None:
        self._writer = writer
        self._apply = apply
        self._max_batch = max_batch
        self._repeatable = repeatable
        self._pending: deque[tuple[T, Callable[[R | BaseException], None]]] = deque()
        self._queued = False

    def submit(self, item: T, done: Callable[[R | BaseException], None]) -> None:
        """From any thread. `done` hears on the loop's thread, after the commit, of the result or what went wrong."""
        self._pending.append((item, done))
        if not self._queued:
            self._queued = True
            self._writer.put(self)

    def withdraw(self, done: Callable[[R | BaseException], None]) -> bool:
        """Take an item back by its callback. False: it is being written."""
        for pending in tuple(self._pending):
            if pending[1] is done:
                try:
                    self._pending.remove(pending)
                except (ValueError, IndexError):  # taken, or others came and went in this very moment
                    return False
                return True
        return False

    def take(self) -> ItemsJob[T, R] | None:
        """On the writer's thread: what is pending. A submit that comes between the lines only queues once more."""
        self._queued = False
        items: list[tuple[T, Callable[[R | BaseException], None]]] = []
        while self._pending and len(items) < self._max_batch:
            items.append(self._pending.popleft())
        if self._pending and not self._queued:
            self._queued = True
            self._writer.put(self)
        return ItemsJob(self._apply, items, self._repeatable) if items else None


class Turn:
    """The write turn, lent to someone else for a transaction on the same connection."""

    def __init__(self, hub: Hub) -> None:
        self.granted: asyncio.Future[None] = hub.loop.create_future()
        self._hub = hub
        self._given_back = threading.Event()

    def lend(self, link: Link) -> None:
        """On the writer's thread: begin a transaction for the borrower and block until the turn is given back."""
        try:
            link.begin()
        except Exception as error:  # noqa: BLE001  # raised where the turn is awaited
            self._hub.post(partial(self._refuse, link.translate(error) or error))
            return
        self._hub.post(self._grant)
        while not self._given_back.wait(5):
            if self._hub.loop.is_closed():
                return

    def _grant(self) -> None:
        if self.granted.done():  # canceled while it waited
            self.give_back()
        else:
            self.granted.set_result(None)

    def _refuse(self, error: Exception) -> None:
        if not self.granted.done():
            self.granted.set_exception(error)

    def refuse(self) -> None:
        """On the loop's thread: the turn is not wanted any more."""
        if self.granted.cancel() or self.granted.cancelled() or self.granted.exception() is not None:
            return  # not granted: once it comes it goes back by itself
        self.give_back()

    def give_back(self) -> None:
        """From any thread, once nothing uses the connection any more."""
        self._given_back.set()


class _Stop:
    pass


class Writer:
    def __init__(self, name: str, open_link: Callable[[], Link], hub: Hub, clock: Clock) -> None:
        self._open_link = open_link
        self._hub = hub
        self._clock = clock
        self._queue: SimpleQueue[Job | Committer[Any, Any] | Turn | Callable[[Link], None] | _Stop] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._opened: asyncio.Future[None] = hub.loop.create_future()

    async def start(self) -> None:
        """Raises what opening the connection raised."""
        self._thread.start()
        await self._opened

    def put(self, job: Job | Committer[Any, Any] | Turn | Callable[[Link], None]) -> None:
        """Queue a job, a committer with pending items, a wish for the turn, or a call between two commits."""
        if self._closing.is_set():
            raise StoreClosed("the store is closed; nothing was written")
        self._queue.put(job)

    async def close(self) -> None:
        """What is queued is still written."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(_Stop())
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # its last results are on their way

    def _main(self) -> None:
        try:
            link = self._open_link()
        except Exception as error:  # noqa: BLE001  # handed to whoever awaits start()
            failure = error
            self._hub.post(lambda: self._opened.set_exception(failure))
            return
        self._hub.post(lambda: self._opened.set_result(None))
        try:
            while True:
                try:
                    if not self._turn(link):
                        return
                except Exception:
                    # A link that cannot even roll back or open again; the next round may find it better.
                    logger.exception("the writer's connection failed")
        finally:
            link.close()

    def _turn(self, link: Link) -> bool:
        """One round: take what has queued, commit it, and tell. False when it was the last."""
        jobs: list[Job] = []
        turn: Turn | None = None
        going = True
        entry = self._queue.get()
        while True:
            if isinstance(entry, Job):
                jobs.append(entry)
            elif isinstance(entry, Committer):
                if (items := entry.take()) is not None:
                    jobs.append(items)
            elif isinstance(entry, Turn):
                turn = entry
                break
            elif isinstance(entry, _Stop):
                # a committer may have queued itself again while it was taken
                if not self._queue.empty():
                    self._queue.put(entry)
                else:
                    going = False
                    break
            else:
                try:
                    entry(link)
                except Exception:  # whoever queued it; the jobs of this round are not lost with it
                    logger.exception("a call between two commits failed")
            if len(jobs) >= MAX_BATCH:
                break
            try:
                entry = self._queue.get_nowait()
            except Empty:
                break
        if jobs:
            # What waits for rows comes before what takes those that it finds free: other processes do the same, and
            # would else wait for each other.
            jobs.sort(key=lambda job: not job.repeatable)
            self._commit(link, jobs)
        if turn is not None:
            turn.lend(link)
            link.rollback()  # nothing may be left of a borrower that was canceled
        return going

    def _commit(self, link: Link, jobs: list[Job]) -> None:
        done: list[Job] = []
        notices: list[Notice] = []
        try:
            self._transact(link, jobs, done, notices)
        except Exception as error:
            logger.exception("a commit could not be undone")
            for job in jobs:
                job.fail(error)
            done, notices = jobs, []

        def deliver() -> None:
            for job in done:
                job.deliver()
            self._hub.publish(notices)

        self._hub.post(deliver)

    def _transact(self, link: Link, jobs: list[Job], done: list[Job], notices: list[Notice]) -> None:
        """Run jobs in one transaction; if that fails as a whole, in smaller ones, down to single jobs."""
        pause = _PAUSE[0]
        began = time.monotonic()
        while True:
            finished: list[Job] = []
            said: list[Notice] = []
            committing = False
            promise: Promise | None = None
            try:
                conn = link.begin()
                for job in jobs:
                    self._run(link, conn, job, len(jobs) > 1, finished, said)
                committing = True
                promise = self._hub.foretell(said)
                link.commit(said)
            except Exception as error:  # noqa: BLE001  # every kind goes to the job that it belongs to
                if promise is not None:
                    promise.decide(False)
                link.rollback()
                failure: Exception = link.translate(error) or error
                # SQLite knows whether it committed, and waits for its lock by itself
                if isinstance(failure, StoreError) and failure.transient and link.dialect.name == "postgresql":
                    # a refusal says that nothing was done
                    lost = committing and isinstance(failure, DatabaseUnavailable) and may_stand(error)
                    if lost and not all(job.repeatable for job in jobs):
                        unclear = CommitUnknown(f"the connection was lost during a commit: {failure}")
                        for job in jobs:
                            if not job.repeatable:
                                job.fail(unclear)
                                done.append(job)
                        self._hub.resync()
                        if again := [job for job in jobs if job.repeatable]:
                            self._transact(link, again, done, notices)
                        return
                    if not self._closing.is_set():
                        if time.monotonic() - began > PATIENCE:  # whoever asked once is told; what is on record waits
                            for job in jobs:
                                if not job.repeatable:
                                    job.fail(failure)
                                    self._hub.post(job.deliver)
                            jobs = [job for job in jobs if job.repeatable]
                            if not jobs:
                                return
                        logger.warning("group commit waits: %s", failure)
                        self._closing.wait(pause)
                        pause = min(pause * 2, _PAUSE[1])
                        continue
                parts = jobs if len(jobs) > 1 else jobs[0].split()
                if not parts:
                    jobs[0].fail(failure)
                    done.append(jobs[0])
                elif len(jobs) > 1:
                    for part in parts:
                        self._transact(link, [part], done, notices)
                else:
                    self._transact(link, parts, done, notices)
                return
            if promise is not None:
                promise.decide(True)
            done += finished
            notices += said
            return

    def _run(
        self, link: Link, conn: sa.Connection, job: Job, guarded: bool, finished: list[Job], notices: list[Notice]
    ) -> None:
        tx = Tx(conn, self._clock.now(), link.dialect)
        if not guarded:
            tx.until_commit = link.until_commit
            job.run(tx)
        else:
            tx.execute_raw("SAVEPOINT signoff_job")
            try:
                job.run(tx)
            except Exception as error:
                failure = link.translate(error)
                if not link.stands() or (failure is not None and failure.transient):
                    raise  # the whole transaction is lost, and with it what others wrote
                tx.execute_raw("ROLLBACK TO SAVEPOINT signoff_job")
                tx.execute_raw("RELEASE SAVEPOINT signoff_job")
                parts = job.split()
                if parts:
                    for part in parts:
                        self._run(link, conn, part, True, finished, notices)
                else:
                    job.fail(failure or error)
                    finished.append(job)
                return
            tx.execute_raw("RELEASE SAVEPOINT signoff_job")
        finished.append(job)
        notices += tx.notices
