"""Runs from start to end: steps, parallel branches, failures, retries, time, events, children, and what blocks them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import (
    EventError,
    EventTimeout,
    NonRetryable,
    Registry,
    Retry,
    RunFailed,
    Step,
    StepFailed,
    action,
    attempt,
    event,
    mutation,
    query,
    workflow,
)
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, notes, write_note

WAIT = 8


async def test_sequence_and_gather(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="double", registry=registry)
    async def double(n: int) -> int:
        return n * 2

    @action(name="sync-triple", registry=registry)
    def triple(n: int) -> int:
        return n * 3

    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> list[int]:
        first = await step.run_action(double, n)
        both = await asyncio.gather(
            *(step.run_action(double, first + i) for i in range(10)), step.run_action(triple, n)
        )
        return [first, *both]

    engine = await open_engine(registry)
    run = await engine.start(w, 5)
    assert await run.result(timeout=WAIT) == [10, *[2 * (10 + i) for i in range(10)], 15]
    assert [step.state for step in await run.steps()] == ["success"] * 12


async def test_failure_is_typed_and_catchable(open_engine: EngineMaker, registry: Registry) -> None:
    class Odd(Exception):
        def __init__(self, number: int) -> None:
            super().__init__(f"{number} is odd")
            self.data = {"number": number}

    @action(name="fail", registry=registry)
    async def fail(n: int) -> int:
        raise Odd(n)

    @workflow("caught", registry=registry)
    async def caught(step: Step) -> str:
        try:
            await step.run_action(fail, 3)
        except StepFailed as error:
            return f"{error.type} {error.data['number']} {error}"
        return "no"

    @workflow("uncaught", registry=registry)
    async def uncaught(step: Step) -> None:
        await step.run_action(fail, 5)

    engine = await open_engine(registry)
    text = await (await engine.start(caught)).result(timeout=WAIT)
    assert text.startswith("Odd 3")
    assert "3 is odd" in text
    with pytest.raises(RunFailed, match="5 is odd"):
        await (await engine.start(uncaught)).result(timeout=WAIT)


async def test_retry_then_success(open_engine: EngineMaker, registry: Registry) -> None:
    tries: list[int] = []
    keys: set[str] = set()

    @action(name="flaky", retry=Retry(max_attempts=4, initial=0.01), registry=registry)
    async def flaky() -> int:
        current = attempt.current()
        tries.append(current.number)
        keys.add(current.idempotency_key)
        if current.number < 3:
            raise ValueError("not yet")
        return current.number

    @action(name="hopeless", retry=Retry(max_attempts=4, initial=0.01), registry=registry)
    async def hopeless() -> int:
        tries.append(100)
        raise NonRetryable("never")

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        n = await step.run_action(flaky)
        try:
            await step.run_action(hopeless)
        except StepFailed:
            return n
        return -1

    engine = await open_engine(registry)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == 3
    assert tries == [1, 2, 3, 100]
    assert len(keys) == 1
    assert (await run.steps())[0].attempts == 2


async def test_mutation_query_and_inline(open_engine: EngineMaker, registry: Registry) -> None:
    @mutation(name="add", registry=registry)
    async def add(session: AsyncSession, text: str) -> int:
        await write_note(session, text)
        if text == "bad":
            raise ValueError("bad note")
        return len(text)

    @query(name="count", registry=registry)
    async def count(session: AsyncSession) -> int:
        return int((await session.execute(sa.text("SELECT count(*) FROM notes"))).scalar_one())

    @query(name="writes", registry=registry)
    async def writes(session: AsyncSession) -> int:
        await session.execute(sa.text("DELETE FROM notes"))
        return 0

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = [await step.run_mutation(add, "one"), await step.run_query(count)]
        seen += await asyncio.gather(*(step.run_mutation(add, "x" * i) for i in range(2, 6)))
        seen.append(await step.run_mutation(add.options(inline=True), "inline"))
        seen.append(await step.run_query(count.options(inline=True)))
        for bad in (add, add.options(inline=True)):
            try:
                await step.run_mutation(bad, "bad")
            except StepFailed as error:
                seen.append(str(error.type))
        try:
            await step.run_query(writes)
        except StepFailed:
            seen.append("refused")
        seen.append(await step.run_query(count))
        return seen

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [3, 1, 2, 3, 4, 5, 6, 6, "ValueError", "ValueError", "refused", 6]
    assert len(await notes(engine)) == 6


async def test_sleep_timeout_and_race(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="slow", registry=registry)
    async def slow() -> str:
        await asyncio.sleep(30)
        return "slow"

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        seen = []
        await step.sleep(0.05)
        try:
            async with asyncio.timeout(0.05):
                await step.run_action(slow)
        except TimeoutError:
            seen.append("timeout")
        try:
            await step.run_action(slow.options(timeout=0.05))
        except StepFailed as error:
            seen.append(error.type)
        return seen

    engine = await open_engine(registry)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == ["timeout", "TimeoutError"]
    states = [(step.kind, step.state) for step in await run.steps()]
    assert states == [("sleep", "success"), ("sleep", "success"), ("action", "canceled"), ("action", "failure")]


async def test_events(open_engine: EngineMaker, registry: Registry) -> None:
    note = event("note", int, registry=registry)
    other = event("other", str, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = [await step.await_event(note) for _ in range(3)]
        try:
            await step.await_event(note, timeout=0.02)
        except EventTimeout:
            seen.append("late")
        seen.append(await step.await_event(other, timeout=0.01, default="none"))
        try:
            await step.await_event(other)
        except EventError as error:
            seen.append(str(error))
        which, value = await step.first_event(note, other)
        seen += [which.name if hasattr(which, "name") else which, value]
        return seen

    engine = await open_engine(registry)
    run = await engine.start(w)
    await run.send(note, 1)
    await run.send(note, 2)
    await run.send(note, 3, idempotency_key="k")
    await run.send(note, 3, idempotency_key="k")
    async for _ in run.subscribe():
        steps = await run.steps()
        if len(steps) == 6:
            break
    await run.send_error(other, "broken")
    await run.send(other, "x")
    result = await run.result(timeout=WAIT)
    assert result[:5] == [1, 2, 3, "late", "none"]
    assert "broken" in result[5]
    assert result[6:] == ["other", "x"]


async def test_children(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="id", registry=registry)
    async def same(n: int) -> int:
        return n

    @workflow("child", registry=registry)
    async def child(step: Step, n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        await step.sleep(0.01)
        return await step.run_action(same, n + 1)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> list[Any]:
        seen: list[Any] = list(await asyncio.gather(*(step.run_workflow(child, n) for n in range(5))))
        try:
            await step.run_workflow(child, -1)
        except RunFailed as error:
            seen.append(str(error))
        return seen

    engine = await open_engine(registry)
    run = await engine.start(parent)
    result = await run.result(timeout=WAIT)
    assert result[:5] == [1, 2, 3, 4, 5]
    assert "negative" in result[5]


async def test_do_log_random_and_changed(open_engine: EngineMaker, registry: Registry) -> None:
    calls = []

    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> list[Any]:
        step.log("began", n=n)
        drawn = step.random.random()
        fresh = step.changed("v2")

        def close() -> int:
            calls.append(n)
            return n * 10

        value = await step.do("times ten", close)
        before = step.now()
        await step.sleep(0.01)
        return [value, drawn == drawn, fresh, step.now() > before, str(step.uuid()) != str(step.uuid())]

    engine = await open_engine(registry)
    run = await engine.start(w, 4)
    assert await run.result(timeout=WAIT) == [40, True, True, True, True]
    assert calls == [4]
    assert [line.message for line in await run.logs()] == ["began"]


async def test_enqueue_runs_one_function(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="shout", retry=Retry(max_attempts=2, initial=0.01), registry=registry)
    async def shout(text: str) -> str:
        if attempt.current().number == 1:
            raise ValueError("again")
        return text.upper()

    engine = await open_engine(registry)
    run = await engine.enqueue(shout, "hi")
    assert await run.result(timeout=WAIT) == "HI"


async def test_delayed_start_and_steps(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="now", registry=registry)
    async def act() -> int:
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(act.options(run_after=0.05))

    engine = await open_engine(registry)
    run = await engine.start(w.options(run_after=timedelta(milliseconds=50)))
    assert (await run.status()).status in ("queued", "running", "sleeping")
    assert await run.result(timeout=WAIT) == 1


async def test_on_complete(open_engine: EngineMaker, registry: Registry) -> None:
    seen = []

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str, kind: str, value: Any, context: Any) -> None:
        seen.append((kind, value, context))
        await write_note(session, "done")
        if context == "fail" and len(seen) == 2:
            raise ValueError("not now")

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        await step.sleep(0)
        return 7

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w.options(on_complete=done, on_complete_context={"a": 1}))
    assert await run.result(timeout=WAIT) == 7
    assert seen == [("completed", 7, {"a": 1})]
    assert len(await notes(engine)) == 1
    again = await engine.start(w.options(on_complete=done, on_complete_context="fail"))
    assert await again.result(timeout=WAIT) == 7
    while len(seen) < 3:
        await asyncio.sleep(0.02)
    while len(await notes(engine)) < 2:
        await asyncio.sleep(0.02)


async def test_changed_code_blocks_and_matching_code_goes_on(open_engine: EngineMaker) -> None:
    go = event("go", int, registry=Registry())

    def with_action(name: str) -> tuple[Registry, Any]:
        registry = Registry()
        registry.add_message(go)

        @action(name=name, registry=registry)
        async def act() -> str:
            return "x"

        return registry, act

    first, one = with_action("one")

    @workflow("w", registry=first)
    async def original(step: Step) -> str:
        await step.run_action(one)
        await step.await_event(go)
        return "first"

    second, two = with_action("two")

    @workflow("w", registry=second)
    async def renamed(step: Step) -> str:
        await step.run_action(two)
        await step.await_event(go)
        return "second"

    third, again = with_action("one")

    @workflow("w", registry=third)
    async def repaired(step: Step) -> str:
        await step.run_action(again)
        await step.await_event(go)
        return "third"

    engine = await open_engine(first)
    run = await engine.start(original)
    async for _ in run.subscribe():
        if len(await run.steps()) == 2:
            break
    await engine.close()
    engine = await open_engine(second)
    blocked = engine.run(run.id)
    await blocked.send(go, 1)
    async for _ in blocked.subscribe():
        if (await blocked.status()).status == "blocked":
            break
    reason = (await blocked.status()).blocked
    assert reason is not None
    assert (reason["recorded"]["name"], reason["expected"]["name"]) == ("one", "two")
    await engine.close()
    engine = await open_engine(third)
    assert await engine.run(run.id).result(timeout=WAIT) == "third"


async def test_endless_and_stuck_handlers_block(open_engine: EngineMaker, registry: Registry) -> None:
    from signoff.engine.settings import EngineSettings

    @workflow("endless", registry=registry)
    async def endless(step: Step) -> None:
        while True:
            pass

    @workflow("stuck", registry=registry)
    async def stuck(step: Step) -> None:
        await asyncio.Event().wait()

    @workflow("fine", registry=registry)
    async def fine(step: Step) -> int:
        await step.sleep(0.01)
        return 1

    engine = await open_engine(registry, settings=EngineSettings(handler_limit=0.3))
    bad, worse = await engine.start(endless), await engine.start(stuck)
    good = await engine.start(fine)
    assert await good.result(timeout=WAIT) == 1
    for run in (bad, worse):
        async for _ in run.subscribe():
            if (await run.status()).status == "blocked":
                break
    assert "test_run.py" in json.dumps((await bad.status()).blocked)
    assert await (await engine.start(fine)).result(timeout=WAIT) == 1
    assert await bad.cancel() == "canceled"


async def test_pool_limits_parallelism(open_engine: EngineMaker, registry: Registry) -> None:
    from signoff.engine.pools import PoolLimits

    now, most = 0, 0

    @action(name="pooled", pool="two", registry=registry)
    async def pooled() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await asyncio.gather(*(step.run_action(pooled) for _ in range(8)))

    engine = await open_engine(registry, pools={"two": PoolLimits(max_parallel=2)})
    await (await engine.start(w)).result(timeout=WAIT)
    assert most == 2
