"""The one door to the database: `write`, `read`, group commit, sessions for authors, and notices."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlmodel import Session
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff.store.clock import Clock, SystemClock
from signoff.store.dialect import Dialect
from signoff.store.errors import (
    CommitUnknown,
    DatabaseUnavailable,
    NotWritable,
    ReadOnlyTransaction,
    StoreClosed,
    WriteInsideMutation,
    translate,
)
from signoff.store.hub import Early, Hub
from signoff.store.migrate import migrate as migrate_tables
from signoff.store.migrate import require_current
from signoff.store.postgres import PostgresBackend
from signoff.store.scope import Person, Scope
from signoff.store.session import AuthorSession, ReadOnlySession
from signoff.store.sqlite import SqliteBackend
from signoff.store.tables import Base
from signoff.store.tx import Notice, Tx
from signoff.store.urls import parse_url
from signoff.store.writer import MAX_BATCH, PATIENCE, Committer

__all__ = ["AuthorSession", "Committer", "Notice", "Person", "Scope", "Store", "Tx"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class _Holding:
    """Marks a task (and those it starts) while it holds a mutation's transaction."""

    held = True


_holding: ContextVar[_Holding | None] = ContextVar("signoff_holding", default=None)


class Store:
    """An open database. Belongs to the event loop that opened it."""

    def __init__(self, url: sa.URL, backend: SqliteBackend | PostgresBackend, hub: Hub, clock: Clock) -> None:
        self.url = url.render_as_string(hide_password=False)
        self.clock = clock
        self.dialect: Dialect = backend.dialect
        self.metadata: sa.MetaData = Base.metadata
        self.backend = backend
        self._hub = hub
        self._closed = False
        self._folder: Path | None = None
        self._ending: set[asyncio.Future[None]] = set()

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None, migrate: bool | None = None) -> Store:
        """Open a database.

        SQLite files are made and migrated unless `migrate` is False; PostgreSQL is migrated only when it is True.
        `sqlite://` is a database in memory that ends with the store. Raises a StoreError that says what to do.
        """
        parsed = parse_url(url)
        clock = clock or SystemClock()
        hub = Hub()
        folder: Path | None = None
        if parsed.get_backend_name() == "sqlite":
            path = parsed.database
            if path in (None, "", ":memory:"):
                # SQLite's own memory databases know no readers beside a writer; a file in memory does
                folder = Path(
                    tempfile.mkdtemp(prefix="signoff-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
                )
                path = str(folder / "signoff.db")
            assert path is not None
            path = os.path.abspath(path)  # a process may change its folder later
            parsed = parsed.set(database=path)
            backend: SqliteBackend | PostgresBackend = SqliteBackend(path, hub, clock, volatile=folder is not None)
        else:
            backend = PostgresBackend(parsed, hub, clock)
        store = cls(parsed, backend, hub, clock)
        store._folder = folder
        try:
            with store._typed():
                await asyncio.to_thread(_prepare, parsed, migrate)
                await backend.start()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Finish what is queued and let go of all connections. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self.backend.close()
        self._hub.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def write(self, use_case: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a use-case in a transaction that is committed when this returns. It may run more than once until then.

        Raises what the use-case raises (nothing of it is kept), and StoreError.
        """
        self._check(use_case)
        self._check_turn()
        return await self.backend.write(_bound(use_case, args, kwargs))  # type: ignore[no-any-return]  # as the use-case

    async def write_with(self, committer: Committer[T, R], item: T) -> R:
        """Write one item through a group commit and wait for it. Raises what came of it, and as `write`."""
        self._check()
        self._check_turn()
        future: asyncio.Future[R] = self._hub.loop.create_future()
        done = partial(_settle, future)
        committer.submit(item, done)
        if self.dialect.name == "postgresql":  # a SQLite file does not go away
            await asyncio.wait((future,), timeout=PATIENCE)
            if not future.done() and committer.withdraw(done):
                raise DatabaseUnavailable(f"{self.backend.shown} does not answer; nothing was written")
        return await future

    def _check_turn(self) -> None:
        holding = _holding.get()
        if holding is not None and holding.held:
            raise WriteInsideMutation(
                "this call wants a transaction of its own while the mutation holds one, and would wait for ever; "
                "pass session=session so that it joins the mutation's"
            )

    async def read(self, use_case: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a use-case on one read-only snapshot."""
        self._check(use_case)
        return await self.backend.read(_bound(use_case, args, kwargs))  # type: ignore[no-any-return]  # as the use-case

    def committer(
        self,
        apply: Callable[[Tx, list[T]], Sequence[R | BaseException]],
        *,
        max_batch: int = MAX_BATCH,
        repeatable: bool = True,
    ) -> Committer[T, R]:
        """A group commit: `apply` gets many items at once and gives a result for each, in their order.

        It may run again for the same items, alone or with others; if `repeatable` also after a commit whose answer was
        lost: it has to find out from the database what was done already (by a fence, a key). If not, its items get
        CommitUnknown then.
        """
        return self.backend.committer(apply, max_batch, repeatable)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AuthorSession]:
        """An author's transaction, committed at the end of the block, rolled back when it raises.

        A StoreError with `transient` set left nothing behind. A block that is canceled while it commits ends after the
        commit, with CancelledError: whether it happened is for the caller to look up, as for CommitUnknown.
        """
        self._check()
        session = await self.backend.author_session()
        session.bind_tx(self.backend.joiner.tx)
        outer, holding = _holding.get(), _Holding()
        _holding.set(holding)
        try:
            with self._typed():
                yield session
            await self._commit(session)
        finally:
            holding.held = False
            _holding.set(outer)
            await self._end(session)

    async def _commit(self, session: AuthorSession) -> None:
        committing = asyncio.ensure_future(session.run_sync(Session.commit))
        try:
            with self._typed():
                await asyncio.shield(committing)
        except asyncio.CancelledError:
            await asyncio.wait([committing])
            raise
        except DatabaseUnavailable as error:
            raise CommitUnknown("the connection was lost during a commit; look whether it happened") from error

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncSession]:
        """A session on one read-only snapshot. A write raises ReadOnlyTransaction out of the block."""
        self._check()
        session = self.backend.snapshot_session()
        try:
            with self._typed():
                yield session
        except NotWritable as error:
            raise ReadOnlyTransaction("a query only reads; make this step a mutation to write") from error
        finally:
            await self._end(session)

    async def join(
        self, session: AsyncSession, use_case: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a use-case in a caller's transaction on the same database; it stands or falls with that transaction.

        Its notices go out after the caller's commit.
        """
        self._check(use_case)
        return await session.run_sync(lambda inner: use_case(self.backend.joiner.tx(inner), *args, **kwargs))

    def subscribe(self, callback: Callable[[Sequence[Notice]], None], early: Early | None = None) -> Callable[[], None]:
        """Call back on the loop's thread with notices of this and other processes. Returns what ends it.

        `early` hears what programs may go on with while this process still commits it, with a promise that the commit
        keeps or breaks; what it begins may be written only when the promise is kept.
        """
        return self._hub.subscribe(callback, early)

    def _check(self, use_case: Callable[..., Any] | None = None) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        if inspect.iscoroutinefunction(use_case):
            raise TypeError(f"{use_case!r} is async; a use-case is a plain function of (tx, ...)")

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn what drivers raise into the errors of the store."""
        try:
            yield
        except Exception as error:
            typed = translate(error, self.backend.shown)
            if typed is None or typed is error:
                raise
            raise typed from error

    async def _end(self, session: AuthorSession | ReadOnlySession) -> None:
        """Close a session and give back what it held; goes on by itself when the caller is canceled meanwhile."""
        ending = asyncio.ensure_future(self._close_session(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)

    async def _close_session(self, session: AuthorSession | ReadOnlySession) -> None:
        try:
            await session.run_sync(Session.close)
        except (sa.exc.SQLAlchemyError, OSError) as error:
            # rolled back by the database when the connection is gone
            logger.warning("a session could not be closed properly: %s", error)
        finally:
            if isinstance(session, AuthorSession):
                self.backend.release(session)


def _settle(future: asyncio.Future[R], result: R | BaseException) -> None:
    if future.done():  # its awaiter was canceled
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _bound(use_case: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Tx], Any]:
    return lambda tx: use_case(tx, *args, **kwargs)


def _prepare(url: sa.URL, migrate: bool | None) -> None:
    """Make or check the tables."""
    if migrate or (migrate is None and url.get_backend_name() == "sqlite"):
        migrate_tables(url)
    else:
        require_current(url)
