"""The store on PostgreSQL: a pool for use-cases, one connection for the group commit, one that listens."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from signoff.store.clock import Clock
from signoff.store.dialect import PostgresDialect
from signoff.store.errors import CommitUnknown, DatabaseUnavailable, StoreClosed, StoreError, may_stand, translate
from signoff.store.hub import Hub
from signoff.store.promise import Promise
from signoff.store.session import AuthorSession, Joiner, ReadOnlySession
from signoff.store.tx import RESYNC, Notice, Tx
from signoff.store.urls import shown
from signoff.store.writer import PATIENCE, Committer, Link, Writer

logger = logging.getLogger(__name__)

CHANNEL = "signoff"
PAYLOAD_BYTES = 7900  # PostgreSQL takes less than 8,000
LAZY = 0.05  # seconds until other processes hear of mere progress; every process hears its own NOTIFY, which costs
THREADS = 8
TRIES = 12  # of a use-case that conflicts

# A server that vanished without a word is noticed within about 20 s. UTC, so that times need no conversion.
CONNECT_ARGS: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "connect_timeout": 10,
    "application_name": "signoff",
    "options": "-c TimeZone=UTC",
}
_READ_ONLY: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def connect_args(url: sa.URL) -> dict[str, Any]:
    """Ours, except where the URL has its own say."""
    return {key: value for key, value in CONNECT_ARGS.items() if key not in url.query}


def payloads(origin: str, notices: Sequence[Notice]) -> list[str]:
    """Notices as NOTIFY payloads: `[origin, [kind, key], ...]` without repetitions, each short enough."""
    parts: list[str] = []
    size = 0
    texts: list[str] = []
    for kind, key in dict.fromkeys((notice.kind, notice.key) for notice in notices):
        text = json.dumps([kind, key], separators=(",", ":"))
        if len(text) > PAYLOAD_BYTES // 2:
            text = json.dumps([RESYNC.kind, ""], separators=(",", ":"))
        if parts and size + len(text) + 1 > PAYLOAD_BYTES - 64:
            texts.append(f'["{origin}",{",".join(parts)}]')
            parts, size = [], 0
        parts.append(text)
        size += len(text) + 1
    if parts:
        texts.append(f'["{origin}",{",".join(parts)}]')
    return texts


# The group commit finds every row by a key that it was given in an array. The planner does not know how few there are
# and, before its first statistics, would rather read the whole table.
_BY_KEY = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"


class PostgresLink:
    """The group commit's connection, made again when it was lost."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.dialect = backend.dialect
        self._backend = backend
        self._conn: sa.Connection | None = None
        self._held: list[Notice] = []  # committed progress that others do not know of yet
        self._held_since = 0.0
        self.until_commit = ExitStack()
        self.begin()
        self.rollback()

    def begin(self) -> sa.Connection:
        if self._conn is None:
            self._conn = self._backend.direct_engine.connect()
            self._conn.exec_driver_sql(_BY_KEY)
            self._conn.commit()
        self._conn.begin()
        return self._conn

    def commit(self, notices: Sequence[Notice]) -> None:
        assert self._conn is not None
        connection = self._conn.connection.driver_connection
        assert isinstance(connection, psycopg.Connection)
        now = time.monotonic()
        late = bool(self._held) and now - self._held_since >= LAZY
        told = late or not all(notice.is_progress for notice in notices)
        if not self.dialect.is_pipelined(connection):
            self.until_commit.enter_context(connection.pipeline())
        if told:
            self._backend.send(self._conn, [*self._held, *notices])
        self._conn.commit()
        self.until_commit.close()  # the last writes, notices and commit in one round trip
        if told:
            self._held = []
        elif notices:
            if not self._held:
                self._held_since = now
                self._backend.tell_later()
            self._held += notices

    def tell(self) -> None:
        """Send what is held, unless a commit did meanwhile. What cannot be sent is sent with the next commit."""
        if not self._held:
            return
        self._held_since = 0.0
        try:
            self.begin()
            self.commit(())
        except (sa.exc.SQLAlchemyError, psycopg.Error) as error:
            logger.warning("notices of progress wait: %s", error)
            self.rollback()

    def rollback(self) -> None:
        with suppress(psycopg.Error):  # whoever rolls back knows why
            self.until_commit.close()
        if self._conn is None:
            return
        try:
            self._conn.rollback()
            if not self.stands():
                self._drop()
            elif (driver := self._conn.connection.driver_connection) is not None:
                driver.rollback()  # to SQLAlchemy a commit that failed with the writes before it is over
        except (sa.exc.SQLAlchemyError, psycopg.Error):  # it is gone: the next begin makes another
            self._drop()

    def stands(self) -> bool:
        return (
            self._conn is not None
            and not self._conn.invalidated
            and self._conn.connection.driver_connection is not None
            and not self._conn.connection.driver_connection.closed
        )

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.invalidate()
            conn.close()

    def translate(self, error: Exception) -> StoreError | None:
        return translate(error, self._backend.shown)

    def close(self) -> None:
        self.tell()
        if self._conn is not None:
            self._conn.close()


def _tell(link: Link) -> None:
    assert isinstance(link, PostgresLink)
    link.tell()


class PostgresBackend:
    dialect = PostgresDialect()

    def __init__(self, url: sa.URL, hub: Hub, clock: Clock) -> None:
        self.shown = shown(url)
        url = url.set(drivername="postgresql+psycopg")
        self._hub = hub
        self._clock = clock
        self.origin = uuid.uuid4().hex[:16]
        args = connect_args(url)
        self.engine = sa.create_engine(url, connect_args=args, pool_size=THREADS, max_overflow=0, pool_use_lifo=True)
        self.direct_engine = sa.create_engine(url, connect_args=args, poolclass=NullPool)
        # an author's first statement must not meet a connection that died in the pool
        self._sessions = create_async_engine(
            url, connect_args=args, pool_size=8, max_overflow=8, pool_timeout=60, pool_pre_ping=True, pool_use_lifo=True
        )
        self._reads = self.engine.execution_options(**_READ_ONLY)
        self._snapshots = self._sessions.execution_options(**_READ_ONLY)
        self._raw_args: dict[str, Any] = {**self.engine.dialect.create_connect_args(url)[1], **args}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="signoff-db")
        self._writer = Writer("signoff-committer", lambda: PostgresLink(self), hub, clock)
        self._listener: asyncio.Task[None] | None = None
        self.joiner = Joiner(self.dialect, clock, self.send, hub.publish_soon)

    async def start(self) -> None:
        await self._writer.start()
        listening = self._hub.loop.create_future()
        self._listener = asyncio.create_task(self._listen(listening))
        await listening

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        await self._writer.close()
        await asyncio.to_thread(self._threads.shutdown)
        await self._sessions.dispose()
        self.engine.dispose()
        self.direct_engine.dispose()

    def send(self, conn: sa.Connection, notices: Sequence[Notice]) -> None:
        """NOTIFY inside the transaction: others hear of it when, and only if, it commits."""
        texts = payloads(self.origin, notices)
        if texts:
            cursor = conn.connection.cursor()
            try:
                for text in texts:
                    cursor.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))
            finally:
                cursor.close()

    def tell_later(self) -> None:
        """Have the committer's link `tell` in a moment; from any thread."""
        self._hub.post(self._tell_after)

    def _tell_after(self) -> None:
        self._hub.loop.call_later(LAZY, self._tell)

    def _tell(self) -> None:
        with suppress(StoreClosed):  # closing tells as well
            self._writer.put(_tell)

    def connect_raw(self) -> psycopg.Connection[Any]:
        """A connection outside of all pools, in autocommit mode."""
        return psycopg.connect(**self._raw_args, autocommit=True)

    def post(self, call: Callable[[], None]) -> None:
        """Run on the loop's thread; from any thread."""
        self._hub.post(call)

    def translate(self, error: Exception) -> StoreError | None:
        return translate(error, self.shown)

    async def write(self, call: Callable[[Tx], Any]) -> Any:
        return await self._hub.loop.run_in_executor(self._threads, self._write, call)

    def _write(self, call: Callable[[Tx], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        tries = 0
        while True:
            tries += 1
            committing = False
            promise: Promise | None = None
            try:
                with self._connected() as conn, conn.begin() as transaction, ExitStack() as until_commit:
                    tx = Tx(conn, self._clock.now(), self.dialect, until_commit=until_commit)
                    result = call(tx)
                    with self.dialect.pipelined_to_end(tx):  # notices and commit in one round trip
                        self.send(conn, tx.notices)
                        committing = True
                        promise = self._hub.foretell(tx.notices)
                        transaction.commit()
                if promise is not None:
                    promise.decide(True)
                self._hub.publish_soon(tx.notices)
                return result
            except BaseException as error:
                if promise is not None:
                    promise.decide(False)
                if not isinstance(error, (sa.exc.SQLAlchemyError, psycopg.Error, StoreError)):
                    raise
                failure = translate(error, self.shown)
                if failure is None:
                    raise
                lost = isinstance(failure, DatabaseUnavailable)
                if lost and committing and may_stand(error):
                    self._hub.resync()
                    raise CommitUnknown(
                        f"the connection to {self.shown} was lost during a commit; look whether it happened"
                    ) from error
                last = time.monotonic() > deadline if lost else tries >= TRIES
                if not failure.transient or last:
                    if failure is error:
                        raise
                    raise failure from error
            # spread those that collided; give a database that starts again some time
            time.sleep(random.uniform(0, 0.01 * tries) if not lost else min(0.05 * 2**tries, 1.0))

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        with self.engine.connect() as conn:
            try:
                yield conn
            except BaseException:
                # to SQLAlchemy a commit that failed with the writes before it is over, and the pool would reset nothing
                if not (conn.closed or conn.invalidated) and (driver := conn.connection.driver_connection) is not None:
                    try:
                        driver.rollback()
                    except psycopg.Error:
                        conn.invalidate()
                raise

    async def read(self, call: Callable[[Tx], Any]) -> Any:
        return await self._hub.loop.run_in_executor(self._threads, self._read, call)

    def _read(self, call: Callable[[Tx], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        pause = 0.0
        while True:
            try:
                with self._reads.connect() as conn:
                    return call(Tx(conn, self._clock.now(), self.dialect))
            except (sa.exc.SQLAlchemyError, psycopg.Error) as error:
                failure = translate(error, self.shown)
                if failure is None:
                    raise
                if not failure.transient or time.monotonic() > deadline:
                    raise failure from error
            time.sleep(pause)
            pause = min(pause * 2 + 0.05, 1.0)

    def committer(
        self, apply: Callable[[Tx, list[Any]], Sequence[Any]], max_batch: int, repeatable: bool
    ) -> Committer[Any, Any]:
        return Committer(self._writer, apply, max_batch, repeatable=repeatable)

    async def author_session(self) -> AuthorSession:
        return AuthorSession(self._sessions, expire_on_commit=False)

    def release(self, session: AuthorSession) -> None:
        pass

    def snapshot_session(self) -> ReadOnlySession:
        return ReadOnlySession(self._snapshots, expire_on_commit=False)

    async def _listen(self, listening: asyncio.Future[None]) -> None:
        """Hear other processes. After a lost connection nobody knows what was missed: resync."""
        pause = 0.05
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(**self._raw_args, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause = 0.05
                    if listening.done():
                        logger.info("listening for notices again")
                        self._hub.publish([RESYNC])
                    else:
                        listening.set_result(None)
                    async for notify in connection.notifies():
                        self._hear(notify.payload)
            except (psycopg.Error, OSError) as error:
                if not listening.done():
                    listening.set_exception(translate(error, self.shown) or error)
                    return
                logger.warning("the connection that listens for notices was lost: %s", str(error).strip())
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _hear(self, payload: str) -> None:
        try:
            origin, *pairs = json.loads(payload)
            notices = [Notice(kind, key) for kind, key in pairs]
        except (ValueError, TypeError):
            logger.warning("a notice that is none of ours on channel %r: %.80r", CHANNEL, payload)
            return
        if origin != self.origin:
            self._hub.publish(notices)
