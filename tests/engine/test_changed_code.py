"""Open runs under other code than they began with: what they bear, and what blocks them until code that fits comes
(R2, R6 to R8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from signoff import Engine, Registry, RunBlocked, Step, StepFailed, action, attempt, event, workflow
from signoff.engine.settings import EngineSettings
from signoff.runtime.handles import Run
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.test_replay_of_runs import until, waits

WAIT = 8


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
