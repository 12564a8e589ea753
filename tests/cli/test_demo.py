"""The example shop: its orders stand in different states, once, and what a person answers goes to its end."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from signoff.demo.people import ANA, ensure_people, passwords_file
from signoff.demo.seed import seed
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
from signoff.testing import TestEngine
from tests.cli.support import free_port, serving


@pytest_asyncio.fixture(params=["memory", "postgresql"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestEngine]:
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
    return {item.labels["order"]: str(item.status) for item in page.items}


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
    (failed,) = (await shop.runs(workflow="orders/fulfill", labels={"order": "o-1006"})).items
    steps = await shop.run(failed.id).steps()
    assert (steps[-1].name, steps[-1].state) == ("payments/release", "success")


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
        passwords = re.findall(r"password (\S+):", demo.wait_for("4. In the middle of it"))
        assert len(passwords) == 2
        demo.end(signal.SIGKILL)
    with serving("demo", "--port", str(port), folder=tmp_path, port=port) as demo:
        assert re.findall(r"password (\S+):", demo.wait_for("4. In the middle of it")) == passwords
        assert demo.end() == 0
        assert '"level": "error"' not in demo.text()
