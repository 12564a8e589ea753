"""What a run's journal promises: nothing is repeated, replay is equal to what was lived, other code is found out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from signoff import Engine, Registry, RunBlocked, RunFailed, Step, StepFailed, action, attempt, event, workflow
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


# -- R2, R6, R7: other code


def build(define: Callable[[Registry], None]) -> Registry:
    registry = Registry()
    define(registry)
    return registry


go = event("go", int, registry=Registry())


async def with_new_code(
    open_engine: EngineMaker, old: Callable[[Registry], None], new: Callable[[Registry], None], *args: Any
) -> tuple[Engine, Run[Any]]:
    """A run that waits for `go` under old code, and then is given it under new code."""
    engine = await open_engine(build(old))
    run = await engine.start_by_name("w", dict(enumerate(args)) if args else None)
    await waits(run)
    await engine.close()
    engine = await open_engine(build(new))
    run = engine.run(run.id)
    await run.send("go", 1)
    return engine, run


async def test_a_new_optional_parameter_changes_nothing_and_other_args_do(open_engine: EngineMaker) -> None:
    def old(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="act", registry=registry)
        async def act(n: int) -> int:
            return n

        @workflow("w", registry=registry)
        async def w(step: Step) -> int:
            n = await step.run_action(act, 1)
            await step.await_event(go)
            return n

    def wider(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="act", registry=registry)
        async def act(n: float, more: str = "x") -> int:
            return int(n)

        @workflow("w", registry=registry)
        async def w(step: Step, added: int = 5) -> int:
            n = await step.run_action(act, n=1)
            await step.await_event(go, timeout=1000)
            return n + added

    def other(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="act", registry=registry)
        async def act(n: int) -> int:
            return n

        @workflow("w", registry=registry)
        async def w(step: Step) -> int:
            n = await step.run_action(act, 2)
            await step.await_event(go)
            return n

    def other_but_unstable(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="act", registry=registry)
        async def act(n: int) -> int:
            return n

        @workflow("w", registry=registry)
        async def w(step: Step) -> int:
            n = await step.with_options(unstable_args=True).run_action(act, 2)
            await step.await_event(go)
            return n + 100

    engine, run = await with_new_code(open_engine, old, wider)
    assert await run.result(timeout=WAIT) == 6
    await engine.close()
    engine, run = await with_new_code(open_engine, old, other)
    view = await until(run, lambda view: view.status == "blocked")
    assert "2" in str(view.blocked["expected"])
    assert "1" in str(view.blocked["recorded"])
    with pytest.raises(RunBlocked):
        await run.result(timeout=WAIT)
    await engine.close()
    engine = await open_engine(build(other_but_unstable))
    assert await engine.run(run.id).result(timeout=WAIT) == 101


async def test_what_an_open_step_was_asked_with_holds_for_it(t: TestEngine, registry: Registry) -> None:
    """A retry with longer waits, or a longer sleep, in later code does not change the ones that run already."""
    from signoff import Retry

    tries: list[int] = []

    def define(registry: Registry, wait: float, attempts: int) -> Any:
        @action(name="fail", retry=Retry(max_attempts=attempts, initial=wait, jitter=False), registry=registry)
        async def fail() -> None:
            tries.append(attempt.current().number)
            raise ValueError("no")

        @workflow("w", registry=registry)
        async def w(step: Step) -> list[float]:
            began = step.now()
            sleeping = asyncio.ensure_future(step.sleep(wait * 3))
            seen = []
            try:
                await step.run_action(fail)
            except StepFailed:
                seen.append((step.now() - began).total_seconds())
            await sleeping
            return [*seen, (step.now() - began).total_seconds()]

        return w

    w = define(registry, 10, 3)
    await t.open()
    run = await t.start(w)
    await t.advance(5)
    await t.close(grace=0)
    t.registry = Registry()
    define(t.registry, 1000, 9)
    await t.open()
    await t.advance(100)
    assert await t.result(run) == [30, 30]
    assert tries == [1, 2, 3]


async def test_a_recorded_step_that_is_not_reached_blocks(open_engine: EngineMaker) -> None:
    calls: list[str] = []

    def define(registry: Registry, names: list[str]) -> None:
        registry.add_message(go)

        async def note(name: str) -> str:
            calls.append(name)
            return name

        fn = action(name="note", registry=registry)(note)

        @workflow("w", registry=registry)
        async def w(step: Step) -> str:
            for name in names:
                await step.run_action(fn.options(name=name), name)
                if name == "b":
                    await step.await_event(go)
            return "done"

    _, run = await with_new_code(open_engine, lambda r: define(r, ["a", "b"]), lambda r: define(r, ["a"]))
    view = await until(run, lambda view: view.status == "blocked")
    assert view.blocked["recorded"]["name"] == "b"
    assert calls == ["a", "b"]
    assert [step.name for step in await run.steps()] == ["a", "b", "go"]
    assert await run.cancel() == "canceled"


async def test_values_that_todays_types_refuse_block(open_engine: EngineMaker) -> None:
    def old(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="give", registry=registry)
        async def give() -> str:
            return "text"

        @workflow("w", registry=registry)
        async def w(step: Step) -> str:
            value = await step.run_action(give)
            await step.await_event(go)
            return value

    def new(registry: Registry) -> None:
        registry.add_message(go)

        @action(name="give", registry=registry)
        async def give() -> int:
            return 1

        @workflow("w", registry=registry)
        async def w(step: Step) -> str:
            number = await step.run_action(give)
            await step.await_event(go)
            return str(number)

    engine, run = await with_new_code(open_engine, old, new)
    view = await until(run, lambda view: view.status == "blocked")
    assert "give" in view.blocked["message"]
    await engine.close()
    engine = await open_engine(build(old))
    assert await engine.run(run.id).result(timeout=WAIT) == "text"


async def test_a_blocked_run_still_takes_outcomes_and_events_and_starts_nothing(open_engine: EngineMaker) -> None:
    began, leave = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    def functions(registry: Registry) -> Any:
        registry.add_message(go)

        @action(name="fn", registry=registry)
        async def fn(name: str) -> str:
            calls.append(name)
            if name == "slow":
                began.set()
                await leave.wait()
            return name

        return fn

    def right(registry: Registry) -> None:
        fn = functions(registry)

        @workflow("w", registry=registry)
        async def w(step: Step) -> list[Any]:
            slow = asyncio.ensure_future(step.run_action(fn.options(name="slow"), "slow"))
            await step.run_action(fn.options(name="right"), "right")
            sent = await step.await_event(go)
            return [await slow, sent, await step.await_event(go)]

    def wrong(registry: Registry) -> None:
        fn = functions(registry)

        @workflow("w", registry=registry)
        async def w(step: Step) -> None:
            step.run_action(fn.options(name="slow"), "slow")
            await step.run_action(fn.options(name="wrong"), "wrong")

    engine = await open_engine(build(right))
    run = await engine.start_by_name("w")
    await asyncio.wait_for(began.wait(), WAIT)
    await until(run, lambda view: any(item.kind == "event" for item in view.awaiting))
    await engine.close(grace=0)
    engine = await open_engine(build(wrong))
    run = engine.run(run.id)
    await until(run, lambda view: view.status == "blocked")
    await run.send("go", 1)
    await run.send("go", 2)
    await engine.close()
    leave.set()
    engine = await open_engine(build(right))
    run = engine.run(run.id)
    assert await run.result(timeout=WAIT) == ["slow", 1, 2]
    assert calls.count("wrong") == 0
    assert calls.count("right") == 1


async def test_a_blocked_run_is_tried_once_by_each_code(open_engine: EngineMaker) -> None:
    passes: list[str] = []

    def define(registry: Registry, name: str) -> None:
        registry.add_message(go)

        async def nothing() -> None:
            passes.append("called")

        fn = action(name="fn", registry=registry)(nothing)

        @workflow("w", registry=registry)
        async def w(step: Step) -> None:
            passes.append(name)  # signoff: allow
            await step.run_action(fn.options(name=name))
            await step.await_event(go)

    engine, run = await with_new_code(open_engine, lambda r: define(r, "a"), lambda r: define(r, "b"))
    await until(run, lambda view: view.status == "blocked")
    before = len(passes)
    await run.send("go", 5)
    for _ in range(2):  # the same code again: the run stays blocked without being tried
        await engine.close()
        engine = await open_engine(build(lambda r: define(r, "b")), settings=EngineSettings())
    probe = await engine.start_by_name("w")
    await waits(probe)
    assert passes[before:].count("b") == 1  # the probe's own
    assert (await engine.run(run.id).status()).status == "blocked"


async def test_a_run_whose_version_nobody_has_shows_as_blocked(open_engine: EngineMaker) -> None:
    def define(registry: Registry, version: int) -> None:
        registry.add_message(go)

        @workflow("w", version, registry=registry)
        async def w(step: Step) -> int:
            return await step.await_event(go)

    engine, run = await with_new_code(open_engine, lambda r: define(r, 1), lambda r: define(r, 2))
    assert (await run.status()).status == "blocked"
    assert "version 1" in (await run.status()).blocked["message"]
    listed = await engine.runs(status="blocked")
    assert [item.id for item in listed.items] == [run.id]
    assert [item.id for item in (await engine.runs(status="waiting")).items] == []
    with pytest.raises(TimeoutError, match="no live worker has 'w' version 1"):  # it is no RunBlocked: one may come
        await run.result(timeout=0.05)
    await engine.close()
    async with Engine(engine.store.url, registry=Registry(), worker=False) as looking:
        run = looking.run(run.id)
        view = await run.status()
        assert (view.status, view.blocked, view.hint) == ("waiting", None, "no worker is running")
        assert (await looking.runs()).unattended
        with pytest.raises(TimeoutError, match="no worker is running"):
            await run.result(timeout=0.05)
    engine = await open_engine(build(lambda r: define(r, 1)))
    assert await engine.run(run.id).result(timeout=WAIT) == 1
    await engine.close()
    engine, run = await with_new_code(open_engine, lambda r: define(r, 1), lambda r: define(r, 2))
    assert await run.cancel() == "canceled"


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


async def test_changed_is_decided_once_for_a_run(open_engine: EngineMaker) -> None:
    def old(registry: Registry) -> None:
        registry.add_message(go)

        @workflow("w", registry=registry)
        async def w(step: Step) -> list[Any]:
            await step.await_event(go)
            await step.await_event(go)
            return ["old"]

    def new(registry: Registry) -> None:
        registry.add_message(go)

        @workflow("w", registry=registry)
        async def w(step: Step) -> list[Any]:
            first = step.changed("early")
            await step.await_event(go)
            later = step.changed("late")
            await step.await_event(go)
            return [first, step.changed("early"), later, step.changed("late")]

    engine, run = await with_new_code(open_engine, old, new)
    fresh = await engine.start_by_name("w")
    for one in (run, fresh):
        await until(one, lambda view: bool(view.awaiting))
    for _ in range(2):
        await fresh.send("go", 1)
    await run.send("go", 2)
    assert await fresh.result(timeout=WAIT) == [True, True, True, True]
    # the old run had passed the first point when the code came, and came to the second under the new code
    assert await run.result(timeout=WAIT) == [False, False, True, True]


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
