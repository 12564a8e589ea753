"""People, groups, sessions and tokens as an admin meets them without scripts, and what others see of it at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import sqlalchemy as sa

from signoff.people import sessions, tokens, users
from signoff.people.audit import A as AUDIT
from signoff.store.tx import Tx
from tests.web.world import PASSWORD, Site, csrf_of


async def post(client: httpx.AsyncClient, path: str, data: dict[str, Any], page: str = "/more") -> httpx.Response:
    """Send a form with the session's token."""
    return await client.post(path, data={"csrf": csrf_of((await client.get(page)).text), **data})


async def id_of(site: Site, email: str) -> int:
    person = await site.engine.store.read(users.find_person, site.engine.scope().tenant_id, email=email)
    assert person is not None
    assert person.user_id is not None
    return person.user_id


def disabled(html: str, label: str) -> str | None:
    """The reason that stands at a disabled button, by the element that describes it; None when it can be pressed."""
    button = re.search(rf"<button([^>]*)>{label}", html)
    assert button is not None, label
    if "disabled" not in button[1]:
        return None
    described = re.search(r'aria-describedby="([^"]+)"', button[1])
    assert described is not None, "a disabled button says why"
    text = re.search(rf'id="{described[1]}"[^>]*>.*?<span>(.*?)</span>', html, re.DOTALL)
    assert text is not None
    return text[1]


async def test_an_admin_adds_somebody_who_sets_a_password_and_comes_in(site: Site) -> None:
    async with site.signed_in("ada@example.org") as ada, site.client() as guest:
        added = await post(ada, "/people", {"email": "New@example.org", "name": "Nia", "role": "approver",
                                            "group": ["finance"]})  # fmt: skip
        link = re.search(r'value="(http[^"]+/setup/[^"]+)"', added.text)
        assert link is not None, added.text
        assert added.headers["cache-control"] == "no-store"
        data = {
            "csrf": csrf_of((await guest.get(link[1])).text),
            "name": "Nia",
            "password": PASSWORD,
            "again": PASSWORD,
        }
        assert (await guest.post(link[1], data=data)).status_code == 303
        assert "Nia" in (await guest.get("/more")).text
        listed = (await ada.get("/people?find=nia")).text
        assert "new@example.org" in listed
        assert "Ana Moreno" not in listed
        again = await post(ada, "/people", {"email": "new@example.org", "role": "viewer"})
        assert again.status_code == 409
        assert "already a user here" in again.text


async def test_a_role_counts_from_the_next_request_on(site: Site) -> None:
    vera = await id_of(site, "vera@example.org")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("vera@example.org") as client:
        assert (await client.get("/people")).status_code == 403
        assert 'href="/people"' not in (await client.get("/more")).text
        assert (await post(ada, f"/people/{vera}/role", {"role": "admin"})).status_code == 303
        assert (await client.get("/people")).status_code == 200
        assert 'href="/people"' in (await client.get("/more")).text
        refused = await post(ada, f"/people/{vera}/role", {"role": "boss"})
        assert refused.status_code == 422


async def test_the_last_admin_stays_and_the_buttons_say_so(site: Site) -> None:
    ada = await id_of(site, "ada@example.org")
    async with site.signed_in("ada@example.org") as client:
        page = (await client.get(f"/people/{ada}")).text
        assert "last admin" in (disabled(page, "Change the role") or "")
        assert "last admin" in (disabled(page, "Deactivate the account") or "")
        for path, data in ((f"/people/{ada}/role", {"role": "viewer"}), (f"/people/{ada}/deactivate", {})):
            answer = await post(client, path, data)
            assert answer.status_code == 409
            assert "last admin" in answer.text
        omar = await id_of(site, "omar@example.org")
        await post(client, f"/people/{omar}/role", {"role": "admin"})
        assert disabled((await client.get(f"/people/{ada}")).text, "Change the role") is None


async def test_deactivating_ends_everything_at_once_and_can_be_taken_back(site: Site) -> None:
    ana = await id_of(site, "ana@example.org")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("ana@example.org") as client:
        dialog = (await ada.get(f"/people/{ana}/deactivate")).text
        assert "signed out everywhere" in dialog
        assert (await post(ada, f"/people/{ana}/deactivate", {})).status_code == 303
        assert (await client.get("/approvals")).status_code == 303
        page = (await ada.get(f"/people/{ana}")).text
        assert "Activate it first" in (disabled(page, "Make a set-up link") or "")
        assert (await post(ada, f"/people/{ana}/activate", {})).status_code == 303
    async with site.signed_in("ana@example.org"):
        pass


async def test_groups_are_made_filled_and_emptied(site: Site) -> None:
    carl = await id_of(site, "carl@example.org")
    async with site.signed_in("ada@example.org") as ada:
        made = await post(ada, "/people/groups", {"name": "legal/eu"})
        path = made.headers["location"].split("?")[0]
        assert path == "/people/groups/legal%2Feu"
        assert (await post(ada, "/people/groups", {"name": "legal/eu"})).status_code == 409
        assert (await post(ada, f"{path}/add", {"email": "carl@example.org"})).status_code == 303
        assert "Carl Clerk" in (await ada.get(path)).text
        assert (await post(ada, f"{path}/add", {"email": "nobody@example.org"})).status_code == 422
        assert (await post(ada, f"{path}/remove", {"email": "carl@example.org"})).status_code == 303
        await post(ada, f"/people/{carl}/groups", {"group": ["finance"]})
        _, question = await site.order("o-1")
        async with site.signed_in("carl@example.org") as client:
            assert "Ship order o-1?" in (await client.get("/approvals")).text
            await post(ada, f"/people/{carl}/groups", {"had": ["finance"], "group": []})
            assert "Ship order o-1?" not in (await client.get("/approvals")).text
            answer = await post(client, f"/approvals/{question}", {"approved": "1", "boxes": "1", "revision": "1"})
            assert answer.status_code in (403, 422)


async def test_saving_the_groups_of_somebody_takes_back_nothing_that_another_admin_did_meanwhile(site: Site) -> None:
    carl = await id_of(site, "carl@example.org")

    async def known() -> frozenset[str]:
        person = await site.engine.store.read(users.find_person, site.engine.scope().tenant_id, user_id=carl)
        assert person is not None
        return person.groups

    async with site.signed_in("ada@example.org") as ada:
        for name in ("legal", "board"):
            await post(ada, "/people/groups", {"name": name})
        await post(ada, f"/people/{carl}/groups", {"group": ["finance", "board"]})
        page = (await ada.get(f"/people/{carl}")).text  # open while these two happen:
        await post(ada, "/people/groups/legal/add", {"email": "carl@example.org"})
        await post(ada, "/people/groups/board/remove", {"email": "carl@example.org"})
        ticked = re.findall(r'name="group" value="([^"]+)" checked', page)
        assert sorted(ticked) == ["board", "finance"]
        stale = {"had": re.findall(r'name="had" value="([^"]+)"', page), "group": ["board"]}
        assert (await post(ada, f"/people/{carl}/groups", stale)).status_code == 303
        assert await known() == {"legal"}, "finance was unticked here; board and legal are as the others left them"


async def test_sessions_are_told_apart_and_ended(site: Site) -> None:
    phone = {"user-agent": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1"}
    async with site.client(headers=phone) as other, site.signed_in("ana@example.org") as here:
        form = {"email": "ana@example.org", "password": PASSWORD, "csrf": csrf_of((await other.get("/sign-in")).text)}
        assert (await other.post("/sign-in", data=form)).status_code == 303
        page = (await here.get("/settings")).text
        assert "Safari on iPhone" in page
        assert "127.0.0.1" in page
        assert page.count("this one") == 1
        (key,) = re.findall(r"/settings/sessions/(\w+)/revoke", page)
        async with site.signed_in("omar@example.org") as omar:
            assert (await post(omar, f"/settings/sessions/{key}/revoke", {})).status_code == 404
        assert (await other.get("/settings")).status_code == 200
        assert (await post(here, f"/settings/sessions/{key}/revoke", {})).status_code == 303
        assert (await other.get("/settings")).status_code == 303
        assert "no other session" in (disabled((await here.get("/settings")).text, "End all other sessions") or "")
        async with site.signed_in("ana@example.org") as third:
            await post(here, "/settings/sessions/revoke-others", {})
            assert (await third.get("/settings")).status_code == 303
        assert (await here.get("/settings")).status_code == 200


async def test_a_person_changes_their_own_password_on_a_page_and_other_sessions_end(site: Site) -> None:
    fresh = "another horse battery"
    async with site.signed_in("ana@example.org") as here, site.signed_in("ana@example.org") as there:
        assert "all your other sessions end" in (await here.get("/settings")).text

        async def send(current: str, password: str, again: str | None = None) -> httpx.Response:
            data = {"current": current, "password": password, "again": password if again is None else again}
            return await post(here, "/settings/password", data)

        for data, name in (((PASSWORD, "short"), "password"), ((PASSWORD, fresh, "other"), "again"),
                           (("wrong one, this", fresh), "current"), (("", fresh), "current")):  # fmt: skip
            answer = await send(*data)
            assert answer.status_code == 422
            assert re.findall(r'aria-invalid="true"', answer.text) == ['aria-invalid="true"']
            assert f'id="{name}-error"' in answer.text
            assert fresh not in answer.text
        assert (await there.get("/settings")).status_code == 200
        forged = await here.post("/settings/password", data={"current": PASSWORD, "password": fresh, "again": fresh})
        assert forged.status_code == 403
        done = await send(PASSWORD, fresh)
        assert (done.status_code, done.headers["location"]) == (303, "/settings?done=password")
        assert "Your password is changed" in (await here.get(done.headers["location"])).text
        assert (await there.get("/settings")).status_code == 303
        answers = [(await send("wrong one, this", PASSWORD)).status_code for _ in range(6)]
        assert answers == [422] * 5 + [429]


async def test_who_signs_in_at_a_provider_reads_why_there_is_no_password_to_change(site: Site) -> None:
    async with site.signed_in("ana@example.org") as here:
        await site.engine.store.write(
            lambda tx: tx.conn.execute(sa.update(users.U).where(users.U.c.email == "ana@example.org")
                                       .values(password_hash=None))
        )  # fmt: skip
        page = (await here.get("/settings")).text
        assert "there is none here" in page
        assert "/settings/password" not in page
        data = {"current": PASSWORD, "password": PASSWORD, "again": PASSWORD}
        assert (await post(here, "/settings/password", data)).status_code == 409


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:"))


async def test_a_revoked_session_ends_its_stream_at_once(both_sites: Site) -> None:
    site = both_sites
    async with (
        site.signed_in("ana@example.org") as here,
        site.signed_in("ana@example.org") as there,
        there.stream("GET", "/live?topic=approvals") as answer,
    ):
        told = events(answer)
        assert (await anext(told))[0] == "hello"
        await post(here, "/settings/sessions/revoke-others", {})
        async with asyncio.timeout(5):  # long before the stream would look by itself
            assert [name async for name, _ in told][-1] == "gone"


async def test_a_changed_group_has_open_pages_look_again_at_once(site: Site) -> None:
    carl = await id_of(site, "carl@example.org")
    async with (
        site.signed_in("ada@example.org") as ada,
        site.signed_in("carl@example.org") as client,
        client.stream("GET", "/live?topic=approvals&topic=runs") as answer,
    ):
        told = events(answer)
        assert (await anext(told))[0] == "hello"
        await post(ada, f"/people/{carl}/groups", {"group": ["finance"]})
        async with asyncio.timeout(5):
            while (await anext(told))[0] != "topics":
                pass
        (stream,) = [one for one in site.app.state.live.streams.values() if one.scope.person.email[0] == "c"]
        assert stream.scope.person.groups == {"finance"}


async def test_a_token_is_shown_once_used_and_revoked(site: Site) -> None:
    async with site.signed_in("ada@example.org") as ada, site.client() as program:
        made = await post(ada, "/settings/tokens", {"name": "shop/eu", "role": "operator", "days": "30"})
        secret = re.search(r'value="(signoff_[^"]+)"', made.text)
        assert secret is not None
        assert secret[1] not in (await ada.get("/settings/tokens")).text
        bearer = {"authorization": f"Bearer {secret[1]}"}
        assert (await program.get("/api/v1/runs/none", headers=bearer)).status_code == 404
        assert (await post(ada, "/settings/tokens/shop%2Feu/revoke", {})).status_code == 303
        assert (await program.get("/api/v1/runs/none", headers=bearer)).status_code == 401
        for wrong in ({"name": "x", "role": "boss"}, {"name": "", "role": "viewer"},
                      {"name": "x", "role": "viewer", "days": "zero"},
                      {"name": "x", "role": "viewer", "email": "nobody@example.org"}):  # fmt: skip
            answer = await post(ada, "/settings/tokens", wrong)
            assert answer.status_code == 422, wrong


async def test_of_many_tokens_a_page_shows_some_and_leads_to_the_others(site: Site) -> None:
    def make(tx: Tx) -> None:
        for no in range(55):
            tokens.create_token(tx, site.engine.scope(), f"program {no:02}", role="viewer", email="ana@example.org")

    await site.engine.store.write(make)
    async with site.signed_in("ada@example.org") as ada:
        page = (await ada.get("/settings/tokens")).text
        assert ["program 54" in page, "program 05" in page, "program 04" in page] == [True, True, False]
        assert "acts for ana@example.org" in page
        older = re.search(r'href="(/settings/tokens\?before=\d+)"', page)
        assert older is not None
        page = (await ada.get(older[1])).text
        assert ["program 54" in page, "program 04" in page, "program 00" in page] == [False, True, True]
        assert (await ada.get("/settings/tokens/program%2004/revoke")).status_code == 200


async def test_names_that_nothing_can_have_are_not_found(both_sites: Site) -> None:
    async with both_sites.signed_in("ada@example.org") as ada:
        page = "/more"
        for path in ("/settings/tokens/%00/revoke", "/settings/sessions/%00/revoke", "/people/groups/%00/add",
                     f"/people/{10**30}/role", "/people/0/link"):  # fmt: skip
            answer = await post(ada, path, {"email": "ada@example.org", "role": "viewer"}, page)
            assert answer.status_code == 404, path
        removed = await post(ada, "/people/groups/%00/remove", {"email": "ada@example.org"}, page)
        assert removed.status_code in (404, 422)
        for path in (f"/people/{10**30}", "/people/groups/%00", "/settings/tokens/%00/revoke"):
            assert (await ada.get(path)).status_code == 404, path
        for name in ("%00", "%ED%A0%80", "x" * 300):
            found = await ada.get(f"/record/audit?person={name}&action={name}&target={name}")
            assert found.status_code == 200, name
        for path, data in (
            ("/people", {"email": "a\0@example.org", "role": "viewer"}),
            ("/people/groups", {"name": "\0"}),
            ("/settings/tokens", {"name": "\0", "role": "viewer"}),
            ("/settings/tokens", {"name": "x", "role": "viewer", "email": "\0@example.org"}),
        ):
            assert (await post(ada, path, data, page)).status_code == 422, path


async def test_what_is_done_and_refused_on_pages_is_on_record_with_its_door(site: Site) -> None:
    vera = await id_of(site, "vera@example.org")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("vera@example.org") as client:
        await post(ada, f"/people/{vera}/role", {"role": "approver"})
        assert (await post(client, f"/people/{vera}/role", {"role": "admin"})).status_code == 403
        refused = await client.post("/api/v1/runs", json={"workflow": "w"}, headers=site.bearer("viewer"))
        assert refused.status_code == 403
    rows = sa.select(AUDIT.c.actor, AUDIT.c.via, AUDIT.c.action, AUDIT.c.allowed, AUDIT.c.reason)
    rows = rows.where(AUDIT.c.action.in_(["user.set_role", "people.manage", "run.start"])).order_by(AUDIT.c.id)
    found = await site.engine.store.read(lambda tx: [tuple(row) for row in tx.conn.execute(rows)])
    assert found == [
        ("ada@example.org", "page", "user.set_role", True, None),
        ("vera@example.org", "page", "people.manage", False, "role"),
        (f"token:viewer-{id(site.engine)}", "api", "run.start", False, "role"),
    ]


async def test_who_takes_their_own_role_away_is_led_to_where_they_still_may_go(site: Site) -> None:
    omar, ada = await id_of(site, "omar@example.org"), await id_of(site, "ada@example.org")
    async with site.signed_in("ada@example.org") as client:
        await post(client, f"/people/{omar}/role", {"role": "admin"})
        answer = await post(client, f"/people/{ada}/role", {"role": "viewer"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_session_that_nobody_signed_in_to_lists_nothing(site: Site) -> None:
    scope = site.engine.scope()
    assert await site.engine.store.write(sessions.revoke_other_sessions, scope, "none") == 0
