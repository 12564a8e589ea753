"""Tenants: the boundary of visibility. One is there from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.store.scope import Scope
from signoff.store.tables import Membership, Tenant
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, NotFound
from signoff.workflow.names import check_name

T = Tenant.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes
M = Membership.__table__  # type: ignore[attr-defined]

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


@dataclass(frozen=True, slots=True)
class TenantView:
    name: str
    members: int


def add_tenant(tx: Tx, name: str) -> int:
    """Make a tenant and return its id. Only for whoever has the server's command line: no role reaches this far."""
    check_name(name, "tenant")
    if tx.conn.execute(sa.select(T.c.id).where(T.c.name == name)).first() is not None:
        raise Conflict(f"There is a tenant {name!r} already", tenant=name)
    number = ensure_tenant(tx, name)
    audit(tx, Scope(number, via="cli"), "tenant.add", name)
    return number


def list_tenants(tx: Tx) -> list[TenantView]:
    """By name."""
    members = sa.select(sa.func.count()).select_from(M).where(M.c.tenant_id == T.c.id).scalar_subquery()
    return [TenantView(*row) for row in tx.conn.execute(sa.select(T.c.name, members).order_by(T.c.name))]
