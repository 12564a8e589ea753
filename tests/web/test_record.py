"""The record on pages and over the API, as an admin finds it."""

from __future__ import annotations

import csv
import io
import json
import re

import sqlalchemy as sa

from signoff.approvals import ledger
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.people.audit import audit
from signoff.people.chain import LEDGER, seal_pending
from signoff.people.tokens import create_token
from signoff.store.tx import Tx
from signoff.web.pages.record import _details as details_of
from tests.web.desk import question
from tests.web.world import Site


async def decided(site: Site, *names: str) -> None:
    for name in names:
        run, _ = await site.order(name)
        await run.decide("web/ship", {"approved": False, "boxes": 1, "note": "=1+1"}, by="ana@example.org")
    await site.engine.store.write(seal_pending)


async def test_the_ledger_is_shown_with_its_seals_and_taken_along(site: Site) -> None:
    await decided(site, "o-1", "o-2")
    async with site.signed_in("ada@example.org") as ada, site.signed_in("omar@example.org") as omar:
        page = (await ada.get("/record")).text
        assert "As it was written" in page
        assert "2 rows are sealed" in page
        assert "by a program" in page
        assert page.count('<span class="sub">Reject</span>') == 2, "what was decided"
        assert page.index("Ship order o-2?") < page.index("Ship order o-1?")
        lines = await ada.get("/record/ledger.jsonl")
        assert lines.headers["content-disposition"] == 'attachment; filename="signoff-ledger.jsonl"'
        assert [json.loads(line)["content"]["title"] for line in lines.text.splitlines()] == [
            "Ship order o-1?", "Ship order o-2?"
        ]  # fmt: skip
        table = await ada.get("/record/ledger.csv")
        assert table.headers["content-type"].startswith("text/csv")
        assert [row["actor"] for row in csv.DictReader(io.StringIO(table.text))] == ["ana@example.org"] * 2
        for path in ("/record", "/record/audit", "/record/ledger.csv"):
            assert (await omar.get(path)).status_code == 403


async def test_next_to_an_option_stands_what_people_pressed_while_the_question_is_there(site: Site) -> None:
    run = await site.engine.start(question, "Is it?")
    await site.question(run)
    await run.decide("desk/plain", True, option="yes", by="ana@example.org")
    await site.engine.store.write(seal_pending)
    async with site.signed_in("ada@example.org") as ada:

        async def labels() -> list[str | None]:
            assert "As it was written" in (await ada.get("/record")).text
            (line,) = map(json.loads, (await ada.get("/record/ledger.jsonl")).text.splitlines())
            (row,) = csv.DictReader(io.StringIO((await ada.get("/record/ledger.csv")).text))
            assert (line["content"]["option"], row["option"]) == ("yes", "yes")
            return [line["label"], row["label"]]

        assert await labels() == ["Approve", "Approve"]
        assert "Approve (yes)" in re.sub("<[^>]+>", "", (await ada.get("/record")).text)
        await site.engine.store.write(lambda tx: tx.conn.execute(sa.delete(D)).rowcount)
        await site.engine.store.write(lambda tx: tx.conn.execute(sa.delete(A)).rowcount)
        assert await labels() == [None, ""]


async def test_a_record_that_was_changed_is_said_loudly_and_the_row_is_marked(site: Site) -> None:
    await decided(site, "o-1", "o-2")
    row = await site.engine.store.read(lambda tx: tx.conn.execute(sa.select(sa.func.min(LEDGER.c.id))).scalar_one())
    changed = sa.update(LEDGER).where(LEDGER.c.id == row).values(actor="eve@example.org")
    await site.engine.store.write(lambda tx: tx.conn.execute(changed).rowcount)
    async with site.signed_in("ada@example.org") as ada:
        page = (await ada.get("/record")).text
        assert "The record is not as it was written" in page
        assert f"Row {row} is not what was written" in page
        assert page.count("row-broken") == 1


async def test_the_api_gives_the_ledger_to_admins_only(site: Site) -> None:
    await decided(site, "o-1")
    secret = await site.engine.store.write(create_token, site.engine.scope(), "books", role="admin")
    async with site.client() as client:
        bearer = {"authorization": f"Bearer {secret}"}
        lines = await client.get("/api/v1/ledger", headers=bearer)
        assert [json.loads(line)["kind"] for line in lines.text.splitlines()] == ["decision"]
        table = await client.get("/api/v1/ledger?format=csv", headers=bearer)
        assert table.text.startswith(",".join(ledger.CSV_COLUMNS) + "\r\n")
        assert (await client.get("/api/v1/ledger?format=xml", headers=bearer)).status_code == 422
        refused = await client.get("/api/v1/ledger", headers=site.bearer("operator"))
        assert (refused.status_code, refused.json()["reason"]) == (403, "role")


async def test_the_audit_log_is_searched_and_read_page_by_page(site: Site) -> None:
    scope = site.engine.scope()

    def fill(tx: Tx) -> None:
        for i in range(120):
            audit(tx, scope, "test.deed", f"target-{i:03}", allowed=i % 2 == 0, reason=None if i % 2 == 0 else "role")

    await site.engine.store.write(fill)
    async with site.signed_in("ada@example.org") as ada:
        seen: list[str] = []
        path = "/record/audit?action=test.&refused=yes"
        while path:
            text = (await ada.get(path)).text
            seen += re.findall(r"target-(\d{3})", text)
            older = re.search(r'href="([^"]+)" rel="next"', text)
            path = older[1].replace("&amp;", "&") if older else ""
        assert seen == [f"{i:03}" for i in reversed(range(1, 120, 2))]
        assert "target-007" in (await ada.get("/record/audit?target=GET-007")).text
        assert "Nothing on record matches" in (await ada.get("/record/audit?person=nobody")).text
        for odd in ("since=9999-99-99", "until=9999-12-31", "before=x", "before=" + "9" * 30, "target=%00"):
            assert (await ada.get(f"/record/audit?{odd}")).status_code == 200, odd


def test_what_was_changed_is_told_in_words() -> None:
    given = {"from": {"user": "ana@example.org"}, "to": [{"user": "bo@example.org"}, {"group": "finance"}], "by": None}
    assert details_of(json.dumps(given)) == "from ana@example.org, to bo@example.org and group finance"
    assert details_of('{"from": "approver", "to": "admin"}') == "from approver, to admin"
