from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher

from signoff.people import links, sessions
from signoff.people.audit import A as AUDIT
from signoff.people.limits import LIMITS, TooManyAttempts
from signoff.people.passwords import hash_password
from signoff.people.secret_text import digest
from signoff.people.sign_in import Visitor, change_password, set_up, sign_in, visitor
from signoff.people.users import U, add_user, password_link, set_active, set_password, set_role
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from tests.people.world import World

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD)
HOME = "192.0.2.1"
FEW, WINDOW = LIMITS["account at address"]


@pytest.fixture
async def ana(here: World) -> Scope:
    await here.store.write(add_user, here.embedded, "ana@example.org", name="Ana", password_hash=HASH)
    return await here.scope("ana@example.org")


async def enter(here: World, password: str = PASSWORD, email: str = "ana@example.org", address: str = HOME) -> Visitor:
    return await sign_in(here.store, email, password, address=address)


async def refused(here: World, *args: str) -> str:
    with pytest.raises(Refused) as caught:
        await enter(here, *args)
    return caught.value.reason


async def test_a_password_opens_a_session(here: World, ana: Scope) -> None:
    entered = await enter(here, email=" ANA@example.org")
    assert entered.secret is not None
    assert entered.scope == ana
    found = await visitor(here.store, entered.secret)
    assert found is not None
    assert (found.scope, found.secret, found.session.csrf) == (ana, None, entered.session.csrf)


async def test_neither_cookie_nor_password_stands_in_the_database(here: World, ana: Scope) -> None:
    entered = await enter(here)

    def stored(tx: Tx) -> str:
        return str(tx.conn.execute(sa.select(sessions.S)).all()) + str(tx.conn.execute(sa.select(U)).all())

    text = await here.store.read(stored)
    assert entered.secret is not None
    assert entered.secret not in text
    assert digest(entered.secret) in text
    assert PASSWORD not in text


async def test_wrong_passwords_unknown_accounts_and_those_without_a_password_look_the_same(
    here: World, ana: Scope
) -> None:
    await here.add("bob@example.org")
    tries = [
        (PASSWORD + "!",),
        (PASSWORD, "eve@example.org"),
        (PASSWORD, "bob@example.org"),
        ("", "no address"),
        ("\ud800" * 10,),
    ]
    messages = set()
    for one in tries:
        with pytest.raises(Refused) as caught:
            await enter(here, *one)
        messages.add((caught.value.reason, str(caught.value)))
    assert messages == {("bad_credentials", "The e-mail address or the password is wrong")}


async def test_a_deactivated_account_does_not_come_in(here: World, ana: Scope) -> None:
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    assert await refused(here) == "bad_credentials"


async def test_refusals_are_in_the_audit_log(here: World, ana: Scope) -> None:
    await refused(here, "wrong password")

    def last(tx: Tx) -> sa.Row[tuple[object, ...]]:
        return tx.conn.execute(sa.select(AUDIT).order_by(AUDIT.c.id.desc())).first()  # type: ignore[return-value]

    row = await here.store.read(last)
    assert (row.action, row.target, row.allowed, row.reason) == ("sign_in", "ana@example.org", False, "bad_credentials")
    assert row.detail == '{"address":"192.0.2.1"}'


async def test_guessing_stops_after_a_few_attempts_and_goes_on_after_a_while(here: World, ana: Scope) -> None:
    for _ in range(FEW):
        assert await refused(here, "wrong password") == "bad_credentials"
    with pytest.raises(TooManyAttempts) as caught:
        await enter(here)
    assert caught.value.retry_after == WINDOW.total_seconds()
    assert caught.value.to_problem()["status"] == 429
    assert await refused(here) == "too_many_attempts"
    await enter(here, PASSWORD, "ana@example.org", "192.0.2.2")  # others are not shut out

    def reasons(tx: Tx) -> list[str]:
        refusals = sa.select(AUDIT.c.reason).where(AUDIT.c.action == "sign_in", AUDIT.c.allowed.is_(False))
        return list(tx.conn.execute(refusals.order_by(AUDIT.c.id)).scalars())

    # the log keeps that a limit was met, and is not filled by whoever goes on
    assert await here.store.read(reasons) == ["bad_credentials"] * FEW + ["too_many_attempts"]
    here.clock.advance(WINDOW)
    await enter(here)


async def test_guessing_in_parallel_from_several_processes_gains_nothing(here: World, ana: Scope) -> None:
    async with await Store.open(here.store.url, clock=here.clock) as second:
        told = await asyncio.gather(
            *(
                sign_in(store, "ana@example.org", "wrong password", address=HOME)
                for store in (here.store, second)
                for _ in range(FEW)
            ),
            return_exceptions=True,
        )
    reasons = [error.reason for error in told if isinstance(error, Refused)]
    assert sorted(reasons) == ["bad_credentials"] * FEW + ["too_many_attempts"] * FEW


async def test_one_machine_does_not_try_many_accounts_nor_many_machines_one(here: World, ana: Scope) -> None:
    from signoff.people.limits import take_attempt

    for i in range(LIMITS["address"][0]):
        assert await here.store.write(take_attempt, f"u{i}@example.org", "192.0.2.9") is None
    assert await here.store.write(take_attempt, "another@example.org", "192.0.2.9") is not None
    for i in range(LIMITS["account"][0]):
        assert await here.store.write(take_attempt, "bob@example.org", f"198.51.100.{i}") is None
    assert await here.store.write(take_attempt, "bob@example.org", "203.0.113.1") is not None


async def test_signing_in_clears_the_count(here: World, ana: Scope) -> None:
    for _ in range(FEW - 1):
        await refused(here, "wrong password")
    await enter(here)
    for _ in range(FEW - 1):
        assert await refused(here, "wrong password") == "bad_credentials"
    await enter(here)


async def test_signing_in_ends_the_session_that_came_along(here: World, ana: Scope) -> None:
    first = await enter(here)
    second = await sign_in(here.store, "ana@example.org", PASSWORD, address=HOME, old=first.secret)
    assert first.secret is not None
    assert second.secret is not None
    assert await visitor(here.store, first.secret) is None
    assert await visitor(here.store, second.secret) is not None


async def test_a_session_ends_when_idle_and_at_its_absolute_age(here: World, ana: Scope) -> None:
    idle, busy = await enter(here), await enter(here)
    assert idle.secret is not None
    assert busy.secret is not None
    here.clock.advance(timedelta(hours=11))
    assert await visitor(here.store, busy.secret) is not None
    here.clock.advance(timedelta(hours=1))
    assert await visitor(here.store, idle.secret) is None
    for _ in range(14):
        assert await visitor(here.store, busy.secret) is not None
        here.clock.advance(timedelta(hours=11))
    assert here.clock.now() - busy.session.created_at > timedelta(days=6)
    here.clock.advance(timedelta(hours=11))
    assert await visitor(here.store, busy.secret) is None


async def test_rights_are_read_anew_and_a_new_role_gives_a_new_id(here: World, ana: Scope) -> None:
    entered = await enter(here)
    assert entered.secret is not None
    await here.store.write(set_role, here.embedded, "ana@example.org", "operator")
    found = await visitor(here.store, entered.secret)
    assert found is not None
    assert found.scope.person is not None
    assert found.scope.person.role == "operator"
    assert found.secret not in (None, entered.secret)
    assert found.session.csrf != entered.session.csrf
    assert await visitor(here.store, entered.secret) is None
    assert (await visitor(here.store, found.secret or "")) is not None


async def test_sessions_are_listed_and_ended_one_by_one(here: World, ana: Scope) -> None:
    one, two = await enter(here), await enter(here)
    assert ana.person is not None
    user_id = ana.person.user_id or 0
    keys = {session.key for session in await here.store.read(sessions.sessions_of, user_id)}
    assert keys == {one.session.key, two.session.key}
    assert await here.store.write(sessions.end_session_by_key, user_id + 1, one.session.key) is False
    assert await here.store.write(sessions.end_session_by_key, user_id, one.session.key) is True
    assert await visitor(here.store, one.secret or "") is None
    assert await here.store.write(sessions.end_sessions_of, user_id, but=two.session.key) == 0
    await here.store.write(sessions.end_session, two.secret or "")
    assert await visitor(here.store, two.secret or "") is None


async def test_a_new_password_signs_out_everywhere(here: World, ana: Scope) -> None:
    entered = await enter(here)
    await here.store.write(set_password, here.embedded, "ana@example.org", hash_password("another password"))
    assert await visitor(here.store, entered.secret or "") is None
    assert await refused(here) == "bad_credentials"
    await enter(here, "another password")


async def test_a_password_that_changed_during_sign_in_does_not_open_a_session(here: World, ana: Scope) -> None:
    from signoff.people.sign_in import _enter

    assert ana.person is not None
    await here.store.write(set_password, here.embedded, "ana@example.org", hash_password("another password"))
    with pytest.raises(Refused):
        await here.store.write(_enter, ana.person.user_id or 0, HASH, None, "ana@example.org", HOME, None, None, None)


async def test_a_weaker_hash_is_replaced_at_sign_in(here: World) -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=8 * 1024).hash(PASSWORD)
    await here.store.write(add_user, here.embedded, "ana@example.org", password_hash=weak)
    await enter(here)

    def stored(tx: Tx) -> str:
        return str(tx.conn.execute(sa.select(U.c.password_hash)).scalar_one())

    assert await here.store.read(stored) != weak
    await enter(here)


async def test_the_first_admin_is_made_by_a_link_that_works_once(here: World) -> None:
    link = await here.store.write(links.first_admin_link, here.tenant_id)
    spare = await here.store.write(links.first_admin_link, here.tenant_id)
    assert link is not None
    assert spare is not None
    assert (await here.store.read(links.find_link, link)).email is None
    admin = await set_up(here.store, link, PASSWORD, email="Root@example.org", name="Root")
    assert (admin.email, admin.role) == ("root@example.org", "admin")
    await enter(here, email="root@example.org")
    for used in (link, spare):  # as soon as there is an admin, no link makes another
        with pytest.raises(NotFound):
            await set_up(here.store, used, PASSWORD, email="eve@example.org")
    assert await here.store.write(links.first_admin_link, here.tenant_id) is None


async def test_a_link_ends_after_a_day(here: World) -> None:
    link = await here.store.write(links.first_admin_link, here.tenant_id)
    here.clock.advance(timedelta(hours=24))
    with pytest.raises(NotFound):
        await set_up(here.store, link or "", PASSWORD, email="root@example.org")


async def test_a_refused_password_leaves_the_link_usable(here: World) -> None:
    link = await here.store.write(links.first_admin_link, here.tenant_id)
    for bad in ("short", "x" * 300, "correct horse \ud800"):
        with pytest.raises(InvalidInput) as caught:
            await set_up(here.store, link or "", bad, email="root@example.org")
        assert [field.loc for field in caught.value.fields] == [("password",)]
    with pytest.raises(InvalidInput):
        await set_up(here.store, link or "", PASSWORD, email="no address")
    await set_up(here.store, link or "", PASSWORD, email="root@example.org")


async def test_of_several_who_use_a_link_at_once_one_gets_it(here: World) -> None:
    link = await here.store.write(links.first_admin_link, here.tenant_id)
    made = await asyncio.gather(
        *(set_up(here.store, link or "", PASSWORD, email=f"r{i}@example.org") for i in range(4)), return_exceptions=True
    )
    assert sum(not isinstance(one, BaseException) for one in made) == 1


async def test_several_set_up_links_at_once_make_one_admin(here: World) -> None:
    secrets = [await here.store.write(links.first_admin_link, here.tenant_id) for _ in range(4)]
    made = await asyncio.gather(
        *(set_up(here.store, secret or "", PASSWORD, email=f"r{i}@example.org") for i, secret in enumerate(secrets)),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in made) == 1


async def test_a_password_link_sets_the_password_of_its_account_only(here: World) -> None:
    await here.add("ana@example.org", name="Ana")
    first = await here.store.write(password_link, here.embedded, "ana@example.org")
    link = await here.store.write(password_link, here.embedded, "ana@example.org")
    with pytest.raises(NotFound):  # a newer link ends the older
        await set_up(here.store, first, PASSWORD)
    view = await here.store.read(links.find_link, link)
    assert (view.email, view.name) == ("ana@example.org", "Ana")
    person = await set_up(here.store, link, PASSWORD, email="eve@example.org")
    assert (person.email, person.name, person.role) == ("ana@example.org", "Ana", "approver")
    await enter(here)
    with pytest.raises(NotFound):
        await here.store.read(links.find_link, link)
    with pytest.raises(NotFound):
        await set_up(here.store, link, PASSWORD)


async def test_no_link_for_a_deactivated_account(here: World) -> None:
    await here.add("ana@example.org")
    link = await here.store.write(password_link, here.embedded, "ana@example.org")
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    with pytest.raises(NotFound):
        await set_up(here.store, link, PASSWORD)
    with pytest.raises(Conflict):
        await here.store.write(password_link, here.embedded, "ana@example.org")


async def test_a_session_before_sign_in_is_nobody(here: World) -> None:
    secret, view = await here.store.write(sessions.open_session, data={"next": "/runs"})
    assert view.user_id is None
    assert await visitor(here.store, secret) is None
    found = await here.store.read(sessions.find_session, secret)
    assert found is not None
    assert (found.data, found.csrf) == ({"next": "/runs"}, view.csrf)
    await here.store.write(sessions.save_data, view.key, {})
    assert (await here.store.read(sessions.find_session, secret)).data == {}  # type: ignore[union-attr]  # it is there


async def change(here: World, entered: Visitor, current: str, new: str = PASSWORD + " new", address: str = HOME) -> str:
    """What became of it: the new cookie, or the reason of the refusal."""
    assert entered.secret is not None
    try:
        return (
            await change_password(here.store, entered.scope, current, new, secret=entered.secret, address=address) or ""
        )
    except Refused as refusal:
        return refusal.reason


async def test_a_person_changes_their_own_password_and_only_this_session_goes_on(here: World, ana: Scope) -> None:
    first, other = await enter(here), await enter(here)
    secret = await change(here, first, PASSWORD)
    found = await visitor(here.store, secret)
    assert found is not None, "the session goes on, under a new id"
    assert found.session.csrf != first.session.csrf
    for old in (first.secret, other.secret):
        assert old is not None
        assert await visitor(here.store, old) is None
    assert await refused(here, PASSWORD) == "bad_credentials"
    await enter(here, PASSWORD + " new")
    (row,) = await audit_of(here, "password.change")
    assert (row.actor, row.allowed, row.detail) == ("ana@example.org", True, '{"sessions ended":1}')


async def test_a_wrong_password_changes_nothing_is_on_record_and_counts_as_a_try_to_sign_in(
    here: World, ana: Scope
) -> None:
    entered = await enter(here)
    with pytest.raises(InvalidInput):
        await change(here, entered, PASSWORD, "short")
    tries = [await change(here, entered, "no, not this one") for _ in range(FEW + 2)]
    assert tries == ["bad_credentials"] * FEW + ["too_many_attempts"] * 2
    assert await change(here, entered, PASSWORD) == "too_many_attempts"
    assert await refused(here, PASSWORD) == "too_many_attempts", "guesses here and at the door are counted together"
    rows = await audit_of(here, "password.change")
    assert [(row.allowed, row.reason) for row in rows] == [(False, "bad_credentials")] * FEW + [
        (False, "too_many_attempts")
    ]
    assert entered.secret is not None
    assert await visitor(here.store, entered.secret) is not None
    here.clock.advance(WINDOW + timedelta(seconds=1))
    assert len(await change(here, entered, PASSWORD)) > 20
    await enter(here, PASSWORD + " new")


async def test_who_has_no_password_here_has_none_to_change(here: World) -> None:
    bob = await here.add("bob@example.org")

    def open_one(tx: Tx) -> tuple[str, sessions.SessionView]:
        assert bob.person is not None
        return sessions.open_session(tx, user_id=bob.person.user_id, tenant_id=bob.tenant_id, role="approver")

    secret, session = await here.store.write(open_one)
    with pytest.raises(Conflict):
        await change(here, Visitor(session, bob, secret), "")


async def audit_of(here: World, action: str) -> list[sa.Row[Any]]:
    query = sa.select(AUDIT).where(AUDIT.c.action == action).order_by(AUDIT.c.id)
    return await here.store.read(lambda tx: list(tx.conn.execute(query)))
