"""Tenants on pages: from one to another without scripts, what is left behind, and how an admin makes them."""

from __future__ import annotations

import asyncio
import re

import pytest

from signoff.people import groups, identities, tenants, users
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web.providers import ProviderConfig
from tests.web.test_people import events, id_of, post
from tests.web.world import _HASH, PASSWORD, Site, csrf_of, running_site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def wholesale(site: Site) -> Scope:
    """A second tenant in which Ana is an admin, with a question to its group finance."""

    def make(tx: Tx) -> Scope:
        other = Scope(tenants.add_tenant(tx, site.engine.scope(), "wholesale", "Wholesale & Co"))
        users.add_user(tx, other, "boss@example.org", role="admin", password_hash=_HASH)
        users.add_user(tx, other, "ana@example.org", role="admin")
        groups.add_to_group(tx, other, "finance", "ana@example.org")
        return other

    return await site.engine.store.write(make)


async def test_somebody_goes_on_in_another_tenant_and_nothing_of_the_old_one_goes_along(both_sites: Site) -> None:
    site = both_sites
    other = await wholesale(site)
    run, ours = await site.order("ours")
    _, theirs = await site.order("theirs", tenant="wholesale")
    async with site.signed_in("ana@example.org") as ana:
        page = (await ana.get("/approvals")).text
        assert "Ship order ours?" in page
        assert "order theirs" not in page
        assert "Wholesale &amp; Co" in page
        old_form, old_cookies = csrf_of(page), dict(ana.cookies)
        async with ana.stream("GET", f"/live?topic=approvals&topic=run:{run.id}") as answer:
            told = events(answer)
            assert (await anext(told))[0] == "hello"
            switched = await post(ana, "/switch", {"tenant": "wholesale"})
            assert (switched.status_code, switched.headers["location"]) == (303, "/")
            async with asyncio.timeout(5):  # long before the stream would look by itself
                assert [name async for name, _ in told][-1] == "gone"
        page = (await ana.get("/approvals")).text
        assert "Ship order theirs?" in page
        assert "order ours" not in page
        assert (
            (await ana.get(f"/approvals/{ours}")).status_code == (await ana.get(f"/runs/{run.id}")).status_code == 404
        )
        assert (await ana.get("/people")).status_code == 200  # an admin here, an approver there
        # a form that was open in the old tenant decides nothing, and the old cookie opens nothing
        typed = {"csrf": old_form, "home": "default", "approved": "1", "f.boxes": "1", "revision": "1"}
        origin = {"origin": site.address}
        kept = await ana.post(f"/approvals/{ours}", data=typed, headers=origin)
        assert kept.status_code == 403
        assert "You went on to Wholesale &amp; Co" in kept.text
        assert 'name="tenant" value="default"' in kept.text, "there it can be put back; here it would be lost"
        typed["csrf"] = csrf_of(kept.text)
        assert (await post(ana, "/switch", {"tenant": "default"})).status_code == 303
        again = await ana.post(f"/approvals/{ours}", data={**typed, "form-keep": "1"}, headers=origin)
        assert "One more press" in again.text
        assert (await post(ana, "/switch", {"tenant": "wholesale"})).status_code == 303
        async with site.client(cookies=old_cookies) as thief:
            assert (await thief.get("/approvals")).headers["location"].startswith("/sign-in")
        assert (await post(ana, "/switch", {"tenant": "nowhere"})).status_code == 404
        assert (await ana.post("/switch", data={"tenant": "default"})).status_code == 403  # without the token
        assert (await ana.get(f"/approvals/{theirs}")).status_code == 200
    async with site.signed_in("ana@example.org") as again:  # where she was last
        assert "Ship order theirs?" in (await again.get("/approvals")).text
        # whoever is taken out while a page is open loses it at once, and signs in to what is left
        await site.engine.store.write(users.remove_user, other, "ana@example.org")
        assert (await again.get("/approvals")).status_code == 303
    async with site.signed_in("ana@example.org") as back:
        page = (await back.get("/approvals")).text
        assert "Ship order ours?" in page
        assert 'action="/switch"' not in page


async def test_an_admin_makes_a_tenant_whose_first_admin_comes_in(site: Site) -> None:
    async with site.signed_in("ada@example.org") as ada, site.client() as nia:
        form = {"name": "wholesale", "title": "Wholesale & Co", "email": "nia@example.org", "person": "Nia"}
        made = await post(ada, "/settings/tenants", form)
        assert made.headers["cache-control"] == "no-store"
        link = re.search(r'value="(http[^"]+/setup/[^"]+)"', made.text)
        assert link is not None
        typed = {"name": "Nia", "password": PASSWORD, "again": PASSWORD}
        form = {"csrf": csrf_of((await nia.get(link[1])).text), **typed}
        assert (await nia.post(link[1], data=form)).status_code == 303
        assert re.findall(r"(\w+)@example\.org</span>", (await nia.get("/people")).text) == ["nia"]
        assert (await nia.get("/settings/tenants")).status_code == 403
        assert "/settings/tenants" not in (await nia.get("/settings")).text
        listed = (await ada.get("/settings/tenants")).text
        assert "Wholesale &amp; Co" in listed
        assert "1 person" in listed
        again = await post(ada, "/settings/tenants", {"name": "wholesale", "email": "eve@example.org"})
        assert again.status_code == 409
        assert 'value="eve@example.org"' in again.text
        assert (await post(ada, "/settings/tenants", {"name": "x", "email": "nobody"})).status_code == 422
        # who has an account already needs no link
        mine = await post(ada, "/settings/tenants", {"name": "retail", "email": "ada@example.org"})
        assert mine.headers["location"] == "/settings/tenants?done=made"
        renamed = await post(ada, "/settings/tenants/retail/rename", {"title": "Retail"})
        assert renamed.status_code == 303
        assert ">Retail<" in (await ada.get("/more")).text  # in the menu of those who belong to it
        assert (await post(ada, "/settings/tenants/nowhere/rename", {"title": "x"})).status_code == 404
        assert (await ada.get("/settings/tenants/nowhere/rename")).status_code == 404


@pytest.mark.parametrize("switch", [False, True])
async def test_a_provider_of_one_tenant_opens_the_others_only_if_its_settings_say_so(
    sqlite_url: str, switch: bool
) -> None:
    provider = ProviderConfig(
        id="example", name="Example", issuer="https://id.example.org", client_id="signoff", switch=switch
    )
    async with running_site(sqlite_url, providers=[provider]) as site, site.client() as ana:
        other = await wholesale(site)
        arrival = identities.Arrival(
            provider="example", issuer="https://id.example.org", subject="1", email="new@example.org",
            email_verified=True, name="Nia", role="approver", role_follows=False, groups=frozenset(),
            managed=frozenset(), trusted=False, switch=switch,
        )  # fmt: skip

        async def arrive() -> int:
            visitor = await site.engine.store.write(
                identities.admit, site.engine.scope().tenant_id, arrival, address="192.0.2.1", agent=None, old=None
            )
            ana.cookies.set(f"signoff-{site.address.rpartition(':')[2]}", visitor.secret or "")
            return visitor.scope.tenant_id

        assert await arrive() == site.engine.scope().tenant_id
        await site.engine.store.write(users.add_user, other, "new@example.org", role="viewer")
        answer = await post(ana, "/switch", {"tenant": "wholesale"})
        if switch:
            assert answer.status_code == 303
            assert await arrive() == other.tenant_id  # where they were last
            return
        assert answer.status_code == 403
        assert "Example, where you signed in, leads into this one only." in answer.text
        assert await arrive() == site.engine.scope().tenant_id
        async with site.signed_in("ada@example.org") as ada:
            page = (await ada.get("/record/audit?action=tenant.enter&refused=yes")).text
            assert "wholesale" in page


async def test_an_account_of_another_tenant_is_added_after_a_question(site: Site) -> None:
    await wholesale(site)
    form = {"email": "Boss@example.org", "name": "Bo", "role": "viewer", "group": "finance"}
    async with site.signed_in("ada@example.org") as ada:
        asked = await post(ada, "/people", form)
        assert asked.status_code == 409
        assert "boss@example.org has an account already. An admin of another tenant made it" in asked.text
        assert "may know its password" in asked.text
        assert "Wholesale" not in asked.text
        (answer,) = re.findall(r'name="existing" value="([^"]+)" required', asked.text)
        assert 'name="group" value="finance" checked' in asked.text
        other = await post(ada, "/people", {**form, "email": "ana2@example.org", "existing": answer})
        assert other.status_code == 200, "a new account needs no answer"
        assert (await post(ada, "/people", {**form, "existing": "ana@example.org"})).status_code == 409
        assert "boss@example.org" not in (await ada.get("/people?find=boss")).text
        added = await post(ada, "/people", {**form, "existing": answer})
        assert added.status_code == 303
        assert "boss@example.org" in (await ada.get(added.headers["location"])).text


async def test_many_groups_are_looked_for_on_the_page_of_a_person(site: Site) -> None:
    def make(tx: Tx) -> None:
        for number in range(60):
            groups.make_group(tx, site.engine.scope(), f"team {number:02}")
        groups.add_to_group(tx, site.engine.scope(), "team 59", "ana@example.org")

    await site.engine.store.write(make)
    async with site.signed_in("ada@example.org") as ada:
        link = re.search(r'href="(/people/\d+)"', (await ada.get("/people?find=ana@")).text)
        assert link is not None
        page = (await ada.get(link[1])).text
        assert "There are more groups" in page
        assert re.findall(r'name="group" value="([^"]+)" checked', page) == ["finance", "team 59"]
        assert "team 57" not in page
        found = (await ada.get(f"{link[1]}?find=EAM%2057")).text
        assert re.findall(r'name="group" value="([^"]+)"', found) == ["finance", "team 57", "team 59"]
        saved = await post(ada, f"{link[1]}/groups", {"had": ["finance", "team 59"], "group": ["finance", "team 57"]})
        assert saved.status_code == 303
        page = (await ada.get(link[1])).text
        assert re.findall(r'name="group" value="([^"]+)" checked', page) == ["finance", "team 57"]
        dialog = (await ada.get("/people/add")).text
        assert dialog.count('name="group"') == 50
        assert "There are more groups" in dialog


async def test_a_group_is_deleted_after_saying_what_that_means(site: Site) -> None:
    _, question = await site.order("o-1")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("omar@example.org") as omar:
        dialog = (await ada.get("/people/groups/finance/delete")).text
        assert "Its 2 members stay here" in dialog
        assert "1 open question names it among those who may answer. Nobody could answer it then" in dialog
        assert f'href="/approvals/{question}">Ship order o-1?</a>' in dialog
        deleted = await post(ada, "/people/groups/finance/delete", {})
        assert deleted.headers["location"] == "/people/groups?done=deleted"
        assert (await ada.get("/people/groups/finance")).status_code == 404
        assert "Ship order o-1?" in (await omar.get("/approvals?tab=stuck")).text
        assert (await post(ada, "/people/groups/finance/delete", {})).status_code == 404
        assert (await post(omar, "/people/groups/finance/delete", {})).status_code == 403


async def test_a_group_that_a_provider_fills_is_not_deleted(sqlite_url: str) -> None:
    mapped = {"id": "example", "name": "Example", "issuer": "https://id.example.org", "client_id": "signoff"}
    provider = ProviderConfig(**mapped, groups={"fin-eu": "finance"})  # type: ignore[arg-type]  # plain texts
    async with running_site(sqlite_url, providers=[provider]) as site, site.signed_in("ada@example.org") as ada:
        assert "Example would make it again" in (await ada.get("/people/groups/finance/delete")).text
        refused = await post(ada, "/people/groups/finance/delete", {})
        assert refused.status_code == 409
        assert "Example would make it again" in refused.text
        assert (await ada.get("/people/groups/finance")).status_code == 200


async def test_lists_of_people_are_pages_of_a_size_whatever_their_number(site: Site) -> None:
    def fill(tx: Tx) -> None:
        for number in range(120):
            users.add_user(tx, site.engine.scope(), f"p{number:03}@example.org", name=f"Person {number}")
            groups.add_to_group(tx, site.engine.scope(), "finance", f"p{number:03}@example.org")
            users.add_user(tx, site.engine.scope(), f"q{number:03}@example.org")

    await site.engine.store.write(fill)
    async with site.signed_in("ada@example.org") as ada:
        for path, total in (("/people", "245 people"), ("/people/groups/finance", "122 members")):
            seen: list[str] = []
            address = path
            while address:
                page = (await ada.get(address)).text
                assert total in page
                assert len(page) < 120_000
                rows = re.findall(r'href="/people/(\d+)"', page)
                assert len(rows) <= 50
                seen += rows
                more = re.search(rf'href="([^"]+)" rel="next">More {total.split()[1]}', page)
                address = more[1].replace("&amp;", "&") if more is not None else ""
            assert len(seen) == len(set(seen)) == int(total.split()[0])
        found = (await ada.get("/people/groups/finance?find=q00")).text
        assert "0 members of 122 match" in found
        (email,) = re.findall(r'name="email" value="(q007@[^"]+)"', found)
        added = await post(ada, "/people/groups/finance/add", {"email": email, "find": "q00"})
        assert added.headers["location"] == "/people/groups/finance?done=member&find=q00"
        assert "1 member of 123 matches" in (await ada.get(added.headers["location"])).text
        assert "10 people of 245 match" in (await ada.get("/people?find=p00+person")).text
        assert "122 members" not in (await ada.get("/people/groups")).text
        assert "and 120 more" in (await ada.get("/people/groups")).text
        assert (await ada.get("/people?after=999999999")).status_code == 200
        assert (await ada.get("/people?after=x&find=%00")).status_code == 200


async def test_who_belongs_elsewhere_too_is_taken_out_instead_of_deactivated(site: Site) -> None:
    await wholesale(site)
    ana = await id_of(site, "ana@example.org")
    carl = await id_of(site, "carl@example.org")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("ana@example.org") as client:
        assert "Take them out" in (await ada.get(f"/people/{ana}")).text
        assert "out of default" in (await ada.get(f"/people/{ana}/remove")).text
        assert (await post(ada, f"/people/{carl}/remove", {})).status_code == 409
        assert (await post(ada, f"/people/{ana}/remove", {})).headers["location"] == "/people?done=left"
        assert (await ada.get(f"/people/{ana}")).status_code == 404
        assert (await client.get("/approvals")).status_code == 303
    async with site.signed_in("ana@example.org") as client:
        assert "Wholesale" not in (await client.get("/more")).text  # one tenant is no choice


async def test_of_several_who_make_the_same_at_once_one_does_and_the_others_read_it(both_sites: Site) -> None:
    made: dict[str, dict[str, str]] = {
        "/settings/tenants": {"name": "twice", "email": "first@example.org"},
        "/people": {"email": "new@example.org", "role": "viewer"},
        "/people/groups": {"name": "twice"},
    }
    async with both_sites.signed_in("ada@example.org") as ada:
        csrf = csrf_of((await ada.get("/settings")).text)
        for path, data in made.items():
            answers = await asyncio.gather(*(ada.post(path, data={**data, "csrf": csrf}) for _ in range(6)))
            codes = sorted(answer.status_code for answer in answers)
            assert codes[0] in (200, 303), path
            assert codes[1:] == [409] * 5, path
