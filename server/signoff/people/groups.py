"""Groups of a tenant: a name for some of its members, which questions are put to. Membership is read live."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.people.canonical import is_storable, nameable
from signoff.people.changes import one_at_a_time, people_changed, rights_changed
from signoff.people.permissions import require
from signoff.people.users import GM, G, M, U, clean_email
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound


@dataclass(frozen=True, slots=True)
class GroupView:
    name: str
    members: tuple[str, ...]  # addresses


def clean_group(name: str) -> str:
    """A group's name: 1 to 256 characters without control characters."""
    name = name.strip()
    if not 1 <= len(name) <= 256 or not name.isprintable():
        message = "A group's name has 1 to 256 characters and no control characters"
        raise InvalidInput(message, fields=[FieldError(("group",), message)])
    return name


def add_to_group(tx: Tx, scope: Scope, group: str, email: str) -> None:
    """Make a member of the tenant a member of the group, which is made where it does not exist. Idempotent."""
    require(scope, "people.manage")
    one_at_a_time(tx)
    group, user_id = clean_group(group), _user_id(tx, scope, email)
    group_id = _group_id(tx, scope, group)
    if group_id is None:
        group_id = _make(tx, scope, group)
    if tx.conn.execute(sa.select(GM.c.user_id).where(GM.c.group_id == group_id, GM.c.user_id == user_id)).first():
        return
    tx.conn.execute(sa.insert(GM).values(group_id=group_id, user_id=user_id))
    audit(tx, scope, "group.add", group, detail={"user": clean_email(email)})
    people_changed(tx, scope.tenant_id, user_id)


def make_group(tx: Tx, scope: Scope, group: str) -> str:
    """Make a group without members and return its name. `Conflict` when there is one."""
    require(scope, "people.manage")
    group = clean_group(group)
    one_at_a_time(tx)
    if _group_id(tx, scope, group) is not None:
        raise Conflict(f"There is a group {group!r} already", group=group)
    _make(tx, scope, group)
    audit(tx, scope, "group.make", group)
    return group


def remove_from_group(tx: Tx, scope: Scope, group: str, email: str) -> None:
    """Take a member out of a group. `NotFound` when they are not in it. An empty group stays."""
    require(scope, "people.manage")
    group_id = _group_id(tx, scope, group) if nameable(group) else None
    user_id = _user_id(tx, scope, email)
    gone = tx.conn.execute(sa.delete(GM).where(GM.c.group_id == group_id, GM.c.user_id == user_id))
    if group_id is None or not gone.rowcount:
        raise NotFound(f"{email} is not in a group {group!r}", user=email, group=group)
    audit(tx, scope, "group.remove", group, detail={"user": clean_email(email)})
    people_changed(tx, scope.tenant_id, user_id)


def delete_group(tx: Tx, scope: Scope, group: str) -> int:
    """Delete a group and return how many members it had. `NotFound` when there is none.

    What is put to it stays put to it, by its name: until there is a group of that name again it means nobody, and
    questions that nobody can answer now are marked in this transaction. What was decided and recorded stays.
    """
    require(scope, "people.manage")
    one_at_a_time(tx)
    number = _group_id(tx, scope, group) if nameable(group) else None
    gone = sa.delete(GM).where(GM.c.group_id == number).returning(GM.c.user_id)
    members = [] if number is None else tx.conn.execute(gone).scalars().all()
    if number is None or not tx.conn.execute(sa.delete(G).where(G.c.id == number)).rowcount:
        raise NotFound(f"There is no group {group!r}", group=group)
    audit(tx, scope, "group.delete", group, detail={"members": len(members)})
    people_changed(tx, scope.tenant_id)
    for user_id in members:
        rights_changed(tx, user_id)
    return len(members)


@dataclass(frozen=True, slots=True)
class GroupLine:
    name: str
    members: int
    some: tuple[str, ...] = ()  # the first addresses of them


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some of the groups that match. `after` leads to those that follow."""

    rows: list[GroupLine]
    matching: int
    after: str | None


def find_groups(
    tx: Tx, scope: Scope, find: str = "", *, after: str | None = None, limit: int = 50, some: int = 3
) -> GroupPage:
    """Groups by name, page by page. `find`: a part of the name, in any case; `some`: how many members are named."""
    require(scope, "people.view")
    where = [G.c.tenant_id == scope.tenant_id]
    if find:
        where.append(G.c.name.icontains(find, autoescape=True))
    if not is_storable(find) or not nameable(after or ""):
        return GroupPage([], 0, None)
    size = sa.select(sa.func.count()).where(GM.c.group_id == G.c.id).scalar_subquery()
    query = sa.select(G.c.id, G.c.name, size).where(*where).order_by(G.c.name).limit(limit + 1)
    found = tx.conn.execute(query if after is None else query.where(G.c.name > after)).all()
    named: dict[int, list[str]] = {}
    place = sa.func.row_number().over(partition_by=GM.c.group_id, order_by=U.c.email).label("place")
    members = sa.select(GM.c.group_id, U.c.email, place).join(U, U.c.id == GM.c.user_id)
    first = members.where(GM.c.group_id.in_([row.id for row in found[:limit]])).subquery()
    for number, email in tx.conn.execute(
        sa.select(first.c.group_id, first.c.email).where(first.c.place <= some).order_by(first.c.place)
    ):
        named.setdefault(number, []).append(email)
    rows = [GroupLine(name, count, tuple(named.get(number, ()))) for number, name, count in found[:limit]]
    matching = tx.conn.execute(sa.select(sa.func.count()).select_from(G).where(*where)).scalar_one()
    return GroupPage(rows, int(matching), rows[-1].name if len(found) > limit else None)


def count(tx: Tx, scope: Scope) -> int:
    """How many groups the tenant has."""
    require(scope, "people.view")
    query = sa.select(sa.func.count()).select_from(G).where(G.c.tenant_id == scope.tenant_id)
    return int(tx.conn.execute(query).scalar_one())


def find_group(tx: Tx, scope: Scope, name: str) -> GroupLine:
    """One group of the tenant, or `NotFound`."""
    require(scope, "people.view")
    number = _group_id(tx, scope, name) if nameable(name) else None
    if number is None:
        raise NotFound(f"There is no group {name!r}", group=name)
    size = tx.conn.execute(sa.select(sa.func.count()).where(GM.c.group_id == number)).scalar_one()
    return GroupLine(name, int(size))


def group_names(tx: Tx, scope: Scope) -> list[str]:
    """Of the tenant, in order."""
    require(scope, "people.view")
    return list(
        tx.conn.execute(sa.select(G.c.name).where(G.c.tenant_id == scope.tenant_id).order_by(G.c.name)).scalars()
    )


def list_groups(tx: Tx, scope: Scope) -> list[GroupView]:
    """All groups of the tenant with the addresses of their members."""
    require(scope, "people.view")
    query = (
        sa.select(G.c.name, U.c.email)
        .outerjoin(GM, GM.c.group_id == G.c.id)
        .outerjoin(U, U.c.id == GM.c.user_id)
        .where(G.c.tenant_id == scope.tenant_id)
        .order_by(G.c.name, U.c.email)
    )
    members: dict[str, list[str]] = {}
    for name, email in tx.conn.execute(query):
        members.setdefault(name, []).extend([email] if email else [])
    return [GroupView(name, tuple(emails)) for name, emails in members.items()]


def _make(tx: Tx, scope: Scope, group: str) -> int:
    values = {"tenant_id": scope.tenant_id, "name": group}
    return int(tx.conn.execute(sa.insert(G).values(**values).returning(G.c.id)).scalar_one())


def _group_id(tx: Tx, scope: Scope, group: str) -> int | None:
    query = sa.select(G.c.id).where(G.c.tenant_id == scope.tenant_id, G.c.name == group)
    return tx.conn.execute(query).scalar()


def _user_id(tx: Tx, scope: Scope, email: str) -> int:
    query = (
        sa.select(U.c.id)
        .join(M, M.c.user_id == U.c.id)
        .where(M.c.tenant_id == scope.tenant_id, U.c.email == clean_email(email))
    )
    found = tx.conn.execute(query).scalar()
    if found is None:
        raise NotFound(f"There is no user {email} here", user=email)
    return int(found)
