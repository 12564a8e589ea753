"""The ways in: a password, a session's cookie, a one-time link. Asynchronous, because argon2 works in threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa

from signoff.people import limits, links, sessions
from signoff.people.audit import audit
from signoff.people.canonical import storable
from signoff.people.changes import one_at_a_time, rights_changed
from signoff.people.passwords import check_password, hash_password_async, needs_rehash, verify_password_async
from signoff.people.permissions import require
from signoff.people.sessions import SessionView
from signoff.people.tenants import Home, ensure_tenant, homes, last_home, remember_home
from signoff.people.users import M, U, clean_email, find_person, store_password
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever is behind a cookie: the session, and what its person may do now. `secret` is set if the cookie is new.

    `homes`: the tenants that they belong to, this one too.
    """

    session: SessionView
    scope: Scope
    secret: str | None = None
    homes: tuple[Home, ...] = ()

    @property
    def home(self) -> Home | None:
        return next((home for home in self.homes if home.id == self.scope.tenant_id), None)


async def sign_in(
    store: Store,
    email: str,
    password: str,
    *,
    address: str,
    agent: str | None = None,
    tenant_id: int | None = None,
    old: str | None = None,
) -> Visitor:
    """Check a password and open a session; `old` is the cookie that came along, whose session ends.

    `Refused` with reason `bad_credentials` does not say what was wrong, and `too_many_attempts` comes before any check.
    `address` is the client's network address, as far as it can be trusted; `agent` what its browser calls itself.
    """
    try:
        email = clean_email(email)
    except InvalidInput:
        email = ""
    blocked = await store.write(limits.take_attempt, email, address)
    if blocked is not None and not blocked.first:
        raise limits.TooManyAttempts(blocked.seconds)
    try:
        if blocked is not None:
            raise limits.TooManyAttempts(blocked.seconds)
        stored, user_id = await store.read(_credentials, email)
        if not await verify_password_async(stored, password) or user_id is None or stored is None:
            raise Refused("bad_credentials", "The e-mail address or the password is wrong")
        fresh = await hash_password_async(password) if needs_rehash(stored) else None
        return await store.write(_enter, user_id, stored, fresh, email, address, agent, tenant_id, old)
    except Refused as refusal:
        await store.write(_record_refusal, email, address, refusal.reason, tenant_id)
        raise


async def visitor(store: Store, secret: str) -> Visitor | None:
    """Who is behind a cookie now, or None. A role that changed gives the session a new id."""
    found = await store.read(_look, secret)
    if found is None:
        return None
    if found.scope.person is not None and found.session.role != found.scope.person.role:
        rotated = await store.write(sessions.rotate_session, secret, role=found.scope.person.role)
        return None if rotated is None else replace(found, session=rotated[1], secret=rotated[0])
    if store.clock.now() - found.session.seen_at >= sessions.TOUCH_AFTER:
        await store.write(sessions.touch_session, found.session.key)
    return found


def switch_tenant(tx: Tx, scope: Scope, secret: str, name: str) -> str | None:
    """Go on in another tenant of one's own: the session gets a new id there, and its streams end.

    Returns the new secret; None when the session is over, or there already. `NotFound` for a tenant that the person
    does not belong to. Neither tenant's record names the other.
    """
    session = sessions.find_session(tx, secret)
    if session is None or session.user_id is None or session.tenant_id is None:
        return None
    home = next((home for home in homes(tx, session.user_id) if home.name == name), None)
    person = None if home is None else find_person(tx, home.id, user_id=session.user_id)
    if home is None or person is None:
        raise NotFound("You belong to no such tenant")
    if home.id == session.tenant_id:
        return None
    rotated = sessions.rotate_session(tx, secret, role=person.role, tenant_id=home.id)
    if rotated is None:
        return None
    remember_home(tx, session.user_id, home.id)
    audit(tx, scope, "tenant.leave", person.email)
    audit(tx, Scope(home.id, person, scope.via), "tenant.enter", person.email)
    rights_changed(tx, session.user_id)
    return rotated[0]


async def change_password(
    store: Store, scope: Scope, current: str, new: str, *, secret: str, address: str
) -> str | None:
    """A person's own new password. Their other sessions end, and this one, whose cookie is `secret`, gets a new id.

    Returns the new secret, or None when the session ended meanwhile. A wrong `current` counts as an attempt to sign in:
    `Refused` with reason `bad_credentials`, or `too_many_attempts`. `Conflict` for an account without a password here,
    and `InvalidInput` for a new one that does not meet the rules. What is refused is on record.
    """
    try:
        require(scope, "password.change")
        person = scope.person
        if person is None or person.user_id is None:
            raise Refused("not_member", "Only a person has a password")
        stored, _ = await store.read(_credentials, person.email)
        if stored is None:
            raise Conflict("This account has no password here: its provider has it")
        check_password(new)
        blocked = await store.write(limits.take_attempt, person.email, address)
        if blocked is not None:
            raise limits.TooManyAttempts(blocked.seconds, recorded=not blocked.first)
        if not await verify_password_async(stored, current):
            raise Refused("bad_credentials", "That is not your password")
        fresh = await hash_password_async(new)
        return await store.write(_change_password, scope, person.user_id, stored, fresh, secret, address)
    except Refused as refusal:
        if not refusal.recorded:
            await store.write(_record_change_refusal, scope, address, refusal)
            refusal.recorded = True
        raise


async def set_up(store: Store, link: str, password: str, *, email: str | None = None, name: str = "") -> Person:
    """Use a one-time link: make the first admin (needs `email`), or set the password of the account that it names."""
    await store.read(links.find_link, link)  # before argon2, so that a wrong link costs no work
    return await store.write(_set_up, link, await hash_password_async(password), email, name)


def _credentials(tx: Tx, email: str) -> tuple[str | None, int | None]:
    row = tx.conn.execute(sa.select(U.c.id, U.c.password_hash).where(U.c.email == email, U.c.active)).first()
    return (None, None) if row is None else (row.password_hash, row.id)


def _enter(
    tx: Tx,
    user_id: int,
    stored: str,
    fresh: str | None,
    email: str,
    address: str,
    agent: str | None,
    tenant_id: int | None,
    old: str | None,
) -> Visitor:
    # The password may have changed, or the account ended, while argon2 was at work.
    query = sa.select(U.c.password_hash).where(U.c.id == user_id, U.c.active)
    user = tx.conn.execute(tx.dialect.lock(query)).first()
    if user is None or user.password_hash != stored:
        raise Refused("bad_credentials", "The e-mail address or the password is wrong")
    tenant = tenant_id if tenant_id is not None else last_home(tx, user_id)
    person = None if tenant is None else find_person(tx, tenant, user_id=user_id)
    if tenant is None or person is None:
        raise Refused("not_member", "This account belongs to no tenant any more; ask an admin to add it")
    if fresh is not None:
        tx.conn.execute(sa.update(U).where(U.c.id == user_id).values(password_hash=fresh))
    if old is not None:
        sessions.end_session(tx, old)
    limits.clear_attempts(tx, email, address)
    remember_home(tx, user_id, tenant)
    secret, session = sessions.open_session(
        tx, user_id=user_id, tenant_id=tenant, role=person.role, agent=agent, address=address
    )
    scope = Scope(tenant, person)
    audit(tx, scope, "sign_in", person.email, via="page")
    return Visitor(session, scope, secret)


def _change_password(
    tx: Tx, scope: Scope, user_id: int, stored: str, fresh: str, secret: str, address: str
) -> str | None:
    # The password may have changed, or the account ended, while argon2 was at work.
    query = sa.select(U.c.email, U.c.password_hash).where(U.c.id == user_id, U.c.active)
    row = tx.conn.execute(tx.dialect.lock(query)).first()
    if row is None or row.password_hash != stored:
        raise Refused("bad_credentials", "Your password was changed meanwhile")
    session = sessions.find_session(tx, secret)
    rotated = None if session is None else sessions.rotate_session(tx, secret, role=session.role)
    if rotated is None:
        return None
    ended = store_password(tx, user_id, fresh, but=rotated[1].key)
    limits.clear_attempts(tx, row.email, address)
    audit(tx, scope, "password.change", row.email, detail={"sessions ended": ended})
    rights_changed(tx, user_id)
    return rotated[0]


def _record_change_refusal(tx: Tx, scope: Scope, address: str, refusal: Refused) -> None:
    detail = {"address": address}
    audit(tx, scope, "password.change", scope.actor, allowed=False, reason=refusal.reason, detail=detail)


def _record_refusal(tx: Tx, email: str, address: str, reason: str, tenant_id: int | None) -> None:
    # Before sign-in there is no tenant but the one asked for; what strangers try is kept with the first.
    scope = Scope(tenant_id or ensure_tenant(tx), None)
    audit(tx, scope, "sign_in", email[:254], allowed=False, reason=reason, via="page", detail={"address": address})


def _look(tx: Tx, secret: str) -> Visitor | None:
    session = sessions.find_session(tx, secret)
    if session is None or session.user_id is None or session.tenant_id is None:
        return None
    person = find_person(tx, session.tenant_id, user_id=session.user_id)
    if person is None:
        return None
    return Visitor(session, Scope(session.tenant_id, person), homes=homes(tx, session.user_id))


def _set_up(tx: Tx, secret: str, password_hash: str, email: str | None, name: str) -> Person:
    link = links.use_link(tx, secret)
    user_id = link.user_id
    if user_id is None:
        address = clean_email(email or "")
        one_at_a_time(tx)
        # An account without a membership could be someone's of another tenant: a set-up link takes none of those over.
        if tx.conn.execute(sa.select(U.c.id).where(U.c.email == address)).first():
            raise Refused(
                "not_member", f"{address} has an account already; `signoff users set-role` can make it an admin"
            )
        values = {"email": address, "name": storable(name.strip()), "active": True, "created_at": tx.now}
        user_id = int(tx.conn.execute(sa.insert(U).values(**values).returning(U.c.id)).scalar_one())
        tx.conn.execute(sa.insert(M).values(tenant_id=link.tenant_id, user_id=user_id, role="admin"))
    elif name.strip():
        tx.conn.execute(sa.update(U).where(U.c.id == user_id).values(name=storable(name.strip())))
    store_password(tx, user_id, password_hash)
    person = find_person(tx, link.tenant_id, user_id=user_id)
    if person is None:
        raise NotFound("The account of this link is not active any more")
    audit(tx, Scope(link.tenant_id, person), "set_up", person.email, via="link", detail={"purpose": link.purpose})
    return person
