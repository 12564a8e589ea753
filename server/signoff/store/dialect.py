"""What differs between SQLite and PostgreSQL in SQL, behind one interface.

The row functions work on the driver's cursor and take rows as tuples in the order of the named columns, with aware
datetimes, bools and JSON text as they are: they cost a fraction of Core and are meant for the commit path.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from signoff.store.types import UtcDateTime, from_micros, to_micros

if TYPE_CHECKING:
    from signoff.store.tx import Tx

Row = Sequence[Any]
S = TypeVar("S", bound=sa.Select[Any])


def padded(values: Sequence[Any]) -> list[Any]:
    """The values, with the last one repeated up to a power of two: few statement texts, so that drivers keep them."""
    return [*values, *[values[-1]] * ((1 << (len(values) - 1).bit_length()) - len(values))]


class Answer(NamedTuple):
    """What a statement gave: its rows as the driver has them, and how many it changed."""

    rows: list[Row]
    changed: int


class Dialect(ABC):
    name: ClassVar[str]
    row_lock: ClassVar[str] = ""  # at the end of a SELECT
    row_lock_now: ClassVar[str] = ""  # the same, without rows that others hold

    @abstractmethod
    def lock(self, select: S) -> S:
        """Lock the selected rows until the end of the transaction. On SQLite a writer is alone anyway."""

    @abstractmethod
    def claim(self, select: S) -> S:
        """Lock the selected rows and leave out those that others hold."""

    @abstractmethod
    def advisory_lock(self, tx: Tx, key: int) -> None:
        """Hold a lock that has no row, until the end of the transaction."""

    def fetch_rows(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], key: str, values: Sequence[Any], *, lock: bool = False
    ) -> list[tuple[Any, ...]]:
        """The rows whose `key` is one of `values`, in order of `key`; locked in that order when `lock`.

        With `lock` only of columns with integers, times, booleans and text.
        """
        return self.ask_rows(tx, table, columns, key, values, lock=lock)()

    @abstractmethod
    def ask_rows(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], key: str, values: Sequence[Any], *, lock: bool = False
    ) -> Callable[[], list[tuple[Any, ...]]]:
        """As `fetch_rows`, but others may be asked for before the call that gives them."""

    @abstractmethod
    def insert_rows(self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows with one statement."""

    @abstractmethod
    def insert_returning(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row], returning: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Insert many rows; the `returning` columns of each as the driver gives them, in any order."""

    @abstractmethod
    def update_rows(
        self, tx: Tx, table: sa.Table, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Set `columns` of the rows found by `keys`. A row tuple holds the keys first, then the columns.

        No keys twice: which of the rows would count is left open.
        """

    @abstractmethod
    def run_all(self, tx: Tx, *statements: tuple[str, Sequence[Any]]) -> list[Answer]:
        """Run SQL that is the same on both (with `?` for parameters, encoded) in order, in one round trip."""

    def read_rows(self, table: sa.Table, columns: Sequence[str], rows: Iterable[Row]) -> list[tuple[Any, ...]]:
        """Rows of an `Answer` with these columns of the table, decoded."""
        return _mapped(rows, _times(table, tuple(columns)), self.decode_time)

    def pipelined(self, tx: Tx) -> AbstractContextManager[Any]:
        """Statements inside are sent without waiting for the answer of the one before, where the driver can.

        For the row functions of this class only: Core cannot read rows in there.
        """
        return nullcontext()

    def pipelined_to_end(self, tx: Tx) -> AbstractContextManager[Any]:
        """As `pipelined`, for the last statements of a use-case: where it can be, the commit goes with them."""
        return self.pipelined(tx)

    @abstractmethod
    def encode_time(self, moment: datetime | None) -> Any:
        """For a driver's parameter."""

    @abstractmethod
    def decode_time(self, value: Any) -> datetime | None:
        """From a driver's column."""


@lru_cache(maxsize=1024)
def _times(table: sa.Table, columns: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(columns) if isinstance(table.c[name].type, UtcDateTime))


def _mapped(rows: Iterable[Row], at: tuple[int, ...], convert: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    if not at:
        return [tuple(row) for row in rows]
    out = []
    for row in rows:
        values = list(row)
        for i in at:
            values[i] = convert(values[i])
        out.append(tuple(values))
    return out


class SqliteDialect(Dialect):
    name = "sqlite"

    def lock(self, select: S) -> S:
        return select

    def claim(self, select: S) -> S:
        return select

    def advisory_lock(self, tx: Tx, key: int) -> None:
        pass

    def ask_rows(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], key: str, values: Sequence[Any], *, lock: bool = False
    ) -> Callable[[], list[tuple[Any, ...]]]:
        out: list[tuple[Any, ...]] = []
        columns = tuple(columns)
        times = _times(table, columns)
        # SQLite takes at least 32,766 parameters; sorted slices keep the whole in order
        wanted = sorted(set(values))
        for start in range(0, len(wanted), 30_000):
            part = wanted[start : start + 30_000]
            if len(part) < 1024:
                part = padded(part)
            # what is locked is about to be written: see _parts
            at_once = lock and len(part) > 1
            found = tx.execute_raw(_sqlite_fetch(table, columns, key, len(part), at_once), part)
            out += _mapped(json.loads(found[0][0]) if at_once else found, times, self.decode_time)
        return lambda: out

    def insert_rows(self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.insert_returning(tx, table, columns, rows, ())

    def update_rows(
        self, tx: Tx, table: sa.Table, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]
    ) -> None:
        keys, columns = tuple(keys), tuple(columns)
        for part in self._parts(table, keys + columns, rows):
            values = padded(part)
            tx.execute_raw(_sqlite_update(table, keys, columns, len(values)), tuple(chain.from_iterable(values)))

    def insert_returning(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row], returning: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        columns, returning = tuple(columns), tuple(returning)
        out: list[tuple[Any, ...]] = []
        for part in self._parts(table, columns, rows):
            values = padded(part)
            sql = _sqlite_insert(table, columns, len(values), returning)
            out += tx.execute_raw(sql, (*chain.from_iterable(values), len(part)))
        return out

    def _parts(self, table: sa.Table, columns: tuple[str, ...], rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """The rows, encoded, as many at a time as one statement takes.

        The driver lets other threads go on at each step of a statement, and with `executemany` that is each row: while
        they are busy, it waits longer for its turn after each than it writes.
        """
        times = _times(table, columns)
        for start in range(0, len(rows), _SQLITE_TOGETHER):
            yield _mapped(rows[start : start + _SQLITE_TOGETHER], times, self.encode_time)

    def run_all(self, tx: Tx, *statements: tuple[str, Sequence[Any]]) -> list[Answer]:
        cursor = tx.cursor()
        try:
            answers = []
            for sql, parameters in statements:
                cursor.execute(sql, parameters)
                answers.append(Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount))  # type: ignore[arg-type]  # rows are sequences
            return answers
        finally:
            cursor.close()

    def encode_time(self, moment: datetime | None) -> int | None:
        return None if moment is None else to_micros(moment)

    def decode_time(self, value: int | None) -> datetime | None:
        return None if value is None else from_micros(value)


_SQLITE_TOGETHER = 64  # rows of one statement; a power of two
_SQLITE_QUOTE = sqlite.dialect().identifier_preparer.quote


@lru_cache(maxsize=1024)
def _sqlite_fetch(table: sa.Table, columns: tuple[str, ...], key: str, width: int, at_once: bool) -> str:
    """With `at_once` all rows come as one, a JSON array of arrays."""
    names = ", ".join(map(_SQLITE_QUOTE, columns))
    key = _SQLITE_QUOTE(key)
    rows = f"SELECT {names} FROM {table.name} WHERE {key} IN ({', '.join('?' * width)}) ORDER BY {key}"
    return rows if not at_once else f"SELECT json_group_array(json_array({names})) FROM ({rows})"


def _sqlite_values(columns: tuple[str, ...], width: int) -> str:
    """The beginning of a statement that has its rows as parameters, under the name `given`."""
    names = ", ".join(map(_SQLITE_QUOTE, columns))
    row = f"({', '.join('?' * len(columns))})"
    return f"WITH given ({names}) AS (VALUES {', '.join([row] * width)})"


@lru_cache(maxsize=1024)
def _sqlite_insert(table: sa.Table, columns: tuple[str, ...], width: int, returning: tuple[str, ...]) -> str:
    names = ", ".join(map(_SQLITE_QUOTE, columns))
    tail = f" RETURNING {', '.join(map(_SQLITE_QUOTE, returning))}" if returning else ""
    return f"{_sqlite_values(columns, width)} INSERT INTO {table.name} ({names}) SELECT * FROM given LIMIT ?{tail}"


@lru_cache(maxsize=1024)
def _sqlite_update(table: sa.Table, keys: tuple[str, ...], columns: tuple[str, ...], width: int) -> str:
    if width == 1:  # the most common by far, and twice as slow with a table of one row
        # numbered, because the keys come first in a row and last in the statement
        sets = ", ".join(f"{_SQLITE_QUOTE(name)} = ?{i}" for i, name in enumerate(columns, len(keys) + 1))
        where = " AND ".join(f"{_SQLITE_QUOTE(name)} = ?{i}" for i, name in enumerate(keys, 1))
        return f"UPDATE {table.name} SET {sets} WHERE {where}"
    sets = ", ".join(f"{_SQLITE_QUOTE(name)} = given.{_SQLITE_QUOTE(name)}" for name in columns)
    where = " AND ".join(f"{table.name}.{_SQLITE_QUOTE(name)} = given.{_SQLITE_QUOTE(name)}" for name in keys)
    return f"{_sqlite_values(keys + columns, width)} UPDATE {table.name} SET {sets} FROM given WHERE {where}"


class PostgresDialect(Dialect):
    name = "postgresql"
    row_lock = " FOR UPDATE"
    row_lock_now = " FOR UPDATE SKIP LOCKED"

    def lock(self, select: S) -> S:
        return select.with_for_update()

    def claim(self, select: S) -> S:
        return select.with_for_update(skip_locked=True)

    def pipelined(self, tx: Tx) -> AbstractContextManager[Any]:
        connection = tx.conn.connection.driver_connection
        # an author's session has an asynchronous connection, whose pipeline is of another kind
        return connection.pipeline() if isinstance(connection, psycopg.Connection) else nullcontext()

    def pipelined_to_end(self, tx: Tx) -> AbstractContextManager[Any]:
        if tx.until_commit is None:
            return self.pipelined(tx)
        connection = tx.conn.connection.driver_connection
        assert isinstance(connection, psycopg.Connection)
        if not self.is_pipelined(connection):
            tx.until_commit.enter_context(connection.pipeline())
        return nullcontext()

    @staticmethod
    def is_pipelined(connection: psycopg.Connection[Any]) -> bool:
        return connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF

    def run_all(self, tx: Tx, *statements: tuple[str, Sequence[Any]]) -> list[Answer]:
        cursors = []
        try:
            with self.pipelined(tx):
                for sql, parameters in statements:
                    cursors.append(tx.cursor())
                    cursors[-1].execute(_pg_text(sql), parameters)
            return [
                Answer(list(cursor.fetchall()) if cursor.description else [], cursor.rowcount) for cursor in cursors
            ]
        finally:
            for cursor in cursors:
                cursor.close()

    def advisory_lock(self, tx: Tx, key: int) -> None:
        tx.execute_raw("SELECT pg_advisory_xact_lock(%s)", (key,))

    def ask_rows(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], key: str, values: Sequence[Any], *, lock: bool = False
    ) -> Callable[[], list[tuple[Any, ...]]]:
        if not values:
            return list
        columns, single, cursor = tuple(columns), len(values) == 1, tx.cursor()
        cursor.execute(_pg_fetch(table, columns, key, lock, single), (values[0] if single else list(values),))

        def rows() -> list[tuple[Any, ...]]:
            with closing(cursor):  # asked for outright: in a pipeline a cursor knows nothing before
                return _mapped(cursor.fetchall(), _times(table, columns), self.decode_time)

        return rows

    def insert_rows(self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            _pg_run(tx, _pg_insert(table, tuple(columns), len(rows) == 1), rows)

    def update_rows(
        self, tx: Tx, table: sa.Table, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]
    ) -> None:
        if rows:
            keys, columns = tuple(keys), tuple(columns)
            if len(rows) == 1:
                row = tuple(rows[0])
                tx.execute_raw(_pg_update_one(table, keys, columns), row[len(keys) :] + row[: len(keys)])
            else:
                _pg_run(tx, _pg_update(table, keys, columns), rows)

    def insert_returning(
        self, tx: Tx, table: sa.Table, columns: Sequence[str], rows: Sequence[Row], returning: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        if not rows:
            return []
        single = len(rows) == 1
        sql = f"{_pg_insert(table, tuple(columns), single)} RETURNING {', '.join(map(_PG_QUOTE, returning))}"
        values = tuple(rows[0]) if single else [list(column) for column in zip(*rows, strict=True)]
        return [tuple(found) for found in tx.execute_raw(sql, values)]

    def encode_time(self, moment: datetime | None) -> datetime | None:
        return moment

    def decode_time(self, value: datetime | None) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


_PG: sa.Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
_PG_QUOTE = _PG.identifier_preparer.quote


@lru_cache(maxsize=256)
def _pg_text(sql: str) -> str:
    return sql.replace("?", "%s")


def _pg_run(tx: Tx, sql: str, rows: Sequence[Row]) -> None:
    single = len(rows) == 1
    tx.execute_raw(sql, tuple(rows[0]) if single else [list(column) for column in zip(*rows, strict=True)])


def _pg_arrays(table: sa.Table, columns: tuple[str, ...]) -> str:
    return ", ".join(f"%s::{table.c[name].type.compile(_PG)}[]" for name in columns)


@lru_cache(maxsize=256)
def _pg_fetch(table: sa.Table, columns: tuple[str, ...], key: str, lock: bool, single: bool) -> str:
    names = ", ".join(map(_PG_QUOTE, columns))
    array = _pg_arrays(table, (key,))
    tail = " FOR UPDATE" if lock else ""
    if single:
        return f"SELECT {names} FROM {table.name} WHERE {_PG_QUOTE(key)} = %s{tail}"
    return f"SELECT {names} FROM {table.name} WHERE {_PG_QUOTE(key)} = ANY({array}) ORDER BY {_PG_QUOTE(key)}{tail}"


@lru_cache(maxsize=256)
def _pg_insert(table: sa.Table, columns: tuple[str, ...], single: bool) -> str:
    into = f"INSERT INTO {table.name} ({', '.join(map(_PG_QUOTE, columns))})"
    if single:
        return f"{into} VALUES ({', '.join(['%s'] * len(columns))})"
    return f"{into} SELECT * FROM unnest({_pg_arrays(table, columns)})"


@lru_cache(maxsize=256)
def _pg_update_one(table: sa.Table, keys: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{_PG_QUOTE(name)} = %s" for name in columns)
    where = " AND ".join(f"{_PG_QUOTE(name)} = %s" for name in keys)
    return f"UPDATE {table.name} SET {sets} WHERE {where}"


@lru_cache(maxsize=256)
def _pg_update(table: sa.Table, keys: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{_PG_QUOTE(name)} = v.{_PG_QUOTE(name)}" for name in columns)
    names = ", ".join(map(_PG_QUOTE, keys + columns))
    where = " AND ".join(f"t.{_PG_QUOTE(name)} = v.{_PG_QUOTE(name)}" for name in keys)
    values = f"unnest({_pg_arrays(table, keys + columns)}) AS v({names})"
    return f"UPDATE {table.name} AS t SET {sets} FROM {values} WHERE {where}"
