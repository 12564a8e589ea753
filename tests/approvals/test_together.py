"""People who decide together, from the handler's ask to its value: through the engine, on both databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from pydantic import BaseModel, SecretStr

from signoff import (
    Decided,
    Engine,
    EventTimeout,
    Refused,
    Registry,
    Step,
    all_of,
    any_of,
    ask,
    group,
    n_of,
    option,
    user,
    workflow,
)
from signoff.testing import TestEngine

registry = Registry()


class Spend(BaseModel):
    approved: bool
    limit: Decimal = Decimal(0)


class Publish(BaseModel):
    kind: Literal["publish"] = "publish"
    to: str


class Rework(BaseModel):
    kind: Literal["rework"] = "rework"
    what: str


class Pin(BaseModel):
    pin: SecretStr
    door: str = "front"


expense = ask("together/expense", Spend, registry=registry)
review: Any = ask("together/review", Publish | Rework, registry=registry)
unlock = ask("together/unlock", Pin, registry=registry)
FINANCE, SECURITY = group("finance"), group("security")


@workflow("together/expense", registry=registry)
async def spends(step: Step, staged: bool = False) -> list[str]:
    decisions = await step.ask(
        expense, title="Spend it?", rule=all_of(n_of(2, FINANCE), any_of(SECURITY), staged=staged),
        not_requester=True, timeout=timedelta(days=3), default=Spend(approved=False),
    )  # fmt: skip
    return [f"{decision.name}: {decision.answer.limit} {decision.rejects}" for decision in decisions]


def lowest(decisions: list[Decided[Spend]]) -> Decimal:
    return min(decision.answer.limit for decision in decisions)


@workflow("together/lowest", registry=registry)
async def combines(step: Step, people: int) -> Decimal:
    return await step.ask(expense, title="How much?", rule=n_of(people, FINANCE, veto=False), combine=lowest)


@workflow("together/late", registry=registry)
async def late(step: Step) -> str:
    try:
        await step.ask(expense, title="?", rule=n_of(2), timeout=60)
    except EventTimeout:
        return "late"
    return "in time"


@workflow("together/review", registry=registry)
async def reviews(step: Step) -> str:
    rounds = 0
    while True:
        outcome = await step.ask(
            review, title=f"Publish draft {rounds}?", exclude=user("author@example.org"),
            options=[
                option("publish", form=Publish, style="primary", consequence="Everybody sees it."),
                option("rework", form=Rework, rejects=True),
                option("home", "On the home page", value=Publish(to="home")),
            ],
        )  # fmt: skip
        if isinstance(outcome, Publish):
            return f"{outcome.to} after {rounds}"
        rounds += 1


@workflow("together/parallel", registry=registry)
async def parallel(step: Step) -> list[int]:
    asked = [
        step.ask(expense, title=f"Number {number}?", name=f"number {number}", rule=n_of(2, FINANCE))
        for number in range(2)
    ]
    return [len(decisions) for decisions in await asyncio.gather(*asked)]


@workflow("together/unlock", registry=registry)
async def unlocks(step: Step) -> bool:
    otherwise = Pin(pin=SecretStr("4321"), door="none")
    return (await step.ask(unlock, title="?", timeout=60, default=otherwise)).pin.get_secret_value() == "sesame"


@pytest_asyncio.fixture
async def t(database_url: str) -> AsyncIterator[TestEngine]:
    async with TestEngine(registry=registry, database=database_url) as engine:
        for name, groups in (("ana", ["finance"]), ("bob", ["finance"]), ("cyd", ["finance"]), ("sam", ["security"])):
            await engine.add_person(f"{name}@example.org", name=name.title(), groups=groups)
        yield engine


def by(name: str) -> str:
    return f"{name}@example.org"


async def test_two_of_finance_and_one_of_security_over_two_restarts(t: TestEngine) -> None:
    run = await t.start(spends)
    first = await t.approve(run, Spend(approved=True, limit=Decimal("9.90")), as_user=by("ana"))
    assert (first.complete, first.progress) == (False, "1 of 3")
    await t.restart()
    await t.approve(run, Spend(approved=True), as_user=by("sam"))
    await t.restart()
    with pytest.raises(Refused) as caught:
        await t.approve(run, Spend(approved=True), as_user=by("ana"))
    assert caught.value.reason == "voted"
    assert (await t.approve(run, Spend(approved=True, limit=Decimal(5)), as_user=by("bob"))).complete
    await t.restart()
    assert await t.result(run) == ["Ana: 9.90 False", "Sam: 0 False", "Bob: 5 False"]


async def test_a_veto_gives_the_handler_what_is_there(t: TestEngine) -> None:
    run = await t.start(spends)
    await t.approve(run, Spend(approved=True), as_user=by("sam"))
    await t.approve(run, Spend(approved=False), as_user=by("bob"))
    assert await t.result(run) == ["Sam: 0 False", "Bob: 0 True"]


async def test_stages_through_the_engine(t: TestEngine) -> None:
    run = await t.start(spends, staged=True)
    with pytest.raises(Refused) as caught:
        await t.approve(run, Spend(approved=True), as_user=by("sam"))
    assert caught.value.reason == "not_eligible"
    for name in ("ana", "bob", "sam"):
        await t.approve(run, Spend(approved=True), as_user=by(name))
    assert len(await t.result(run)) == 3


async def test_who_started_the_run_does_not_decide_it(t: TestEngine) -> None:
    run = await t.start(spends.options(requester=by("ana")))
    with pytest.raises(Refused) as caught:
        await t.approve(run, Spend(approved=True), as_user=by("ana"))
    assert caught.value.reason == "own_request"


async def test_the_deadline_gives_the_default_whoever_decided_before(t: TestEngine) -> None:
    run = await t.start(spends)
    await t.approve(run, Spend(approved=True), as_user=by("ana"))
    await t.advance(timedelta(days=3))
    assert await t.result(run) == [": 0 False"]
    other = await t.start(late)
    await t.approve(other, Spend(approved=True), as_user=by("ana"))
    await t.advance(61)
    assert await t.result(other) == "late"


@pytest.mark.parametrize("people", [1, 2])
async def test_combine_makes_one_value_of_however_many(t: TestEngine, people: int) -> None:
    run = await t.start(combines, people)
    for name, limit in list(zip(("ana", "bob"), (7, 5), strict=True))[:people]:
        await t.approve(run, Spend(approved=False, limit=Decimal(limit)), as_user=by(name))
    await t.restart()
    assert await t.result(run) == Decimal(min((7, 5)[:people]))


async def test_options_lead_a_run_round_and_round(t: TestEngine) -> None:
    await t.add_person(by("author"))
    run = await t.start(reviews)
    with pytest.raises(Refused) as caught:
        await run.decide(review, Publish(to="blog"), by=by("author"), option="publish")
    assert caught.value.reason == "excluded"
    await run.decide(review, Rework(what="title"), by=by("ana"), option="rework", comment="dull")
    await t.settle()
    await run.decide(review, {"what": "end"}, by=by("ana"), option="rework", comment="long")
    await t.settle()
    await run.decide(review, by=by("bob"), option="home")
    assert await t.result(run) == "home after 2"


async def test_questions_side_by_side_have_decisions_of_their_own(t: TestEngine) -> None:
    run = await t.start(parallel)
    await t.settle()
    first, second = await run.approvals()
    for _ in range(2):  # the one that she has not decided yet
        await t.approve(run, Spend(approved=True), as_user=by("ana"), ask=expense)
    assert [one.state for one in await run.approvals()] == ["open", "open"]
    await t.approve(run, Spend(approved=True), as_user=by("bob"), ask=expense)
    states = {one.id: one.state for one in await run.approvals()}
    assert (states[first.id], states[second.id]) == ("decided", "open")
    with pytest.raises(Refused) as caught:
        await t.approve(run, Spend(approved=True), as_user=by("ana"), ask=expense)
    assert caught.value.reason == "voted"
    await t.approve(run, Spend(approved=True), as_user=by("cyd"), ask=expense)
    assert await t.result(run) == [2, 2]


async def test_people_at_once_are_as_many_as_needed(t: TestEngine) -> None:
    for number in range(6):
        await t.add_person(f"f{number}@example.org", groups=["finance"])
    run = await t.start(combines, 2)
    await t.settle()
    told = await asyncio.gather(
        *(
            run.decide(expense, Spend(approved=True, limit=Decimal(3)), by=f"f{number}@example.org")
            for number in range(6)
        ),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in told) == ["Receipt"] * 2 + ["Refused"] * 4
    assert await t.result(run) == Decimal(3)


async def test_a_secret_reaches_the_run_from_code_too(t: TestEngine) -> None:
    run = await t.start(unlocks)
    await t.approve(run, Pin(pin=SecretStr("sesame"), door="back"), as_user=by("ana"))
    assert await t.result(run) is True
    (asked,) = await run.approvals()
    assert asked.decisions[0].answer == {"pin": "[redacted]", "door": "back"}, "the rest stands in the record"
    assert asked.fallback is None
    (step,) = await run.steps()
    assert "sesame" not in str(step)


KILLED = """
import asyncio, os, signal
from signoff import Engine
from tests.approvals.test_together import Spend, by, expense, registry, spends

async def main():
    engine = Engine({url!r}, registry=registry)
    await engine.open()
    run = await engine.start(spends.options(run_id="r-1"))
    receipt = await run.decide(expense, Spend(approved=True), by=by("ana"))
    print(receipt.progress, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_was_decided_before_a_kill_counts_after_it(t: TestEngine, database_url: str) -> None:
    await t.close(grace=0)
    root = Path(__file__).parents[2]
    child = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED.format(url=database_url)],
        cwd=root, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (child.returncode, child.stdout) == (-9, "1 of 3\n"), child.stderr
    async with Engine(database_url, registry=registry) as engine:
        run = engine.run("r-1")
        for name in ("bob", "sam"):
            await run.decide(expense, Spend(approved=True, limit=Decimal(1)), by=by(name))
        assert await run.result(timeout=60) == ["Ana: 0 False", "Bob: 1 False", "Sam: 1 False"]
    await t.open()
