"""Step functions in a running engine: inline steps, retries, timeouts, delays, lost attempts, options, secrets."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog
from pydantic import BaseModel, SecretStr
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from signoff import (
    Compensation,
    NonRetryable,
    Registry,
    Retry,
    RetryAfter,
    RunFailed,
    Step,
    StepFailed,
    StepLost,
    action,
    ask,
    attempt,
    event,
    mutation,
    query,
    workflow,
)
from signoff.engine.settings import EngineSettings
from signoff.engine.starting import StartSpec, start
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.test_run import count_notes, make_table

WAIT = 8


def notes(registry: Registry) -> tuple[Any, Any, Any]:
    """(add(text), count(), fail(text)): fail writes its note and raises."""

    @mutation(name="add", registry=registry)
    async def add(session: AsyncSession, text: str) -> int:
        await session.execute(sa.text("INSERT INTO notes (text) VALUES (:text)"), {"text": text})
        return len(text)

    @query(name="count", registry=registry)
    async def count(session: AsyncSession) -> int:
        return int((await session.execute(sa.text("SELECT count(*) FROM notes"))).scalar_one())

    @mutation(name="fail", registry=registry)
    async def fail(session: AsyncSession, text: str) -> None:
        await session.execute(sa.text("INSERT INTO notes (text) VALUES (:text)"), {"text": text})
        raise LookupError(text)

    return add, count, fail


# -- F2


async def test_inline_steps_in_a_row_see_each_other_and_a_failing_one_undoes_only_itself(
    open_engine: EngineMaker, registry: Registry
) -> None:
    add, count, fail = notes(registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = []
        for text in ("a", "bb", "ccc"):
            seen.append(await step.run_mutation(add.options(inline=True), text))
            seen.append(await step.run_query(count.options(inline=True)))
        try:
            await step.run_mutation(fail.options(inline=True), "gone")
        except StepFailed as error:
            seen.append(error.type)
        seen.append(await step.run_query(count.options(inline=True)))
        seen.append(await step.run_mutation(add.options(inline=True), "dddd"))
        seen.append(await step.run_query(count))
        return seen

    engine = await open_engine(registry)
    await make_table(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 1, 2, 2, 3, 3, "LookupError", 3, 4, 4]
    assert await count_notes(engine) == 4
    asked = [step for step in await run.steps() if step.name != "count"]
    assert [step.state for step in asked] == ["success"] * 3 + ["failure", "success"]


async def test_inline_steps_beside_ordinary_ones(open_engine: EngineMaker, registry: Registry) -> None:
    add, count, fail = notes(registry)
    calls: list[int] = []

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        calls.append(n)
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        results = await asyncio.gather(
            step.run_action(act, 1),
            step.run_mutation(add.options(inline=True), "in"),
            step.run_mutation(add, "own"),
            step.run_mutation(fail.options(inline=True), "no"),
            step.run_mutation(add.options(inline=True), "line"),
            step.run_action(act, 2),
            return_exceptions=True,
        )
        shown = [item.type if isinstance(item, StepFailed) else item for item in results]
        return [*shown, await step.run_query(count.options(inline=True))]

    engine = await open_engine(registry)
    await make_table(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 2, 3, "LookupError", 4, 2, 3]
    assert sorted(calls) == [1, 2]
    assert await count_notes(engine) == 3


async def test_an_inline_step_that_is_canceled_before_its_turn_writes_nothing(
    open_engine: EngineMaker, registry: Registry
) -> None:
    add, count, fail = notes(registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(step.run_mutation(fail.options(inline=True), "no"))
                group.create_task(step.run_mutation(add.options(inline=True), "never"))
        return await step.run_query(count)

    engine = await open_engine(registry)
    await make_table(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == 0
    assert [step.state for step in await run.steps()] == ["failure", "canceled", "success"]


async def test_an_inline_mutation_is_not_repeated_by_replay(open_engine: EngineMaker, registry: Registry) -> None:
    add, count, _ = notes(registry)
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        await step.run_mutation(add.options(inline=True), "once")
        await step.await_event(go)
        await step.run_mutation(add.options(inline=True), "twice")
        return await step.run_query(count)

    engine = await open_engine(registry)
    await make_table(engine)
    run = await engine.start(w)
    async for _change in run.subscribe():
        if (await run.status()).status == "waiting":
            break
    await engine.close()
    engine = await open_engine(registry)
    run = engine.run(run.id)
    await run.send(go, 1)
    assert await run.result(timeout=WAIT) == 2


# -- F4, F5, F6


async def test_retries_come_at_their_moments(t: TestEngine, registry: Registry) -> None:
    at: list[float] = []

    @action(name="flaky", retry=Retry(max_attempts=5, initial=10, base=2, cap=25, jitter=False), registry=registry)
    async def flaky(began: datetime) -> None:
        at.append((t.now() - began).total_seconds())
        raise ValueError("no")

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_action(flaky, step.now())

    await t.open()
    run = await t.start(w)
    await t.advance(9.9)
    assert at == [0]
    (shown,) = await run.steps()
    assert (shown.state, shown.attempts, shown.attempt_rows[0].error.message) == ("backoff", 1, "no")
    assert (await run.status()).status == "sleeping"
    await t.advance(1000)
    assert at == [0, 10, 30, 55, 80]
    with pytest.raises(RunFailed, match="no"):
        await t.result(run)


async def test_a_restart_in_the_wait_neither_shortens_nor_repeats_it(t: TestEngine, registry: Registry) -> None:
    at: list[tuple[float, int]] = []

    @action(name="flaky", retry=Retry(max_attempts=3, initial=100, jitter=False), registry=registry)
    async def flaky(began: datetime) -> int:
        at.append(((t.now() - began).total_seconds(), attempt.current().number))
        if attempt.current().number < 3:
            raise ValueError("no")
        return attempt.current().number

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(flaky, step.now())

    await t.open()
    run = await t.start(w)
    await t.advance(60)
    await t.restart()
    await t.advance(39.9)
    assert at == [(0, 1)]
    await t.advance(0.2)
    assert at == [(0, 1), (100, 2)]
    await t.restart()
    await t.advance(200)
    assert await t.result(run) == 3
    assert at == [(0, 1), (100, 2), (300, 3)]
    assert (await run.steps())[0].lost == 0


async def test_errors_and_functions_set_the_wait(t: TestEngine, registry: Registry) -> None:
    at: list[float] = []

    def wait(number: int, error: Exception) -> float:
        return number * 7.0

    @action(name="after", retry=Retry(max_attempts=4, delay=wait), registry=registry)
    async def after(began: datetime) -> int:
        number = attempt.current().number
        at.append((t.now() - began).total_seconds())
        if number == 2:
            raise RetryAfter(100)
        if number < 4:
            raise ValueError("no")
        return number

    @action(name="given-up", retry=Retry(give_up_on=(KeyError,)), registry=registry)
    async def given_up() -> None:
        raise KeyError("x")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        number = await step.run_action(after, step.now())
        try:
            await step.run_action(given_up)
        except StepFailed as error:
            return [number, error.type]
        return []

    await t.open()
    run = await t.start(w)
    await t.advance(1000)
    assert await t.result(run) == [4, "KeyError"]
    assert at == [0, 7, 107, 128]


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
    add, count, _ = notes(registry)

    @mutation(name="hangs", registry=registry)
    async def hangs(session: AsyncSession) -> None:
        await session.execute(sa.text("INSERT INTO notes (text) VALUES ('gone')"))
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
    await make_table(engine)
    assert await (await engine.start(w)).result(timeout=WAIT) == [*["TimeoutError"] * 3, 1, 1]


async def test_a_mutation_that_others_get_in_the_way_of_runs_again_and_that_is_no_attempt(
    open_engine: EngineMaker, registry: Registry
) -> None:
    """On PostgreSQL two mutations that lock each other's row deadlock; on SQLite they come one after the other."""
    bodies: list[str] = []
    both = asyncio.Barrier(2)

    @mutation(name="swap", registry=registry)
    async def swap(session: AsyncSession, first: int, second: int) -> int:
        bodies.append(f"{first}{second}")
        change = sa.text("UPDATE notes SET text = text || :new WHERE id = :id")
        await session.execute(change, {"new": "x", "id": first})
        if len(bodies) <= 2 and session.get_bind().dialect.name == "postgresql":
            await both.wait()
        await session.execute(change, {"new": "x", "id": second})
        return attempt.current().number

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        return await asyncio.gather(step.run_mutation(swap, 1, 2), step.run_mutation(swap, 2, 1))

    engine = await open_engine(registry)
    await make_table(engine)
    await engine.store.write(
        lambda tx: tx.conn.execute(sa.text("INSERT INTO notes (id, text) VALUES (1, ''), (2, '')"))
    )
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 1]
    texts = await engine.store.read(lambda tx: tx.conn.execute(sa.text("SELECT text FROM notes")).scalars().all())
    assert list(texts) == ["xx", "xx"]
    assert len(bodies) == (2 if "sqlite" in engine.url else 3)
    assert [step.attempts for step in await run.steps()] == [0, 0]


# what a function does when its time is up; the first two are in the middle of a statement
SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1e8) SELECT max(i) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
}


@pytest.mark.parametrize("where", ["in a statement", "between statements"])
async def test_an_inline_step_times_out_and_undoes_only_itself(
    open_engine: EngineMaker, registry: Registry, where: str
) -> None:
    add, count, _ = notes(registry)

    @mutation(name="hangs", registry=registry)
    async def hangs(session: AsyncSession) -> None:
        await session.execute(sa.text("INSERT INTO notes (text) VALUES ('gone')"))
        if where == "between statements":
            await asyncio.Event().wait()
        await session.execute(sa.text(SLOW[session.get_bind().dialect.name]))

    @query(name="looks", registry=registry)
    async def looks(session: AsyncSession) -> None:
        await asyncio.Event().wait()

    @mutation(name="own", registry=registry)
    async def own(session: AsyncSession) -> None:
        """Not Signoff's timeout, but the function's: the same happens to the connection."""
        async with asyncio.timeout(0.1):
            await session.execute(sa.text(SLOW[session.get_bind().dialect.name]))

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = [await step.run_mutation(add.options(inline=True), "a")]
        for call in (
            lambda: step.run_mutation(hangs.options(inline=True, timeout=0.1)),
            lambda: step.run_mutation(hangs.options(inline=True, schedule_to_close=0.1)),
            lambda: step.run_query(looks.options(inline=True, timeout=0.1)),
            lambda: step.run_mutation(own.options(inline=True)),
        ):
            try:
                await call()
            except StepFailed as error:
                seen.append([error.type, "timed out" in str(error)])
        seen.append(await step.run_mutation(add.options(inline=True), "bb"))
        return [*seen, await step.run_query(count.options(inline=True))]

    engine = await open_engine(registry)
    await make_table(engine)
    run = await engine.start(w)
    first, *failures, last, counted = await run.result(timeout=4 * WAIT)
    assert (first, last, counted) == (1, 2, 2)
    assert failures == [["TimeoutError", True]] * 3 + [["TimeoutError", False]]
    assert await count_notes(engine) == 2
    assert [step.state for step in await run.steps()] == ["success", *["failure"] * 4, "success", "success"]
    assert await (await engine.start(w)).result(timeout=4 * WAIT) == [1, *failures, 2, 4]


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


# -- F3


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


async def test_a_restart_that_retires_the_step_gives_a_new_idempotency_key(
    open_engine: EngineMaker, registry: Registry
) -> None:
    keys: list[str] = []

    @action(name="act", registry=registry)
    async def act() -> None:
        keys.append(attempt.current().idempotency_key)

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_action(act)

    engine = await open_engine(registry)
    run = await engine.start(w)
    await run.result(timeout=WAIT)
    await run.restart(from_step="act")
    await run.result(timeout=WAIT)
    assert len(keys) == len(set(keys)) == 2
    assert all(key.startswith(run.id) for key in keys)


# -- F7


async def test_a_caught_failure_stays_caught_and_equal_on_replay(open_engine: EngineMaker, registry: Registry) -> None:
    go = event("go", int, registry=registry)
    tries: list[int] = []

    class Odd(Exception):
        @property
        def data(self) -> dict[str, Any]:
            return {"why": ["a", 1]}

    @action(name="fail", registry=registry)
    async def fail() -> None:
        tries.append(1)
        raise Odd("odd one")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        try:
            await step.run_action(fail)
        except StepFailed as error:
            caught = [error.type, str(error.error.message), error.data, "odd one" in (error.error.traceback or "")]
        await step.await_event(go)
        return caught

    engine = await open_engine(registry)
    run = await engine.start(w)
    async for _ in run.subscribe():
        if (await run.status()).status == "waiting":
            break
    await engine.close()
    engine = await open_engine(registry)
    run = engine.run(run.id)
    await run.send(go, 1)
    assert await run.result(timeout=WAIT) == ["Odd", "odd one", {"why": ["a", 1]}, True]
    assert tries == [1]


async def test_non_retryable_ends_at_once_and_its_data_arrives(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="fail", retry=Retry(max_attempts=None), registry=registry)
    async def fail() -> None:
        raise NonRetryable("never", data={"code": 7})

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_action(fail)

    engine = await open_engine(registry)
    with pytest.raises(RunFailed, match="never") as failed:
        await (await engine.start(w)).result(timeout=WAIT)
    assert failed.value.error.data == {"code": 7}


async def test_sys_exit_in_a_function_fails_its_step_only(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="leaves", registry=registry)
    def leaves() -> None:
        sys.exit(3)

    @action(name="leaves-too", registry=registry)
    async def leaves_too() -> None:
        sys.exit(4)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        results = await asyncio.gather(step.run_action(leaves), step.run_action(leaves_too), return_exceptions=True)
        return [str(error) for error in results]

    engine = await open_engine(registry)
    first, second = await (await engine.start(w)).result(timeout=WAIT)
    assert "sys.exit(3)" in first
    assert "sys.exit(4)" in second


# -- F8


async def test_every_kind_can_be_delayed(t: TestEngine, registry: Registry) -> None:
    add, count, _ = notes(registry)

    @action(name="act", registry=registry)
    async def act(what: str) -> str:
        return what

    @workflow("child", registry=registry)
    async def child(step: Step) -> datetime:
        return step.now()

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[float]:
        began = step.now()

        async def after(call: Any) -> float:
            await call
            return (step.now() - began).total_seconds()

        return await asyncio.gather(
            after(step.run_action(act.options(run_after=10), "a")),
            after(step.run_mutation(add.options(run_at=began + timedelta(seconds=20)), "m")),
            after(step.run_query(count.options(run_after=timedelta(seconds=30)))),
            after(step.run_workflow(child.options(run_after=40))),
            after(step.with_options(run_after=45, pool="p", timeout=1).run_workflow(child)),
            after(step.with_options(run_after=50).do("closure", lambda: 1)),
            after(step.run_action(act.options(run_at=began - timedelta(days=1)), "past")),
        )

    await t.open()
    await make_table(t)
    run = await t.start(w)
    await t.settle()
    assert [step.state for step in await run.steps()].count("delayed") == 4
    await t.advance(100)
    assert await t.result(run) == [10, 20, 30, 40, 45, 50, 0]


# -- F10


async def test_progress_and_log_of_a_sync_attempt_are_visible_while_it_runs(
    open_engine: EngineMaker, registry: Registry
) -> None:
    leave = threading.Event()

    @action(name="slow", registry=registry)
    def slow() -> str:
        current = attempt.current()
        current.progress(0.25, "a quarter")
        current.log("began", part=1)
        leave.wait(WAIT)
        return threading.current_thread().name

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        return await step.run_action(slow)

    engine = await open_engine(registry)
    try:
        run = await engine.start(w)
        async for _ in run.subscribe():
            (step,) = await run.steps() or [None]
            if step is not None and step.progress is not None and await run.logs():
                break
        assert (step.state, step.progress.fraction, step.progress.text) == ("running", 0.25, "a quarter")
        view = await run.status()
        assert [(item.name, item.progress.text) for item in view.running if item.progress] == [("slow", "a quarter")]
        (line,) = await run.logs()
        assert (line.step_no, line.attempt, line.message, line.data) == (0, 1, "began", {"part": 1})
    finally:
        leave.set()
    assert await run.result(timeout=WAIT) != threading.main_thread().name


async def test_a_function_that_blocks_the_loop_is_reported_with_its_line(
    open_engine: EngineMaker, registry: Registry
) -> None:
    @action(name="blocks", registry=registry)
    async def blocks() -> int:
        time.sleep(1)  # blocks the loop
        return 1

    @action(name="threaded", registry=registry)
    def threaded() -> int:
        time.sleep(1)
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(threaded) + await step.run_action(blocks)

    engine = await open_engine(registry, settings=EngineSettings(loop_limit=0.3))
    structlog.reset_defaults()
    with capture_logs() as logs:
        assert await (await engine.start(w)).result(timeout=WAIT) == 2
    (line,) = [line["line"] for line in logs if "blocks the event loop" in line["event"]]
    path, number = line.rsplit(":", 1)
    assert "time.sleep(1)  # blocks" in Path(path).read_text().splitlines()[int(number) - 1]


# -- F11


async def test_secrets_are_shown_to_the_handler_and_to_nobody_else(t: TestEngine, registry: Registry) -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr

    secret = "hunter2-very-secret"

    @action(name="by-option", sensitive=True, registry=registry)
    async def by_option(text: str) -> str:
        return text * 2

    @action(name="by-type", registry=registry)
    async def by_type(login: Login) -> SecretStr:
        return SecretStr(login.password.get_secret_value() + "!")

    told = event("told", str, sensitive=True, registry=registry)
    word = ask("word", str, sensitive=True, registry=registry)

    @workflow("child", sensitive=True, registry=registry)
    async def child(step: Step, text: str) -> str:
        return text

    @workflow("w", sensitive=True, registry=registry)
    async def w(step: Step, text: str) -> bool:
        doubled = await step.run_action(by_option, text)
        typed = await step.run_action(by_type, Login(user="u", password=SecretStr(text)))
        sent = await step.await_event(told)
        answered = await step.ask(word, title="The word?")
        from_child = await step.run_workflow(child, text)
        return [doubled, typed.get_secret_value(), sent, answered, from_child] == [text * 2, text + "!", *[text] * 3]

    await t.open()
    await t.add_person("ana@example.org")
    run = await t.start(w, secret)
    changes: list[Any] = []

    async def watch() -> None:
        changes.extend([change async for change in run.subscribe()])

    watching = asyncio.create_task(watch())
    await t.settle()
    await run.send(told, secret)
    await t.approve(run, secret, as_user="ana@example.org")
    assert await t.result(run) is True
    await asyncio.wait_for(watching, WAIT)
    children = await t.runs(workflow="child")
    shown = [changes, await run.status(), await run.steps(), await run.events(), await run.logs(), children.items,
             await run.approvals(), await t.run(children.items[0].id).status()]  # fmt: skip
    assert len(changes) > 3
    assert [part for part in shown if secret in repr(part)] == []
    assert "[redacted]" in repr(await run.steps())
    assert "[redacted]" in repr(await run.events())
    assert (await run.status()).args == json.dumps("[redacted]")


async def test_what_has_a_secret_in_its_type_hides_the_values_of_its_runs(t: TestEngine, registry: Registry) -> None:
    """Without `sensitive=True`: of a child, of a run whose result alone has one, of one that is started by its name
    where its code is not, and of an enqueued function."""

    class Login(BaseModel):
        user: str
        password: SecretStr

    secret = "hunter2-very-secret"

    @action(name="by-type", registry=registry)
    async def by_type(login: Login) -> Login:
        return login

    @action(name="undo", registry=registry)
    async def undo(what: Compensation) -> None:
        undone.append(what.args)

    @action(name="by-option", sensitive=True, compensate=undo, registry=registry)
    async def by_option(text: str) -> str:
        return text

    @workflow("child", registry=registry)
    async def child(step: Step, login: Login) -> str:
        return login.user

    @workflow("undone", registry=registry)
    async def failing(step: Step) -> None:
        await step.run_action(by_option, secret)
        await step.run_action(by_option, secret)
        raise ValueError("to be undone")

    undone: list[Any] = []

    @workflow("result-alone", registry=registry)
    async def result_alone(step: Step) -> Login:
        login = await step.run_action(by_type, Login(user="u", password=SecretStr(secret)))
        await step.run_workflow(child, login)
        return login

    await t.open()
    result = await t.result(parent := await t.start(result_alone))
    assert result.password.get_secret_value() == secret
    by_name = StartSpec(workflow="child", args='{"login": {"user": "u", "password": "' + secret + '"}}')
    foreign = await t.store.write(start, t.scope(), by_name)
    runs = [parent, t.run(foreign.public_id), *[t.run(one.id) for one in (await t.runs(workflow="child")).items]]
    login = Login(user="u", password=SecretStr(secret))
    runs += [await t.enqueue(by_type, login), await t.enqueue(by_option, secret)]
    for run in runs:
        await t.result(run)
        assert secret not in repr([await run.status(), await run.steps()]), (await run.status()).workflow
    run = await t.start(failing)
    with pytest.raises(RunFailed):
        await t.result(run)
    assert undone == [{"text": secret}] * 2
    assert secret not in repr(await run.steps())


async def test_an_exception_that_cannot_say_what_it_is_fails_the_step_all_the_same(
    open_engine: EngineMaker, registry: Registry
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @action(name="mute", registry=registry)
    async def mute() -> None:
        raise Mute

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        try:
            await step.run_action(mute)
        except StepFailed as failed:
            return f"{failed.error.type}: {failed.error.message}"
        return "?"

    engine = await open_engine(registry)
    run = await engine.start(w)
    assert await asyncio.wait_for(run.result(), 10) == "Mute: (no message: RuntimeError)"
