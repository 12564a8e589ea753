"""What is done to a run from outside while engines work: cancel, pause, undo, restart, fork, and hand it over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signoff import Registry, Retry, RunCanceled, RunFailed, Step, action, attempt, workflow
from tests.engine.conftest import EngineMaker

WAIT = 8


async def test_cancel_with_cleanup(open_engine: EngineMaker, registry: Registry) -> None:
    cleaned = []
    started = asyncio.Event()

    @action(name="long", registry=registry)
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    @action(name="clean", registry=registry)
    async def clean() -> None:
        cleaned.append(1)

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        try:
            await step.run_action(long)
        except asyncio.CancelledError:
            await step.run_action(clean)
            raise

    engine = await open_engine(registry)
    run = await engine.start(w)
    await asyncio.wait_for(started.wait(), WAIT)
    await run.cancel(reason="enough")
    with pytest.raises(RunCanceled):
        await run.result(timeout=WAIT)
    assert cleaned == [1]
    assert (await run.status()).status == "canceled"
    assert await run.cancel() == "canceled"


async def test_cancel_grace_ends(open_engine: EngineMaker, registry: Registry) -> None:
    from signoff.engine.settings import EngineSettings

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        try:
            await step.sleep(1000)
        except asyncio.CancelledError:
            await step.sleep(1000)

    engine = await open_engine(registry, settings=EngineSettings(cancel_grace=0.1))
    run = await engine.start(w)
    async for _ in run.subscribe():
        if await run.steps():
            break
    await run.cancel()
    with pytest.raises(RunCanceled):
        await run.result(timeout=WAIT)


async def test_cancel_parent_cancels_children(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.sleep(1000)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> None:
        await asyncio.gather(*(step.run_workflow(child) for _ in range(3)))

    engine = await open_engine(registry)
    run = await engine.start(parent)
    async for _ in run.subscribe():
        if len(await run.steps()) == 3:
            break
    await run.cancel()
    with pytest.raises(RunCanceled):
        await run.result(timeout=WAIT)
    page = await engine.runs(workflow="child")
    assert [item.status for item in page.items] == ["canceled"] * 3


async def test_pause_and_resume(open_engine: EngineMaker, registry: Registry) -> None:
    go = asyncio.Event()
    calls = []

    @action(name="first", registry=registry)
    async def first() -> None:
        calls.append("first")
        await go.wait()

    @action(name="second", registry=registry)
    async def second() -> None:
        calls.append("second")

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        await step.run_action(first)
        await step.run_action(second)
        return "done"

    engine = await open_engine(registry)
    run = await engine.start(w)
    while "first" not in calls:
        await asyncio.sleep(0.01)
    assert await run.pause() == "pausing"
    go.set()
    async for _ in run.subscribe():
        if (await run.status()).status == "paused":
            break
    assert calls == ["first"]
    assert [step.state for step in await run.steps()] == ["success"]
    await run.resume()
    assert await run.result(timeout=WAIT) == "done"
    assert calls == ["first", "second"]


async def test_compensation_newest_first(open_engine: EngineMaker, registry: Registry) -> None:
    from signoff import Compensation

    undone: list[Any] = []

    @action(name="undo", retry=Retry(max_attempts=3, initial=0.01), registry=registry)
    async def undo(what: Compensation) -> None:
        if attempt.current().number == 1:
            raise ValueError("once more")
        undone.append((what.args.get("n"), what.outcome, what.result))

    @action(name="do", compensate=undo, registry=registry)
    async def do(n: int) -> int:
        if n == 3:
            raise ValueError("three")
        return n * 10

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        for n in (1, 2, 3):
            await step.run_action(do, n)

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed, match="three"):
        await run.result(timeout=WAIT)
    assert undone == [(3, "failure", None), (2, "success", 20), (1, "success", 10)]


async def test_restart_from_failed_and_fork(open_engine: EngineMaker, registry: Registry) -> None:
    broken = True
    calls: list[str] = []

    @action(name="a", registry=registry)
    async def a() -> int:
        calls.append("a")
        return 1

    @action(name="b", registry=registry)
    async def b(n: int) -> int:
        calls.append("b")
        if broken:
            raise ValueError("broken")
        return n + 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(b, await step.run_action(a))

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed):
        await run.result(timeout=WAIT)
    broken = False
    await run.restart()
    assert await run.result(timeout=WAIT) == 2
    assert calls == ["a", "b", "b"]
    await run.restart(from_step=0)
    assert await run.result(timeout=WAIT) == 2
    assert calls == ["a", "b", "b", "a", "b"]
    forked = await run.fork(from_step="b")
    assert await forked.result(timeout=WAIT) == 2
    assert calls == ["a", "b", "b", "a", "b", "b"]
    assert (await run.status()).generation == 3


async def test_worker_hands_back_and_takes_over(open_engine: EngineMaker, registry: Registry) -> None:
    calls = []

    @action(name="slow", registry=registry)
    async def slow() -> int:
        calls.append(attempt.current().idempotency_key)
        if len(calls) == 1:
            await asyncio.sleep(60)
        return len(calls)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(slow)

    engine = await open_engine(registry)
    run = await engine.start(w)
    while not calls:
        await asyncio.sleep(0.01)
    await engine.close(grace=0)
    engine = await open_engine(registry)
    assert await engine.run(run.id).result(timeout=WAIT) == 2
    assert calls[0] == calls[1]
