"""What every use-case gets: a connection inside a transaction, the time, and a place to leave notices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPICursor

    from signoff.store.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Notice:
    """Something changed. `data` reaches subscribers in this process only; other processes get `kind` and `key`.

    Kinds: `ready` (a run can be claimed), `run` (key: run id), `approvals` (key: tenant id), `rights` (key: id of a
    user whose sessions or rights changed), `people` (key: id of a tenant whose members, roles or groups changed),
    `pool` (key: name), `clerk` (a question with reminders was asked), and `resync` (notices may have been missed: look
    at everything).
    """

    kind: str
    key: str | int = ""
    data: dict[str, Any] | None = None

    @property
    def is_progress(self) -> bool:
        """Whether it tells of a run that goes on: other processes may hear of it a moment later."""
        return self.data is not None and "open" in self.data

    @property
    def goes_on(self) -> bool:
        """Whether a program in memory may go on with what it brings."""
        return self.kind == "run" and self.data is not None and ("outcome" in self.data or "begun" in self.data)


RESYNC = Notice("resync")


@dataclass(slots=True)
class Tx:
    """A transaction as a use-case sees it. It never commits or rolls back itself."""

    conn: sa.Connection
    now: datetime  # fixed while the use-case runs
    dialect: Dialect
    notices: list[Notice] = field(default_factory=list)
    # What is still open in here is ended by the commit, after what it sends itself. None: somebody else commits, or
    # more than this use-case.
    until_commit: ExitStack | None = None

    def notify(self, kind: str, key: str | int = "", **data: Any) -> None:
        """Tell subscribers after the commit, and only then."""
        self.notices.append(Notice(kind, key, data or None))

    def cursor(self) -> DBAPICursor:
        """The driver's own cursor, inside this transaction, for hot paths (`?` on SQLite, `%s` on PostgreSQL)."""
        return self.conn.connection.cursor()

    def execute_raw(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one statement on the driver's cursor; its rows, or [] when it gives none."""
        cursor = self.cursor()
        try:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            cursor.close()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what happens inside, notices too, when it raises. Nests."""
        kept = len(self.notices)
        self.execute_raw("SAVEPOINT signoff_s")
        try:
            yield
        except BaseException:
            self.execute_raw("ROLLBACK TO SAVEPOINT signoff_s")
            self.execute_raw("RELEASE SAVEPOINT signoff_s")
            del self.notices[kept:]
            raise
        self.execute_raw("RELEASE SAVEPOINT signoff_s")
