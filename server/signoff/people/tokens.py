"""Bearer tokens of programs: shown once, stored as hashes, with a role, an expiry and, if wished, a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.people.canonical import nameable
from signoff.people.changes import one_at_a_time, people_changed
from signoff.people.permissions import require
from signoff.people.secret_text import digest, new_secret
from signoff.people.users import M, U, clean_email, clean_role, find_person
from signoff.store.scope import ROLES, Person, Scope
from signoff.store.tables import Token
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, NotFound, Refused

T = Token.__table__

PREFIX: Final = "signoff_"  # lets secret scanners know what they found
ACTOR: Final = "token:"  # before the name of one that acts for nobody


@dataclass(frozen=True, slots=True)
class TokenView:
    """`email`: of the member whom it acts for, if they belong here still."""

    id: int
    name: str
    role: str
    user_id: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    email: str | None


def create_token(
    tx: Tx, scope: Scope, name: str, *, role: str, email: str | None = None, lifetime: timedelta | None = None
) -> str:
    """Make a token and return its secret, which cannot be shown again.

    With `email` it acts as that person, never above the role that they hold at the time of a call. Names of tokens that
    can still be used are unique. Nobody gives out a role above their own.
    """
    require(scope, "token.manage")
    name, role = name.strip(), clean_role(role)
    if not 1 <= len(name) <= 256 or not name.isprintable():
        message = "A token's name has 1 to 256 characters and no control characters"
        raise InvalidInput(message, fields=[FieldError(("name",), message)])
    if scope.person is not None and not scope.person.role_at_least(role):
        raise Refused("role", f"A token may not be {role}: you are {scope.person.role}", needs=role)
    one_at_a_time(tx)
    person = None
    if email is not None and (person := find_person(tx, scope.tenant_id, email=clean_email(email))) is None:
        raise NotFound(f"There is no user {email} here", user=email)
    taken = sa.select(T.c.id).where(T.c.tenant_id == scope.tenant_id, T.c.name == name, _is_usable(tx))
    if tx.conn.execute(taken).first():
        raise Conflict(f"There is a token {name!r} already; revoke it or take another name", token=name)
    secret = new_secret(PREFIX)
    tx.conn.execute(
        sa.insert(T).values(
            tenant_id=scope.tenant_id,
            name=name,
            hash=digest(secret),
            role=role,
            user_id=person.user_id if person else None,
            created_at=tx.now,
            expires_at=tx.now + lifetime if lifetime else None,
        )
    )
    audit(tx, scope, "token.create", name, detail={"role": role, "as": person.email if person else None})
    return secret


def list_tokens(
    tx: Tx,
    scope: Scope,
    *,
    usable: bool | None = None,
    name: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> list[TokenView]:
    """Tokens of the tenant, the newest first: all, or only those that can be used (or not), or of this name.

    `before`: the id to go on from.
    """
    require(scope, "token.manage")
    columns = [U.c.email if column == "email" else T.c[column] for column in TokenView.__slots__]
    member = sa.and_(M.c.user_id == T.c.user_id, M.c.tenant_id == T.c.tenant_id)
    query = sa.select(*columns).outerjoin(M, member).outerjoin(U, U.c.id == M.c.user_id)
    query = query.where(T.c.tenant_id == scope.tenant_id).order_by(T.c.id.desc()).limit(limit)
    if usable is not None:
        query = query.where(_is_usable(tx) if usable else ~_is_usable(tx))
    if name is not None:
        query = query.where(T.c.name == name if nameable(name) else sa.false())
    if before is not None:
        query = query.where(T.c.id < before)
    return [TokenView(*row) for row in tx.conn.execute(query)]


def revoke_token(tx: Tx, scope: Scope, name: str) -> None:
    """End every token of this name at once. `NotFound` when none is left to revoke."""
    require(scope, "token.manage")
    query = sa.update(T).where(T.c.tenant_id == scope.tenant_id, T.c.name == name, T.c.revoked_at.is_(None))
    if not nameable(name) or not tx.conn.execute(query.values(revoked_at=tx.now)).rowcount:
        raise NotFound(f"There is no token {name!r} that could be revoked", token=name)
    audit(tx, scope, "token.revoke", name)
    people_changed(tx, scope.tenant_id)  # what it had claimed is free again


def scope_for_token(tx: Tx, secret: str) -> Scope | None:
    """What a bearer token may do now; None for an unknown, revoked or expired one, or when its person has gone.

    The lookup is by hash: how long it takes tells nothing of the secret.
    """
    return scopes_for_tokens(tx, [secret])[secret]


def scopes_for_tokens(tx: Tx, secrets: Iterable[str]) -> dict[str, Scope | None]:
    """As `scope_for_token`, for requests that came at the same time."""
    hashes = {digest(secret): secret for secret in secrets}
    found: dict[str, Scope | None] = dict.fromkeys(hashes.values())
    for row in tx.dialect.fetch_rows(tx, T, _Held._fields, "hash", list(hashes)):
        token = _Held._make(row)
        found[hashes[token.hash]] = _scope(tx, token)
    return found


def find_token(tx: Tx, tenant_id: int, name: str) -> Person | None:
    """The token of its own that can be used under this name, as it acts; None when it was revoked or has expired."""
    query = sa.select(T.c.role).where(T.c.tenant_id == tenant_id, T.c.name == name, T.c.user_id.is_(None))
    role = tx.conn.execute(query.where(_is_usable(tx))).scalar()
    return None if role is None else Person(f"{ACTOR}{name}", name, role)


def _is_usable(tx: Tx) -> sa.ColumnElement[bool]:
    return sa.and_(T.c.revoked_at.is_(None), sa.or_(T.c.expires_at.is_(None), T.c.expires_at > tx.now))


class _Held(NamedTuple):
    hash: str
    tenant_id: int
    name: str
    role: str
    user_id: int | None
    expires_at: datetime | None
    revoked_at: datetime | None


def _scope(tx: Tx, token: _Held) -> Scope | None:
    if token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= tx.now):
        return None
    if token.user_id is None:
        return Scope(token.tenant_id, Person(f"{ACTOR}{token.name}", token.name, token.role, None, frozenset()))
    person = find_person(tx, token.tenant_id, user_id=token.user_id)
    if person is None:
        return None
    role = min(token.role, person.role, key=ROLES.index)
    return Scope(token.tenant_id, Person(person.email, person.name, role, person.user_id, person.groups))
