"""Step functions in a running engine: retries, conflicts, failures, delays, and what is seen of them while they run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from signoff import (
    NonRetryable,
    Registry,
    Retry,
    RetryAfter,
    RunFailed,
    Step,
    StepFailed,
    action,
    attempt,
    event,
    mutation,
    workflow,
)
from signoff.engine.settings import EngineSettings
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, note_steps, notes

WAIT = 8


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
    await make_notes(engine)
    await engine.store.write(
        lambda tx: tx.conn.execute(sa.text("INSERT INTO notes (id, text) VALUES (1, ''), (2, '')"))
    )
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 1]
    assert await notes(engine) == ["xx", "xx"]
    assert len(bodies) == (2 if "sqlite" in engine.url else 3)
    assert [step.attempts for step in await run.steps()] == [0, 0]


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
    add, count, _ = note_steps(registry)

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
    await make_notes(t)
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
