"""Tenants: the boundary of visibility. One is there from the start."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from signoff.store.tables import Tenant
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound

T = Tenant.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes

DEFAULT_TENANT: Final = "default"


def ensure_tenant(tx: Tx, name: str = DEFAULT_TENANT) -> int:
    """The id of the tenant, which is made where it does not exist."""
    found = tx.conn.execute(sa.select(T.c.id).where(T.c.name == name)).scalar()
    if found is not None:
        return int(found)
    with tx.savepoint():
        return int(tx.conn.execute(sa.insert(T).values(name=name, created_at=tx.now).returning(T.c.id)).scalar_one())


def tenant_id(tx: Tx, name: str = DEFAULT_TENANT) -> int:
    """The id of a tenant that exists, else `NotFound`."""
    found = tx.conn.execute(sa.select(T.c.id).where(T.c.name == name)).scalar()
    if found is None:
        raise NotFound(f"There is no tenant {name!r}", tenant=name)
    return int(found)


def tenant_name(tx: Tx, id: int) -> str:
    return str(tx.conn.execute(sa.select(T.c.name).where(T.c.id == id)).scalar_one())
