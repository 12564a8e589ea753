"""Finding what a door addresses, within what its scope may see, and the statements that several use-cases share."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from signoff.engine.outcomes import R, Row, lock_run
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


def insert_new(tx: Tx, table: sa.Table) -> Any:
    """An insert that leaves out rows that are there already, also those that another transaction is just committing."""
    insert = postgresql.insert(table) if tx.dialect.name == "postgresql" else sqlite.insert(table)
    return insert.on_conflict_do_nothing()
