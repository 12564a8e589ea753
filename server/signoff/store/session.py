"""Sessions that authors get, and joining a session that is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Concatenate, NoReturn, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import SessionTransaction
from sqlmodel import Session
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff.store.clock import Clock
from signoff.store.dialect import Dialect
from signoff.store.errors import StoreError, TransactionOwned
from signoff.store.tx import Notice, Tx

P = ParamSpec("P")
R = TypeVar("R")

_KEY = "signoff_notices"


class _OwnedSession(Session):
    """A session whose transaction begins and ends with the block that made it. Savepoints (`begin_nested`) are free."""

    ended_by: ClassVar[str] = "Signoff commits it together with the step's outcome"

    def _refuse(self, call: str) -> NoReturn:
        raise TransactionOwned(
            f"{call}() on a step's session: {self.ended_by}. "
            "Raise an exception to roll back; use begin_nested() for a part"
        )

    def commit(self) -> None:
        self._refuse("commit")

    def rollback(self) -> None:
        self._refuse("rollback")

    def close(self) -> None:
        self._refuse("close")

    def reset(self) -> None:
        self._refuse("reset")

    def invalidate(self) -> None:
        self._refuse("invalidate")


class _ReadOnlySession(_OwnedSession):
    ended_by = "Signoff ends it together with the step"


class AuthorSession(AsyncSession):
    """sqlmodel's AsyncSession, in a transaction that Signoff ends."""

    sync_session_class = _OwnedSession

    async def run(self, use_case: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one of our use-cases in this transaction."""
        return await self.run_sync(lambda session: use_case(self._tx(session), *args, **kwargs))

    def bind_tx(self, make: Callable[[OrmSession], Tx]) -> None:
        """Say how a Tx on this session is made; for the store only."""
        self._tx = make


class ReadOnlySession(AsyncSession):
    """sqlmodel's AsyncSession on a read-only snapshot that Signoff ends."""

    sync_session_class = _ReadOnlySession


class Joiner:
    """Runs use-cases in sessions, ours or other people's, and lets notices out after their commit, and only then."""

    def __init__(
        self,
        dialect: Dialect,
        clock: Clock,
        send: Callable[[sa.Connection, Sequence[Notice]], None],
        publish: Callable[[Sequence[Notice]], None],
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._send = send  # with the transaction, before its commit
        self._publish = publish  # after it

    def tx(self, session: OrmSession) -> Tx:
        """A Tx on the session's connection. Pending objects are flushed first, so that our statements see them."""
        conn = session.connection()
        if conn.dialect.name != self._dialect.name:
            raise StoreError(
                f"this session speaks to {conn.dialect.name}, Signoff's tables are in {self._dialect.name}: "
                "only a session on the same database can be joined"
            )
        session.flush()
        return Tx(conn, self._clock.now(), self._dialect, self._watched(session).notices)

    def _watched(self, session: OrmSession) -> _Joined:
        joined: _Joined | None = session.info.get(_KEY)
        if joined is None:
            joined = session.info[_KEY] = _Joined(self._send, self._publish)
            if nested := session.get_nested_transaction():
                joined.marks.append((nested, 0))
            if not isinstance(session, _OwnedSession):
                _hook(session)
        return joined


@dataclass(slots=True)
class _Joined:
    """What a session's use-cases want to be known, kept in its `info`."""

    send: Callable[[sa.Connection, Sequence[Notice]], None]
    publish: Callable[[Sequence[Notice]], None]
    notices: list[Notice] = field(default_factory=list)
    marks: list[tuple[SessionTransaction, int]] = field(default_factory=list)  # how many there were before a savepoint


def _hook(target: OrmSession | type[OrmSession]) -> None:
    event.listen(target, "after_transaction_create", _transaction_created)
    event.listen(target, "before_commit", _before_commit)
    event.listen(target, "after_commit", _after_commit)
    event.listen(target, "after_soft_rollback", _after_rollback)


def _transaction_created(session: OrmSession, transaction: SessionTransaction) -> None:
    joined: _Joined | None = session.info.get(_KEY)
    if joined is not None and transaction.nested:
        joined.marks.append((transaction, len(joined.notices)))


# SQLAlchemy calls these for savepoints too


def _before_commit(session: OrmSession) -> None:
    joined: _Joined | None = session.info.get(_KEY)
    if joined is not None and joined.notices and not session.in_nested_transaction():
        joined.send(session.connection(), joined.notices)


def _after_commit(session: OrmSession) -> None:
    joined: _Joined | None = session.info.get(_KEY)
    if joined is not None and not session.in_nested_transaction():
        notices = list(joined.notices)
        joined.notices.clear()
        joined.marks.clear()
        joined.publish(notices)


def _after_rollback(session: OrmSession, previous: SessionTransaction) -> None:
    joined: _Joined | None = session.info.get(_KEY)
    if joined is None:
        return
    if not previous.nested:
        joined.notices.clear()
        joined.marks.clear()
    for transaction, kept in joined.marks:
        if transaction is previous:
            del joined.notices[kept:]


_hook(_OwnedSession)
