"""Which workers are alive.

SQLite: one worker per file, the one that holds the lock on `<file>.owner`; every other worker row is of the past.
PostgreSQL: a worker holds a session advisory lock and raises a counter from its own thread. It is lost when the lock is
free, or when an observer has seen the counter stand still for long enough on its own monotonic clock. Wall clocks play
no part, and time in which the observer had no database does not count.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psycopg
import sqlalchemy as sa

from signoff.store.errors import WorkerRefused
from signoff.store.postgres import PostgresBackend
from signoff.store.sqlite import SqliteBackend
from signoff.store.store import Store
from signoff.store.tables import Base
from signoff.store.tx import Tx

logger = logging.getLogger(__name__)

HEARTBEAT = 2.0  # seconds between beats
LOOK = 0.5  # seconds between looks at the others
STILL = 15.0  # seconds after which a counter that stands still means lost
UNHEALTHY = 10.0  # seconds without a beat after which no attempt may start
RECONNECTED = 5.0  # seconds after which, having been away itself, an observer trusts a free lock again
LOCKS = 0x5167  # first half of the workers' advisory lock keys

_WORKER = Base.metadata.tables["signoff_worker"]
_DEFINITION = Base.metadata.tables["signoff_worker_definition"]
_RUN = Base.metadata.tables["signoff_run"]


class Liveness(Protocol):
    """A worker's own life and what it knows of the others'."""

    @property
    def worker_id(self) -> int | None: ...

    @property
    def healthy(self) -> bool:
        """Whether attempts may start. False before the start and once others may have taken over."""
        ...

    @property
    def expelled(self) -> bool:
        """Others took this worker for lost: let go of everything, then `stop` and `start` again as a new one."""
        ...

    async def start(self) -> int:
        """Register and return the worker's id. Raises WorkerRefused."""
        ...

    def lost(self) -> list[int]:
        """Workers whose runs are to be taken over: `mark_lost` each in the transaction that does it, then `settled`."""
        ...

    def settled(self, worker_id: int) -> None:
        """This one was taken over, by whomever: leave it out of `lost`."""
        ...

    async def stop(self) -> None:
        """Sign off, after the worker let go of its runs."""
        ...


def open_liveness(store: Store, changed: Callable[[], None] | None = None) -> Liveness:
    """The liveness that fits the database. `changed` is called on the loop's thread when `lost` or `healthy` change."""
    if isinstance(store.backend, SqliteBackend):
        return FileLiveness(store)
    return LockLiveness(store, store.backend, changed or (lambda: None))


def mark_lost(tx: Tx, worker_id: int) -> bool:
    """Use-case: this worker is lost. False when somebody else said so before."""
    found = tx.conn.execute(
        sa.update(_WORKER).where(_WORKER.c.id == worker_id, _WORKER.c.lost_at.is_(None)).values(lost_at=tx.now)
    )
    return bool(found.rowcount)


def _register(tx: Tx, name: str) -> int:
    for statement in _FORGET:
        tx.execute_raw(statement)
    key = tx.conn.execute(sa.insert(_WORKER).values(name=name, started_at=tx.now)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _living(tx: Tx) -> list[int]:
    living = sa.select(_WORKER.c.id).where(_WORKER.c.lost_at.is_(None)).order_by(_WORKER.c.id)
    return list(tx.conn.execute(living).scalars())


def _sign_off(tx: Tx, worker_id: int) -> None:
    """Forget a worker, unless it still has runs: then others shall find it lost."""
    if tx.conn.execute(sa.select(_RUN.c.id).where(_RUN.c.worker_id == worker_id).limit(1)).first() is None:
        tx.conn.execute(sa.delete(_DEFINITION).where(_DEFINITION.c.worker_id == worker_id))
        tx.conn.execute(sa.delete(_WORKER).where(_WORKER.c.id == worker_id))


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class FileLiveness:
    """SQLite: alive is who holds the lock."""

    expelled = False

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, SqliteBackend)
        self._store = store
        self._path = Path(f"{store.backend.path}.owner")
        self._lock: int | None = None
        self._lost: list[int] = []
        self.worker_id: int | None = None

    @property
    def healthy(self) -> bool:
        return self.worker_id is not None

    async def start(self) -> int:
        self._lock = self._take_lock()
        try:
            self._lost = await self._store.read(_living)
            self.worker_id = await self._store.write(_register, _name())
        except BaseException:
            await self.stop()
            raise
        return self.worker_id

    def _take_lock(self) -> int:
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 200).decode("utf-8", "replace").strip() or "another process"
            os.close(lock)
            raise WorkerRefused(
                f"{owner} already runs the worker of {self._path.with_suffix('')}, and a SQLite file has only one: "
                "stop that process, or open the database without a worker (single commands work beside it), "
                "or move to PostgreSQL, where any number of workers share the work"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return lock

    def lost(self) -> list[int]:
        return list(self._lost)

    def settled(self, worker_id: int) -> None:
        self._lost = [other for other in self._lost if other != worker_id]

    async def stop(self) -> None:
        worker, self.worker_id = self.worker_id, None
        try:
            if worker is not None:
                await self._store.write(_sign_off, worker)
        finally:
            if self._lock is not None:
                os.ftruncate(self._lock, 0)
                os.close(self._lock)  # the lock goes with it; the file stays, or two could hold one each
                self._lock = None


@dataclass(slots=True)
class _Seen:
    heartbeat: int
    locked: bool
    still: float = 0.0  # seconds of healthy watching without a beat


class LockLiveness:
    """PostgreSQL: a thread of its own, so that a busy loop neither looks dead nor hides that it is."""

    def __init__(self, store: Store, backend: PostgresBackend, changed: Callable[[], None]) -> None:
        self._store = store
        self._backend = backend
        self._changed = changed
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._beat_at: float | None = None  # monotonic, when the last beat that arrived was sent
        self._lost: list[int] = []
        self._seen: dict[int, _Seen] = {}
        self._locked = False
        self.worker_id: int | None = None
        self.expelled = False

    @property
    def healthy(self) -> bool:
        beat_at = self._beat_at
        return beat_at is not None and not self.expelled and time.monotonic() - beat_at < UNHEALTHY

    async def start(self) -> int:
        self._stopping = threading.Event()
        self._beat_at, self._lost, self._seen, self.expelled = None, [], {}, False
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="signoff-heartbeat", daemon=True)
        self._thread.start()
        self.worker_id = await started
        return self.worker_id

    def lost(self) -> list[int]:
        return list(self._lost)

    def settled(self, worker_id: int) -> None:
        self._lost = [other for other in self._lost if other != worker_id]

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        await asyncio.to_thread(thread.join)
        worker, self.worker_id, self._beat_at = self.worker_id, None, None
        if worker is not None and not self.expelled:
            await self._store.write(_sign_off, worker)

    def _main(self, started: asyncio.Future[int]) -> None:
        """Beat and look, on a connection that is made again when it is lost."""
        worker: int | None = None
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                with self._backend.connect_raw() as conn:
                    # A server that comes back has forgotten all locks: give the others time to take theirs again.
                    trust_from = time.monotonic() + (0.0 if worker is None else RECONNECTED)
                    self._locked = False
                    if worker is None:
                        worker = self._enter(conn)
                        self._look(conn, worker, 0.0, first=True)
                        self._beat(conn, worker)
                        self._backend.post(partial(_answer, started, worker))
                    pause = 0.0
                    self._live(conn, worker, trust_from)
            except (psycopg.Error, OSError) as error:
                if worker is None:
                    self._backend.post(partial(_answer, started, self._backend.translate(error) or error))
                    return
                logger.warning("the worker's heartbeat lost its connection: %s", str(error).strip())
                self._backend.post(self._changed)
                pause = LOOK if pause else 0.05

    def _enter(self, conn: psycopg.Connection[Any]) -> int:
        """Lock first and be seen second: nobody shall meet a living worker without its lock."""
        row = conn.execute("SELECT nextval(pg_get_serial_sequence('signoff_worker', 'id'))").fetchone()
        assert row is not None
        worker = int(row[0])
        self._locked = self._try_lock(conn, worker)
        for statement in _FORGET:
            conn.execute(statement)
        conn.execute(
            "INSERT INTO signoff_worker (id, name, heartbeat, started_at) VALUES (%s, %s, 0, %s)",
            (worker, _name(), self._store.clock.now()),
        )
        return worker

    def _try_lock(self, conn: psycopg.Connection[Any], worker: int) -> bool:
        row = conn.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCKS, worker & 0x7FFFFFFF)).fetchone()
        return row is not None and bool(row[0])

    def _live(self, conn: psycopg.Connection[Any], worker: int, trust_from: float) -> None:
        # After a reconnect the server may still hold the lock for the connection before: it is tried again with every
        # look, because waiting for it would keep the counter from being raised.
        looked_at = beat_at = time.monotonic()
        self._beat(conn, worker)
        while not self.expelled:
            if not self._locked:
                self._locked = self._try_lock(conn, worker)
            if self._stopping.wait(LOOK):
                return
            now = time.monotonic()
            if now - beat_at >= HEARTBEAT:
                beat_at = now
                self._beat(conn, worker)
            self._look(conn, worker, now - looked_at, trusting=now >= trust_from)
            looked_at = now
        self._backend.post(self._changed)
        self._stopping.wait()

    def _beat(self, conn: psycopg.Connection[Any], worker: int) -> None:
        sent = time.monotonic()
        found = conn.execute(
            "UPDATE signoff_worker SET heartbeat = heartbeat + 1 WHERE id = %s AND lost_at IS NULL", (worker,)
        )
        if found.rowcount:
            self._beat_at = sent
        else:
            logger.error("this worker (%s) was taken for lost; its runs went on elsewhere", worker)
            self.expelled = True

    def _look(
        self, conn: psycopg.Connection[Any], worker: int, gap: float, *, trusting: bool = True, first: bool = False
    ) -> None:
        """Judge the others, `gap` seconds after the last look on this connection. `trusting`: a free lock says lost."""
        seen: dict[int, _Seen] = {}
        lost: list[int] = []
        for other, heartbeat, locked, gone in conn.execute(_OTHERS, {"space": LOCKS, "me": worker}).fetchall():
            now = seen[other] = _Seen(heartbeat, locked)
            before = self._seen.get(other)
            if before is not None and before.heartbeat == heartbeat:
                now.still = before.still + min(gap, 2 * LOOK)  # in a longer gap we stood still ourselves
            # who only lost its connection is back, with its lock, before the second look
            free = not locked and (first or (before is not None and not before.locked))
            # a worker that was taken over may have claimed once more before it noticed
            if gone or (trusting and free) or now.still >= STILL:
                lost.append(other)
        self._seen = seen
        if lost != self._lost:
            self._lost = lost
            self._backend.post(self._changed)


def _answer(started: asyncio.Future[int], answer: int | Exception) -> None:
    if started.done():
        return
    if isinstance(answer, Exception):
        started.set_exception(answer)
    else:
        started.set_result(answer)


_OTHERS = """
SELECT w.id, w.heartbeat, EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = %(space)s AND l.objid = (w.id & 2147483647) AND l.objsubid = 2
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.granted
), w.lost_at IS NOT NULL
FROM signoff_worker w
WHERE w.id <> %(me)s
  AND (w.lost_at IS NULL OR EXISTS (SELECT FROM signoff_run r WHERE r.worker_id = w.id))
ORDER BY w.id
"""
# Workers that are gone and have nothing left; one that still lives finds out with its next beat.
_FORGET = (
    """
    DELETE FROM signoff_worker WHERE lost_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM signoff_run r WHERE r.worker_id = signoff_worker.id)
    """,
    """
    DELETE FROM signoff_worker_definition
    WHERE NOT EXISTS (SELECT 1 FROM signoff_worker w WHERE w.id = signoff_worker_definition.worker_id)
    """,
)
