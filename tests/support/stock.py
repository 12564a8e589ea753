"""Migrated PostgreSQL databases that are used again: to empty one costs a third of making and dropping one.

What a test gives back is emptied only if nothing but rows and sequences can have changed. That the system catalogs
tell: whatever changes an object, a right or a statistic writes rows there, and a row written later bears the number of
a later transaction. If anything else is different, and in any doubt, the database is dropped, and the next is a new
copy. The next test finds it under another name, which no session, thread or process left behind by an earlier knows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.support.postgres import PostgresServer

# Emptied tables keep their pages. With more bytes than this in one of them a database no longer works like a new one.
ROOM = 256 * 1024
PATIENCE = 5.0

CATALOGS = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared ORDER BY oid
"""
# What the catalogs that all databases share say of this one, and what vacuum and analyze write over old catalog rows.
BESIDE = """
SELECT datdba, datistemplate, datallowconn, datconnlimit, datacl::text,
    (SELECT json_agg(s)::text FROM pg_db_role_setting s WHERE setdatabase = d.oid),
    (SELECT array[sum(relpages), sum(reltuples)] FROM pg_class WHERE oid >= 16384)
FROM pg_database d WHERE datname = current_database()
"""
LARGEST = "SELECT max(pg_relation_size(oid)) FROM pg_class WHERE relkind IN ('r', 't') AND oid >= 16384"
OURS = "SELECT oid::regclass::text FROM pg_class WHERE oid >= 16384 AND relkind = %s ORDER BY 1"
REFILL = "INSERT INTO %1$s SELECT * FROM json_populate_recordset(NULL::%1$s, %2$L)"
REWIND = "SELECT setval(%L, %s, %L)"
# A new database has no counts of changed rows either, which call autovacuum.
FORGET = "SELECT pg_stat_reset()"


@dataclass(frozen=True)
class Mark:
    """How a new database looks, and the statements that make it new again as long as it looks like that."""

    look: bytes
    seen: list[Any]
    empty: bytes


class Stock:
    """Databases that are copies of the database `template`, to which nobody may be connected."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self.server = server
        self.template = template
        self.free: list[tuple[str, Mark]] = []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a database that is as new, for one user alone."""
        name, mark = self.free.pop() if self.free else self._new()
        try:
            yield self.server.url(name)
        finally:
            self._take_back(name, mark)

    def _new(self) -> tuple[str, Mark]:
        name = self.server.create(self.template)
        with psycopg.connect(self.server.url(name)) as conn:
            return name, _mark(conn)

    def _take_back(self, name: str, mark: Mark) -> None:
        try:
            end = time.monotonic() + PATIENCE
            while self.server.end_sessions(name) and time.monotonic() < end:
                time.sleep(0.002)
            name = self.server.rename(name)
            with psycopg.connect(self.server.url(name), autocommit=True) as conn:
                if _emptied(conn, mark):
                    self.free.append((name, mark))
                    return
        except psycopg.Error:
            pass  # somebody holds on to it, or nobody gets in: whatever it is, it is not as new
        self.server.drop(name)


def _emptied(conn: psycopg.Connection[Any], mark: Mark) -> bool:
    (largest,) = conn.execute(LARGEST).fetchone()
    if largest > ROOM or _seen(conn, mark.look) != mark.seen:
        return False
    conn.execute(mark.empty)
    conn.execute(FORGET)
    return True


def _seen(conn: psycopg.Connection[Any], look: bytes) -> list[Any]:
    return [conn.execute(look).fetchall(), conn.execute(BESIDE).fetchall()]


def _mark(conn: psycopg.Connection[Any]) -> Mark:
    """Taken of each new database, not once of the template: autovacuum visits that one too, and leaves statistics."""

    def names(query: str, *values: str) -> list[str]:
        return [name for (name,) in conn.execute(query.encode(), values or None)]

    written = "(SELECT array[count(*), sum(xmin::text::bigint)] FROM {})".format
    look = ("SELECT " + ", ".join(map(written, names(CATALOGS)))).encode()
    # Rows go whatever constraints and triggers say, and those of a new database come back.
    empty = ["SET synchronous_commit = off", "SET session_replication_role = replica"]
    empty += [f"DELETE FROM {table}" for table in names(OURS, "r")]
    for table in names(OURS, "r"):
        empty += names(f"SELECT format('{REFILL}', '{table}', json_agg(t)) FROM {table} t HAVING count(*) > 0")
    for sequence in names(OURS, "S"):
        empty += names(f"SELECT format('{REWIND}', '{sequence}', last_value, is_called) FROM {sequence}")
    empty.append("SELECT pg_stat_force_next_flush()")
    return Mark(look, _seen(conn, look), ";".join(empty).encode())
