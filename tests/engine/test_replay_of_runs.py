"""What a run's journal promises: nothing is repeated, and replay is equal to what was lived."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from signoff import Registry, RunFailed, Step, StepFailed, action, event, workflow
from signoff.engine.settings import EngineSettings
from signoff.runtime.handles import Run
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker

WAIT = 8


async def until(run: Run[Any], reached: Callable[[Any], bool]) -> Any:
    """The first status of the run that `reached` takes."""
    async with asyncio.timeout(WAIT):
        async for _ in run.subscribe():
            view = await run.status()
            if reached(view):
                return view
    raise AssertionError(f"the run ended as {(await run.status()).status}")


async def waits(run: Run[Any]) -> Any:
    return await until(run, lambda view: view.status == "waiting")


# -- R1


async def test_no_step_with_an_outcome_runs_again(open_engine: EngineMaker, registry: Registry) -> None:
    go = event("go", int, registry=registry)
    calls: list[str] = []

    @action(name="good", registry=registry)
    async def good() -> str:
        calls.append("good")
        return "good"

    @action(name="bad", registry=registry)
    async def bad() -> str:
        calls.append("bad")
        raise ValueError("bad")

    @action(name="slow", registry=registry)
    async def slow() -> str:
        calls.append("slow")
        await asyncio.Event().wait()
        return "slow"

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        seen = [await step.run_action(good)]
        try:
            await step.run_action(bad)
        except StepFailed as error:
            seen.append(error.type)
        try:
            async with asyncio.timeout(0.05):
                await step.run_action(slow)
        except TimeoutError:
            seen.append("canceled")
        return [*seen, *[str(await step.await_event(go)) for _ in range(3)]]

    engine = await open_engine(registry)
    run = await engine.start(w)
    for number in range(3):
        await until(run, lambda view: view.status == "waiting" and [item.kind for item in view.awaiting] == ["event"])
        await engine.close(grace=0)
        engine = await open_engine(registry)
        run = engine.run(run.id)
        await run.send(go, number)
    assert await run.result(timeout=WAIT) == ["good", "ValueError", "canceled", "0", "1", "2"]
    assert calls == ["good", "bad", "slow"]
    states = [(step.kind, step.state, step.lost) for step in await run.steps() if step.kind == "action"]
    assert states == [("action", "success", 0), ("action", "failure", 0), ("action", "canceled", 0)]


async def test_outcomes_of_a_closing_engine_are_kept_and_only_the_rest_is_lost(
    open_engine: EngineMaker, registry: Registry
) -> None:
    calls: list[int] = []
    began = asyncio.Event()

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        calls.append(n)
        if n >= 5 and calls.count(n) == 1:
            began.set()
            await asyncio.Event().wait()
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return sum(await asyncio.gather(*(step.run_action(act, n) for n in range(7))))

    engine = await open_engine(registry)
    run = await engine.start(w)
    await asyncio.wait_for(began.wait(), WAIT)
    async for _ in run.subscribe():
        if sum(step.state == "success" for step in await run.steps()) == 5:
            break
    await engine.close(grace=0)
    engine = await open_engine(registry)
    run = engine.run(run.id)
    assert await run.result(timeout=WAIT) == 21
    assert sorted(calls) == [0, 1, 2, 3, 4, 5, 5, 6, 6]
    assert [step.lost for step in await run.steps()] == [0, 0, 0, 0, 0, 1, 1]


# -- R4, R5, R8


async def test_time_random_and_ids_are_equal_on_replay_and_differ_between_runs(
    t: TestEngine, registry: Registry
) -> None:
    passes: list[tuple[str, list[Any]]] = []

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = [step.now() == step.run.created_at]
        for _ in range(3):
            seen += [step.random.random(), step.uuid(), step.now(), step.now()]
            step.log("passing", n=len(seen))
            await step.sleep(60)
        passes.append((step.run.id, seen))  # signoff: allow
        return [str(item) for item in seen]

    await t.open()
    runs = [await t.start(w), await t.start(w)]
    await t.advance(70)
    await t.restart()
    await t.advance(10)
    await t.restart()
    await t.advance(200)
    results = [await t.result(run) for run in runs]
    for run, result in zip(runs, results, strict=True):
        assert len({str(seen) for name, seen in passes if name == run.id}) == 1
        assert result[0] == "True"
        moments = [datetime.fromisoformat(text) for text in (result[3], result[7], result[11])]
        assert [(b - a).total_seconds() for a, b in itertools.pairwise(moments)] == [60, 60]
        assert (result[3], result[7]) == (result[4], result[8])
        assert [line.data for line in await run.logs()] == [{"n": 5}, {"n": 9}, {"n": 13}]
    assert results[0][1] != results[1][1]
    assert results[0][2] != results[1][2]
    assert len(set(results[0][1::4])) == 3


async def test_after_a_restart_the_kept_part_draws_as_it_did_and_the_rest_anew(
    open_engine: EngineMaker, registry: Registry
) -> None:
    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        drawn = []
        for n in range(4):
            drawn.append(f"{step.random.random()} {step.uuid()}")
            await step.run_action(act, n)
        drawn.append(f"{step.random.random()} {step.uuid()}")
        return drawn

    engine = await open_engine(registry)
    run = await engine.start(w)
    first = await run.result(timeout=WAIT)
    await run.restart(from_step=2)
    second = await run.result(timeout=WAIT)
    assert second[:3] == first[:3]  # drawn before the first outcome of the new round
    assert not set(second[3:]) & set(first)
    forked = await run.fork(from_step=("act", 2))
    third = await forked.result(timeout=WAIT)
    assert third[:3] == first[:3]
    assert not set(third[3:]) & {*first, *second}


# -- R9, R10, R11


async def test_a_handler_that_cannot_go_on_is_blocked_with_its_line_and_others_go_on(
    open_engine: EngineMaker, registry: Registry
) -> None:
    go_on = event("go-on", int, registry=registry)

    @workflow("endless", registry=registry)
    async def endless(step: Step) -> None:
        await step.await_event(go_on)
        number = 0
        while True:
            number += 1

    @workflow("stuck", registry=registry)
    async def stuck(step: Step) -> None:
        await step.await_event(go_on)
        await asyncio.get_running_loop().create_future()

    @workflow("fine", registry=registry)
    async def fine(step: Step) -> int:
        return await step.await_event(go_on)

    engine = await open_engine(registry, settings=EngineSettings(handler_limit=0.3))
    runs = [await engine.start(item) for item in (endless, stuck, fine)]
    for run in runs:
        await waits(run)
        await run.send(go_on, 3)
    assert await runs[2].result(timeout=WAIT) == 3
    for run in runs[:2]:
        view = await until(run, lambda view: view.status == "blocked")
        assert "test_replay_of_runs.py" in str(view.blocked)
        assert await run.cancel() == "canceled"


async def test_a_step_begins_when_it_is_called_and_is_canceled_when_the_handler_returns(
    open_engine: EngineMaker, registry: Registry
) -> None:
    began, canceled = asyncio.Event(), asyncio.Event()
    go_on = event("go-on", int, registry=registry)

    @action(name="never-awaited", registry=registry)
    async def never_awaited() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            canceled.set()

    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.sleep(1000)

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        step.run_action(never_awaited)
        step.run_workflow(child)
        step.sleep(1000)
        await step.await_event(go_on)
        return "done"

    engine = await open_engine(registry)
    run = await engine.start(w)
    await asyncio.wait_for(began.wait(), WAIT)
    await run.send(go_on, 1)
    assert await run.result(timeout=WAIT) == "done"
    shown = [(step.name, step.state) for step in await run.steps()]
    assert shown == [("never-awaited", "canceled"), ("child", "canceled"), ("sleep", "canceled"), ("go-on", "success")]
    await asyncio.wait_for(canceled.wait(), WAIT)
    (item,) = (await engine.runs(workflow="child")).items
    with pytest.raises(Exception, match="cancel"):
        await engine.run(item.id).result(timeout=WAIT)


@pytest.mark.parametrize("steps", [20, 80])
async def test_the_handlers_work_grows_with_its_steps_only(
    open_engine: EngineMaker, registry: Registry, steps: int
) -> None:
    worked: list[int] = []

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        total = 0
        for n in range(steps):
            worked.append(n)  # signoff: allow
            total += await step.run_action(act, n)
            if n % 10 == 9:
                await step.sleep(0.001)
        return total

    engine = await open_engine(registry, settings=EngineSettings(check_replay=False))
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == sum(range(steps))
    assert worked == list(range(steps))


async def test_a_restart_costs_one_pass(open_engine: EngineMaker, registry: Registry) -> None:
    worked: list[int] = []
    go_on = event("go-on", int, registry=registry)

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        for n in range(20):
            worked.append(n)  # signoff: allow
            await step.run_action(act, n)
        await step.await_event(go_on)
        for n in range(20, 30):
            worked.append(n)  # signoff: allow
            await step.run_action(act, n)
        return len(worked)

    settings = EngineSettings(check_replay=False)
    engine = await open_engine(registry, settings=settings)
    run = await engine.start(w)
    await waits(run)
    await engine.close()
    engine = await open_engine(registry, settings=settings)
    run = engine.run(run.id)
    await run.send(go_on, 1)
    assert await run.result(timeout=WAIT) == 50


async def test_programs_past_the_cache_are_replayed_and_lose_nothing(
    open_engine: EngineMaker, registry: Registry
) -> None:
    go_on = event("go-on", int, registry=registry)
    calls: list[int] = []

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        calls.append(n)
        return n

    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> list[int]:
        first = await step.run_action(act, n)
        return [first, await step.await_event(go_on), await step.await_event(go_on)]

    engine = await open_engine(registry, settings=EngineSettings(cached_programs=2))
    runs = [await engine.start(w, n) for n in range(6)]
    for run in runs:
        await waits(run)
    for number in (1, 2):
        for run in runs:
            await run.send(go_on, number)
    assert [await run.result(timeout=WAIT) for run in runs] == [[n, 1, 2] for n in range(6)]
    assert sorted(calls) == list(range(6))


async def test_invalid_results_fail_the_run_with_fields(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        await step.sleep(timedelta(0))
        return ["x"]  # type: ignore[list-item]  # what a test of wrong results returns

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed, match="result") as failed:
        await run.result(timeout=WAIT)
    assert "0" in str(failed.value.error.data)
    assert (await run.status()).status == "failed"
