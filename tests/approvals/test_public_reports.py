"""What people reported of other products, and must not happen here: one test for each report."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, cast

import httpx
import pytest
import pytest_asyncio
from pydantic import BaseModel

from signoff import Registry, Step, ask, group, n_of, workflow
from signoff.approvals import changes
from signoff.approvals.inbox import counts, inbox
from signoff.approvals.views import ApprovalView
from signoff.people import sessions, tokens
from signoff.people.permissions import LEAST_ROLE
from signoff.people.users import find_person
from signoff.runtime.handles import Run
from signoff.store.scope import ROLES, Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.web.app import create_app
from signoff.web.security import mask

registry = Registry()
FINANCE = group("finance")
DECIDES = re.compile(r'<button(?![^>]*\bdisabled)[^>]*name="(?:f\.approved|f|option)"[^>]*>')


class Trade(StrEnum):
    GARDEN = "garden"
    KITCHEN = "kitchen"


class Plan(BaseModel):
    day: date
    when: date | Trade
    nick: str | None = None
    level: int | None = 5
    kind: Literal["only"]
    mode: Literal["fast"] = "fast"
    colour: Trade | None = Trade.GARDEN


class Answer(BaseModel):
    approved: bool


yes = ask("reports/yes", bool, registry=registry)
plan = ask("reports/plan", Plan, registry=registry)
approve = ask("reports/approve", Answer, registry=registry)


@workflow("reports/one", registry=registry)
async def one(step: Step, timeout: float | None = None) -> bool:
    if timeout is None:
        return (await step.ask(approve, title="One?", to=FINANCE)).approved
    no = Answer(approved=False)
    return (await step.ask(approve, title="One?", to=FINANCE, timeout=timeout, default=no)).approved


@workflow("reports/two", registry=registry)
async def two(step: Step) -> list[bool]:
    first = await step.ask(yes, title="First?", to=FINANCE, timeout=60, default=False, remind=[30])
    return [first, await step.ask(yes, title="Second?", to=FINANCE)]


@workflow("reports/loop", registry=registry)
async def loop(step: Step, rounds: int, width: int) -> int:
    agreed = 0
    for number in range(rounds):
        asked = [step.ask(yes, title=f"Round {number}, number {lane}?", to=FINANCE) for lane in range(width)]
        agreed += sum(await asyncio.gather(*asked))
    return agreed


@workflow("reports/skipped", registry=registry)
async def skipped(step: Step) -> str:
    asked = step.ask(yes, title="Or not?", to=FINANCE)
    both: list[Awaitable[Any]] = [asked, step.sleep(60)]
    await step.wait(both, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    await step.sleep(3600)
    return "went on without"


@workflow("reports/plan", registry=registry)
async def plans(step: Step) -> Plan:
    return await step.ask(plan, title="Plan?", to=FINANCE)


@workflow("reports/facts", registry=registry)
async def facts(step: Step) -> bool:
    given = {"big": 12345678901234567890, "small": Decimal("0.10"), "deep": {"list": [1, None, "<b>"], "text": "é"}}
    return await step.ask(yes, title="Facts?", facts=given, to=FINANCE)


@workflow("reports/several", registry=registry)
async def several(step: Step) -> list[str]:
    return [decision.person for decision in await step.ask(yes, title="Both?", rule=n_of(2, FINANCE))]


@workflow("reports/open", registry=registry)
async def anybody(step: Step) -> bool:
    return await step.ask(yes, title="Anybody?")


@dataclass
class Desk:
    """An engine with its pages in the process of the test, and people who look at them."""

    t: TestEngine
    http: httpx.AsyncClient
    sessions: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def scope(self, who: str) -> Scope:
        tenant = self.t.scope().tenant_id
        person = await self.t.store.read(find_person, tenant, email=f"{who}@example.org")
        assert person is not None
        return Scope(tenant, person)

    async def headers(self, who: str) -> dict[str, str]:
        if who not in self.sessions:
            person = (await self.scope(who)).person
            assert person is not None

            def enter(tx: Tx) -> tuple[str, str]:
                made = sessions.open_session(
                    tx, user_id=person.user_id, tenant_id=self.t.scope().tenant_id, role=person.role
                )
                return made[0], made[1].csrf

            self.sessions[who] = await self.t.store.write(enter)
        secret, csrf = self.sessions[who]
        return {"cookie": f"signoff-80={secret}", "x-csrf-token": mask(csrf)}

    async def page(self, who: str, asked: ApprovalView, query: str = "") -> str:
        answer = await self.http.get(f"/approvals/{asked.id}{query}", headers=await self.headers(who))
        assert answer.status_code == 200, answer.text
        return answer.text

    async def send(self, who: str, asked: ApprovalView, data: dict[str, str], query: str = "") -> int:
        answer = await self.http.post(
            f"/approvals/{asked.id}{query}", data={"revision": "1", **data}, headers=await self.headers(who)
        )
        await self.t.settle()
        return answer.status_code

    async def inbox(self, who: str) -> list[str]:
        scope = await self.scope(who)
        page, count = await self.t.store.read(lambda tx: (inbox(tx, scope, "mine"), counts(tx, scope)["mine"]))
        assert count == len(page.rows), "the badge says how many rows there are"
        return [row.title for row in page.rows]

    async def asked(self, run: Run[Any], *states: str) -> list[ApprovalView]:
        await self.t.settle()
        return [item for item in await run.approvals() if item.state in (states or ("open",))]


@pytest_asyncio.fixture(params=["memory", "postgresql"])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    database = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    async with TestEngine(registry=registry, database=database) as t:
        for name, role in (("ana", "approver"), ("ben", "approver"), ("cyd", "approver"), ("omar", "operator")):
            await t.add_person(f"{name}@example.org", name=name.title(), role=role, groups=["finance"])
        await t.add_person("eva@example.org", name="Eva")
        transport = httpx.ASGITransport(cast(Any, create_app(t)))
        async with httpx.AsyncClient(transport=transport, base_url="http://signoff") as http:
            yield Desk(t, http)


async def test_a_button_on_the_wrong_tab_does_not_hide_the_question(desk: Desk) -> None:
    for tab in ("mine", "groups", "requested", "decided"):
        run = await desk.t.start(one)
        (asked,) = await desk.asked(run)
        assert len(DECIDES.findall(await desk.page("ana", asked, f"?tab={tab}"))) == 2
        assert await desk.inbox("ana") == ["One?"]
        assert await desk.send("ana", asked, {"f.approved": "true"}, f"?tab={tab}") == 303
        assert await desk.t.result(run) is True


async def test_a_leftover_timer_does_not_resume_an_answered_wait(desk: Desk) -> None:
    run = await desk.t.start(two)
    await desk.t.advance(20)
    await desk.t.approve(run, True, as_user="ana")
    await desk.t.restart()
    await desk.t.advance(timedelta(days=1))
    assert (await run.status()).status == "waiting"
    first, second = await run.approvals()
    assert (first.state, second.state, second.notes) == ("decided", "open", [])
    assert [note.kind for note in first.notes] == [], "nobody is reminded of what they answered"
    await desk.t.approve(run, False, as_user="ben")
    assert await desk.t.result(run) == [True, False]


async def test_what_loops_and_parallel_branches_ask_is_in_the_inbox(desk: Desk) -> None:
    run = await desk.t.start(loop, 3, 3)
    for number in range(3):
        asked = await desk.asked(run)
        titles = [f"Round {number}, number {lane}?" for lane in range(3)]
        assert sorted(await desk.inbox("ana")) == titles
        for item in sorted(asked, key=lambda item: item.title):
            assert await desk.send("ana", item, {"f": "true"}) == 303
    assert await desk.t.result(run) == 9
    assert await desk.inbox("ana") == []


async def test_one_parallel_gate_does_not_release_the_others(desk: Desk) -> None:
    run = await desk.t.start(loop, 1, 3)
    asked = await desk.asked(run)
    assert await desk.send("ana", asked[1], {"f": "true"}) == 303
    assert [item.title for item in await desk.asked(run)] == [asked[0].title, asked[2].title]
    assert sorted(await desk.inbox("ben")) == sorted([asked[0].title, asked[2].title])
    await desk.t.restart()
    assert (await run.status()).status == "waiting"
    assert await desk.send("ana", asked[0], {"f": "true"}) == 303
    assert await desk.send("ana", asked[2], {"f": "false"}) == 303
    assert await desk.t.result(run) == 2


async def test_a_skipped_approval_does_not_wait_any_more(desk: Desk) -> None:
    run = await desk.t.start(skipped)
    (asked,) = await desk.asked(run)
    await desk.t.advance(61)
    assert [item.id for item in await desk.asked(run, "closed")] == [asked.id]
    assert await desk.inbox("ana") == []
    assert not DECIDES.search(await desk.page("ana", asked))
    assert await desk.send("ana", asked, {"f": "true"}) == 409
    assert [step.name for step in (await run.status()).awaiting] == ["sleep"]
    await desk.t.advance(3600)
    assert await desk.t.result(run) == "went on without"


async def test_a_forced_completion_leaves_nothing_pending(desk: Desk) -> None:
    run = await desk.t.start(loop, 1, 2)
    assert len(await desk.asked(run)) == 2
    await run.cancel(reason="done by hand", actor="omar@example.org")
    assert await desk.asked(run) == []
    assert await desk.inbox("ana") == []
    for item in await desk.asked(run, "closed"):
        assert not DECIDES.search(await desk.page("ana", item))
        assert await desk.send("ana", item, {"f": "true"}) == 409
    await run.restart(from_step=0)
    fresh = await desk.asked(run)
    assert len(fresh) == 2
    assert len(await desk.inbox("ana")) == 2, "those of the new round, and none of the old"


async def test_whoever_lost_the_assignment_does_not_complete_it_from_a_stale_page(desk: Desk) -> None:
    run = await desk.t.start(one)
    (asked,) = await desk.asked(run)
    assert DECIDES.search(await desk.page("ana", asked))
    omar = await desk.scope("omar")
    await desk.t.store.write(changes.reassign, omar, asked.id, ["eva@example.org"], via="page", reason="hers")
    assert await desk.send("ana", asked, {"f.approved": "true"}) == 403
    assert await desk.inbox("ana") == []
    assert await desk.send("eva", asked, {"f.approved": "true"}) == 303
    (view,) = await run.approvals()
    assert [(decision.person, decision.on_behalf_of) for decision in view.decisions] == [("eva@example.org", None)]
    page = await desk.page("ben", asked)
    assert "Eva answered" in page
    assert "Ana answered" not in page


async def test_timed_out_items_have_no_live_buttons(desk: Desk) -> None:
    run = await desk.t.start(one, 60.0)
    (asked,) = await desk.asked(run)
    assert DECIDES.search(await desk.page("ana", asked))
    await desk.t.advance(61)
    assert not DECIDES.search(await desk.page("ana", asked))
    assert await desk.inbox("ana") == []
    assert await desk.send("ana", asked, {"f.approved": "true"}) == 409
    assert await desk.t.result(run) is False


def fields_of(page: str) -> dict[str, str]:
    """What a browser would send of the form that holds the decision, untouched."""
    form = re.search(r'<form[^>]*id="decide".*?</form>', page, re.DOTALL)
    assert form is not None
    sent: dict[str, str] = {}
    for tag in re.findall(r"<(?:input|textarea)[^>]*>", form[0]):
        given = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        chosen = given.get("type") not in ("radio", "checkbox") or re.search(r"\bchecked\b", tag)
        if given.get("name", "").startswith("f") and chosen:
            sent[given["name"]] = given.get("value", "")
    return sent


async def planned(desk: Desk, **typed: str) -> Plan:
    run = await desk.t.start(plans)
    (asked,) = await desk.asked(run)
    sent = fields_of(await desk.page("ana", asked)) | typed
    assert await desk.send("ana", asked, sent) == 303, sent
    result: Plan = await desk.t.result(run)
    return result


def union_names(page: str) -> tuple[str, list[str]]:
    """The name of the union's switch and its values."""
    found = re.findall(r'<input[^>]*type="radio"[^>]*name="(f\.when[^"]*)"[^>]*value="([^"]*)"', page)
    found = found or re.findall(r'<input[^>]*name="(f\.when[^"]*)"[^>]*type="radio"[^>]*value="([^"]*)"', page)
    assert found, page
    switch = found[0][0]
    return switch, [value for name, value in found if name == switch]


async def test_a_union_of_date_and_enum_works_in_a_form(desk: Desk) -> None:
    run = await desk.t.start(plans)
    (asked,) = await desk.asked(run)
    page = await desk.page("ana", asked)
    switch, values = union_names(page)
    assert len(values) == 2, "the two members"
    by_date, by_enum = values
    taken = await planned(desk, **{"f.day": "2026-12-24", switch: by_date, f"f.when@{by_date}": "2027-01-31"})
    assert taken.when == date(2027, 1, 31)
    taken = await planned(desk, **{"f.day": "2026-12-24", switch: by_enum, f"f.when@{by_enum}": "kitchen"})
    assert taken.when is Trade.KITCHEN


async def test_null_optional_defaults_and_single_values_are_what_the_form_said(desk: Desk) -> None:
    run = await desk.t.start(plans)
    (asked,) = await desk.asked(run)
    switch, (by_date, _) = union_names(await desk.page("ana", asked))
    given = {"f.day": "2026-12-24", switch: by_date, f"f.when@{by_date}": "2027-01-31"}
    untouched = await planned(desk, **given)
    assert untouched == Plan(day=date(2026, 12, 24), when=date(2027, 1, 31), kind="only")
    assert (untouched.nick, untouched.level, untouched.colour) == (None, 5, Trade.GARDEN)
    emptied = await planned(desk, **given, **{"f.level": "", "f.colour": "", "f.nick": "x"})
    assert (emptied.level, emptied.colour, emptied.nick) == (None, None, "x"), "emptied is null, not the default"


async def test_a_date_does_not_shift_by_the_time_zone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await desk.t.start(plans)
    (asked,) = await desk.asked(run)
    switch, (by_date, _) = union_names(await desk.page("ana", asked))
    given = {"f.day": "2026-12-24", switch: by_date, f"f.when@{by_date}": "2026-01-01"}
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        taken = await planned(desk, **given)
        assert (taken.day, taken.when) == (date(2026, 12, 24), date(2026, 1, 1))
    assert await desk.send("ana", asked, fields_of(await desk.page("ana", asked)) | given) == 303
    receipt = await desk.page("ana", asked)
    monkeypatch.undo()
    time.tzset()
    assert "24 December 2026" in receipt or "2026-12-24" in receipt
    assert not re.search(r"2[35] December 2026|2026-12-2[35]", receipt)


async def test_a_view_of_json_shows_the_value_as_it_is(desk: Desk) -> None:
    run = await desk.t.start(facts)
    (asked,) = await desk.asked(run)
    page = await desk.page("ana", asked)
    for exact in ("12345678901234567890", "0.10", "&lt;b&gt;", "é"):
        assert exact in page, exact
    for wrong in ("12345678901234567000", "1.2345678901234567e", "12345678901234567168", "<b>"):
        assert wrong not in page, wrong
    assert asked.facts["deep"] == {"list": [1, None, "<b>"], "text": "é"}


async def test_nobody_is_said_to_have_approved_who_did_not(desk: Desk) -> None:
    run = await desk.t.start(several)
    (asked,) = await desk.asked(run)
    assert await desk.send("ana", asked, {"f": "true"}) == 303
    assert await desk.send("cyd", asked, {"f": "true"}) == 303
    assert await desk.t.result(run) == ["ana@example.org", "cyd@example.org"]
    (view,) = await run.approvals()
    assert view.progress.text == "2 of 2"
    page = await desk.page("ben", asked)
    main = page[page.index("<main") : page.index("</main>")]
    text = re.sub(r"<[^>]+>", " ", main)
    assert "Ana" in text
    assert "Cyd" in text
    assert not re.search(r"\b(all|everyone|everybody) (of them )?(approved|answered|agreed)", text, re.IGNORECASE)
    assert not re.search(r"Ben (answered|approved|agreed)", text)


@pytest.mark.parametrize("role", [role for role in ROLES if ROLES.index(role) >= ROLES.index(LEAST_ROLE["run.start"])])
async def test_who_may_start_a_run_may_answer_it(desk: Desk, role: str) -> None:
    await desk.t.add_person("sol@example.org", role=role)
    token = await desk.t.store.write(
        lambda tx: tokens.create_token(tx, desk.t.scope(), "sol", role=role, email="sol@example.org")
    )
    bearer = {"authorization": f"Bearer {token}"}
    started = await desk.http.post("/api/v1/runs", json={"workflow": "reports/open"}, headers=bearer)
    assert started.status_code in (200, 201), started.text
    run = desk.t.run(started.json()["id"], anybody)
    (asked,) = await desk.asked(run)
    answered = await desk.http.post(f"/api/v1/approvals/{asked.id}/decide", json={"answer": True}, headers=bearer)
    assert answered.status_code == 200, answered.text
    assert await desk.t.result(run) is True
