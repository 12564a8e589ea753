"""Whoever comes from an identity provider: bound to (issuer, subject), which never change, and never to an address.

The first time an account is made for them. One that exists already is taken only when its provider is trusted to know
whose an address is, and says that it verified this one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from signoff.people import sessions
from signoff.people.audit import audit
from signoff.people.canonical import storable
from signoff.people.changes import one_at_a_time
from signoff.people.groups import add_to_group, remove_from_group
from signoff.people.sign_in import Visitor
from signoff.people.tenants import T, last_home, remember_home
from signoff.people.users import M, U, add_user, clean_email, find_person, set_role
from signoff.store.scope import Scope
from signoff.store.tables import Identity
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, Refused

I = Identity.__table__  # noqa: E741


@dataclass(frozen=True, slots=True)
class Arrival:
    """Who a provider says has come, and what the settings make of what it says."""

    provider: str
    issuer: str
    subject: str
    email: str | None
    email_verified: bool | None  # None: the provider does not say
    name: str
    role: str | None  # None: the settings have no role for them
    role_follows: bool  # at each sign-in, or only when the account is made
    groups: frozenset[str]  # of ours, that they belong to by what the provider says
    managed: frozenset[str]  # of ours, that the provider decides about; the others are left as they are
    trusted: bool  # whose an address is
    switch: bool = False  # whether it opens the other tenants of the account as well


def admit(
    tx: Tx,
    tenant_id: int,
    arrival: Arrival,
    *,
    address: str,
    agent: str | None,
    old: str | None,
    data: dict[str, Any] | None = None,
) -> Visitor:
    """Open a session for an arrival, with an account made or brought up to date. Raises `Refused` with the reason.

    `no_email`, `email_unverified`, `account_exists`, `no_role`, `inactive`. Role and groups follow the provider where
    the settings say so; the last admin keeps their role all the same.
    """
    # Of several first sign-ins at once one makes the account, and the others find it.
    tx.conn.execute(tx.dialect.lock(sa.select(T.c.id).where(T.c.id == tenant_id)))
    scope = Scope(tenant_id, via="oidc")
    mine = (I.c.issuer == arrival.issuer, I.c.subject == arrival.subject)
    user_id = tx.conn.execute(sa.select(I.c.user_id).where(*mine)).scalar()
    if user_id is None:
        user_id = _bind(tx, scope, arrival)
    else:
        tx.conn.execute(sa.update(I).where(*mine).values(seen_at=tx.now))
    user = tx.conn.execute(tx.dialect.lock(sa.select(U.c.email, U.c.active).where(U.c.id == user_id))).one()
    if not user.active:
        raise Refused("inactive", f"The account {user.email} is deactivated")
    _follow(tx, scope, user_id, user.email, arrival)
    home = (last_home(tx, user_id) if arrival.switch else None) or tenant_id
    person = find_person(tx, home, user_id=user_id)
    if person is None:
        raise Refused("inactive", f"The account {user.email} does not belong here any more")
    if old is not None:
        sessions.end_session(tx, old)
    secret, session = sessions.open_session(
        tx, user_id=user_id, tenant_id=home, role=person.role, data=data, agent=agent, address=address,
        provider=arrival.provider,
    )  # fmt: skip
    remember_home(tx, user_id, home)
    entered = Scope(home, person)
    audit(tx, entered, "sign_in", person.email, via="oidc", detail={"provider": arrival.provider})
    return Visitor(session, entered, secret)


def record_refusal(tx: Tx, tenant_id: int, provider: str, reason: str, address: str, who: str | None = None) -> None:
    """The audit row of an arrival that was not let in."""
    detail = {"provider": provider, "address": address}
    target = storable((who or provider)[:254])
    audit(tx, Scope(tenant_id), "sign_in", target, allowed=False, reason=reason, via="oidc", detail=detail)


def _bind(tx: Tx, scope: Scope, arrival: Arrival) -> int:
    if not arrival.email:
        raise Refused("no_email", "The provider did not tell an e-mail address")
    try:
        email = clean_email(arrival.email)
    except InvalidInput as error:
        raise Refused("no_email", "What the provider told is no e-mail address") from error
    # Questions are put to addresses: whoever merely claims one must not get it, not even one that is free.
    if arrival.email_verified is not True and (arrival.email_verified is False or not arrival.trusted):
        raise Refused("email_unverified", f"The provider has not verified the address {email}")
    one_at_a_time(tx)  # else an account that an admin makes in this moment would be bound without being asked for
    user_id = tx.conn.execute(sa.select(U.c.id).where(U.c.email == email)).scalar()
    if user_id is None:
        if arrival.role is None:
            raise Refused("no_role", f"No role is meant for {email} here")
        user_id = add_user(tx, scope, email, name=storable(arrival.name)[:200], role=arrival.role)
    else:
        _may_take_over(tx, scope, email, user_id, arrival)
        if not tx.conn.execute(sa.select(M.c.role).where(M.c.user_id == user_id)).first():
            if arrival.role is None:
                raise Refused("no_role", f"No role is meant for {email} here")
            add_user(tx, scope, email, role=arrival.role)
    times = {"created_at": tx.now, "seen_at": tx.now}
    tx.conn.execute(sa.insert(I).values(issuer=arrival.issuer, subject=arrival.subject, user_id=user_id, **times))
    audit(tx, scope, "user.bind", email, detail={"provider": arrival.provider, "subject": arrival.subject[:200]})
    return int(user_id)


def _may_take_over(tx: Tx, scope: Scope, email: str, user_id: int, arrival: Arrival) -> None:
    """An account that exists is somebody's. A provider of one tenant does not get those of others in any case."""
    elsewhere = sa.select(M.c.tenant_id).where(M.c.user_id == user_id, M.c.tenant_id != scope.tenant_id)
    bound = sa.select(I.c.subject).where(I.c.user_id == user_id, I.c.issuer == arrival.issuer)
    known = arrival.trusted and arrival.email_verified is True
    if not known or tx.conn.execute(elsewhere).first() or tx.conn.execute(bound).first():
        raise Refused("account_exists", f"There is an account {email} already")


def _follow(tx: Tx, scope: Scope, user_id: int, email: str, arrival: Arrival) -> None:
    if arrival.role_follows and arrival.role is None:
        raise Refused("no_role", f"No role is meant for {email} here any more")
    person = find_person(tx, scope.tenant_id, user_id=user_id)
    if person is None:
        return
    if arrival.role_follows and arrival.role is not None and person.role != arrival.role:
        with suppress(Conflict):  # the last admin stays one
            set_role(tx, scope, email, arrival.role)
    for name in sorted(arrival.groups - person.groups):
        add_to_group(tx, scope, name, email)
    for name in sorted((arrival.managed - arrival.groups) & person.groups):
        remove_from_group(tx, scope, name, email)
