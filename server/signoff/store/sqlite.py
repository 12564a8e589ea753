"""The store on a SQLite file: one writer, many readers."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import aiosqlite
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

from signoff.store.aio import OneHopConnection
from signoff.store.clock import Clock
from signoff.store.dialect import SqliteDialect
from signoff.store.errors import StoreError, translate
from signoff.store.hub import Hub
from signoff.store.session import AuthorSession, Joiner, ReadOnlySession
from signoff.store.tx import RESYNC, Notice, Tx
from signoff.store.writer import CallJob, Committer, Link, Turn, Writer

logger = logging.getLogger(__name__)

BUSY_TIMEOUT = 15.0  # seconds that a write waits for another process's transaction
POLL = 0.1  # seconds between looks for what other processes wrote
HELD_TOO_LONG = 1.0  # seconds of a mutation that get a warning
READERS = 4
INSIST = 0.02  # seconds between interrupts of a statement whose session was canceled


def connect(path: str, *, volatile: bool = False, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions begin only where we say so."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'OFF' if volatile else 'FULL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA cache_size = {-8_000 if read_only else -64_000}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteLink:
    until_commit = None

    """The writer's connection: SQLAlchemy on top, transactions by hand below, because that costs a tenth."""

    def __init__(self, path: str, volatile: bool) -> None:
        self.dialect = SqliteDialect()
        self.path = path
        self._volatile = volatile
        self._open()
        self._version = self._data_version()

    def _open(self) -> None:
        self.raw = connect(self.path, volatile=self._volatile)
        self._engine = sa.create_engine(
            "sqlite://", creator=lambda: self.raw, poolclass=StaticPool, isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,  # one that its last borrower closed cannot be reset
        )  # fmt: skip
        self.conn = self._engine.connect()

    def begin(self) -> sa.Connection:
        self.raw.execute("BEGIN IMMEDIATE")
        return self.conn

    def commit(self, notices: Sequence[Notice]) -> None:
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
        try:
            if self.raw.in_transaction:
                self.raw.execute("ROLLBACK")
        except sqlite3.ProgrammingError:  # closed with its last borrower
            self._open()
            self._version = -1

    def stands(self) -> bool:
        return self.raw.in_transaction

    def translate(self, error: Exception) -> StoreError | None:
        return translate(error, f"the SQLite file {self.path}")

    def others_wrote(self) -> bool:
        """Whether another connection changed the file since the last look."""
        before, self._version = self._version, self._data_version()
        return before != self._version

    def _data_version(self) -> int:
        version: int = self.raw.execute("PRAGMA data_version").fetchone()[0]
        return version

    def close(self) -> None:
        self.conn.close()
        self._engine.dispose()
        self.raw.close()


class _Borrowed(OneHopConnection):
    """The writer's own connection, used by whoever has the turn.

    SQLAlchemy closes it when a statement is canceled under way. The writer then opens a new connection, because one
    with half a statement on it is good for little.
    """

    def __init__(self, raw: sqlite3.Connection) -> None:
        super().__init__(lambda: raw)
        self._raw = raw
        self._spent = False
        self._ended = threading.Event()
        self._ending = threading.Lock()

    async def close(self) -> None:
        self._give_up()
        await super().close()

    def stop(self) -> Any:
        self._give_up()
        return super().stop()

    def _give_up(self) -> None:
        if not self._spent:
            self._spent = True
            try:
                self._raw.interrupt()
            except sqlite3.ProgrammingError:
                return  # closed already
            self._tx.put_nowait((None, self._end))
            threading.Thread(target=self._insist, name="signoff-interrupt", daemon=True).start()

    def _insist(self) -> None:
        """A statement that had not quite begun does not feel an interrupt, and would run to its end."""
        while not self._ended.wait(INSIST):
            with self._ending:
                if not self._ended.is_set():
                    with suppress(sqlite3.ProgrammingError):  # closed
                        self._raw.interrupt()

    def _end(self) -> None:
        with self._ending:
            self._ended.set()
        # closing alone would leave the transaction to a statement that still has a cursor
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call it on some thread once no statement is under way any more."""
        if not self._spent:
            self._tx.put_nowait((None, call))
        else:
            threading.Thread(target=self._after_end, args=(call,), daemon=True).start()

    def _after_end(self, call: Callable[[], None]) -> None:
        self._thread.join()
        call()


class SqliteBackend:
    dialect = SqliteDialect()

    def __init__(self, path: str, hub: Hub, clock: Clock, *, volatile: bool = False) -> None:
        self.path = path
        self.shown = f"the SQLite file {path}"
        self._hub = hub
        self._clock = clock
        self._volatile = volatile
        self._link: SqliteLink | None = None
        self._writer = Writer("signoff-writer", self._open_link, hub, clock)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="signoff-read")
        self._read_engine = sa.create_engine(
            "sqlite://", creator=lambda: connect(path, read_only=True), poolclass=QueuePool,
            pool_size=READERS, isolation_level="AUTOCOMMIT",
        )  # fmt: skip
        self._snapshots = create_async_engine(f"sqlite+aiosqlite:///{path}", async_creator=self._open_snapshot)
        event.listen(self._snapshots.sync_engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
        self._borrowed: _Borrowed | None = None
        self._authors = create_async_engine(
            f"sqlite+aiosqlite:///{path}", async_creator=self._borrow, pool_size=1, max_overflow=0,
            pool_reset_on_return=None,
        )  # fmt: skip
        event.listen(self._authors.sync_engine, "begin", self._ensure_begun)
        self._polling: asyncio.Task[None] | None = None
        self.joiner = Joiner(self.dialect, clock, lambda conn, notices: None, hub.publish_soon)

    def _open_link(self) -> SqliteLink:
        self._link = SqliteLink(self.path, self._volatile)
        return self._link

    async def _open_snapshot(self) -> aiosqlite.Connection:
        return await OneHopConnection(lambda: connect(self.path, read_only=True))

    async def _borrow(self) -> aiosqlite.Connection:
        assert self._link is not None
        self._borrowed = _Borrowed(self._link.raw)
        return await self._borrowed

    def _ensure_begun(self, conn: sa.Connection) -> None:
        """The writer began before it lent its turn, but SQLAlchemy rolls back once when it first sees a connection."""
        assert self._link is not None
        if not self._link.raw.in_transaction:
            conn.exec_driver_sql("BEGIN IMMEDIATE")

    async def start(self) -> None:
        await self._writer.start()
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        await self._writer.close()
        await self._authors.dispose()
        await self._snapshots.dispose()
        await asyncio.to_thread(self._readers.shutdown)
        self._read_engine.dispose()

    async def write(self, call: Callable[[Tx], Any]) -> Any:
        future: asyncio.Future[Any] = self._hub.loop.create_future()
        self._writer.put(CallJob(call, future))
        return await future

    async def read(self, call: Callable[[Tx], Any]) -> Any:
        return await self._hub.loop.run_in_executor(self._readers, self._read, call)

    def _read(self, call: Callable[[Tx], Any]) -> Any:
        try:
            with self._read_engine.connect() as conn:
                conn.exec_driver_sql("BEGIN")
                try:
                    return call(Tx(conn, self._clock.now(), self.dialect))
                finally:
                    conn.exec_driver_sql("ROLLBACK")
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise translate(error, self.shown) or error from error

    def committer(
        self, apply: Callable[[Tx, list[Any]], Sequence[Any]], max_batch: int, repeatable: bool
    ) -> Committer[Any, Any]:
        return Committer(self._writer, apply, max_batch, repeatable=repeatable)

    async def author_session(self) -> AuthorSession:
        """A session that holds the write turn, with its transaction begun, until `release`."""
        turn = Turn(self._hub)
        self._writer.put(turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            turn.refuse()  # it may have been granted at the same moment: then nobody else would give it back
            raise
        session = AuthorSession(self._authors, expire_on_commit=False)
        session.sync_session.info["signoff_turn"] = (turn, time.monotonic())
        return session

    def release(self, session: AuthorSession) -> None:
        turn, since = session.sync_session.info["signoff_turn"]
        if self._borrowed is None:
            turn.give_back()
        else:
            self._borrowed.when_idle(turn.give_back)
        if (held := time.monotonic() - since) > HELD_TOO_LONG:
            logger.warning("a mutation held the database's write turn for %.1f s; all other writes waited", held)

    def snapshot_session(self) -> ReadOnlySession:
        return ReadOnlySession(self._snapshots, expire_on_commit=False)

    async def _poll(self) -> None:
        """Tell of what other processes wrote: it shows in the `data_version` of the writer's own connection."""
        while True:
            looked = self._hub.loop.create_future()
            self._writer.put(partial(self._look, looked))
            if await looked:
                self._hub.publish([RESYNC])
            await asyncio.sleep(POLL)

    def _look(self, looked: asyncio.Future[bool], link: Link) -> None:
        assert isinstance(link, SqliteLink)
        try:
            found = link.others_wrote()
        except sqlite3.Error as error:
            logger.warning("cannot look for what other processes wrote: %s", error)
            found = False
        self._hub.post(lambda: None if looked.done() else looked.set_result(found))
