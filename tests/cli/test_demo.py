"""The example shop: its orders stand in different states, once, and what a person answers goes to its end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from signoff import Refused
from signoff.approvals.inbox import inbox
from signoff.demo import people
from signoff.demo.agent import Go, Instead, Skip, make_amends
from signoff.demo.expenses import pay_expense
from signoff.demo.people import ANA, BEN, OMAR, SAM, _ensure, ensure_people, passwords_file
from signoff.demo.posts import PublishLater, Rework, publish_post
from signoff.demo.seed import QUESTIONS, seed
from signoff.demo.suppliers import Supplier, register_supplier
from signoff.demo.workflows import (
    ALL,
    Risk,
    ShipAnswer,
    check_fraud,
    create_label,
    hand_over,
    place_order,
    reserve_money,
    ship_order,
)
from signoff.people.users import find_person
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.web.forms import build
from tests.cli.support import free_port, serving


async def hash_of(password: str) -> str:
    return f"hash of {password}"


@pytest_asyncio.fixture(params=["memory", "postgresql"])
async def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TestEngine]:
    monkeypatch.setattr(people, "hash_password_async", hash_of)  # nobody signs in here, and the real one takes its time
    database = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    async with TestEngine(workflows=ALL, database=database) as shop:
        await ensure_people(shop, tmp_path / "passwords")
        for slow, value in (
            (reserve_money, "reserved"),
            (check_fraud, Risk(score=5, reason="none")),
            (hand_over, "L-1"),
        ):
            shop.replace(slow, value=value)
        yield shop


async def statuses(shop: TestEngine) -> dict[str, str]:
    page = await shop.runs(workflow="orders/fulfill")
    return {item.labels["key"]: str(item.status) for item in page.items}


async def test_orders_in_different_states(shop: TestEngine) -> None:
    await seed(shop)
    await shop.advance(10)  # past the grace period, and some tries of the label
    assert await statuses(shop) == {
        "o-1001": "waiting",
        "o-1002": "waiting",
        "o-1003": "waiting",
        "o-1004": "completed",
        "o-1005": "sleeping",
        "o-1006": "failed",
        "o-1007": "waiting",  # for its child, whose label backs off
        "o-1008": "completed",
        "o-1009": "canceled",
    }
    (failed,) = (await shop.runs(workflow="orders/fulfill", labels={"key": "o-1006"})).items
    steps = await shop.run(failed.id).steps()
    assert (steps[-1].name, steps[-1].state) == ("payments/release", "success")


async def test_questions_that_some_answered_already(shop: TestEngine) -> None:
    await seed(shop)
    await shop.settle()
    told = {}
    for question in QUESTIONS:
        (run,) = (await shop.runs(labels={"key": question.key})).items
        (asked,) = await shop.run(run.id).approvals()
        told[question.key] = (str(run.status), asked.state, asked.progress.text)
    assert told == {
        "e-1": ("completed", "decided", "3 of 3"),
        "e-2": ("completed", "decided", "2 of 3"),
        "e-3": ("waiting", "open", "1 of 3"),
        "e-4": ("waiting", "open", "0 of 3"),
        "p-1": ("waiting", "open", "0 of 1"),
        "s-1": ("waiting", "open", "0 of 1"),
        "a-1": ("waiting", "open", "0 of 1"),
    }
    await shop.restart()
    await seed(shop)
    assert len((await shop.runs(workflow="expenses/pay")).items) == 4

    def look(tx: Tx) -> list[str]:
        person = find_person(tx, shop.scope().tenant_id, email=ANA.email)
        assert person is not None
        return [row.title for row in inbox(tx, Scope(shop.scope().tenant_id, person), "mine").rows]

    titles = await shop.store.read(look)  # all that the greeting speaks of
    for part in ("Ship order o-1001 to Lisbon?", "penetration test", "post", "Woodworks", "agent"):
        assert [title for title in titles if part in title], part


async def test_an_expense_needs_two_of_finance_and_one_of_security(shop: TestEngine) -> None:
    run = await shop.start(pay_expense.options(requester=BEN.email))
    await shop.approve(run, option="pay", as_user="ana")
    with pytest.raises(Refused) as refused:
        await shop.approve(run, option="pay", as_user="ben")
    assert refused.value.reason == "own_request"
    run = await shop.start(pay_expense.options(requester=OMAR.email), "chairs", Decimal("12.5"))
    for who in ("sam", "ben"):
        assert not (await shop.approve(run, option="pay", as_user=who)).complete
    assert (await shop.approve(run, option="pay", as_user="ana")).complete
    assert await shop.result(run) == "12.50 EUR paid for chairs"


async def test_a_post_comes_again_until_it_goes_out(shop: TestEngine) -> None:
    run = await shop.start(publish_post)
    await shop.wait_for_status(run, "waiting")
    await shop.approve(run, Rework(what="Less hype"), option="rework", as_user="sam")
    await shop.wait_for_step(run, "posts/review", "open", ordinal=1)
    assert "Less hype" in (await run.approvals())[-1].body_html
    await shop.approve(run, PublishLater(at=shop.now() + timedelta(days=2)), option="schedule", as_user="ana")
    await shop.wait_for_status(run, "sleeping")
    await shop.advance(timedelta(days=2))
    assert await shop.result(run) == "published"


async def test_the_agent_does_nothing_without_a_yes(shop: TestEngine) -> None:
    run = await shop.start(make_amends)
    given: list[tuple[str, Any]] = [("instead", Instead(amount=Decimal(9))), ("skip", Skip()), ("go", Go())]
    for number, (option, answer) in enumerate(given):
        await shop.wait_for_step(run, "agent/may-i", "open", ordinal=number)
        acted = [step for step in await run.steps() if step.name == "agent/act"]
        assert len(acted) == min(number, 1)
        await shop.approve(run, answer if option == "instead" else None, option=option, as_user="ana")
    assert await shop.result(run) == [
        "Give Lena a voucher: 9.00 EUR", "left out: Give Jonas a voucher", "Give Amara a voucher: 30.00 EUR",
    ]  # fmt: skip
    other = await shop.start(make_amends)
    await shop.wait_for_step(other, "agent/may-i", "open")
    await shop.approve(other, option="stop", comment="Not today", as_user="ben")
    assert await shop.result(other) == []


async def test_the_supplier_form_has_every_kind_of_field_and_takes_what_it_sends(shop: TestEngine) -> None:
    run = await shop.start(register_supplier)
    await shop.wait_for_status(run, "waiting")
    (asked,) = await run.approvals()
    form = build(asked.schema)
    assert {field.kind for field in form.all()} >= {
        "choice", "tick", "text", "long", "number", "date", "time", "datetime", "duration", "group", "tuple",
        "list", "map", "union",
    }  # fmt: skip
    supplier = Supplier.model_validate({
        "name": "Woodworks", "trade": "garden", "tax_number": "AT12345678", "credit": "1500.50",
        "partner_since": "2026-01-05", "contacts": [{"name": "Lena"}], "checked": True,
        "payment": {"kind": "card", "last_digits": "4242"}, "review_on": "2026-12-24",
    })  # fmt: skip
    assert supplier.review_on == date(2026, 12, 24)
    await shop.approve(run, supplier, as_user="ana")
    assert await shop.result(run) == "Woodworks may deliver for up to 1500.50 EUR"


async def test_seeding_again_changes_nothing(shop: TestEngine) -> None:
    await seed(shop)
    await shop.advance(10)
    before = await statuses(shop)
    await seed(shop)
    await shop.settle()
    assert await statuses(shop) == before


async def test_an_order_that_somebody_approves_is_shipped_although_the_label_fails(shop: TestEngine) -> None:
    await seed(shop)
    run = await shop.start(place_order)
    order = shop.run(await shop.result(run))
    shop.replace(create_label, value="L-1", errors=2)
    await shop.approve(order, ShipAnswer(approved=True), as_user=ANA.email, ask=ship_order)
    await shop.wait_for_status(order, "sleeping")
    await shop.advance(60)
    assert await shop.result(order) == "fulfilled"


async def test_passwords_are_kept_and_lost_ones_made_again(shop: TestEngine, tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    first = await ensure_people(shop, file)
    assert await ensure_people(shop, file) == first
    assert file.stat().st_mode & 0o077 == 0
    file.unlink()
    assert (await ensure_people(shop, file))[ANA.email] != first[ANA.email]


async def test_a_database_of_an_earlier_release_gets_who_and_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    async with TestEngine(workflows=ALL) as shop:
        for person, role in ((ANA, "approver"), (OMAR, "operator")):
            older = type(person)(person.email, person.name, role, ("finance",) if person is ANA else ())
            await shop.store.write(_ensure, shop, older, "a hash", True, False)
        file.write_text(json.dumps({ANA.email: "secret-of-ana", OMAR.email: "secret-of-omar"}))
        passwords = await ensure_people(shop, file)
        assert (passwords[ANA.email], passwords[OMAR.email]) == ("secret-of-ana", "secret-of-omar")
        assert set(passwords) == {ANA.email, BEN.email, SAM.email, OMAR.email}

        def roles(tx: Tx) -> list[tuple[str, bool]]:
            found = [find_person(tx, shop.scope().tenant_id, email=one.email) for one in (ANA, BEN, SAM, OMAR)]
            return [(person.role, "editors" in person.groups) for person in found if person is not None]

        assert await shop.store.read(roles) == [
            ("approver", True), ("approver", False), ("approver", True), ("admin", False),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:////data/shop.db", "/data/shop.db.passwords"),
        ("postgresql://me@host/shop", "signoff-demo-shop.passwords"),
    ],
)
def test_passwords_lie_beside_the_database(url: str, file: str) -> None:
    assert str(passwords_file(url)) == file


def test_the_demo_says_what_to_click_and_survives_kill_9(tmp_path: Path) -> None:
    port = free_port()
    with serving("demo", "--port", str(port), folder=tmp_path, port=port) as demo:
        passwords = re.findall(r"password ([a-z-]+)\)", demo.wait_for("4. In the middle of it"))
        assert len(passwords) == 4
        demo.end(signal.SIGKILL)
    with serving("demo", "--port", str(port), folder=tmp_path, port=port) as demo:
        assert re.findall(r"password ([a-z-]+)\)", demo.wait_for("4. In the middle of it")) == passwords
        assert demo.end() == 0
        assert '"level": "error"' not in demo.text()
