"""Tenants: who makes them, how somebody goes from one to another, and how somebody leaves one."""

from __future__ import annotations

from typing import Any

import pytest

from signoff.people import sessions, tenants, users
from signoff.people.audit import AuditFilter, audit_page
from signoff.people.groups import add_to_group
from signoff.people.sign_in import Visitor, set_up, sign_in, switch_tenant, visitor
from signoff.people.tokens import create_token, scope_for_token
from signoff.store.scope import Scope
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from tests.people.world import World

PASSWORD = "correct horse battery"


async def enter(here: World, email: str) -> Visitor:
    return await sign_in(here.store, email, PASSWORD, address="192.0.2.1")


async def actions(here: World, tenant_id: int, first_word: str) -> list[tuple[str, str | None, str | None, str | None]]:
    rows = await here.store.read(audit_page, Scope(tenant_id), AuditFilter(action=first_word))
    return [(row.action, row.actor, row.target, row.detail) for row in reversed(rows)]


async def member_of_two(here: World) -> tuple[Scope, Scope]:
    """Ana: approver in the first tenant, operator in a second one, with a password. Both tenants have an admin."""
    await here.add("root@example.org", "admin")
    ana = await here.add("ana@example.org", "approver", "finance")
    link = await here.store.write(users.password_link, here.embedded, "ana@example.org")
    await set_up(here.store, link, PASSWORD)
    other = Scope(await here.store.write(tenants.add_tenant, here.embedded, "wholesale", "Wholesale & Co"))
    await here.store.write(users.add_user, other, "boss@example.org", role="admin")
    await here.store.write(users.add_user, other, "ana@example.org", role="operator")
    return ana, other


async def test_an_admin_of_the_first_tenant_makes_others_and_looks_into_none(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    secret = await here.store.write(tenants.open_tenant, root, "wholesale", "", "Nia@example.org", "Nia")
    assert secret is not None
    nia = await set_up(here.store, secret, PASSWORD, name="Nia")
    assert (nia.email, nia.role) == ("nia@example.org", "admin")
    entered = await found(here, await enter(here, "nia@example.org"))
    assert [(home.name, home.title) for home in entered.homes] == [("wholesale", "wholesale")]
    other = entered.scope.tenant_id
    assert await here.store.read(users.find_person, other, email="root@example.org") is None
    shown = [(view.name, view.title, view.members) for view in await here.store.read(tenants.list_tenants, root)]
    assert shown == [("default", "default", 1), ("wholesale", "wholesale", 1)]
    for use_case, *args in (
        (tenants.add_tenant, "third"),
        (tenants.open_tenant, "third", "", "eve@example.org"),
        (tenants.rename_tenant, "default", "ours"),
        (tenants.list_tenants,),
    ):
        with pytest.raises(Refused) as caught:
            await here.store.write(use_case, entered.scope, *args)  # type: ignore[arg-type]  # several signatures
        assert (caught.value.reason, caught.value.needs) == ("role", "admin")
    assert await actions(here, here.tenant_id, "tenant") == [("tenant.add", "root@example.org", "wholesale", None)]
    assert await actions(here, other, "tenant") == [("tenant.add", "root@example.org", "wholesale", None)]
    assert ("user.add", "root@example.org", "nia@example.org", '{"role":"admin"}') in await actions(here, other, "user")


async def found(here: World, entered: Visitor) -> Visitor:
    assert entered.secret is not None
    seen = await visitor(here.store, entered.secret)
    assert seen is not None
    return seen


@pytest.mark.parametrize("role", ["viewer", "approver", "operator"])
async def test_nobody_below_an_admin_makes_tenants(here: World, role: str) -> None:
    scope = await here.add("ana@example.org", role)
    with pytest.raises(Refused):
        await here.store.write(tenants.open_tenant, scope, "wholesale", "", "eve@example.org")


async def test_a_tenant_that_nobody_could_administer_is_not_made(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    await here.add("gone@example.org")
    await here.store.write(users.set_active, root, "gone@example.org", False)
    with pytest.raises(Conflict, match="deactivated"):
        await here.store.write(tenants.open_tenant, root, "wholesale", "", "gone@example.org")
    with pytest.raises(InvalidInput):
        await here.store.write(tenants.open_tenant, root, "wholesale", "", "no address")
    assert len(await here.store.read(tenants.list_tenants, root)) == 1


async def test_a_tenant_is_renamed_for_pages_only_and_no_two_are_called_alike(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    number = await here.store.write(tenants.add_tenant, root, "wholesale")
    await here.store.write(tenants.rename_tenant, root, "wholesale", " Wholesale & Co ")
    assert await here.store.read(tenants.tenant_id, "wholesale") == number
    assert [view.title for view in await here.store.read(tenants.list_tenants, root)] == ["default", "Wholesale & Co"]
    calls: list[tuple[Any, ...]] = [
        (tenants.add_tenant, "wholesale"),
        (tenants.add_tenant, "x", "WHOLESALE & co"),
        (tenants.rename_tenant, "default", "wholesale & co"),
    ]
    for use_case, *args in calls:
        with pytest.raises(Conflict):
            await here.store.write(use_case, root, *args)
    for title in ("", "  ", "a\nb", "x\x00", "long" * 70):
        with pytest.raises(InvalidInput):
            await here.store.write(tenants.add_tenant, root, title)
    for length in (101, 257):
        with pytest.raises(InvalidInput, match="has 1 to 100 characters"):
            await here.store.write(tenants.rename_tenant, root, "wholesale", "x" * length)
    with pytest.raises(NotFound):
        await here.store.write(tenants.rename_tenant, root, "nowhere", "x")
    told = ("tenant.rename", "root@example.org", "wholesale", '{"from":"wholesale","to":"Wholesale & Co"}')
    assert (await actions(here, here.tenant_id, "tenant"))[-1] == (await actions(here, number, "tenant"))[-1] == told


async def test_somebody_goes_on_in_another_tenant_of_theirs_with_a_session_of_its_own(here: World) -> None:
    ana, other = await member_of_two(here)
    first = await found(here, await enter(here, "ana@example.org"))
    assert first.scope.tenant_id == here.tenant_id
    assert [home.title for home in first.homes] == ["default", "Wholesale & Co"]
    old = (await enter(here, "ana@example.org")).secret
    assert old is not None
    before = await here.store.read(sessions.find_session, old)
    fresh = await here.store.write(switch_tenant, ana, old, "wholesale")
    assert fresh is not None
    assert await visitor(here.store, old) is None
    now = await visitor(here.store, fresh)
    assert now is not None
    assert before is not None
    assert (now.scope.tenant_id, now.scope.person and now.scope.person.role) == (other.tenant_id, "operator")
    assert now.scope.person is not None
    assert now.scope.person.groups == frozenset()
    assert now.session.csrf != before.csrf
    assert now.session.expires_at == before.expires_at  # going round in circles makes no session last longer
    assert (await actions(here, here.tenant_id, "tenant."))[-1] == (
        "tenant.leave",
        "ana@example.org",
        "ana@example.org",
        None,
    )
    assert (await actions(here, other.tenant_id, "tenant."))[-1] == (
        "tenant.enter",
        "ana@example.org",
        "ana@example.org",
        None,
    )
    assert await here.store.write(switch_tenant, now.scope, fresh, "wholesale") is None  # is there already
    assert await here.store.write(switch_tenant, ana, old, "wholesale") is None  # is over


async def test_a_tenant_of_others_is_none_to_go_to(here: World) -> None:
    ana, _ = await member_of_two(here)
    await here.store.write(tenants.add_tenant, here.embedded, "third")
    secret = (await enter(here, "ana@example.org")).secret
    assert secret is not None
    for name in ("third", "nowhere", ""):
        with pytest.raises(NotFound, match="You belong to no such tenant"):
            await here.store.write(switch_tenant, ana, secret, name)
    assert await visitor(here.store, secret) is not None


async def test_signing_in_leads_where_one_was_last_if_one_belongs_there_still(here: World) -> None:
    ana, other = await member_of_two(here)
    secret = (await enter(here, "ana@example.org")).secret
    assert secret is not None
    await here.store.write(switch_tenant, ana, secret, "wholesale")
    assert (await enter(here, "ana@example.org")).scope.tenant_id == other.tenant_id
    await here.store.write(users.remove_user, other, "ana@example.org")
    assert (await enter(here, "ana@example.org")).scope.tenant_id == here.tenant_id


async def test_who_is_taken_out_of_a_tenant_is_nobody_there_and_stays_elsewhere(here: World) -> None:
    ana, other = await member_of_two(here)
    await here.store.write(add_to_group, other, "buyers", "ana@example.org")
    token = await here.store.write(create_token, other, "ana-cli", role="viewer", email="ana@example.org")
    here_secret, there = (await enter(here, "ana@example.org")).secret, (await enter(here, "ana@example.org")).secret
    assert here_secret is not None
    assert there is not None
    there = await here.store.write(switch_tenant, ana, there, "wholesale")
    assert there is not None
    boss = Scope(other.tenant_id, await here.store.read(users.find_person, other.tenant_id, email="boss@example.org"))
    with pytest.raises(Conflict, match="last admin"):
        await here.store.write(users.remove_user, boss, "boss@example.org")
    await here.store.write(users.remove_user, boss, "ana@example.org")
    assert await visitor(here.store, there) is None
    assert await here.store.read(scope_for_token, token) is None
    assert await here.store.read(users.find_person, other.tenant_id, email="ana@example.org") is None
    left = await visitor(here.store, here_secret)
    assert left is not None
    assert left.scope.person is not None
    assert left.scope.person.groups == {"finance"}
    # added again, they begin anew
    await here.store.write(users.add_user, boss, "ana@example.org", role="viewer")
    again = await here.store.read(users.find_person, other.tenant_id, email="ana@example.org")
    assert again is not None
    assert (again.role, again.groups) == ("viewer", frozenset())
    assert await here.store.read(scope_for_token, token) is None


async def test_an_account_that_belongs_nowhere_else_is_deactivated_instead(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    await here.add("ana@example.org")
    with pytest.raises(Conflict, match="deactivate"):
        await here.store.write(users.remove_user, root, "ana@example.org")
