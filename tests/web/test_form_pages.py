"""Forms on their pages, sent as a browser without scripts sends them: rows, drafts, secrets, and the start of a run."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx

from signoff.web import forms
from tests.web.desk import publish
from tests.web.filling import typed
from tests.web.kinds import FILLED, SECRET, Kinds
from tests.web.world import Site, all_kinds, csrf_of, kinds_workflow


def filled() -> dict[str, list[str]]:
    """As somebody fills it in who means `FILLED`."""
    return {**typed(forms.build(all_kinds.codec.json_schema()), FILLED), "f.key*": [SECRET]}


async def kinds_question(site: Site) -> tuple[Any, str]:
    run = await site.engine.start(kinds_workflow)
    return run, await site.question(run)


async def opened(client: httpx.AsyncClient, question: str) -> dict[str, list[str]]:
    page = (await client.get(f"/approvals/{question}")).text
    return {"csrf": [csrf_of(page)], "revision": ["1"]}


async def test_every_kind_of_field_arrives_as_its_json_would(both_sites: Site) -> None:
    site = both_sites
    run, question = await kinds_question(site)
    async with site.signed_in("ana@example.org") as client:
        answer = await client.post(f"/approvals/{question}", data={**await opened(client, question), **filled()})
        assert answer.status_code == 303, re.findall(r"error-summary.*?</ul>", answer.text, re.DOTALL)
    value = Kinds.model_validate(await run.result(timeout=10), from_attributes=True)
    assert value == Kinds.model_validate_json(json.dumps({**FILLED, "key": SECRET}))
    assert value.key.get_secret_value() == SECRET


async def test_a_row_is_added_and_removed_by_a_post_and_nothing_typed_is_lost(site: Site) -> None:
    _, question = await kinds_question(site)
    sent = filled()
    async with site.signed_in("ana@example.org") as client:
        base = await opened(client, question)
        answer = await client.post(f"/approvals/{question}", data={**base, **sent, "form-add": "f.contacts.3.phones"})
        assert answer.status_code == 200
        assert "error-summary" not in answer.text
        names = re.findall(r'name="([^"]+)"', answer.text)
        assert "f.contacts.3.phones.0" in names
        answer = await client.post(f"/approvals/{question}", data={**base, **sent, "form-remove": "f.contacts.0"})
        names = re.findall(r'name="([^"]+)"', answer.text)
        assert "f.contacts.0.name" not in names
        assert "f.contacts.3.name" in names
        assert "first line\nsecond line" in answer.text
        assert SECRET.strip() not in answer.text
        assert "a secret is not kept in a page" in answer.text


async def test_what_is_typed_is_a_draft_until_it_is_sent(both_sites: Site) -> None:
    site = both_sites
    _, question = await kinds_question(site)
    sent = filled()
    async with site.signed_in("ana@example.org") as client:
        base = await opened(client, question)
        key = f"/drafts/approval%3A{question}"
        answer = await client.post(key, data={**base, **sent, "f.boxes": "7 or so", "other": "x"})
        assert answer.status_code == 204
    async with site.signed_in("ana@example.org") as client:  # signed in anew, perhaps elsewhere
        page = (await client.get(f"/approvals/{question}")).text
        assert "Filled in with what you typed" in page
        assert 'value="7 or so"' in page
        assert SECRET.strip() not in page
        base["csrf"] = [csrf_of(page)]
        answer = await client.post(f"/approvals/{question}", data={**base, **sent})
        assert answer.status_code == 303
        await client.post(key, data={**base, **sent})  # the page's last word comes late
    kept = await site.engine.store.read(
        lambda tx: tx.conn.exec_driver_sql("SELECT count(*) FROM signoff_draft").scalar()
    )
    assert kept == 0


async def test_secrets_are_in_no_draft(site: Site) -> None:
    _, question = await kinds_question(site)
    async with site.signed_in("ana@example.org") as client:
        base = await opened(client, question)
        await client.post(f"/approvals/{question}", data={**base, **filled(), "f.boxes": "none"})
    text = await site.engine.store.read(lambda tx: tx.conn.exec_driver_sql("SELECT data FROM signoff_draft").scalar())
    assert "first line" in text
    assert "s3cret" not in text


async def test_drafts_are_their_owners_alone(site: Site) -> None:
    _, question = await kinds_question(site)
    key = f"/drafts/approval%3A{question}"
    async with site.signed_in("ana@example.org") as ana, site.signed_in("ada@example.org") as ada:
        await ana.post(key, data={**await opened(ana, question), "f.title": "what ana typed"})
        assert "what ana typed" not in (await ada.get(f"/approvals/{question}")).text
        theirs = await opened(ada, question)
        await ada.post(key, data={**theirs, "discard": "/"})
        page = (await ana.get(f"/approvals/{question}")).text
        assert "what ana typed" in page
        answer = await ana.post(key, data={"csrf": csrf_of(page), "discard": f"/approvals/{question}"})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/approvals/{question}")
        assert "what ana typed" not in (await ana.get(f"/approvals/{question}")).text


async def test_the_form_of_an_option_is_a_draft_too(site: Site) -> None:
    question = await site.question(await site.engine.start(publish, "Beaches"))
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get(f"/approvals/{question}")).text
        names = re.findall(r'name="(o\d[^"]*)"', page)
        assert set(names) == {"o1.what"}
        typed_so_far = {"o1.what": "half a thought", "option": "changes", "comment": "why"}
        data = {"csrf": csrf_of(page), "revision": "1", **typed_so_far}
        assert (await client.post(f"/drafts/approval%3A{question}", data=data)).status_code == 204
        page = (await client.get(f"/approvals/{question}")).text
        assert "half a thought" in page
        opened_by = page.split("half a thought")[0].rpartition("<details")[2]
        assert opened_by.startswith(' class="option option-more" name="option" open')
        assert page.count(">\nwhy</textarea>") == 1


async def test_what_was_typed_outlives_a_question_that_somebody_else_answered(site: Site) -> None:
    _, question = await site.order("o-conflict")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("ada@example.org") as ada:
        mine = {**await opened(ana, question), "f.boxes": "2", "f.note": "what I typed"}
        theirs = {**await opened(ada, question), "f.boxes": "1", "f.approved": "true"}
        assert (await ada.post(f"/approvals/{question}", data=theirs)).status_code == 303
        answer = await ana.post(f"/approvals/{question}", data={**mine, "f.approved": "true"})
        assert answer.status_code == 409
        assert "what I typed" in answer.text


async def test_a_run_is_started_from_its_page_and_only_once(both_sites: Site) -> None:
    site = both_sites
    path = "/workflows/web%2Fstart/start"
    async with site.signed_in("omar@example.org") as client:
        assert f'href="{path}"' in (await client.get("/workflows")).text
        page = (await client.get(path)).text
        assert "Started from its page." in page
        assert "is not shown" not in page
        nonce = re.search(r'name="nonce" value="([^"]+)"', page)
        assert nonce is not None
        data = {
            "csrf": csrf_of(page), "nonce": nonce[1], "f.order": "o 1", "f.boxes": "4", "o.labels#": ["0"],
            "o.labels.0.k": "team", "o.labels.0.v": "blue", "o.run_at": "", "o.run_at~": "UTC", "o.idempotency_key": "",
        }  # fmt: skip
        first, again = await asyncio.gather(client.post(path, data=data), client.post(path, data=data))
        assert first.status_code == again.status_code == 303, first.text
        assert first.headers["location"] == again.headers["location"]
        run = site.engine.run(first.headers["location"].rsplit("/", 1)[1])
        assert await run.result(timeout=10) == "o 1 4"
        assert (await run.status()).labels == {"team": "blue"}
        other = await client.post(path, data={**data, "f.boxes": "5"})
        assert other.status_code == 409
        assert "started a run already" in other.text
        assert nonce[1] not in other.text


async def test_rows_of_both_parts_of_a_start_come_by_a_post(site: Site) -> None:
    path = "/workflows/web%2Fstart/start"
    async with site.signed_in("omar@example.org") as client:
        data = {"csrf": csrf_of((await client.get(path)).text), "f.order": "o-1", "f.kinds!": "1"}
        page = (await client.post(path, data={**data, "form-add": "o.labels"})).text
        assert 'name="o.labels.0.k"' in page
        assert 'value="o-1"' in page
        page = (await client.post(path, data={**data, "form-add": "f.kinds.tags"})).text
        assert 'name="f.kinds.tags.0"' in page


async def test_errors_of_a_start_stand_beside_their_fields(site: Site) -> None:
    path = "/workflows/web%2Fstart/start"
    async with site.signed_in("omar@example.org") as client:
        page = (await client.get(path)).text
        data = {"csrf": csrf_of(page), "f.order": "o-1", "f.boxes": "many", "f.kinds!": "1", "f.kinds.boxes": "40"}
        answer = await client.post(path, data=data)
        assert answer.status_code == 422
        assert 'id="field-boxes-error"' in answer.text
        assert "Kinds, colour" in answer.text
        fine = {"csrf": csrf_of(page), "f.order": "o-1", "f.boxes": "3"}
        for moment in ("soon", "2026-99-99T08:00Z", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"):
            wrong = await client.post(path, data={**fine, "o.run_at": moment, "o.run_at~": "UTC"})
            assert wrong.status_code == 422
            assert 'run_at-error"' in wrong.text
            assert '<details class="fold start-more" open>' in wrong.text
        label = await client.post(path, data={**fine, "o.labels.0.k": "te\nam", "o.labels.0.v": "x"})
        assert label.status_code == 422
        assert "control character" in label.text
        assert 'value="many"' in answer.text
        assert 'value="o-1"' in (await client.get(path)).text, "it is a draft"


async def test_what_is_too_much_for_a_draft_still_stands_in_the_form_beside_its_errors(site: Site) -> None:
    _, question = await kinds_question(site)
    much = "long" * 75_000
    async with site.signed_in("ana@example.org") as client:
        answer = await client.post(f"/approvals/{question}", data={**await opened(client, question), "f.title": much})
        assert answer.status_code == 422
        assert much in answer.text
    async with site.signed_in("omar@example.org") as client:
        path = "/workflows/web%2Fstart/start"
        data = {"csrf": csrf_of((await client.get(path)).text), "f.order": much, "f.boxes": "many"}
        answer = await client.post(path, data=data)
        assert answer.status_code == 422
        assert much in answer.text


async def test_who_may_not_start_runs_sees_no_form(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        assert (await client.get("/workflows/web%2Fstart/start")).status_code == 403
        assert "Start<span" not in (await client.get("/workflows")).text.split("<main")[1]


async def test_a_form_that_was_open_past_the_end_of_its_session_is_put_back(site: Site) -> None:
    """Without scripts nothing was saved on the way; the page that says so carries what was typed, but for secrets."""
    _, question = await kinds_question(site)
    ours = {"sec-fetch-site": "same-origin"}
    async with site.signed_in("ana@example.org") as client:
        sent = {**await opened(client, question), **filled()}
        await client.post("/sign-out", data={"csrf": sent["csrf"]})
        answer = await client.post(f"/approvals/{question}", data={**sent, "f.approved": "true"}, headers=ours)
        assert answer.status_code == 403
        assert "You were signed out" in answer.text
        assert "first line" in answer.text
        assert SECRET.strip() not in answer.text
        foreign = await client.post(f"/approvals/{question}", data=sent)
        assert "first line" not in foreign.text, "only what came from a page of ours is shown"
    async with site.signed_in("ana@example.org") as client:  # in another tab
        again = await client.post(f"/approvals/{question}", data={**sent, "form-keep": "1"}, headers=ours)
        assert "One more press" in again.text
        back = await client.post(
            f"/approvals/{question}", data={**sent, "csrf": csrf_of(again.text), "form-keep": "1"}, headers=ours
        )
        assert back.status_code == 200
        assert "first line" in back.text
        assert "You answered" not in back.text
        assert "first line" in (await client.get(f"/approvals/{question}")).text
