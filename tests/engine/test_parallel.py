"""Steps beside each other: fan-out, failing branches, races, and the first of several events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signoff import EventError, InvalidInput, Registry, RunFailed, Step, StepFailed, action, event, workflow
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.test_pools_of_engines import Gate
from tests.engine.test_replay_of_runs import waits

WAIT = 8


async def test_a_gather_starts_everything_and_hands_over_each_as_it_comes(
    open_engine: EngineMaker, registry: Registry
) -> None:
    gate = Gate()
    done = {n: asyncio.Event() for n in range(40)}

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        await gate.stand(n)
        await done[n].wait()
        return n

    @action(name="next", registry=registry)
    async def following(n: int) -> int:
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        order: list[int] = []

        async def branch(n: int) -> None:
            order.append(await step.run_action(following, await step.run_action(act, n)))

        await asyncio.gather(*(branch(n) for n in range(40)))
        return order

    engine = await open_engine(registry)
    run = await engine.start(w)
    await gate.holds(40)
    await gate.let_out(40)
    wanted = [7, 3, 39, 0]
    for count, n in enumerate(wanted):
        done[n].set()  # one at a time, while the others run: no batches
        async for _ in run.subscribe():
            steps = await run.steps()
            if sum(step.name == "next" and step.state == "success" for step in steps) == count + 1:
                break
    for release in done.values():
        release.set()
    result = await run.result(timeout=WAIT)
    assert result[:4] == wanted
    assert sorted(result) == list(range(40))


async def test_a_failing_branch_leaves_or_cancels_the_others_as_asyncio_says(t: TestEngine, registry: Registry) -> None:
    @action(name="fail", registry=registry)
    async def fail() -> None:
        raise ValueError("no")

    @action(name="later", registry=registry)
    async def later() -> str:
        return "later"

    @workflow("gathers", registry=registry)
    async def gathers(step: Step) -> str:
        slow = asyncio.ensure_future(step.run_action(later.options(run_after=60)))
        try:
            await asyncio.gather(step.run_action(fail), slow)
        except StepFailed:
            return await slow  # gather leaves the others running
        return ""

    @workflow("grouped", registry=registry)
    async def grouped(step: Step) -> str:
        failed = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.run_action(later.options(run_after=60)))
                group.create_task(step.sleep(100))
                group.create_task(step.run_action(fail))
        except* StepFailed as group_error:
            failed = len(group_error.exceptions)
        return str(failed)

    await t.open()
    leaves, cancels = await t.start(gathers), await t.start(grouped)
    assert await t.result(cancels) == "1"
    assert [(step.name, step.state, step.by_handler) for step in await cancels.steps()] == [
        ("later", "canceled", True), ("sleep", "canceled", True), ("fail", "failure", False),
    ]  # fmt: skip
    await t.advance(61)
    assert await t.result(leaves) == "later"


async def test_a_race_has_the_same_winner_after_a_restart(t: TestEngine, registry: Registry) -> None:
    go = event("go", str, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        sleeping = asyncio.ensure_future(step.sleep(60))
        sent = asyncio.ensure_future(step.await_event(go))
        done, pending = await step.wait([sleeping, sent])
        winner = "sleep" if sleeping in done else "event"
        assert len(pending) == 1
        await step.await_event(go)
        return [winner]

    await t.open()
    first, second = await t.start(w), await t.start(w)
    await t.settle()
    await first.send(go, "in time")
    await t.advance(61)
    await second.send(go, "late")
    await t.restart()
    for run in (first, second):
        await run.send(go, "a")
    assert [await t.result(first), await t.result(second)] == [["event"], ["sleep"]]


async def test_the_first_of_several_events(open_engine: EngineMaker, registry: Registry) -> None:
    one, two, three = [event(name, int, registry=registry) for name in ("one", "two", "three")]

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = []
        for _ in range(3):
            found, value = await step.first_event(one, two)
            seen.append((found.name, value))
        try:
            await step.first_event(one, three)
        except EventError as error:
            seen.append(str(error))
        seen.append(await step.await_event(two))
        try:
            await step.first_event(one, three, timeout=0.02)
        except TimeoutError:
            seen.append("timeout")
        try:
            step.first_event(one, two, one)
        except InvalidInput:
            seen.append("twice")
        return seen

    engine = await open_engine(registry)
    run = await engine.start(w)
    await waits(run)
    await run.pause()
    for sent, value in ((two, 1), (one, 2), (two, 3), (two, 4)):
        await run.send(sent, value)
    await run.send_error(three, "broken")
    await run.resume()
    result = await run.result(timeout=WAIT)
    assert result[:3] == [("two", 1), ("one", 2), ("two", 3)]
    assert "broken" in result[3]
    assert result[4:] == [4, "timeout", "twice"]


async def test_a_failure_that_nobody_catches_cancels_what_runs_beside_it(
    open_engine: EngineMaker, registry: Registry
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @action(name="slow", registry=registry)
    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @action(name="fail", registry=registry)
    async def fail() -> None:
        await began.wait()
        raise ValueError("no")

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await asyncio.gather(step.run_action(slow), step.run_action(fail))

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed, match="no"):
        await run.result(timeout=WAIT)
    await asyncio.wait_for(ended.wait(), WAIT)
    assert [step.state for step in await run.steps()] == ["canceled", "failure"]
