"""Pages as a browser without scripts meets them: forms that post and lead on, refusals in words, and who sees what."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from signoff.engine.outcomes import R
from signoff.engine.recovery import W
from signoff.people import links
from tests.web.world import GATES, PASSWORD, Gate, Site, csrf_of, eventually, form_workflow

SIGN_IN = {"email": "ana@example.org", "password": PASSWORD}


async def test_a_stranger_is_led_to_sign_in_and_back(site: Site) -> None:
    async with site.client() as client:
        answer = await client.get("/runs?status=failed")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/runs%3Fstatus%3Dfailed")
        page = await client.get(answer.headers["location"])
        csrf, after = csrf_of(page.text), re.search(r'name="next" value="([^"]+)"', page.text)
        assert after is not None
        answer = await client.post("/sign-in", data={**SIGN_IN, "csrf": csrf, "next": after[1]})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?status=failed")


async def test_the_session_cookie_is_out_of_reach_of_scripts_and_other_sites(site: Site) -> None:
    async with site.client() as client:
        page = await client.get("/sign-in")
        answer = await client.post("/sign-in", data={**SIGN_IN, "csrf": csrf_of(page.text)})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert site.address.rsplit(":", 1)[1] in cookie.split("=")[0], (
            "two servers on one host keep their sessions apart"
        )


async def test_a_wrong_password_says_so_and_keeps_the_address(site: Site) -> None:
    async with site.client() as client:
        page = await client.get("/sign-in")
        answer = await client.post(
            "/sign-in", data={"email": "ana@example.org", "password": "wrong", "csrf": csrf_of(page.text)}
        )
        assert answer.status_code == 401
        assert "That does not match" in answer.text
        assert 'value="ana@example.org"' in answer.text
        assert "wrong" not in answer.text.split("<main")[1]


async def test_guessing_is_slowed_down(site: Site) -> None:
    async with site.client() as client:
        csrf = csrf_of((await client.get("/sign-in")).text)
        data = {"email": "ana@example.org", "password": "wrong", "csrf": csrf}
        codes = [(await client.post("/sign-in", data=data)).status_code for _ in range(6)]
        assert codes == [401] * 5 + [429]


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example/x", "/\\evil.example"])
async def test_sign_in_leads_to_no_other_site(site: Site, target: str) -> None:
    async with site.client() as client:
        csrf = csrf_of((await client.get("/sign-in")).text)
        answer = await client.post("/sign-in", data={**SIGN_IN, "csrf": csrf, "next": target})
        assert answer.headers["location"] == "/"


async def test_signing_out_ends_the_session_on_the_server(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        kept = dict(client.cookies)
        page = await client.get("/runs")
        await client.post("/sign-out", data={"csrf": csrf_of(page.text)})
        async with site.client(cookies=kept) as thief:
            assert (await thief.get("/runs")).status_code == 303


async def test_a_set_up_link_makes_an_account_once(site: Site) -> None:
    def link_of(tx: Any) -> str:
        from signoff.people import users

        users.add_user(tx, site.engine.scope(), "new@example.org", role="approver")
        return users.password_link(tx, site.engine.scope(), "new@example.org")

    link = await site.engine.store.write(link_of)
    path = link if link.startswith("/") else f"{links.SETUP_PATH}{link}"
    async with site.client() as client:
        page = await client.get(path)
        data = {"csrf": csrf_of(page.text), "name": "Nia New", "password": "short", "again": "short"}
        refused = await client.post(path, data=data)
        assert refused.status_code == 422
        assert 'value="Nia New"' in refused.text
        assert 'id="password-error"' in refused.text
        data |= {"password": PASSWORD, "again": PASSWORD}
        made = await client.post(path, data=data)
        assert (made.status_code, made.headers["location"]) == (303, "/")
        assert "Nia New" in (await client.get("/approvals")).text
        assert (await client.get(path)).status_code == 410


# -- forgery and headers


@pytest.mark.parametrize("path", ["/approvals/x", "/runs/x/cancel", "/sign-out", "/preferences/theme", "/live/x"])
async def test_a_post_without_the_sessions_token_does_nothing(site: Site, path: str) -> None:
    async with site.signed_in("ana@example.org") as client:
        for data in ({}, {"csrf": "x" * 43}):
            assert (await client.post(path, data=data)).status_code == 403
        csrf = csrf_of((await client.get("/runs")).text)
        elsewhere = {"origin": "https://evil.example"}
        assert (await client.post(path, data={"csrf": csrf}, headers=elsewhere)).status_code == 403
        cross = {"sec-fetch-site": "cross-site"}
        assert (await client.post(path, data={"csrf": csrf}, headers=cross)).status_code == 403


async def test_cookies_of_other_programs_on_the_host_do_no_harm(site: Site) -> None:
    odd = ["a/b=1", "a(b)=1", "a,b=1", 'prefs={"a": 1, "b": "c d"}', "=1", "flag", 'x="open', "path=/", "\xe9=\xff"]
    async with site.signed_in("ana@example.org") as client:
        ours = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    async with site.client() as client:
        for other in odd:
            cookies = f"{other}; {ours}".encode("latin-1")
            assert (await client.get("/runs", headers={b"cookie": cookies})).status_code == 200, other


async def test_an_odd_cookie_of_ours_is_replaced(site: Site) -> None:
    async with site.client() as client:
        name = next(iter((await client.get("/sign-in")).cookies))
    async with site.client() as client:
        for secret in ('"' + "\\303" * 40 + '"', "\xe9" * 40):
            page = await client.get("/sign-in", headers={b"cookie": f"{name}={secret}".encode("latin-1")})
            assert page.status_code == 200, page.text


async def test_what_cannot_be_a_file_is_not_found(site: Site) -> None:
    async with site.client() as client:
        for name in ("%00", "a" * 300, "a/" * 3000):
            assert (await client.get(f"/static/{name}")).status_code == 404


async def test_headers_that_name_no_host_are_refused(site: Site) -> None:
    async with site.client() as client:
        for host in ("x:abc", "x:99999", "[x", "\xff"):
            answer = await client.get("/sign-in", headers={b"host": host.encode("latin-1")})
            assert answer.status_code == 400, host
        csrf = csrf_of((await client.get("/sign-in")).text)
        for origin in ("http://[x", "null", "", "http://"):
            answer = await client.post("/sign-in", data={"csrf": csrf}, headers={"origin": origin})
            assert answer.status_code == 403, origin


async def test_every_answer_carries_a_strict_policy(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        for path in ("/runs", "/nowhere", "/static/signoff.css", "/api/openapi.json", "/health"):
            answer = await client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_pages_have_no_inline_script_or_style(site: Site) -> None:
    _, question = await site.order("o-1")
    async with site.signed_in("ana@example.org") as client:
        for path in ("/runs", f"/approvals/{question}", "/approvals"):
            text = (await client.get(path)).text
            assert not re.search(r"<script(?![^>]*\bsrc=)", text)
            assert not re.search(r"<style|\bstyle=|\bon[a-z]+=\"", text)


# -- errors


async def test_errors_are_pages_in_plain_words(site: Site) -> None:
    async with site.signed_in("vera@example.org") as client:
        missing = await client.get("/runs/none-such")
        assert missing.status_code == 404
        assert "Nothing here" in missing.text
        assert "Traceback" not in missing.text
        run, _ = await site.order("o-1")
        page = await client.get(f"/runs/{run.id}")
        refused = await client.post(f"/runs/{run.id}/cancel", data={"csrf": csrf_of(page.text)})
        assert refused.status_code == 403
        assert "You may not do this" in refused.text


async def test_something_broken_shows_no_trace_of_its_inside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("signoff.web.backend.Backend.runs", broken)
    async with site.signed_in("ana@example.org") as client:
        answer = await client.get("/runs")
        assert answer.status_code == 500
        assert "Something broke on our side" in answer.text
        assert "secret detail" not in answer.text
        assert re.search(r"<code>[0-9a-f]{8}</code>", answer.text), "the reference leads to the log"


async def test_whoever_leaves_in_the_middle_of_sending_breaks_nothing(site: Site) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    form = (b"content-type", b"application/x-www-form-urlencoded")
    scope: Any = {
        "type": "http", "method": "POST", "path": "/sign-in", "raw_path": b"/sign-in", "query_string": b"",
        "scheme": "http", "root_path": "", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "http_version": "1.1", "asgi": {"version": "3.0"}, "headers": [(b"host", b"127.0.0.1"), form],
    }  # fmt: skip
    with capture_logs() as logs:
        await site.app(scope, receive, send)
    assert logs == []
    assert sent[0]["status"] == 400


async def test_too_large_a_body_is_refused(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        csrf = csrf_of((await client.get("/runs")).text)
        answer = await client.post("/approvals/x", data={"csrf": csrf, "f.note": "x" * 17_000_000})
        assert answer.status_code == 413


# -- deciding


async def test_an_approver_answers_and_the_run_goes_on(both_sites: Site) -> None:
    site = both_sites
    run, question = await site.order("o-7")
    async with site.signed_in("ana@example.org") as client:
        page = await client.get(f"/approvals/{question}")
        assert "Ship order o-7?" in page.text
        assert "<strong>by invoice</strong>" in page.text
        assert "<script>alert" not in page.text
        data = {"csrf": csrf_of(page.text), "revision": "1", "f.approved": "true", "f.boxes": "2", "f.note": "careful"}
        taken = await client.post(f"/approvals/{question}", data=data)
        assert (taken.status_code, taken.headers["location"]) == (303, f"/approvals/{question}")
        receipt = (await client.get(f"/approvals/{question}")).text
        assert "You answered" in receipt
        assert "careful" in receipt
        assert await run.result(timeout=10) == "label of o-7"
        again = await client.post(f"/approvals/{question}", data=data)
        assert again.status_code == 303, "a second press of the button is no error"
        other = await client.post(
            f"/approvals/{question}", data={**data, "f.approved": "false", "f.note": "my other tab"}
        )
        assert other.status_code == 409, "another answer of the same person, from another tab, was not taken"
        assert "my other tab" in other.text


async def test_errors_stand_beside_their_fields_and_what_was_typed_stays(site: Site) -> None:
    _, question = await site.order("o-8")
    async with site.signed_in("ana@example.org") as client:
        page = await client.get(f"/approvals/{question}")
        data = {"csrf": csrf_of(page.text), "revision": "1", "f.approved": "true", "f.boxes": "99", "f.note": "<kept>"}
        refused = await client.post(f"/approvals/{question}", data=data)
        assert refused.status_code == 422
        assert "&lt;kept&gt;</textarea>" in refused.text
        assert 'value="99"' in refused.text
        assert re.search(r'id="field-boxes-error">.*?20', refused.text, re.DOTALL)
        assert 'id="error-summary"' in refused.text
        without = await client.post(f"/approvals/{question}", data={"csrf": data["csrf"], "f.boxes": "2"})
        assert "Choose Approve or Reject." in without.text


async def test_two_at_once_have_one_winner_and_the_other_reads_who(site: Site) -> None:
    _, question = await site.order("o-9")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("ada@example.org") as ada:
        pages = {client: (await client.get(f"/approvals/{question}")).text for client in (ana, ada)}
        data = {"revision": "1", "f.approved": "true", "f.boxes": "2"}
        assert (await ana.post(f"/approvals/{question}", data={**data, "csrf": csrf_of(pages[ana])})).status_code == 303
        late = await ada.post(
            f"/approvals/{question}", data={**data, "csrf": csrf_of(pages[ada]), "f.note": "my long text"}
        )
        assert late.status_code == 409
        assert "Ana Moreno answered" in late.text
        assert "ana@example.org answered this question at" in late.text
        assert "my long text" in late.text


async def test_who_may_not_answer_reads_why(site: Site) -> None:
    _, question = await site.order("o-10")
    async with site.signed_in("carl@example.org") as client:
        page = (await client.get(f"/approvals/{question}")).text
        assert "You cannot answer this." in page
        assert "finance" in page
        assert 'id="decide"' not in page
        assert "Nothing waits for you" in (await client.get("/approvals")).text
        csrf = csrf_of(page)
        answer = await client.post(
            f"/approvals/{question}", data={"csrf": csrf, "revision": "1", "f.approved": "true", "f.boxes": "1"}
        )
        assert answer.status_code == 403


async def test_a_withdrawn_question_says_so(site: Site) -> None:
    run, question = await site.order("o-11")
    await run.cancel(reason="not needed")

    async with site.signed_in("ana@example.org") as client:

        async def withdrawn() -> bool:
            return "This question was withdrawn" in (await client.get(f"/approvals/{question}")).text

        await eventually(withdrawn)


async def test_every_kind_of_field_arrives_as_its_type(site: Site) -> None:
    run = await site.engine.start(form_workflow)
    question = await site.question(run)
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get(f"/approvals/{question}")).text
        data = {
            "csrf": csrf_of(page), "revision": "1", "f.sure": "true", "f.carrier": "ups", "f.boxes": "3",
            "f.weight": "1.5", "f.price": "0.10", "f.ship_on": "2026-12-24", "f.pick_up": "2026-12-24T08:00",
            "f.reason": "Straße\r\nzwei", "f.tags#": ["0", "1"], "f.tags.0": "a", "f.tags.1": "b",
                "f.address!": "1", "f.address.street": "Ring 1",
            "f.address.city": "Graz", "f.nickname": "",
        }  # fmt: skip
        answer = await client.post(f"/approvals/{question}", data=data)
        assert answer.status_code == 303, answer.text
    value: Any = await run.result(timeout=10)
    found = value if isinstance(value, dict) else value.model_dump(mode="json")
    assert (found["price"], found["tags"], found["reason"]) == ("0.10", ["a", "b"], "Straße\nzwei")
    assert (found["address"], found["nickname"]) == ({"street": "Ring 1", "city": "Graz"}, None)
    assert found["pick_up"].startswith("2026-12-24T08:00:00")


# -- runs


async def test_the_list_filters_by_its_address_and_leads_to_older_ones(site: Site) -> None:
    for number in range(52):
        await site.order(f"o-{number}") if number == 51 else await site.engine.start(
            form_workflow.options(run_id=f"form-{number}", labels={"n": str(number)})
        )
    async with site.signed_in("vera@example.org") as client:
        first = (await client.get("/runs")).text
        assert first.count('<tr id="run-') == 50
        older = re.search(r'href="(/runs\?after=\d+)"', first)
        assert older is not None
        assert (await client.get(older[1])).text.count('<tr id="run-') == 2
        assert (await client.get("/runs?label=n%3D7")).text.count('<tr id="run-') == 1
        assert (await client.get("/runs?workflow=web/order")).text.count('<tr id="run-') == 1
        assert (await client.get("/runs?q=form-1")).text.count('<tr id="run-') == 11
        assert (await client.get("/runs?q=42")).text.count('<tr id="run-') == 1, "by what its label shows"
        nothing = (await client.get("/runs?status=failed")).text
        assert "No run matches" in nothing


async def test_new_runs_wait_behind_a_bar_while_the_list_is_read(site: Site) -> None:
    await site.order("o-1")
    async with site.signed_in("vera@example.org") as client:
        live = re.search(r'hx-get="(/runs/rows\?top=[^"]+)"', (await client.get("/runs")).text)
        assert live is not None
        await site.order("o-2")
        rows = (await client.get(live[1].replace("&amp;", "&"))).text
        assert "1 new run" in rows
        assert rows.count('<tr id="run-') == 1


async def test_a_run_whose_id_has_a_slash_has_a_page(site: Site) -> None:
    await site.order("o-1", run_id="orders/2026/1 ü")
    async with site.signed_in("vera@example.org") as client:
        page = await client.get("/runs/orders%2F2026%2F1%20%C3%BC")
        assert page.status_code == 200
        link = re.search(r'href="(/runs/orders[^"]+)"', (await client.get("/runs")).text)
        assert link is not None
        assert (await client.get(link[1])).status_code == 200


async def test_a_run_tells_what_it_waits_for_and_a_step_its_inside(site: Site) -> None:
    run, question = await site.order("o-3")
    async with site.signed_in("ana@example.org") as client:
        page = (await client.get(f"/runs/{run.id}")).text
        assert "Waits for anyone in finance to answer “Ship order o-3?”" in page
        assert f'href="/approvals/{question}"' in page
        panel = (await client.get(f"/runs/{run.id}?step=0")).text
        assert "Waiting for an answer" in panel
        assert (await client.get(f"/runs/{run.id}?step=99")).status_code == 404


async def test_pause_resume_cancel_from_pages(both_sites: Site) -> None:
    site = both_sites
    run, _ = await site.order("o-4")
    async with site.signed_in("omar@example.org") as client:

        async def press(action: str, **data: str) -> httpx.Response:
            dialog = await client.get(f"/runs/{run.id}/{action}")
            assert dialog.status_code == 200
            return await client.post(f"/runs/{run.id}/{action}", data={"csrf": csrf_of(dialog.text), **data})

        async def shows(words: str) -> str:
            async def look() -> str | None:
                text = (await client.get(f"/runs/{run.id}")).text
                return text if words in text else None

            return str(await eventually(look))

        assert (await press("pause")).status_code == 303
        await shows("Paused: nothing new starts")
        assert (await press("resume")).status_code == 303
        await shows("Waits for anyone in finance")
        assert (await press("cancel", reason="customer <called>")).status_code == 303
        page = await shows("Canceled")
        assert "customer &lt;called&gt;" in page
        late = await press("pause")
        assert late.status_code == 409
        assert "canceled" in late.text
        for action in ("cancel", "pause", "resume"):
            dialog = (await client.get(f"/runs/{run.id}/{action}")).text
            assert f"This run is over: it was canceled. Nothing is left to {action}." in dialog
            assert f'action="/runs/{run.id}/{action}"' not in dialog


async def test_a_failed_run_is_restarted_from_its_page(site: Site) -> None:
    run, question = await site.order("broken")
    async with site.signed_in("ada@example.org") as client:
        page = await client.get(f"/approvals/{question}")
        await client.post(
            f"/approvals/{question}",
            data={"csrf": csrf_of(page.text), "revision": "1", "f.approved": "true", "f.boxes": "1"},
        )

        async def failed() -> bool:
            return "Failed at web/label: the printer is out of paper" in (await client.get(f"/runs/{run.id}")).text

        await eventually(failed)
        dialog = (await client.get(f"/runs/{run.id}/restart")).text
        assert "Where it failed: step 1, web/label" in dialog
        assert "Keeps 1 step with" in dialog
        assert "Retires 1 step, which" in dialog
        chosen = (await client.get(f"/runs/{run.id}/restart", params={"from": 0})).text
        assert "Restart from step 0?" in chosen
        assert "Retires 2 steps, which may run again." in chosen
        assert "Keeps 1 answer, where just the same is asked again." in chosen
        assert re.search('type="checkbox" name="ask_again" value="0"', chosen)
        unknown = await client.post(f"/runs/{run.id}/restart", data={"csrf": csrf_of(dialog), "from_step": "77"})
        assert unknown.status_code == 422
        assert "no step 77" in unknown.text
        answer = await client.post(
            f"/runs/{run.id}/restart", data={"csrf": csrf_of(dialog), "from_step": "", "reason": "paper is back"}
        )
        assert answer.status_code == 303

        async def second_round() -> bool:
            text = (await client.get(f"/runs/{run.id}")).text
            return "paper is back" in text and "Round 2" in text

        await eventually(second_round)
        await eventually(failed)
        form = {"csrf": csrf_of(dialog), "from_step": "0", "ask_again": ["0", "1"]}
        assert (await client.post(f"/runs/{run.id}/restart", data=form)).status_code == 303
        again = await site.question(run)
        assert again != question


async def test_a_run_that_is_blocked_by_something_else_than_its_past_has_a_page(site: Site) -> None:
    run, _ = await site.order("o-12")
    reason = json.dumps({"code": "stuck", "message": "the handler computed for more than 5 s at shop.py:7"})
    block = sa.update(R).where(R.c.public_id == run.id).values(blocked_reason=reason)
    await site.engine.store.write(lambda tx: tx.conn.execute(block))
    async with site.signed_in("ada@example.org") as client:
        page = await client.get(f"/runs/{run.id}")
        assert page.status_code == 200
        assert "Blocked: its code ran on without coming to a step" in page.text
        assert "shop.py:7" in page.text


async def test_runs_that_stand_still_because_no_worker_runs_say_so(site: Site) -> None:
    run, _ = await site.order("o-13")
    async with site.signed_in("vera@example.org") as client:
        for path in ("/runs", f"/runs/{run.id}"):
            assert "o worker is running" not in (await client.get(path)).text
        gone = sa.update(W).values(lost_at=site.engine.store.clock.now())
        await site.engine.store.write(lambda tx: tx.conn.execute(gone))
        assert "No worker is running: these runs go on when one does." in (await client.get("/runs")).text
        assert "It stands still: no worker is running." in (await client.get(f"/runs/{run.id}")).text
    async with site.client(headers=site.bearer("viewer")) as client:
        assert (await client.get(f"/api/v1/runs/{run.id}")).json()["hint"] == "no worker is running"


async def test_what_a_role_may_not_do_is_not_offered(site: Site) -> None:
    run, _ = await site.order("o-5")
    async with site.signed_in("vera@example.org") as client:
        page = (await client.get(f"/runs/{run.id}")).text
        for word in ("Cancel the run", "Pause", "Restart", ">Answer"):
            assert word not in page


async def test_progress_and_a_running_step_are_seen(site: Site) -> None:
    gate = GATES["o-6"] = Gate()
    run, question = await site.order("o-6")
    async with site.signed_in("ana@example.org") as client:
        page = await client.get(f"/approvals/{question}")
        data = {"csrf": csrf_of(page.text), "revision": "1", "f.approved": "true", "f.boxes": "1"}
        await client.post(f"/approvals/{question}", data=data)

        async def running() -> bool:
            text = (await client.get(f"/runs/{run.id}")).text
            return "Running web/label" in text and "40 %" in text and "printing" in text

        await eventually(running)
    gate.opened.set()
    assert await run.result(timeout=10) == "label of o-6"


# -- small things


async def test_the_theme_is_remembered_without_scripts(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        csrf = csrf_of((await client.get("/runs")).text)
        answer = await client.post("/preferences/theme", data={"csrf": csrf, "theme": "dark", "next": "/runs"})
        assert answer.headers["location"] == "/runs"
        assert 'data-theme="dark"' in (await client.get("/runs")).text
        await client.post("/preferences/theme", data={"csrf": csrf, "theme": '"><script>', "next": "/runs"})
        assert 'data-theme="auto"' in (await client.get("/runs")).text


async def test_a_fragment_that_did_not_change_is_not_sent_again(site: Site) -> None:
    run, _ = await site.order("o-1")
    async with site.signed_in("vera@example.org") as client:
        first = await client.get(f"/runs/{run.id}/steps/0", headers={"hx-request": "true"})
        tag = first.headers["etag"]
        again = await client.get(f"/runs/{run.id}/steps/0", headers={"hx-request": "true", "if-none-match": tag})
        assert again.status_code == 304
        assert again.content == b""


async def test_static_files_are_kept_for_ever_under_an_address_of_their_content(site: Site) -> None:
    async with site.client() as client:
        page = (await client.get("/sign-in")).text
        found = re.search(r'href="(/static/signoff\.css\?v=[0-9a-f]{12})"', page)
        assert found is not None
        answer = await client.get(found[1])
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


async def test_the_decide_page_is_small(site: Site) -> None:
    _, question = await site.order("o-1")
    async with site.signed_in("ana@example.org") as client:
        assert len((await client.get(f"/approvals/{question}")).content) < 30_000
