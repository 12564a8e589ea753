"""Users and their roles in a tenant. An account is one for all tenants; a membership gives it a role in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from signoff.people import links, sessions
from signoff.people.audit import audit
from signoff.people.canonical import is_storable, storable
from signoff.people.changes import one_at_a_time, people_changed
from signoff.people.permissions import require
from signoff.store.scope import ROLES, Person, Scope
from signoff.store.tables import Group, GroupMember, Identity, Membership, Token, User
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound, Refused

U = User.__table__
M = Membership.__table__
G = Group.__table__
GM = GroupMember.__table__
TOKEN = Token.__table__

_VIEWED: Final = (
    U.c.id, U.c.email, U.c.name, M.c.role, U.c.active, U.c.password_hash.is_not(None),
    sa.exists().where(Identity.__table__.c.user_id == U.c.id).correlate(U),
)  # fmt: skip

MAX_ID: Final = 2**31 - 1  # of the column
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")


@dataclass(frozen=True, slots=True)
class UserView:
    id: int
    email: str
    name: str
    role: str
    active: bool
    has_password: bool
    external: bool  # known to an identity provider
    groups: tuple[str, ...]


def clean_email(email: str) -> str:
    """The one spelling of an address that is stored and compared: without spaces around it, in lower case."""
    cleaned = email.strip().lower()
    if len(cleaned) > 254 or not cleaned.isprintable() or not _EMAIL.fullmatch(cleaned):
        message = f"{email!r} is not an e-mail address"
        raise InvalidInput(message, fields=[FieldError(("email",), message)])
    return cleaned


def clean_role(role: str) -> str:
    if role not in ROLES:
        message = f"{role!r} is not a role; roles are {', '.join(ROLES)}"
        raise InvalidInput(message, fields=[FieldError(("role",), message)])
    return role


def add_user(
    tx: Tx,
    scope: Scope,
    email: str,
    *,
    name: str = "",
    role: str = "approver",
    password_hash: str | None = None,
    existing: bool = True,
) -> int:
    """Make an account (or take the one with this address) a member of the tenant and return its id.

    An account that exists keeps its name and password: an admin of one tenant does not change another's people. Whoever
    made it may know its password, so doors ask first: without `existing` it is not taken, and the `Conflict` has
    `existing` in its context.
    """
    require(scope, "people.manage")
    email, role = clean_email(email), clean_role(role)
    one_at_a_time(tx)
    user_id = tx.conn.execute(sa.select(U.c.id).where(U.c.email == email)).scalar()
    if user_id is None:
        values = {"email": email, "name": storable(name.strip()), "password_hash": password_hash, "active": True}
        user_id = tx.conn.execute(sa.insert(U).values(**values, created_at=tx.now).returning(U.c.id)).scalar_one()
    elif tx.conn.execute(sa.select(M.c.role).where(M.c.tenant_id == scope.tenant_id, M.c.user_id == user_id)).first():
        raise Conflict(f"{email} is already a user here", user=email)
    elif not existing:
        message = f"{email} has an account already. An admin of another tenant made it, and may know its password"
        raise Conflict(message, user=email, existing=True)
    tx.conn.execute(sa.insert(M).values(tenant_id=scope.tenant_id, user_id=user_id, role=role))
    audit(tx, scope, "user.add", email, detail={"role": role})
    people_changed(tx, scope.tenant_id)
    return int(user_id)


def set_role(tx: Tx, scope: Scope, email: str, role: str) -> None:
    """Change a member's role. The last active admin keeps theirs (`Conflict`)."""
    require(scope, "people.manage")
    user, role = _member(tx, scope, email), clean_role(role)
    if user.role == "admin" and role != "admin":
        _keep_an_admin(tx, scope.tenant_id, user.id)
    tx.conn.execute(sa.update(M).where(M.c.tenant_id == scope.tenant_id, M.c.user_id == user.id).values(role=role))
    audit(tx, scope, "user.set_role", user.email, detail={"from": user.role, "to": role})
    people_changed(tx, scope.tenant_id, user.id)


def set_password(tx: Tx, scope: Scope, email: str, password_hash: str) -> None:
    """Give a member a new password; every session of theirs ends."""
    require(scope, "people.manage")
    user = _member(tx, scope, email)
    _only_ours(tx, scope, user)
    store_password(tx, user.id, password_hash)
    audit(tx, scope, "user.set_password", user.email)


def store_password(tx: Tx, user_id: int, password_hash: str, *, but: str | None = None) -> int:
    """The part of every way to a new password: whoever was signed in with the old one is not any more.

    `but`: the key of a session that stays. Returns how many ended.
    """
    tx.conn.execute(sa.update(U).where(U.c.id == user_id).values(password_hash=password_hash))
    links.void_links_of(tx, user_id)
    return sessions.end_sessions_of(tx, user_id, but=but)


def password_link(tx: Tx, scope: Scope, email: str) -> str:
    """A one-time secret with which the member sets a password. Links given out before end."""
    require(scope, "people.manage")
    user = _member(tx, scope, email)
    _only_ours(tx, scope, user)
    if not user.active:
        raise Conflict(f"{user.email} is deactivated; activate the account first", user=user.email)
    links.void_links_of(tx, user.id)
    audit(tx, scope, "user.password_link", user.email)
    return links.new_link(tx, "password", user_id=user.id, tenant_id=scope.tenant_id)


def set_active(tx: Tx, scope: Scope, email: str, active: bool) -> None:
    """Activate or deactivate an account. Deactivating ends its sessions and links; tokens that act for it stop too.

    The last active admin of any tenant stays (`Conflict`).
    """
    require(scope, "people.manage")
    user = _member(tx, scope, email)
    _only_ours(tx, scope, user)
    homes = sa.select(M.c.tenant_id, M.c.role).where(M.c.user_id == user.id).order_by(M.c.tenant_id)
    belongs = tx.conn.execute(homes).all()
    for home in belongs if user.active and not active else ():
        if home.role == "admin":
            _keep_an_admin(tx, home.tenant_id, user.id)
    tx.conn.execute(sa.update(U).where(U.c.id == user.id).values(active=active))
    if not active:
        sessions.end_sessions_of(tx, user.id)
        links.void_links_of(tx, user.id)
    audit(tx, scope, "user.activate" if active else "user.deactivate", user.email)
    for home in belongs:
        people_changed(tx, home.tenant_id, user.id)


def remove_user(tx: Tx, scope: Scope, email: str) -> None:
    """Take a member out of the tenant: their role, groups, sessions and tokens here end, also for when they are added
    again; what they decided stays.

    The last active admin stays (`Conflict`). By an admin only who belongs to another tenant too (`Conflict`): an
    account that belongs nowhere is deactivated instead.
    """
    require(scope, "people.manage")
    one_at_a_time(tx)
    user = _member(tx, scope, email)
    if user.role == "admin":
        _keep_an_admin(tx, scope.tenant_id, user.id)
    if scope.person is not None and not elsewhere(tx, scope, user.id):
        raise Conflict(f"{user.email} belongs to no other tenant; deactivate the account instead", user=user.email)
    ours = sa.select(G.c.id).where(G.c.tenant_id == scope.tenant_id)
    tx.conn.execute(sa.delete(GM).where(GM.c.user_id == user.id, GM.c.group_id.in_(ours)))
    tx.conn.execute(sa.delete(M).where(M.c.tenant_id == scope.tenant_id, M.c.user_id == user.id))
    sessions.end_sessions_of(tx, user.id, tenant_id=scope.tenant_id)
    theirs = (TOKEN.c.tenant_id == scope.tenant_id, TOKEN.c.user_id == user.id, TOKEN.c.revoked_at.is_(None))
    tx.conn.execute(sa.update(TOKEN).where(*theirs).values(revoked_at=tx.now))
    audit(tx, scope, "user.remove", user.email, detail={"role": user.role})
    people_changed(tx, scope.tenant_id, user.id)


def list_users(tx: Tx, scope: Scope) -> list[UserView]:
    """The tenant's members by address."""
    require(scope, "people.view")
    groups = _groups_by_user(tx, scope.tenant_id)
    query = (
        sa.select(*_VIEWED).join(M, M.c.user_id == U.c.id).where(M.c.tenant_id == scope.tenant_id).order_by(U.c.email)
    )
    return [_view(row, sorted(groups.get(row[0], ()))) for row in tx.conn.execute(query)]


@dataclass(frozen=True, slots=True)
class UserPage:
    """Some of the members that match. `after` leads to those that follow."""

    rows: list[UserView]
    matching: int
    after: int | None


def find_users(
    tx: Tx,
    scope: Scope,
    find: str = "",
    *,
    group: str | None = None,
    outside: bool = False,
    after: int | None = None,
    limit: int = 50,
) -> UserPage:
    """Members by address, page by page. Each word of `find` is looked for in address, name and groups, in any case.

    `group`: of its members only, or (`outside`) of active members of the tenant that are not in it.
    """
    require(scope, "people.view")
    where = [M.c.tenant_id == scope.tenant_id]
    inside = sa.select(GM.c.user_id).join(G, G.c.id == GM.c.group_id).where(G.c.tenant_id == scope.tenant_id)
    if group is not None:
        members = inside.where(G.c.name == group)
        where += [U.c.active, U.c.id.not_in(members)] if outside else [U.c.id.in_(members)]
    for word in find.split():
        named = inside.where(G.c.name.icontains(word, autoescape=True))
        where.append(sa.or_(*_named(word), U.c.id.in_(named)))
    if not is_storable(find):
        return UserPage([], 0, None)
    matching = sa.select(sa.func.count()).select_from(U).join(M, M.c.user_id == U.c.id).where(*where)
    query = sa.select(*_VIEWED).join(M, M.c.user_id == U.c.id).where(*where).order_by(U.c.email)
    if after is not None:
        other = U.alias()
        query = query.where(U.c.email > sa.select(other.c.email).where(other.c.id == after).scalar_subquery())
    found = tx.conn.execute(query.limit(limit + 1)).all()
    rest = found[limit - 1][0] if len(found) > limit else None
    groups = _groups_by_user(tx, scope.tenant_id, [row[0] for row in found[:limit]])
    rows = [_view(row, sorted(groups.get(row[0], ()))) for row in found[:limit]]
    return UserPage(rows, int(tx.conn.execute(matching).scalar_one()), rest)


def user(tx: Tx, scope: Scope, user_id: int) -> UserView:
    """One member of the tenant. `NotFound` for a stranger and for another tenant's."""
    require(scope, "people.view")
    query = (
        sa.select(*_VIEWED).join(M, M.c.user_id == U.c.id).where(M.c.tenant_id == scope.tenant_id, U.c.id == user_id)
    )
    row = tx.conn.execute(query).first() if 0 < user_id <= MAX_ID else None
    if row is None:
        raise NotFound(f"There is no user {user_id} here")
    names = sa.select(G.c.name).join(GM, GM.c.group_id == G.c.id)
    groups = tx.conn.execute(names.where(G.c.tenant_id == scope.tenant_id, GM.c.user_id == user_id).order_by(G.c.name))
    return _view(row, groups.scalars())


def members(tx: Tx, scope: Scope) -> int:
    """How many people belong to the tenant, deactivated ones too."""
    require(scope, "people.view")
    query = sa.select(sa.func.count()).select_from(M).where(M.c.tenant_id == scope.tenant_id)
    return int(tx.conn.execute(query).scalar_one())


def admins(tx: Tx, scope: Scope) -> int:
    """How many active admins the tenant has: the last one stays."""
    query = sa.select(sa.func.count()).select_from(M.join(U, M.c.user_id == U.c.id))
    query = query.where(M.c.tenant_id == scope.tenant_id, M.c.role == "admin", U.c.active)
    return int(tx.conn.execute(query).scalar_one())


def find_person(tx: Tx, tenant_id: int, *, user_id: int | None = None, email: str | None = None) -> Person | None:
    """A member as they are now, by id or address; None for a stranger, a former member or a deactivated account."""
    query = (
        sa.select(U.c.id, U.c.email, U.c.name, M.c.role)
        .join(M, M.c.user_id == U.c.id)
        .where(M.c.tenant_id == tenant_id, U.c.active)
        .where(U.c.id == user_id if user_id is not None else U.c.email == email)
    )
    row = tx.conn.execute(query).first()
    if row is None:
        return None
    names = (
        sa.select(G.c.name).join(GM, GM.c.group_id == G.c.id).where(G.c.tenant_id == tenant_id, GM.c.user_id == row.id)
    )
    groups = frozenset(tx.conn.execute(names).scalars())
    return Person(email=row.email, name=row.name, role=row.role, user_id=row.id, groups=groups)


def people(tx: Tx, tenant_id: int) -> list[Person]:
    """All active members of a tenant with their groups, by name."""
    return _people(tx, tenant_id, [])


def approvers(tx: Tx, tenant_id: int, find: str = "", *, limit: int | None = None, offset: int = 0) -> list[Person]:
    """Active members who may answer questions, by name. Each word of `find` is looked for in address and name."""
    if not is_storable(find):
        return []
    where = [M.c.role.in_(ROLES[ROLES.index("approver") :]), *(sa.or_(*_named(word)) for word in find.split())]
    return _people(tx, tenant_id, where, limit, offset)


def _people(
    tx: Tx, tenant_id: int, where: Iterable[sa.ColumnElement[bool]], limit: int | None = None, offset: int = 0
) -> list[Person]:
    query = (
        sa.select(U.c.id, U.c.email, U.c.name, M.c.role)
        .join(M, M.c.user_id == U.c.id)
        .where(M.c.tenant_id == tenant_id, U.c.active, *where)
        .order_by(U.c.name, U.c.email)
    )
    found = tx.conn.execute(query.limit(limit).offset(offset)).all()
    groups = _groups_by_user(tx, tenant_id, None if limit is None else [row.id for row in found])
    return [Person(row.email, row.name, row.role, row.id, frozenset(groups.get(row.id, ()))) for row in found]


def _named(word: str) -> list[sa.ColumnElement[bool]]:
    return [place.icontains(word, autoescape=True) for place in (U.c.email, U.c.name)]


def has_password(tx: Tx, user_id: int) -> bool:
    """Whether the account can sign in with a local password."""
    return tx.conn.execute(sa.select(U.c.password_hash).where(U.c.id == user_id)).scalar() is not None


def exists(tx: Tx, email: str) -> bool:
    """Whether any account, in whatever tenant and active or not, has this address."""
    return tx.conn.execute(sa.select(U.c.id).where(U.c.email == email)).first() is not None


def _view(row: Sequence[Any], groups: Iterable[str]) -> UserView:
    user_id, email, name, role, active, has_password, external = row
    return UserView(user_id, email, name, role, active, has_password, external, tuple(groups))


def _groups_by_user(tx: Tx, tenant_id: int, users: Sequence[int] | None = None) -> dict[int, set[str]]:
    groups: dict[int, set[str]] = {}
    pairs = sa.select(GM.c.user_id, G.c.name).join(G, GM.c.group_id == G.c.id).where(G.c.tenant_id == tenant_id)
    if users is not None:
        pairs = pairs.where(GM.c.user_id.in_(users))
    for user_id, name in tx.conn.execute(pairs):
        groups.setdefault(user_id, set()).add(name)
    return groups


def _member(tx: Tx, scope: Scope, email: str) -> sa.Row[Any]:
    query = (
        sa.select(U.c.id, U.c.email, U.c.active, M.c.role)
        .join(M, M.c.user_id == U.c.id)
        .where(M.c.tenant_id == scope.tenant_id, U.c.email == clean_email(email))
    )
    row = tx.conn.execute(query).first()
    if row is None:
        raise NotFound(f"There is no user {email} here", user=email)
    return row


def elsewhere(tx: Tx, scope: Scope, user_id: int) -> bool:
    """Whether the account belongs to other tenants too: then pages do not change it, only its part in this one."""
    query = sa.select(M.c.tenant_id).where(M.c.user_id == user_id, M.c.tenant_id != scope.tenant_id)
    return tx.conn.execute(query.limit(1)).first() is not None


def _only_ours(tx: Tx, scope: Scope, user: sa.Row[Any]) -> None:
    """An account is one for all tenants: an admin of one must not take it over, or away, in another."""
    if scope.person is not None and elsewhere(tx, scope, user.id):
        message = f"{user.email} belongs to other tenants too; change the account with `signoff users` on the server"
        raise Refused("other_tenants", message, user=user.email)


def _keep_an_admin(tx: Tx, tenant_id: int, leaving: int) -> None:
    # The admins' rows are locked, so that two admins who demote each other at once do not both succeed.
    admins = (
        sa.select(M.c.user_id)
        .join(U, M.c.user_id == U.c.id)
        .where(M.c.tenant_id == tenant_id, M.c.role == "admin", U.c.active)
        .order_by(M.c.user_id)
    )
    if not set(tx.conn.execute(tx.dialect.lock(admins)).scalars()) - {leaving}:
        raise Conflict("The last admin of a tenant stays one; make somebody else an admin first")
