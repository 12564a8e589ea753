"""Pausing (C3): what runs may end, nothing begins, and nothing is forgotten until the run is resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signoff import Conflict, Registry, Retry, Step, StepFailed, action, attempt, event, workflow
from signoff.testing import TestEngine
from tests.engine.test_replay_of_runs import until

WAIT = 15


async def test_pausing_lets_running_steps_end_and_starts_nothing_new(t: TestEngine, registry: Registry) -> None:
    begun: list[str] = []
    ends: dict[str, asyncio.Event] = {"good": asyncio.Event(), "bad": asyncio.Event()}

    @action(name="run", registry=registry)
    async def run_(name: str) -> str:
        begun.append(name)
        await ends[name].wait()
        if name == "bad":
            raise ValueError("bad")
        return name

    @action(name="after", registry=registry)
    async def after(n: int) -> None:
        begun.append(f"after {n}")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        async def branch(n: int, name: str) -> str:
            try:
                return await step.run_action(run_, name)
            except StepFailed:
                return "failed"
            finally:
                await step.run_action(after, n)

        return list(await asyncio.gather(branch(0, "good"), branch(1, "bad")))

    await t.open()
    run = await t.start(w)
    async with asyncio.timeout(WAIT):
        while len(begun) < 2:
            await asyncio.sleep(0.01)
    assert [await run.pause() for _ in range(2)] == ["pausing"] * 2
    ends["bad"].set()
    ends["good"].set()
    await until(run, lambda view: view.status == "paused")
    assert begun[2:] == []
    assert [step.state for step in await run.steps()] == ["success", "failure"]
    assert await run.pause() == "paused"
    before = (await run.status()).version_no
    await run.pause()
    assert (await run.status()).version_no == before
    await run.resume()
    assert await t.result(run) == ["good", "failed"]
    assert sorted(begun[2:]) == ["after 0", "after 1"]


async def test_resuming_lifts_a_pause_that_is_not_reached_yet(t: TestEngine, registry: Registry) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @action(name="run", registry=registry)
    async def run_() -> int:
        begun.set()
        await end.wait()
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(run_) + await step.run_action(run_)

    await t.open()
    run = await t.start(w)
    await asyncio.wait_for(begun.wait(), WAIT)
    assert await run.pause() == "pausing"
    assert await run.resume() == "running"
    assert await run.resume() == "running"
    end.set()
    assert await run.result(timeout=WAIT) == 2


async def test_a_restart_while_pausing_ends_paused(t: TestEngine, registry: Registry) -> None:
    begun = []

    @action(name="run", registry=registry)
    async def run_() -> int:
        begun.append(attempt.current().number)
        if len(begun) == 1:
            await asyncio.sleep(WAIT)
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(run_)

    await t.open()
    run = await t.start(w)
    async with asyncio.timeout(WAIT):
        while not begun:
            await asyncio.sleep(0.01)
    await run.pause()
    await t.restart()
    await t.settle()
    assert ((await run.status()).status, len(begun)) == ("paused", 1)
    await run.resume()
    assert await t.result(run) == 1


async def test_no_attempt_begins_while_paused_and_events_and_time_are_kept(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)
    tries = []

    @action(name="flaky", retry=Retry(initial=10, jitter=False), registry=registry)
    async def flaky() -> int:
        tries.append(t.now())
        if len(tries) == 1:
            raise ValueError("again")
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        slept = step.sleep(60)
        first = await step.run_action(flaky)
        got = await step.await_event(number)
        await slept
        return [first, got, (step.now() - step.run.created_at).total_seconds()]

    await t.open()
    run = await t.start(w)
    await t.wait_for_step(run, flaky, "backoff")
    await run.pause()
    await run.send(number, 5)
    await t.advance(600)
    assert (len(tries), (await run.status()).status) == (1, "paused")
    await run.resume()
    # the pause stopped no clock: the sleep was over long ago
    result = await t.result(run)
    assert result[:2] == [1, 5]
    assert result[2] >= 60
    assert len(tries) == 2


async def test_a_final_or_canceling_run_cannot_be_paused(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        return None

    await t.open()
    run = await t.start(w)
    await t.result(run)
    for refused in (run.pause, run.resume):
        with pytest.raises(Conflict) as conflict:
            await refused()
        assert (conflict.value.run, conflict.value.state) == (run.id, "completed")
