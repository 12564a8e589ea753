"""Attempts whose worker was lost (F3): they run again without counting, unless they must not."""

from __future__ import annotations

import asyncio

from signoff import Registry, Retry, Step, StepFailed, StepLost, action, attempt, workflow
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker

WAIT = 8


async def test_a_lost_attempt_runs_again_up_to_five_times_and_is_no_failure(
    open_engine: EngineMaker, registry: Registry
) -> None:
    began: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    @action(name="hangs", retry=Retry(max_attempts=2, initial=0.01), registry=registry)
    async def hangs() -> None:
        began.put_nowait((attempt.current().number, attempt.current().idempotency_key))
        await asyncio.Event().wait()

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        try:
            await step.run_action(hangs)
        except StepLost as error:
            return str(error)
        return ""

    engine = await open_engine(registry)
    run = await engine.start(w)
    seen = []
    for _ in range(6):
        seen.append(await asyncio.wait_for(began.get(), WAIT))
        await engine.close(grace=0)
        engine = await open_engine(registry)
    run = engine.run(run.id)
    assert "unknown" in await run.result(timeout=WAIT)
    assert seen == [(1, f"{run.id}:0")] * 6  # the first attempt and five more: lost ones count for no retry
    assert began.empty()
    (step,) = await run.steps()
    assert (step.lost, step.attempts) == (6, 0)


async def test_at_most_once_is_not_tried_again_after_a_loss(open_engine: EngineMaker, registry: Registry) -> None:
    began = asyncio.Event()
    calls: list[str] = []

    @action(name="once", at_most_once=True, registry=registry)
    async def once() -> None:
        calls.append("once")
        began.set()
        await asyncio.Event().wait()

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        try:
            await step.run_action(once)
        except StepFailed as error:
            return f"{type(error).__name__}: {error}"
        return ""

    engine = await open_engine(registry)
    run = await engine.start(w)
    await asyncio.wait_for(began.wait(), WAIT)
    await engine.close(grace=0)
    engine = await open_engine(registry)
    result = await engine.run(run.id).result(timeout=WAIT)
    assert result.startswith("StepLost")
    assert "unknown" in result
    assert calls == ["once"]


async def test_a_step_that_had_not_begun_is_not_lost(t: TestEngine, registry: Registry) -> None:
    calls: list[int] = []

    @action(name="later", at_most_once=True, registry=registry)
    async def later() -> int:
        calls.append(1)
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(later.options(run_after=60))

    await t.open()
    run = await t.start(w)
    await t.advance(30)
    await t.restart()
    await t.advance(31)
    assert await t.result(run) == 1
    assert calls == [1]
