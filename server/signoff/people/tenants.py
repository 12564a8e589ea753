"""Tenants: the boundary of visibility. One is there from the start, and its admins make the others.

A name is for code and commands, and stays; the title is what pages call it. No tenant is deleted: its runs and its
record stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.people.changes import one_at_a_time
from signoff.people.permissions import require
from signoff.people.users import M, U, add_user, clean_email, elsewhere, has_password, password_link
from signoff.store.scope import Scope
from signoff.store.tables import Tenant
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound, Refused
from signoff.workflow.names import check_name

T = Tenant.__table__

DEFAULT_TENANT: Final = "default"
MAX_TITLE: Final = 100  # characters
_SHOWN: Final = sa.func.coalesce(T.c.title, T.c.name)
_ORDER: Final = (sa.func.lower(_SHOWN), T.c.id)


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


# -- of a person


@dataclass(frozen=True, slots=True)
class Home:
    """A tenant that somebody belongs to."""

    id: int
    name: str
    title: str


def homes(tx: Tx, user_id: int) -> tuple[Home, ...]:
    """The tenants that an account belongs to, by title."""
    query = sa.select(T.c.id, T.c.name, _SHOWN).join(M, M.c.tenant_id == T.c.id).where(M.c.user_id == user_id)
    return tuple(Home(*row) for row in tx.conn.execute(query.order_by(*_ORDER)))


def last_home(tx: Tx, user_id: int) -> int | None:
    """Where somebody who signs in goes on: the tenant that they used last, if they belong to it still, else the first
    of theirs; None for who belongs to none.
    """
    query = sa.select(M.c.tenant_id).join(U, U.c.id == M.c.user_id).where(U.c.id == user_id)
    last = sa.case((M.c.tenant_id == U.c.tenant_id, 0), else_=1)
    return tx.conn.execute(query.order_by(last, M.c.tenant_id).limit(1)).scalar()


def remember_home(tx: Tx, user_id: int, tenant_id: int) -> None:
    changed = sa.or_(U.c.tenant_id.is_(None), U.c.tenant_id != tenant_id)
    tx.conn.execute(sa.update(U).where(U.c.id == user_id, changed).values(tenant_id=tenant_id))


# -- for whoever administers the server


@dataclass(frozen=True, slots=True)
class TenantView:
    name: str
    title: str
    members: int


def require_first(tx: Tx, scope: Scope) -> None:
    """Tenants are a matter of the first one's admins. It lets them make and call tenants, not look into them."""
    require(scope, "tenant.manage")
    if scope.person is not None and scope.tenant_id != tenant_id(tx):
        message = f"This needs the role admin in the tenant {DEFAULT_TENANT}"
        raise Refused("role", message, action="tenant.manage", needs="admin")


def list_tenants(tx: Tx, scope: Scope) -> list[TenantView]:
    """By title, the first tenant before the others."""
    require_first(tx, scope)
    members = sa.select(sa.func.count()).select_from(M).where(M.c.tenant_id == T.c.id).scalar_subquery()
    query = sa.select(T.c.name, _SHOWN, members).order_by(T.c.name != DEFAULT_TENANT, *_ORDER)
    return [TenantView(*row) for row in tx.conn.execute(query)]


def add_tenant(tx: Tx, scope: Scope, name: str, title: str = "") -> int:
    """Make a tenant that nobody is in, and return its id. `Conflict` when the name or the title is taken."""
    require_first(tx, scope)
    name = _clean("name", name.strip(), 256)
    title = _clean("title", title.strip() or name, 256 if not title.strip() else MAX_TITLE)
    one_at_a_time(tx)
    if tx.conn.execute(sa.select(T.c.id).where(T.c.name == name)).first() is not None:
        raise Conflict(f"There is a tenant {name!r} already", tenant=name)
    _free(tx, title)
    values: dict[str, Any] = {"name": name, "title": title if title != name else None, "created_at": tx.now}
    number = int(tx.conn.execute(sa.insert(T).values(**values).returning(T.c.id)).scalar_one())
    audit(tx, scope, "tenant.add", name)
    audit(tx, replace(scope, tenant_id=number), "tenant.add", name)
    return number


def open_tenant(tx: Tx, scope: Scope, name: str, title: str, email: str, person: str = "") -> str | None:
    """Make a tenant with its first admin. Returns the secret of their set-up link; None for who can sign in already.

    Whoever makes it is not in it, unless it is them who is named.
    """
    email = clean_email(email)
    inside = replace(scope, tenant_id=add_tenant(tx, scope, name, title))
    if tx.conn.execute(sa.select(U.c.id).where(U.c.email == email, ~U.c.active)).first() is not None:
        raise Conflict(f"The account {email} is deactivated; activate it first", user=email)
    user_id = add_user(tx, inside, email, name=person, role="admin")
    return None if has_password(tx, user_id) or elsewhere(tx, inside, user_id) else password_link(tx, inside, email)


def rename_tenant(tx: Tx, scope: Scope, name: str, title: str) -> None:
    """Have pages call a tenant otherwise. An empty title: by its name again."""
    require_first(tx, scope)
    row = tx.conn.execute(sa.select(T.c.id, _SHOWN.label("shown")).where(T.c.name == name)).first()
    if row is None:
        raise NotFound(f"There is no tenant {name!r}", tenant=name)
    title = _clean("title", title.strip() or name, MAX_TITLE if title.strip() else 256)
    if title == row.shown:
        return
    one_at_a_time(tx)
    _free(tx, title, but=row.id)
    tx.conn.execute(sa.update(T).where(T.c.id == row.id).values(title=title if title != name else None))
    for where in {scope.tenant_id, row.id}:
        audit(tx, replace(scope, tenant_id=where), "tenant.rename", name, detail={"from": row.shown, "to": title})


def _clean(field: str, text: str, most: int) -> str:
    try:
        # Of the lengths the shorter one is told: what is too long for a name is so for a title.
        if len(text) > most or not text.isprintable():
            raise InvalidInput(f"a tenant's {field} has 1 to {most} characters and no control characters")
        check_name(text, "tenant")
    except InvalidInput as error:
        raise InvalidInput(error.message, fields=[FieldError((field,), error.message)]) from error
    return text


def _free(tx: Tx, title: str, but: int | None = None) -> None:
    """Two tenants that are called alike would be told apart by nobody."""
    query = sa.select(T.c.name).where(sa.func.lower(_SHOWN) == title.lower())
    taken = tx.conn.execute(query if but is None else query.where(T.c.id != but)).scalar()
    if taken is not None:
        raise Conflict(f"The tenant {taken!r} is called {title!r} already", tenant=taken)
