"""One-time links: the one that makes the first admin, and those with which a user sets a password."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from signoff.people.secret_text import digest, new_secret
from signoff.store.tables import Membership, SetupLink, Tenant, User
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound

L = SetupLink.__table__
_U = User.__table__
_M = Membership.__table__
_T = Tenant.__table__

LIFETIME: Final = timedelta(hours=24)
SETUP_PATH: Final = "/setup/"  # + the secret


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link that can still be used. `email` is the account whose password it sets; None: it makes the first admin."""

    purpose: str
    tenant_id: int
    user_id: int | None
    email: str | None
    name: str | None
    expires_at: datetime


def new_link(tx: Tx, purpose: str, *, tenant_id: int, user_id: int | None = None) -> str:
    """The secret of a link that works once within 24 hours."""
    secret = new_secret()
    tx.conn.execute(sa.delete(L).where(L.c.expires_at <= tx.now))
    values = {"purpose": purpose, "user_id": user_id, "tenant_id": tenant_id, "expires_at": tx.now + LIFETIME}
    tx.conn.execute(sa.insert(L).values(hash=digest(secret), **values))
    return secret


def first_admin_link(tx: Tx, tenant_id: int) -> str | None:
    """The secret of a set-up link while the tenant has no active admin, else None.

    Each start gives out another one, because the one before was only printed; all of them end when an admin exists.
    """
    return None if has_admin(tx, tenant_id) else new_link(tx, "admin", tenant_id=tenant_id)


def has_admin(tx: Tx, tenant_id: int) -> bool:
    """Whether anybody who can sign in, or was invited to, is an admin of the tenant."""
    query = (
        sa.select(_U.c.id).join(_M, _M.c.user_id == _U.c.id).where(_M.c.tenant_id == tenant_id, _M.c.role == "admin")
    )
    return tx.conn.execute(query.where(_U.c.active).limit(1)).first() is not None


def find_link(tx: Tx, secret: str) -> LinkView:
    """What a link is for, without using it. `NotFound` for a wrong, used or expired one, which look the same."""
    query = (
        sa.select(L.c.purpose, L.c.tenant_id, L.c.user_id, _U.c.email, _U.c.name, L.c.expires_at)
        .outerjoin(_U, _U.c.id == L.c.user_id)
        .where(L.c.hash == digest(secret), L.c.used_at.is_(None), L.c.expires_at > tx.now)
    )
    row = tx.conn.execute(query).first()
    if row is None or (row.purpose == "admin" and has_admin(tx, row.tenant_id)):
        raise NotFound("This link was used, has expired, or never existed. Ask an admin for a new one")
    return LinkView(*row)


def use_link(tx: Tx, secret: str) -> LinkView:
    """Use a link up: of several at once exactly one gets it, the others `NotFound`."""
    # Two set-up links used at once wait for each other here, so that the second one finds the admin of the first.
    tx.conn.execute(tx.dialect.lock(sa.select(_T.c.id).where(_T.c.id == find_link(tx, secret).tenant_id)))
    view = find_link(tx, secret)
    taken = sa.update(L).where(L.c.hash == digest(secret), L.c.used_at.is_(None)).values(used_at=tx.now)
    if not tx.conn.execute(taken).rowcount:
        raise NotFound("This link was used already. Ask an admin for a new one")
    return view


def void_links_of(tx: Tx, user_id: int) -> None:
    """End a user's unused links."""
    tx.conn.execute(sa.delete(L).where(L.c.user_id == user_id, L.c.used_at.is_(None)))
