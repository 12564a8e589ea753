"""The test kit, proved on itself: time, replaced steps, waiting, people, restarts (Y1 to Y3)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from signoff import (
    InvalidInput,
    Refused,
    Registry,
    Retry,
    RunFailed,
    Step,
    StepFailed,
    action,
    ask,
    event,
    group,
    mutation,
    n_of,
    option,
    workflow,
)
from signoff.testing import Answer, CannotCome, TestEngine

registry = Registry()
ready = event("kit/ready", str, registry=registry)
question = ask("kit/question", bool, registry=registry)


@action(name="kit/call", retry=Retry(max_attempts=3, initial=10, jitter=False), registry=registry)
async def call(what: str) -> str:
    return f"really {what}"


@action(name="kit/once", registry=registry)
def once() -> int:
    return 1


@mutation(name="kit/write", registry=registry)
async def write(session: object) -> int:
    return 2


@workflow("kit/sleeps", registry=registry)
async def sleeps(step: Step) -> list[str]:
    order: list[str] = []

    async def sleep(name: str, seconds: float) -> None:
        await step.sleep(seconds)
        order.append(f"{name} at {(step.now() - step.run.created_at).total_seconds():g}")

    await asyncio.gather(sleep("c", 300), sleep("a", 60), sleep("b", 60.5))
    return order


@workflow("kit/calls", registry=registry)
async def calls(step: Step) -> list[str]:
    return [await step.run_action(call, "first"), await step.run_action(call, "second")]


@workflow("kit/numbers", registry=registry)
async def numbers(step: Step) -> int:
    return await step.run_action(once) + await step.run_mutation(write)


@workflow("kit/caught", registry=registry)
async def caught(step: Step) -> str:
    try:
        return await step.run_action(call.options(retry=False), "it")
    except StepFailed as error:
        return error.type


@workflow("kit/person", registry=registry)
async def person(step: Step) -> str:
    if await step.ask(question, title="May I?", to=group("finance"), timeout=timedelta(days=1), default=False):
        return await step.await_event(ready)
    return "no"


@workflow("kit/choice", registry=registry)
async def choice(step: Step) -> bool:
    return await step.ask(
        question, title="Which?", options=[option("yes", value=True), option("no", value=False, rejects=True)]
    )


@workflow("kit/together", registry=registry)
async def together(step: Step) -> list[str]:
    decisions = await step.ask(question, title="Both?", rule=n_of(2, group("finance")))
    return sorted(decision.person for decision in decisions)


PLUGIN_TEST = """
from signoff import Step, workflow

@workflow("plugin/one")
async def one(step: Step) -> int:
    return 1

async def test_it(signoff_engine):
    assert await signoff_engine.result(await signoff_engine.start(one)) == 1
"""


@pytest_asyncio.fixture(params=["memory", "postgresql"])
async def t(request: pytest.FixtureRequest) -> AsyncIterator[TestEngine]:
    database = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    async with TestEngine(registry=registry, database=database) as engine:
        yield engine


async def test_time_fires_what_is_due_in_order_each_at_its_own_moment(t: TestEngine) -> None:
    run = await t.start(sleeps)
    await t.advance(timedelta(minutes=2))
    assert (await run.status()).status == "sleeping"
    await t.advance(timedelta(minutes=10))
    assert await t.result(run) == ["a at 60", "b at 60.5", "c at 300"]


async def test_time_stands_still_by_itself(t: TestEngine) -> None:
    before = t.now()
    run = await t.start(sleeps)
    await t.wait_for_status(run, "sleeping")
    assert t.now() == before
    with pytest.raises(CannotCome, match="sleep"):
        await t.result(run)


async def test_retries_fire_when_time_passes(t: TestEngine) -> None:
    t.replace(call, errors=2, value="called")
    run = await t.start(calls)
    step = await t.wait_for_step(run, call, "backoff")
    assert step.attempts == 1
    await t.advance(10)
    assert (await t.wait_for_step(run, "kit/call", "backoff")).attempts == 2
    await t.advance(timedelta(minutes=5))
    assert await t.result(run) == ["called", "called"]


async def test_one_use_of_a_step_is_replaced_and_the_others_are_real(t: TestEngine) -> None:
    t.replace(call, value="", ordinal=1)
    assert await t.result(await t.start(calls)) == ["really first", ""]


async def test_falsy_values_of_sync_actions_and_mutations(t: TestEngine) -> None:
    t.replace(once, value=0)
    t.replace(write, value=0)
    assert await t.result(await t.start(numbers)) == 0


async def test_a_replacement_of_one_run_leaves_others_alone(t: TestEngine) -> None:
    t.replace(once, value=40, run="special")
    assert await t.result(await t.start(numbers.options(run_id="special"))) == 42
    assert await t.result(await t.start(numbers)) == 3


async def test_errors_and_timeouts_reach_the_handler(t: TestEngine) -> None:
    t.replace(call, errors=KeyError("x"))
    assert await t.result(await t.start(caught)) == "KeyError"
    t.replace(call, timeouts=1)
    assert await t.result(await t.start(caught)) == "TimeoutError"


async def test_replacements_and_time_survive_a_restart(t: TestEngine) -> None:
    t.replace(call, errors=1, value="called")
    run = await t.start(calls)
    await t.wait_for_step(run, call, "backoff")
    await t.restart()
    await t.advance(timedelta(minutes=1))
    assert await t.result(run) == ["called", "called"]
    assert (await t.wait_for_step(run, call)).attempts == 1


async def test_a_run_that_failed_comes_to_no_other_status_or_step(t: TestEngine) -> None:
    t.replace(call, errors=3)
    run = await t.start(calls)
    await t.advance(timedelta(minutes=1))
    with pytest.raises(CannotCome, match="ReplacedError"):
        await t.wait_for_status(run, "completed")
    with pytest.raises(CannotCome, match="kit/call"):
        await t.wait_for_step(run, call, ordinal=1)
    with pytest.raises(RunFailed):
        await t.result(run)


async def test_people_answer_as_in_the_browser(t: TestEngine) -> None:
    await t.add_person("ana@example.org", groups=["finance"])
    await t.add_person("omar@example.org")
    run = await t.start(person)
    with pytest.raises(Refused) as refused:
        await t.approve(run, True, as_user="omar@example.org")
    assert refused.value.reason == "not_eligible"
    await t.approve(run, True, as_user="ana@example.org")
    with pytest.raises(CannotCome, match="kit/ready"):
        await t.wait_for_status(run, "completed")
    await run.send(ready, "yes")
    assert await t.result(run) == "yes"
    with pytest.raises(CannotCome, match="open ones: none"):
        await t.approve(run, True, as_user="ana@example.org")


async def test_people_are_called_by_the_part_before_the_at_where_one_is_called_so(t: TestEngine) -> None:
    for address in ("ana@example.org", "ana@example.com", "bob@example.org"):
        await t.add_person(address, groups=["finance"])
    run = await t.start(person)
    with pytest.raises(InvalidInput, match=r"2 people here are called 'ana': ana@example.com, ana@example.org"):
        await t.approve(run, True, as_user="ana")
    with pytest.raises(InvalidInput, match="0 people"):
        await t.approve(run, True, as_user="b")
    assert (await t.approve(run, True, as_user="bob", comment="fine")).person == "bob@example.org"
    assert (await run.approvals())[0].decisions[0].comment == "fine"


async def test_options_are_chosen_by_name(t: TestEngine) -> None:
    await t.add_person("ana@example.org")
    run = await t.start(choice)
    with pytest.raises(Refused) as refused:
        await t.approve(run, as_user="ana", option="no")
    assert refused.value.reason == "form"
    await t.approve(run, as_user="ana", option="no", comment="because")
    assert await t.result(run) is False


async def test_of_several_at_once_one_is_told_yes_and_the_others_why_not(t: TestEngine) -> None:
    names = ("ana", "bob", "cyd")
    for name in names:
        await t.add_person(f"{name}@example.org", groups=["finance"])
    run = await t.start(person)
    raced = await t.race(run, *(Answer(name, True) for name in names), Answer("ana", False))
    assert raced.winner in {f"{name}@example.org" for name in names}
    assert raced.reasons == ["already_decided"] * 3
    (asked,) = await run.approvals()
    assert [one.person for one in asked.decisions] == [raced.winner]


async def test_as_many_as_the_rule_needs_are_told_yes(t: TestEngine) -> None:
    for name in ("ana", "bob", "cyd"):
        await t.add_person(f"{name}@example.org", groups=["finance"])
    run = await t.start(together)
    raced = await t.race(run, *(Answer(name, True) for name in ("ana", "bob", "cyd")))
    assert [len(raced.receipts), raced.reasons] == [2, ["already_decided"]]
    with pytest.raises(ValueError, match="2 answers"):
        assert raced.winner
    assert await t.result(run) == sorted(receipt.person for receipt in raced.receipts)


async def test_a_deadline_passes_when_time_does(t: TestEngine) -> None:
    await t.add_person("ana@example.org", groups=["finance"])
    run = await t.start(person)
    await t.wait_for_status(run, "waiting")
    await t.advance(timedelta(days=1) - timedelta(seconds=1))
    assert (await run.approvals())[0].state == "open"
    await t.advance(1)
    with pytest.raises(Refused) as refused:
        await t.approve(run, True, as_user="ana", ask=question)
    assert refused.value.reason == "deadline"
    assert await t.result(run) == "no"


def test_the_plugin_gives_an_engine(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["signoff.testing.plugin"]')
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (tmp_path / "test_it.py").write_text(PLUGIN_TEST)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout
