"""The inbox and the page of a question as a browser without scripts meets them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa

from signoff.approvals.questions import A
from signoff.approvals.thread import comment
from signoff.approvals.views import NOTES
from signoff.people import groups, users
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web import backend
from tests.web.desk import expense, publish, question
from tests.web.world import PEOPLE, Site, csrf_of, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

TABS = {"mine", "groups", "requested", "decided", "all", "stuck"}


async def asks(site: Site, title: str, team: str = "finance", due: float | None = None, **options: Any) -> str:
    return await site.question(await site.engine.start(question.options(**options), title, team, due))


async def post(client: httpx.AsyncClient, path: str, **data: str) -> httpx.Response:
    page = await client.get("/more")
    return await client.post(path, data={"csrf": csrf_of(page.text), **data})


def titles(html: str) -> list[str]:
    return re.findall(r'<strong class="inbox-title">([^<]*)</strong>', html)


def waiting(html: str) -> int:
    """Rows that wait for the person who looks."""
    return len(re.findall(r"<li[^>]* data-mine>", html))


def badge_of(html: str) -> int:
    found = re.search(r'id="badge"[^>]*data-count="(\d+)"', html)
    assert found is not None
    return int(found[1])


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest_asyncio.fixture(loop_scope="session")
async def desk(site: Site) -> AsyncIterator[Site]:
    """One question of each kind that a tab could hold."""
    await asks(site, "For finance", requester="omar@example.org", idempotency_key="k-1")
    await asks(site, "For legal", "legal", requester="ana@example.org")
    await asks(site, "Late one", due=0.001)
    yield site


@pytest.mark.parametrize("email", list(PEOPLE))
async def test_every_tab_of_every_role_says_as_many_as_it_shows_and_the_badge_too(desk: Site, email: str) -> None:
    async with desk.signed_in(email) as client:
        page = (await client.get("/approvals")).text
        tabs = re.findall(r'<a href="(/approvals[^"]*)"[^>]*>([^<]+?) <span class="tab-count[^>]*>(\d+)</span>', page)
        shown = {parse_qs(urlsplit(href).query).get("tab", ["mine"])[0]: int(count) for href, _, count in tabs}
        operator = PEOPLE[email][1] in ("operator", "admin")
        assert set(shown) == (TABS if operator else TABS - {"all", "stuck"}) - {"decided"}
        for tab, count in shown.items():
            assert len(titles((await client.get(f"/approvals?tab={tab}")).text)) == count, tab
        assert badge_of(page) == shown["mine"] == waiting(page)
        if not operator:
            assert titles((await client.get("/approvals?tab=all")).text) == titles(page), "an address opens no tab"


async def test_rows_say_all_that_is_needed_to_choose(desk: Site) -> None:
    async with desk.signed_in("ana@example.org") as client:
        page = (await client.get("/approvals")).text
        assert titles(page) == ["Late one", "For finance"], "what is overdue stands first"
        rows = text_of(page[page.index('<ol class="inbox" ') : page.index("</ol>")])
        for words in ("was due", "desk/question · k-1 · Omar Lind", "waiting"):
            assert words in rows
        csrf = csrf_of(page)
        approval = re.findall(r'id="item-(ap_\w+)"', page)[1]
        async with desk.signed_in("ada@example.org") as ada:
            await post(ada, f"/approvals/{approval}/claim")
        assert titles((await client.get("/approvals")).text) == ["Late one"]
        assert "Ada Admin works on it" in (await client.get("/approvals?tab=groups")).text
        assert csrf


async def test_filters_and_search_stand_in_the_address(desk: Site) -> None:
    async with desk.signed_in("ana@example.org") as client:
        for query, found in (
            ("due=overdue", ["Late one"]), ("q=finance+k-1", ["For finance"]), ("tab=requested", ["For legal"]),
            ("requester=omar@example.org", ["For finance"]), ("workflow=desk/question&q=late", ["Late one"]),
            ("claim=me", []), ("q=%25%27%22%3Cb%3E", []),
        ):  # fmt: skip
            page = (await client.get(f"/approvals?{query}")).text
            assert titles(page) == found, query
            if not found:
                assert "No question matches" in page
        page = (await client.get("/approvals?due=overdue&q=late")).text
        assert 'href="/approvals?q=late"' in page, "a filter is taken away by itself"
        link = re.search(r'<li[^>]*id="item-[^>]*>\s*<a href="([^"]+)"', page)
        assert link is not None
        assert "due=overdue" in link[1], "an opened question keeps the list that it was opened from"
        assert titles((await client.get(link[1].replace("&amp;", "&"))).text) == ["Late one"]


async def test_a_long_list_turns_pages(site: Site) -> None:
    for number in range(53):
        await site.engine.start(question, f"Question {number:02}")

    async def all_asked() -> bool:
        return await site.engine.store.read(lambda tx: tx.conn.execute(sa.select(sa.func.count(A.c.id))).scalar()) == 53

    await eventually(all_asked, within=60)
    async with site.signed_in("ana@example.org") as client:
        first = (await client.get("/approvals")).text
        assert badge_of(first) == 53
        more = re.search(r'href="(/approvals\?after=[^"]+)" rel="next"', first)
        assert more is not None
        both = titles(first) + titles((await client.get(more[1])).text)
        assert sorted(both) == [f"Question {number:02}" for number in range(53)]


async def test_a_list_that_is_read_keeps_its_rows_and_says_what_is_new(site: Site) -> None:
    first, second = await asks(site, "First"), await asks(site, "Second")
    async with site.signed_in("ana@example.org") as client, site.signed_in("ada@example.org") as ada:
        page = (await client.get("/approvals")).text
        live = re.search(r'hx-get="(/approvals/rows[^"]+)"', page)
        assert live is not None
        assert (await post(ada, f"/approvals/{first}", revision="1", option="yes")).status_code == 303
        await asks(site, "Third")
        rows = (await client.get(live[1].replace("&amp;", "&"))).text
        assert titles(rows) == ["First", "Second"]
        assert "Ada Admin answered “Approve”" in text_of(rows)
        assert "1 new" in rows
        assert waiting(rows) == 1
        assert titles((await client.get("/approvals")).text) == ["Second", "Third"]
        assert second


async def test_a_gate_without_fields_is_one_press_and_leads_to_the_next(site: Site) -> None:
    one, two = await asks(site, "One?"), await asks(site, "Two?")
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get("/approvals")).text
        assert f'action="/approvals/{one}"' in page, "the first question stands beside the list"
        data = {"revision": "1", "option": "yes", "then": "next"}
        answer = await post(client, f"/approvals/{one}", **data)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/approvals/{two}?then=next&receipt={one}")
        following = (await client.get(answer.headers["location"])).text
        assert "Two?" in following
        assert re.search(r"Receipt \d+", following)
        assert re.search(r'name="then" value="next" checked', following) is None, "nothing is left after this one"
        last = await post(client, f"/approvals/{two}", **data)
        receipt = text_of((await client.get(last.headers["location"])).text)
        assert "You answered" in receipt
        assert re.search(r"Receipt \d+ .*The run (goes on|completed)\.", receipt)
        assert "step 0" not in receipt[: receipt.index("How we got here")], "its own number is for the engine detail"


async def test_an_answer_that_a_script_sends_twice_is_taken_once(both_sites: Site) -> None:
    """As a page does whose server went away before it could say that the answer was taken."""
    run, asked = await both_sites.order("o-twice")
    async with both_sites.signed_in("ana@example.org") as client:
        data = {
            "csrf": csrf_of((await client.get("/more")).text),
            "revision": "1",
            "f.approved": "true",
            "f.boxes": "2",
        }
        for _ in range(2):
            sent = await client.post(f"/approvals/{asked}", data=data, headers={"x-sent-by": "script"})
            assert (sent.status_code, sent.headers["x-next"]) == (204, f"/approvals/{asked}")
        other = await client.post(f"/approvals/{asked}", data=data | {"f.approved": "false"})
        assert other.status_code == 409
    (view,) = await run.approvals()
    assert len(view.decisions) == 1


async def test_each_option_says_what_it_does_and_takes_its_own_form(site: Site) -> None:
    run = await site.engine.start(publish, "Ten beaches")
    asked = await site.question(run)
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get(f"/approvals/{asked}")).text
        for words in ("Goes live at once.", "Goes back to the author.", "The draft is archived.", "87.125"):
            assert words in page
        assert len(set(re.findall(r' id="([^"]+)"', page))) == len(re.findall(r' id="([^"]+)"', page))
        missing = await post(client, f"/approvals/{asked}", revision="1", option="archive")
        assert missing.status_code == 422
        assert "Say why." in missing.text
        empty = await post(client, f"/approvals/{asked}", revision="1", option="changes", **{"o1.what": ""})
        assert empty.status_code == 422
        assert 'id="error-summary"' in empty.text
        assert (await post(client, f"/approvals/{asked}", revision="1", option="nonsense")).status_code == 422
        taken = await post(client, f"/approvals/{asked}", revision="1", option="changes", **{"o1.what": "The <title>"})
        assert taken.status_code == 303, taken.text
        receipt = (await client.get(f"/approvals/{asked}")).text
        assert "Ask for changes" in receipt
        assert "The &lt;title&gt;" in receipt
    assert await run.result(timeout=10) == "changes"


async def test_the_engine_detail_is_the_question_as_the_api_gives_it_and_counts_steps_as_it_does(site: Site) -> None:
    run, asked = await site.order("o-1")
    async with site.signed_in("ana@example.org") as ana:
        for answered in (False, True):
            if answered:
                ship = {"revision": "1", "f.approved": "true", "f.boxes": "1"}
                taken = await post(ana, f"/approvals/{asked}", **ship)
                assert taken.status_code == 303, taken.text
                await run.result(timeout=10)
            page = (await ana.get(f"/approvals/{asked}")).text
            shown = re.search(r'aria-label="The question as JSON"><code>(.*?)</code>', page, re.DOTALL)
            assert shown is not None
            as_told = (await ana.get(f"/api/v1/approvals/{asked}", headers=site.bearer("viewer"))).json()
            told, whole = json.loads(unescape(shown[1])), (await ana.get(f"/approvals/{asked}/question.json")).json()
            # whoever asks the API here is somebody else
            assert told | {"why_not": None} == whole | {"why_not": None} == as_told | {"why_not": None}
        (after,) = [step for step in await run.steps() if step.kind == "action"]
        assert f"The run went on with “Web: label”. Step {after.no}" in text_of(page)


async def test_several_deciders_see_how_far_it_is(site: Site) -> None:
    run = await site.engine.start(expense.options(requester="carl@example.org"), "1,240.00")
    asked = await site.question(run)
    answers = {"revision": "1", "option": "pay"}
    async with (
        site.signed_in("ana@example.org") as ana, site.signed_in("ada@example.org") as ada,
        site.signed_in("omar@example.org") as omar,
    ):  # fmt: skip
        assert (await post(ana, f"/approvals/{asked}", **answers)).status_code == 303
        mine = text_of((await ana.get(f"/approvals/{asked}")).text)
        assert "Your answer is recorded." in mine
        assert "1 of 3" in mine
        assert titles((await ana.get("/approvals")).text) == [], "who has answered is not asked again"
        assert "1 of 3" in text_of((await ada.get("/approvals")).text)
        page = (await omar.get(f"/approvals/{asked}")).text
        assert re.search(r"Ana Moreno\s*: Pay it", text_of(page))
        assert re.search(
            r"1 of 2\s*anyone in finance\s*, to come\s*0 of 1\s*omar@example.org\s*, to come", text_of(page)
        )
        found = (await ana.get(f"/api/v1/approvals/{asked}", headers=site.bearer("viewer"))).json()
        assert [(part["words"], part["have"], part["need"]) for part in found["progress"]["parts"]] == [
            ("anyone in finance", 1, 2), ("omar@example.org", 0, 1),
        ]  # fmt: skip
        again = await post(ana, f"/approvals/{asked}", revision="1", option="deny", comment="no")
        assert again.status_code == 409
        assert "You decided at" in again.text
        assert (await post(ada, f"/approvals/{asked}", **answers)).status_code == 303
        assert (await post(omar, f"/approvals/{asked}", **answers)).status_code == 303
        done = (await ana.get(f"/approvals/{asked}")).text
        assert "Omar Lind answered as the last of 3" in done
        receipt = done[done.index('id="decision-state"') : done.index("Watch the run")]
        assert re.findall(r"(You|Ada Admin|Omar Lind) ?: Pay it", text_of(receipt)) == ["You", "Ada Admin", "Omar Lind"]
        assert receipt.count('class="receipt') == 1, "one card, a line for each decision"
        rows = text_of((await omar.get("/approvals?tab=decided")).text)
        assert re.search(r"Ana Moreno: Pay it .*Ada Admin: Pay it .*You: Pay it", rows)
    assert await run.result(timeout=10) == 3


async def test_claim_comment_and_release(both_sites: Site) -> None:
    site = both_sites
    asked = await asks(site, "Mine?")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("ada@example.org") as ada:
        assert (await post(ana, f"/approvals/{asked}/claim")).status_code == 303
        theirs = (await ada.get(f"/approvals/{asked}")).text
        assert "Ana Moreno works on it" in text_of(theirs)
        assert re.search(r'aria-disabled="true" aria-describedby="why"[^>]*>Approve', theirs)
        assert "You cannot answer this. Ana Moreno works on it; release the claim to answer it." in text_of(theirs)
        refused = await post(ada, f"/approvals/{asked}", revision="1", option="yes")
        assert refused.status_code == 409
        assert "has claimed this question" in refused.text
        assert (await post(ada, f"/approvals/{asked}/comment", reason="Why <so> late?\nReally")).status_code == 303
        assert "Why &lt;so&gt; late?" in (await ana.get(f"/approvals/{asked}")).text
        empty = await post(ada, f"/approvals/{asked}/comment", reason=" ")
        assert empty.status_code == 422
        assert (await post(ana, f"/approvals/{asked}/release")).status_code == 303
        assert (await post(ada, f"/approvals/{asked}", revision="1", option="yes")).status_code == 303


async def test_changes_of_who_answers_are_made_with_a_reason(site: Site) -> None:
    asked = await asks(site, "Whose?")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("carl@example.org") as carl:
        dialog = (await ana.get(f"/approvals/{asked}/delegate")).text
        assert "on your behalf" in dialog
        assert 'value="user:ana@example.org"' not in dialog
        assert 'value="user:ada@example.org"' not in dialog, "who is asked anyway answers in their own name"
        assert 'value="user:carl@example.org"' in dialog
        wrong = await post(ana, f"/approvals/{asked}/delegate", to="user:carl@example.org")
        assert wrong.status_code == 422
        assert 'id="reason-error"' in wrong.text
        assert 'value="user:carl@example.org" selected' in wrong.text
        for doing, says in (("delegate", "Choose who answers."), ("reassign", "Choose whom to ask.")):
            nobody = await post(ana, f"/approvals/{asked}/{doing}", to="", reason="On leave")
            assert (nobody.status_code, re.findall(r'id="to-error">.*?<span>(.*?)</span>', nobody.text)) == (
                422,
                [says],
            )
        done = await post(ana, f"/approvals/{asked}/delegate", to="user:carl@example.org", reason="On leave")
        assert (done.status_code, done.headers["location"]) == (303, f"/approvals/{asked}")
        assert titles((await carl.get("/approvals")).text) == ["Whose?"]
        assert titles((await ana.get("/approvals")).text) == []
        theirs = (await carl.get(f"/approvals/{asked}")).text
        assert "On leave" in theirs
        assert "For anyone in finance or carl@example.org" in text_of(theirs), "who answers for her is named"
        assert (await post(carl, f"/approvals/{asked}", revision="1", option="yes")).status_code == 303
        assert "on behalf of" in text_of((await ana.get(f"/approvals/{asked}")).text)


async def test_of_a_long_thread_the_newest_entries_stand_on_the_page_and_all_on_request(site: Site) -> None:
    asked = await asks(site, "Long?")
    scope = site.engine.scope()
    ana = Scope(
        scope.tenant_id, await site.engine.store.read(users.find_person, scope.tenant_id, email="ana@example.org")
    )

    def talk(tx: Tx) -> None:
        for no in range(NOTES + 1):
            comment(tx, ana, asked, f"No. {no}!", via="page")

    await site.engine.store.write(talk)
    async with site.signed_in("ana@example.org") as client:
        newest, whole = [(await client.get(f"/approvals/{asked}{query}")).text for query in ("", "?thread=all")]
        assert (newest.count('class="note-comment"'), "No. 0!" in newest) == (NOTES, False)
        assert f'href="/approvals/{asked}?thread=all#thread"' in newest
        assert (whole.count('class="note-comment"'), "No. 0!" in whole) == (NOTES + 1, True)
        live = re.search(r'id="decision-state"[^>]*hx-get="([^"]+)"', whole)
        assert live is not None
        assert "No. 0!" in (await client.get(unescape(live[1]))).text, "what comes live is the whole thread too"
        for query, count in (("", NOTES), ("?thread=all", NOTES + 1)):
            told = (await client.get(f"/api/v1/approvals/{asked}{query}", headers=site.bearer("viewer"))).json()
            assert (len(told["notes"]), told["more_notes"]) == (count, count == NOTES)


async def test_among_many_whom_to_ask_is_found_by_name(both_sites: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialog with everybody in it would be as large as the firm."""
    site = both_sites
    monkeypatch.setattr(backend, "LOOKED_AT", 7)  # they are looked at in parts

    def hire(tx: Tx) -> None:
        for no in range(60):
            users.add_user(tx, site.engine.scope(), f"p{no:02}@example.org", name=f"Ada Person {no:02}")
            groups.make_group(tx, site.engine.scope(), f"team {no:02}")

    await site.engine.store.write(hire)
    asked = await asks(site, "Whose?")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("omar@example.org") as omar:
        dialog = (await ana.get(f"/approvals/{asked}/delegate?tab=groups")).text
        assert dialog.count("<option") == 51
        assert "p59@example.org" not in dialog
        assert '<input type="hidden" name="tab" value="groups">' in dialog, "the list that it was opened from stays"
        found = (await ana.get(f"/approvals/{asked}/delegate?find=PERSON+59")).text
        assert found.count("<option") == 2
        assert 'value="user:p59@example.org"' in found
        wrong = await post(ana, f"/approvals/{asked}/delegate", to="user:p59@example.org", find="person 59")
        assert wrong.status_code == 422
        assert 'value="user:p59@example.org" selected' in wrong.text
        dialog = (await omar.get(f"/approvals/{asked}/add?find=team+59")).text
        assert re.findall('value="(group:[^"]+)"', dialog) == ["group:team 59"]
        assert "Nobody matches" in (await omar.get(f"/approvals/{asked}/add?find=%00")).text


async def test_what_one_may_not_do_says_why_and_who_may(site: Site) -> None:
    asked = await site.question(await site.engine.start(publish, "Beaches"))
    async with site.signed_in("carl@example.org") as carl:
        page = (await carl.get(f"/approvals/{asked}")).text
        for button in re.findall(r"<button[^>]*aria-disabled[^>]*>", page):
            names = re.search(r'aria-describedby="([^"]+)"', button)
            assert names is not None, button
            assert all(f'id="{name}"' in page for name in names[1].split()), button
        assert "An operator can do this, and those whom the question waits for: anyone in finance" in page
        assert "This question is put to anyone in finance, and you are not among them." in page
        assert (
            await post(carl, f"/approvals/{asked}/reassign", to="user:carl@example.org", reason="x")
        ).status_code == 403
        add = await carl.get(f"/approvals/{asked}/add")
        assert "Only an operator can ask others besides." in add.text
        assert (await carl.get(f"/approvals/{asked}/nonsense")).status_code == 404


async def test_a_question_that_nobody_can_answer_offers_what_can_be_done(site: Site) -> None:
    asked = await asks(site, "Who?", "legal", due=3600.0)
    async with site.signed_in("omar@example.org") as omar:
        assert "1 question that nobody can answer" in text_of((await omar.get("/approvals")).text)
        assert titles((await omar.get("/approvals?tab=stuck")).text) == ["Who?"]
        page = (await omar.get(f"/approvals/{asked}")).text
        assert "Nobody can answer this" in page
        for deed in ("add", "extend"):
            assert f'href="/approvals/{asked}/{deed}"' in page
        assert "/cancel" in page
        added = await post(omar, f"/approvals/{asked}/add", to="user:carl@example.org", reason="Knows it")
        assert added.status_code == 303
        assert "Nobody can answer this" not in (await omar.get(f"/approvals/{asked}")).text
        extended = await post(omar, f"/approvals/{asked}/extend", amount="2", unit="hours")
        assert extended.status_code == 303
        assert (await post(omar, f"/approvals/{asked}/extend", amount="none")).status_code == 422
    async with site.signed_in("carl@example.org") as carl:
        assert titles((await carl.get("/approvals")).text) == ["Who?"]


async def test_membership_lost_while_the_page_was_open(site: Site) -> None:
    asked = await asks(site, "Still?")
    async with site.signed_in("ana@example.org") as ana:
        csrf = csrf_of((await ana.get(f"/approvals/{asked}")).text)
        await site.engine.store.write(groups.remove_from_group, site.engine.scope(), "finance", "ana@example.org")
        late = await ana.post(f"/approvals/{asked}", data={"csrf": csrf, "revision": "1", "option": "yes"})
        assert late.status_code == 403
        assert "you are not among them" in late.text
        assert titles((await ana.get("/approvals")).text) == []


async def test_the_decide_page_costs_less_than_50_kb_without_a_cache(site: Site) -> None:
    asked = await site.question(await site.engine.start(publish, "Beaches"))
    async with site.signed_in("ana@example.org") as client:

        async def size(path: str) -> tuple[int, str]:
            async with client.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
                assert answer.status_code == 200
                raw = b"".join([part async for part in answer.aiter_raw()])
            return len(raw), answer.headers.get("content-encoding", "")

        page = (await client.get(f"/approvals/{asked}")).text
        files = set(re.findall(r'(?:href|src|data-live-worker)="(/static/[^"]+)"', page))
        assert len(files) >= 5
        total = (await size(f"/approvals/{asked}"))[0] + sum([(await size(path))[0] for path in files])
        assert total < 50_000


async def test_no_page_tells_the_token_by_its_size(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        tokens = {csrf_of((await client.get("/more")).text) for _ in range(3)}
        assert len(tokens) == 3, "the same token looks different each time"
        for token in tokens:
            answer = await client.post("/preferences/theme", data={"csrf": token, "theme": "dark", "next": "/more"})
            assert answer.status_code == 303


async def test_numbers_that_no_column_holds_break_no_page(both_sites: Site) -> None:
    approval = await asks(both_sites, "How many?")
    page = f"/approvals/{approval}"
    async with both_sites.signed_in("ana@example.org") as client:
        for number in ("9" * 30, "9" * 5000, "3000000000"):
            assert (await client.get(f"{page}/state", params={"revision": number})).status_code == 200
            rows = await client.get("/approvals/rows", params={"seen": approval, "newest": number})
            assert rows.status_code == 200
            assert (await post(client, f"/drafts/approval:{approval}", revision=number, comment="x")).status_code == 204
            assert (await post(client, page, revision=number)).status_code == 422
            assert (await client.get("/approvals", params={"after": f"1-1-1-{number}{'9' * 20}"})).status_code == 422


async def test_keys_are_explained_on_a_page_of_their_own(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get("/keyboard")).text
        assert page.count("<kbd>") >= 10
        assert "No key decides by itself" in page
