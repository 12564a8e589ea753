"""Sessions that authors get, and joining a session that is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec, TypeVar

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
    """A session whose transaction begins and ends with the block that made it. Savepoints (`begin_nested`) are free to use."""

    ended_by: ClassVar[str] = "Signoff commits it together with the step's outcome"

    def _refuse(self, call: str) -> NoReturn:
        raise TransactionOwned(
            f"{call}() on a step's session: {self.ended_by}. Raise an exception to roll back; use begin_nested() for a part"
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
    """Runs use-cases in other people's sessions and lets their notices out after the commit, and only then."""

    def __init__(
        self,
        dialect: Dialect,
        clock: Clock,
        send: Callable[[Any, Sequence[Notice]], None],
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
        notices = self.watch(session)
        return Tx(conn, self._clock.now(), self._dialect, notices)

    def watch(self, session: OrmSession) -> list[Notice]:
        """The list that collects a session's notices; hooks are put on it the first time."""
        notices: list[Notice] | None = session.info.get(_KEY)
        if notices is None:
            notices = session.info[_KEY] = []
            marks: list[tuple[SessionTransaction, int]] = []
            sent: list[int] = [0]

            def begun(session: OrmSession, transaction: SessionTransaction) -> None:
                if transaction.nested:
                    marks.append((transaction, len(notices)))

            def before_commit(session: OrmSession) -> None:
                if not session.in_nested_transaction() and len(notices) > sent[0]:
                    self._send(session.connection(), notices[sent[0] :])
                    sent[0] = len(notices)

            def after_commit(session: OrmSession) -> None:
                if not session.in_nested_transaction():
                    ready = list(notices)
                    notices.clear()
                    sent[0] = 0
                    self._publish(ready)

            def after_soft_rollback(session: OrmSession, previous: SessionTransaction) -> None:
                if not previous.nested:
                    notices.clear()
                    sent[0] = 0
                for transaction, mark in marks:
                    if transaction is previous:
                        del notices[mark:]

            def ended(session: OrmSession, transaction: SessionTransaction) -> None:
                marks[:] = [mark for mark in marks if mark[0] is not transaction]

            event.listen(session, "after_transaction_create", begun)
            event.listen(session, "before_commit", before_commit)
            event.listen(session, "after_commit", after_commit)
            event.listen(session, "after_soft_rollback", after_soft_rollback)
            event.listen(session, "after_transaction_end", ended)
        return notices
