from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signoff.people import users as users_of
from signoff.people.audit import audit_page
from signoff.people.groups import add_to_group, find_groups, list_groups, remove_from_group
from signoff.people.sessions import find_session, open_session
from signoff.people.tenants import ensure_tenant, tenant_id
from signoff.people.users import (
    add_user,
    find_person,
    find_users,
    list_users,
    password_link,
    people,
    set_active,
    set_password,
    set_role,
)
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from tests.people.world import World


async def test_a_user_is_listed_with_role_and_groups(here: World) -> None:
    await here.add(" Ana@Example.org ", "approver", "finance", "legal", name="Ana")
    (user,) = await here.store.read(list_users, here.embedded)
    assert (user.email, user.name, user.role, user.active) == ("ana@example.org", "Ana", "approver", True)
    assert (user.groups, user.has_password) == (("finance", "legal"), False)


@pytest.mark.parametrize(
    "email",
    [
        "",
        "ana",
        "a b@example.org",
        "ana@",
        "@example.org",
        "a\n@example.org",
        "a\ud800@example.org",
        "a" * 260 + "@x.org",
    ],
)
async def test_what_is_no_address_is_refused(here: World, email: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await here.store.write(add_user, here.embedded, email)
    assert [field.loc for field in caught.value.fields] == [("email",)]


async def test_an_unknown_role_is_refused(here: World) -> None:
    with pytest.raises(InvalidInput):
        await here.add("ana@example.org", "boss")


async def test_nobody_is_added_twice(here: World) -> None:
    await here.add("ana@example.org")
    with pytest.raises(Conflict):
        await here.add("ANA@example.org")


@pytest.mark.parametrize("role", ["viewer", "approver", "operator"])
async def test_only_admins_manage_people(here: World, role: str) -> None:
    scope = await here.add("ana@example.org", role)
    calls: list[tuple[Any, ...]] = [
        (add_user, "bob@example.org"),
        (set_role, "ana@example.org", "admin"),
        (set_password, "ana@example.org", "x"),
        (password_link, "ana@example.org"),
        (set_active, "ana@example.org", False),
        (add_to_group, "g", "ana@example.org"),
        (remove_from_group, "g", "ana@example.org"),
        (list_users,),
        (list_groups,),
        (audit_page,),
    ]
    for use_case, *args in calls:
        with pytest.raises(Refused) as caught:
            await here.store.write(use_case, scope, *args)
        assert (caught.value.reason, caught.value.needs) == ("role", "admin")


async def test_the_last_admin_stays(here: World) -> None:
    await here.add("root@example.org", "admin")
    for use_case, value in ((set_role, "viewer"), (set_active, False)):
        with pytest.raises(Conflict):
            await here.store.write(use_case, here.embedded, "root@example.org", value)
    await here.add("two@example.org", "admin")
    await here.store.write(set_role, here.embedded, "root@example.org", "viewer")


async def test_the_last_admin_of_another_tenant_stays_too(here: World) -> None:
    """An account is deactivated everywhere at once, from wherever that is done."""
    other = Scope(await here.store.write(ensure_tenant, "other"))
    await here.store.write(add_user, other, "root@example.org", role="admin")
    await here.store.write(add_user, here.embedded, "root@example.org", role="viewer")
    with pytest.raises(Conflict):
        await here.store.write(set_active, here.embedded, "root@example.org", False)
    await here.store.write(add_user, other, "two@example.org", role="admin")
    await here.store.write(set_active, here.embedded, "root@example.org", False)


async def test_two_admins_who_demote_each_other_at_once_leave_one(here: World) -> None:
    await here.add("a@example.org", "admin")
    await here.add("b@example.org", "admin")
    await asyncio.gather(
        *(here.store.write(set_role, here.embedded, email, "viewer") for email in ("a@example.org", "b@example.org")),
        return_exceptions=True,
    )
    assert [user.role for user in await here.store.read(list_users, here.embedded)].count("admin") == 1


async def test_users_and_groups_of_one_tenant_are_nothing_in_another(here: World) -> None:
    await here.add("ana@example.org", "admin", "finance")
    other = Scope(await here.store.write(ensure_tenant, "other"))
    assert await here.store.read(list_users, other) == []
    assert await here.store.read(list_groups, other) == []
    assert await here.store.read(find_person, other.tenant_id, email="ana@example.org") is None
    for use_case, *args in (
        (set_role, "ana@example.org", "viewer"),
        (set_active, "ana@example.org", False),
        (password_link, "ana@example.org"),
        (add_to_group, "finance", "ana@example.org"),
    ):
        with pytest.raises(NotFound):
            await here.store.write(use_case, other, *args)  # type: ignore[arg-type]  # several signatures
    await here.store.write(add_user, other, "ana@example.org", role="viewer")
    person = await here.store.read(find_person, other.tenant_id, email="ana@example.org")
    assert person is not None
    assert (person.role, person.groups) == ("viewer", frozenset())


async def test_an_admin_does_not_take_over_an_account_that_other_tenants_have_too(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    await here.add("ana@example.org")
    other = Scope(await here.store.write(ensure_tenant, "other"))
    await here.store.write(add_user, other, "ana@example.org", role="admin")
    for use_case, *args in ((set_password, "x"), (password_link,), (set_active, False)):
        with pytest.raises(Refused) as caught:
            await here.store.write(use_case, root, "ana@example.org", *args)  # type: ignore[arg-type]  # as above
        assert caught.value.reason == "other_tenants"
    await here.store.write(set_role, root, "ana@example.org", "viewer")


async def test_a_deactivated_account_is_nobody_and_its_sessions_end(here: World) -> None:
    ana = await here.add("ana@example.org")
    assert ana.person is not None
    secret, _ = await here.store.write(
        open_session, user_id=ana.person.user_id, tenant_id=here.tenant_id, role="approver"
    )
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    assert await here.store.read(find_person, here.tenant_id, email="ana@example.org") is None
    assert await here.store.read(find_session, secret) is None
    assert await here.store.read(people, here.tenant_id) == []
    await here.store.write(set_active, here.embedded, "ana@example.org", True)
    assert (await here.scope("ana@example.org")).person == ana.person


async def test_groups_are_joined_and_left(here: World) -> None:
    await here.add("ana@example.org", "approver", "finance")
    await here.add("bob@example.org", "approver", "finance")
    await here.store.write(add_to_group, here.embedded, "finance", "ana@example.org")
    (group,) = await here.store.read(list_groups, here.embedded)
    assert (group.name, group.members) == ("finance", ("ana@example.org", "bob@example.org"))
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    with pytest.raises(NotFound):
        await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    with pytest.raises(InvalidInput):
        await here.store.write(add_to_group, here.embedded, "a\tb", "ana@example.org")
    found = await here.store.read(people, here.tenant_id)
    assert {person.email: person.groups for person in found} == {
        "ana@example.org": frozenset(),
        "bob@example.org": frozenset({"finance"}),
    }


async def test_what_admins_do_is_in_the_audit_log(here: World) -> None:
    root = await here.add("root@example.org", "admin")
    await here.store.write(add_user, root, "ana@example.org")
    await here.store.write(set_role, root, "ana@example.org", "viewer")
    newest = await here.store.read(audit_page, root, limit=2)
    assert [(row.action, row.actor, row.target, row.allowed) for row in newest] == [
        ("user.set_role", "root@example.org", "ana@example.org", True),
        ("user.add", "root@example.org", "ana@example.org", True),
    ]
    assert newest[0].detail == '{"from":"approver","to":"viewer"}'
    older = await here.store.read(audit_page, root, before=newest[-1].id)
    assert [(row.action, row.actor) for row in older] == [("user.add", None)]


async def test_tenants_are_made_once(here: World) -> None:
    assert await here.store.write(ensure_tenant) == here.tenant_id
    with pytest.raises(NotFound):
        await here.store.read(tenant_id, "nowhere")


def test_only_whole_addresses_count() -> None:
    assert users_of.clean_email(" Ana@EXAMPLE.org\n") == "ana@example.org"


async def test_people_and_groups_are_found_page_by_page_and_counted(here: World) -> None:
    def fill(tx: Tx) -> None:
        for number in range(25):
            add_user(tx, here.embedded, f"p{number:02}@example.org", name=f"Person {number}")
            add_to_group(tx, here.embedded, "odd" if number % 2 else "EVEN_1", f"p{number:02}@example.org")
        other = Scope(ensure_tenant(tx, "other"))
        add_user(tx, other, "p99@example.org")
        add_to_group(tx, other, "odd", "p99@example.org")
        set_active(tx, here.embedded, "p02@example.org", False)

    await here.store.write(fill)

    async def walk(find: str = "", **options: Any) -> list[str]:
        after, seen = None, []
        while True:
            page = await here.store.read(find_users, here.embedded, find, after=after, limit=10, **options)
            seen += [user.email for user in page.rows]
            assert [user.groups for user in page.rows if len(user.groups) != 1] == []
            if page.after is None:
                assert page.matching == len(seen)
                return seen
            assert len(page.rows) == 10
            after = page.after

    everybody = [f"p{number:02}@example.org" for number in range(25)]
    assert await walk() == everybody
    assert await walk(group="odd") == everybody[1::2]
    assert await walk(group="odd", outside=True) == [email for email in everybody[::2] if email != "p02@example.org"]
    assert await walk("PERSON p1") == everybody[10:20]
    assert await walk("even_1 p2") == everybody[20::2]
    assert await walk("100%") == await walk("a\x00b") == []
    assert await walk("%") == []

    page = await here.store.read(find_groups, here.embedded, "", limit=1)
    rest = await here.store.read(find_groups, here.embedded, "", limit=1, after=page.after)
    lines = [*page.rows, *rest.rows]
    assert sorted((line.name, line.members, line.some) for line in lines) == [
        ("EVEN_1", 13, ("p00@example.org", "p02@example.org", "p04@example.org")),
        ("odd", 12, ("p01@example.org", "p03@example.org", "p05@example.org")),
    ]
    assert (page.matching, rest.after) == (2, None)
    assert [line.name for line in (await here.store.read(find_groups, here.embedded, "even_")).rows] == ["EVEN_1"]
    assert (await here.store.read(find_groups, here.embedded, "e%n")).rows == []
