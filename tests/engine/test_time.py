"""Time in a running engine: sleeps, timers of asyncio, pauses, restarts, and what a sleeping run costs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from signoff import InvalidInput, Registry, Step, event, mutation, workflow
from signoff.testing import TestEngine
from signoff.testing.engine import START
from tests.engine.conftest import EngineMaker

WAIT = 8


def since(moment: datetime) -> float:
    return (moment - START).total_seconds()


async def test_what_is_asked_after_a_long_inline_step_waits_from_then_on(t: TestEngine, registry: Registry) -> None:
    @mutation(name="long", registry=registry)
    async def long(session: Any) -> None:
        t.clock.advance(timedelta(seconds=30))

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_mutation(long.options(inline=True))
        await step.sleep(10)

    await t.open()
    run = await t.start(w)
    await t.settle()
    view = await run.status()
    assert (view.status, view.next_wake_at) == ("sleeping", START + timedelta(seconds=40))
    await t.advance(10)
    assert (await run.status()).status == "completed"


async def test_a_due_time_is_stored_once_and_fires_once_after_a_late_restart(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> list[datetime]:
        moments = []
        await step.sleep(100)
        moments.append(step.now())
        await step.sleep_until(moments[0] + timedelta(seconds=30), name="until")
        moments.append(step.now())
        await step.sleep(timedelta(seconds=5))
        moments.append(step.now())
        return moments

    await t.open()
    run = await t.start(w)
    await t.advance(60)
    assert (await run.status()).next_wake_at == START + timedelta(seconds=100)
    await t.close(grace=0)
    t.clock.advance(timedelta(hours=1))
    await t.open()
    # recorded at its due time; what follows from it is asked for now
    await t.advance(0)
    (first, second) = list(await run.steps())[:2]
    assert (first.state, since(first.due_at or START)) == ("success", 100)
    assert (second.name, second.due_at) == ("until", first.due_at and first.due_at + timedelta(seconds=30))
    await t.advance(10)
    result = await t.result(run)
    assert [since(moment) for moment in result] == [100, 130, 3665]
    assert len(await run.steps()) == 3


async def test_sleeps_that_are_over_are_now(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> float:
        began = step.now()
        await step.sleep(0)
        await step.sleep(-5)
        await step.sleep(timedelta(days=-1))
        await step.sleep_until(datetime(1999, 1, 1, tzinfo=UTC))
        return (step.now() - began).total_seconds()

    await t.open()
    run = await t.start(w)
    assert await t.result(run) == 0
    assert [step.state for step in await run.steps()] == ["success"] * 4


async def test_senseless_times_raise_at_the_call(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        refused = 0
        century = timedelta(days=366 * 101)
        calls: list[Any] = [
            lambda: step.sleep(float("nan")),
            lambda: step.sleep(float("inf")),
            lambda: step.sleep(century),
            lambda: step.sleep_until(step.now() + century),
            lambda: step.sleep_until(step.now().replace(tzinfo=None)),
        ]
        for call in calls:
            try:
                call()
            except InvalidInput:
                refused += 1
        return refused

    await t.open()
    run = await t.start(w)
    assert await t.result(run) == 5
    assert await run.steps() == []


async def test_timers_of_asyncio_are_durable(t: TestEngine, registry: Registry) -> None:
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = []
        began = step.now()

        def passed() -> float:
            return (step.now() - began).total_seconds()

        try:
            async with asyncio.timeout(100):
                await step.await_event(go)
        except TimeoutError:
            seen.append(("timeout", passed()))
        try:
            await asyncio.wait_for(step.await_event(go), 100)
        except TimeoutError:
            seen.append(("wait_for", passed()))
        await asyncio.sleep(100)
        seen.append(("sleep", passed()))
        called = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(100, called.set_result, "x")
        seen.append((await called, passed()))
        async with asyncio.timeout(100):
            await asyncio.sleep(0)
            seen.append(("yields", passed()))
        return seen

    await t.open()
    run = await t.start(w)
    for _ in range(9):
        await t.advance(49)
        await t.restart()
    assert await t.result(run) == [
        ("timeout", 100), ("wait_for", 200), ("sleep", 300), ("x", 400), ("yields", 400),
    ]  # fmt: skip
    states = [(step.kind, step.state) for step in await run.steps()]
    assert states.count(("event", "canceled")) == 2
    assert states.count(("sleep", "success")) == 4
    assert [state for kind, state in states if kind == "sleep"][4:] in ([], ["canceled"])  # the last one's


async def test_a_timer_that_is_not_needed_any_more_wakes_nobody(t: TestEngine, registry: Registry) -> None:
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        async with asyncio.timeout(100):
            first = await step.await_event(go)
        return first + await step.await_event(go)

    await t.open()
    run = await t.start(w)
    await t.settle()
    assert (await run.status()).next_wake_at is not None
    await run.send(go, 1)
    await t.settle()
    assert (await run.status()).next_wake_at is None
    assert [(step.kind, step.state) for step in await run.steps()][:2] == [("sleep", "canceled"), ("event", "success")]
    await t.advance(1000)
    await run.send(go, 2)
    assert await t.result(run) == 3


async def test_a_pause_stops_no_clock_and_what_fell_due_is_handed_over_at_resume(
    t: TestEngine, registry: Registry
) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> list[float]:
        began = step.now()
        await step.sleep(100)
        return [(step.now() - began).total_seconds()]

    await t.open()
    run = await t.start(w)
    await t.advance(50)
    await run.pause()
    await t.advance(500)
    view = await run.status()
    assert view.status == "paused"
    await t.restart()
    assert (await run.status()).status == "paused"
    await run.resume()
    assert await t.result(run) == [100]
    assert (await run.steps())[0].ended_at == START + timedelta(seconds=100)


async def test_an_event_after_the_deadline_comes_too_late_even_before_anyone_recorded_it(
    t: TestEngine, registry: Registry
) -> None:
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        first = await step.await_event(go, timeout=100, default=-1)
        return [first, await step.await_event(go)]

    await t.open()
    run = await t.start(w)
    await t.settle()
    await t.close(grace=0)
    t.clock.advance(timedelta(seconds=101))
    await t.open()
    await run.send(go, 5)
    assert await t.result(run) == [-1, 5]


async def test_a_sleep_fires_when_it_is_due(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step, seconds: float) -> datetime:
        await step.sleep(seconds)
        return step.now()

    engine = await open_engine(registry)
    runs = [await engine.start(w, seconds) for seconds in (0.3, 0.2, 0.1)]
    ends = [await run.result(timeout=WAIT) for run in runs]
    views = [await run.status() for run in runs]
    for run, view, moment in zip(runs, views, ends, strict=True):
        (step,) = await run.steps()
        assert step.due_at == moment
        assert view.ended_at is not None
        assert view.ended_at >= moment
    assert ends == sorted(ends, reverse=True)


async def test_sleeping_runs_cost_no_looks_before_the_next_one_is_due(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step, seconds: float) -> None:
        await step.sleep(seconds)

    await t.open()
    started = await t.start_many([w.call(1000 + n) for n in range(300)])
    await t.settle()
    looks: list[str] = []
    writes: list[str] = []

    def listen(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "signoff_run" in statement:
            (looks if statement.startswith("SELECT") else writes).append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", listen)
    try:
        await t.advance(999)
        assert (looks, writes) == ([], [])
        await t.advance(1.5)  # the first two
        assert 1 <= len(looks) <= 20
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", listen)
    assert len(started) == 300
    assert len((await t.runs(status="completed", limit=10)).items) == 1
