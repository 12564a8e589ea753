"""Finding what a door addresses, within what its scope may see, and the statements that several use-cases share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from signoff.engine.outcomes import RUN_COLUMNS, R, Row, RunRow, lock_run
from signoff.store.dialect import Answer, padded
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound


def in_scope(scope: Scope, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """The tenant's rows; every row for the engine itself."""
    return column == scope.tenant_id if scope.tenant_id else sa.true()


# built once: building and hashing a statement costs more than running it
_ANY = sa.select(R).where(R.c.public_id == sa.bindparam("run")).order_by(R.c.id).limit(1)
# Added to, so that no index that only begins with the tenant is used. PostgreSQL would choose one for a young table of
# which it has no statistics, and keep that plan while the table grows.
OF_TENANT = R.c.tenant_id + 0
_ONE = sa.select(R).where(R.c.public_id == sa.bindparam("run"), sa.bindparam("tenant") == OF_TENANT)
_ONE_LOCKED = _ONE.with_for_update()


def find_run(tx: Tx, scope: Scope, run: str) -> Row:
    """The run's row by its public id, not locked. NotFound for unknown and foreign ids alike."""
    return _found(tx, _ONE if scope.tenant_id else _ANY, scope, run)


def _found(tx: Tx, select: sa.Select[Any], scope: Scope, run: str) -> Row:
    given = {"run": run, "tenant": scope.tenant_id} if scope.tenant_id else {"run": run}
    found = None if "\0" in run else tx.conn.execute(select, given).one_or_none()
    if found is None:
        raise NotFound(f"there is no run {run!r}", run=run)
    return found


def find_locked(tx: Tx, scope: Scope, run: str, *, with_parent: bool = False) -> Row:
    """As `find_run`, locked until the transaction ends."""
    if scope.tenant_id and not with_parent:
        return _found(tx, _ONE_LOCKED, scope, run)
    locked = lock_run(tx, find_run(tx, scope, run).id, with_parent=with_parent)
    if locked is None:  # cleaned up in between
        raise NotFound(f"there is no run {run!r}", run=run)
    return locked


class OpenStep(NamedTuple):
    """A wait or a question that has no outcome yet."""

    no: int
    kind: str
    name: str
    options: str | None


def look_up(
    tx: Tx, tenant_id: int, runs: Sequence[str], *, patient: bool, also: Sequence[tuple[str, Sequence[Any]]] = ()
) -> tuple[dict[str, tuple[Row, list[OpenStep]]], list[Answer]]:
    """Runs by their public ids, locked, each with its open waits and questions; and what `also` gave in the same trip.

    Without those that are not there and, if not `patient`, those that others hold.
    """
    which = (tenant_id, *padded(runs))
    runs_sql, steps_sql = _looks(len(which) - 1)
    runs_sql += tx.dialect.row_lock if patient else tx.dialect.row_lock_now
    locked, steps, *answers = tx.dialect.run_all(tx, (runs_sql, which), (steps_sql, which), *also)
    found: dict[str, tuple[Row, list[OpenStep]]] = {}
    for values in tx.dialect.read_rows(R, RUN_COLUMNS, locked.rows):
        row = cast(Row, RunRow._make(values))
        found[row.public_id] = (row, [])
    for public_id, *step in steps.rows:
        if public_id in found:
            found[public_id][1].append(OpenStep._make(step))
    return found, answers


@lru_cache(maxsize=32)
def _looks(width: int) -> tuple[str, str]:
    these = f"r.tenant_id + 0 = ? AND r.public_id IN ({', '.join('?' * width)})"  # see OF_TENANT
    steps = (
        "SELECT r.public_id, s.no, s.kind, s.name, s.options FROM signoff_run r JOIN signoff_step s ON s.run_id = r.id"
        f" WHERE {these} AND s.outcome_no IS NULL AND s.retired_in IS NULL AND s.kind IN ('event', 'ask')"
        " ORDER BY s.run_id, s.no"
    )
    return f"SELECT {', '.join(RUN_COLUMNS)} FROM signoff_run r WHERE {these} ORDER BY r.id", steps


def insert_new(tx: Tx, table: sa.Table) -> Any:
    """An insert that leaves out rows that are there already, also those that another transaction is just committing."""
    insert = postgresql.insert(table) if tx.dialect.name == "postgresql" else sqlite.insert(table)
    return insert.on_conflict_do_nothing()
