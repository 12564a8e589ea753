"""Timeouts of attempts and bounds for all of them, on the engine's clock, from the nearest level that says (F5, F6)."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Registry, Retry, Step, StepFailed, action, attempt, event, mutation, query, workflow
from signoff.engine.settings import EngineSettings
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, note_steps, write_note

WAIT = 8


async def test_schedule_to_close_bounds_all_attempts(t: TestEngine, registry: Registry) -> None:
    at: list[float] = []

    @action(name="flaky", registry=registry)
    async def flaky(began: datetime) -> None:
        at.append((t.now() - began).total_seconds())
        raise ValueError("no")

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        bounded = flaky.options(retry=Retry(max_attempts=None, initial=10, base=1, jitter=False), schedule_to_close=35)
        try:
            await step.run_action(bounded, step.now())
        except StepFailed as error:
            return error.type
        return ""

    await t.open()
    run = await t.start(w)
    await t.advance(1000)
    assert await t.result(run) == "ValueError"
    assert at == [0, 10, 20, 30]
    assert (await run.steps())[0].ended_at == t.now() - timedelta(seconds=970)


async def test_a_timeout_is_a_failed_attempt_and_is_on_the_engines_clock(t: TestEngine, registry: Registry) -> None:
    began: asyncio.Queue[int] = asyncio.Queue()
    canceled: list[int] = []

    @action(name="hangs", timeout=30, retry=Retry(max_attempts=2, initial=60, jitter=False), registry=registry)
    async def hangs() -> int:
        number = attempt.current().number
        began.put_nowait(number)
        if number == 2:
            return number
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.append(number)
            raise
        return 0

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(hangs)

    await t.open()
    run = await t.start(w)
    assert await asyncio.wait_for(began.get(), WAIT) == 1
    t.clock.advance(timedelta(seconds=31))
    await t.wait_for_step(run, "hangs", "backoff")
    assert canceled == [1]
    await t.advance(60)
    assert await t.result(run) == 2
    assert (await run.steps())[0].attempt_rows[0].error.type == "TimeoutError"


async def test_queries_and_mutations_time_out_too_and_write_nothing(
    open_engine: EngineMaker, registry: Registry
) -> None:
    add, count, _ = note_steps(registry)

    @mutation(name="hangs", registry=registry)
    async def hangs(session: AsyncSession) -> None:
        await write_note(session, "gone")
        await asyncio.Event().wait()

    @query(name="looks", registry=registry)
    async def looks(session: AsyncSession) -> str:
        assert attempt.current().step == "looks"
        await asyncio.Event().wait()
        return ""

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = []
        for call in (
            lambda: step.run_mutation(hangs.options(timeout=0.05)),
            lambda: step.run_mutation(hangs.options(schedule_to_close=0.05)),
            lambda: step.run_query(looks.options(timeout=0.05)),
        ):
            try:
                await call()
            except StepFailed as error:
                seen.append(error.type)
        return [*seen, await step.run_mutation(add, "x"), await step.run_query(count)]

    engine = await open_engine(registry)
    await make_notes(engine)
    assert await (await engine.start(w)).result(timeout=WAIT) == [*["TimeoutError"] * 3, 1, 1]


async def test_a_sync_attempt_that_timed_out_keeps_its_slot_and_its_late_result_is_dropped(
    open_engine: EngineMaker, registry: Registry
) -> None:
    from signoff.engine.pools import PoolLimits

    leave, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    order: list[str] = []

    @action(name="hangs", pool="one", registry=registry)
    def hangs() -> str:
        loop.call_soon_threadsafe(entered.set)
        leave.wait(WAIT)
        order.append("left")
        return "late"

    @action(name="next", pool="one", registry=registry)
    async def after() -> str:
        order.append("next")
        return "next"

    failed = event("failed", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        try:
            await step.run_action(hangs.options(timeout=0.05))
        except StepFailed as error:
            first = error.type
        await step.await_event(failed)
        return [first, await step.run_action(after)]

    engine = await open_engine(registry, pools={"one": PoolLimits(max_parallel=1)})
    try:
        run = await engine.start(w)
        await asyncio.wait_for(entered.wait(), WAIT)
        await run.send(failed, 1)
        async for _ in run.subscribe():
            if len(await run.steps()) == 3:
                break
        (pool,) = await engine.pools()
        assert pool.running == 1
        assert [step.state for step in await run.steps()] == ["failure", "success", "open"]
        assert [item.kind for item in (await run.status()).awaiting] == ["pool"]
    finally:
        leave.set()
    assert await run.result(timeout=WAIT) == ["TimeoutError", "next"]
    assert order == ["left", "next"]


async def test_retry_and_timeout_come_from_the_nearest_level_that_says(t: TestEngine, registry: Registry) -> None:
    tries: dict[str, int] = {}

    async def fail() -> None:
        current = attempt.current()
        tries[current.step] = current.number
        raise ValueError("no")

    plain = action(name="plain", registry=registry)(fail)
    own = action(name="own", retry=Retry(max_attempts=4, initial=1), registry=registry)(fail)
    asks = action(name="asks", retry=True, registry=registry)(fail)

    @workflow("with-default", retry=Retry(max_attempts=3, initial=1), registry=registry)
    async def with_default(step: Step) -> None:
        calls = [
            step.run_action(plain.options(name="workflow")),
            step.run_action(own.options(name="function")),
            step.run_action(own.options(name="call", retry=Retry(max_attempts=6, initial=1))),
            step.with_options(retry=Retry(max_attempts=7, initial=1)).run_action(own.options(name="with")),
            step.with_options(retry=Retry(max_attempts=7)).run_action(own.options(name="off", retry=False)),
            step.run_action(own.options(name="next-down", retry=True)),
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    @workflow("without", registry=registry)
    async def without(step: Step) -> None:
        calls = [step.run_action(plain.options(name="none")), step.run_action(asks.options(name="engine"))]
        await asyncio.gather(*calls, return_exceptions=True)

    t.settings = EngineSettings(retry=Retry(max_attempts=2, initial=1))
    await t.open()
    for run in [await t.start(with_default), await t.start(without)]:
        await t.advance(3600)
        await t.result(run)
    assert tries == {
        "workflow": 3, "function": 4, "call": 6, "with": 7, "off": 1, "next-down": 4, "none": 2, "engine": 2,
    }  # fmt: skip
