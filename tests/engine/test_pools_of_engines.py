"""Pools in running engines: limits that hold across processes, and change while they run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from signoff import Engine, Registry, Retry, Step, StepFailed, action, attempt, event, workflow
from signoff.engine.pools import MAX_QUEUED_OF_RUN, PoolLimits
from signoff.engine.settings import EngineSettings
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.test_replay_of_runs import until

WAIT = 10


class Gate:
    """Attempts stand in it until they are let out, so that a test sees how many there are at once."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.entered: list[Any] = []
        self.most = 0
        self._changed = asyncio.Condition()
        self._out = 0

    async def stand(self, what: Any) -> None:
        async with self._changed:
            self.inside.append(what)
            self.entered.append(what)
            self.most = max(self.most, len(self.inside))
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: self._out > 0)
                self._out -= 1
            finally:
                self.inside.remove(what)
                self._changed.notify_all()

    async def let_out(self, number: int = 1) -> None:
        async with self._changed:
            self._out += number
            self._changed.notify_all()

    async def holds(self, number: int) -> None:
        async with asyncio.timeout(WAIT), self._changed:
            await self._changed.wait_for(lambda: len(self.inside) == number)

    async def saw(self, number: int) -> None:
        async with asyncio.timeout(WAIT), self._changed:
            await self._changed.wait_for(lambda: len(self.entered) >= number)


def define(registry: Registry, gate: Gate) -> Any:
    @action(name="pooled", registry=registry)
    async def pooled(what: str) -> str:
        await gate.stand(what)
        return what

    @workflow("w", pool="mail", registry=registry)
    async def w(step: Step, name: str, count: int, key: str | None = None) -> int:
        one = pooled.options(pool_key=key) if key is not None else pooled
        return len(await asyncio.gather(*(step.run_action(one, f"{name}{n}") for n in range(count))))

    return w


async def test_limits_hold_over_two_engines_and_change_while_they_run(postgres_url: str) -> None:
    gate, registry = Gate(), Registry()
    w = define(registry, gate)
    first = await opened(postgres_url, registry, PoolLimits(max_parallel=2))
    second = await opened(postgres_url, registry, PoolLimits(max_parallel=2))
    try:
        runs = [await (first, second)[n % 2].start(w, f"r{n}-", 4) for n in range(4)]
        await gate.holds(2)
        await first.set_pool("mail", PoolLimits(max_parallel=5))
        await gate.holds(5)
        await second.set_pool("mail", PoolLimits(max_parallel=0))  # lowering drains, 0 pauses
        for left in (4, 3, 2, 1, 0):
            await gate.let_out()
            await gate.holds(left)
        assert len(gate.entered) == 5
        for run in runs:
            await until(run, lambda view: view.status in ("waiting", "completed"))
        await first.set_pool("mail", PoolLimits(max_parallel=3))
        await gate.holds(3)
        assert [pool.running for pool in await second.pools()] == [3]
        await gate.let_out(11)
        assert [await run.result(timeout=WAIT) for run in runs] == [4] * 4
        assert gate.most == 5
        assert [step.lost for run in runs for step in await run.steps()] == [0] * 16
        assert len(gate.entered) == len(set(gate.entered)) == 16
        assert [pool.running for pool in await first.pools()] == [0]
    finally:
        await first.close(grace=0)
        await second.close(grace=0)


async def opened(url: str, registry: Registry, limits: PoolLimits) -> Engine:
    engine = Engine(url, registry=registry, pools={"mail": limits}, grace=0)
    await engine.open()
    return engine


async def test_slots_of_an_engine_that_is_gone_are_given_out_again(postgres_url: str) -> None:
    gate, registry = Gate(), Registry()
    w = define(registry, gate)
    first = await opened(postgres_url, registry, PoolLimits(max_parallel=1))
    second = await opened(postgres_url, registry, PoolLimits(max_parallel=1))
    try:
        runs = [await first.start(w, f"r{n}-", 1) for n in range(2)]
        await gate.holds(1)
        await first.close(grace=0)
        await second.close(grace=0)
        await gate.holds(0)
        second = await opened(postgres_url, registry, PoolLimits(max_parallel=1))
        await gate.let_out(2)
        assert [await second.run(run.id).result(timeout=WAIT) for run in runs] == [1, 1]
        assert gate.most == 1
    finally:
        await first.close(grace=0)
        await second.close(grace=0)


async def test_one_run_cannot_starve_others(open_engine: EngineMaker, registry: Registry) -> None:
    gate = Gate()
    w = define(registry, gate)
    engine = await open_engine(registry, pools={"mail": PoolLimits(max_parallel=1)}, settings=EngineSettings())
    many = await engine.start(w, "many", MAX_QUEUED_OF_RUN * 3)
    await gate.holds(1)
    one = await engine.start(w, "one", 1)
    await until(one, lambda view: any(item.kind == "pool" for item in view.awaiting))
    for turn in range(1, MAX_QUEUED_OF_RUN * 3 + 1):
        await gate.saw(turn)
        if "one0" in gate.entered:
            break
        await gate.let_out()
    assert 1 < turn <= MAX_QUEUED_OF_RUN + 2
    await gate.let_out(MAX_QUEUED_OF_RUN * 3)
    assert await one.result(timeout=WAIT) == 1
    assert await many.result(timeout=WAIT) == MAX_QUEUED_OF_RUN * 3
    assert gate.most == 1


async def test_one_at_a_time_for_a_key(open_engine: EngineMaker, registry: Registry) -> None:
    gate = Gate()
    w = define(registry, gate)
    engine = await open_engine(registry, pools={"mail": PoolLimits(serial_keys=True)})
    runs = [await engine.start(w, name, 2, key) for name, key in (("a", "ana"), ("b", "ana"), ("c", "ben"))]
    await gate.holds(2)
    assert sorted(what[0] in "ab" for what in gate.inside) == [False, True]
    await gate.let_out(6)
    assert [await run.result(timeout=WAIT) for run in runs] == [2, 2, 2]
    assert gate.most == 2


async def test_a_rate_lets_so_many_begin_in_its_time(t: TestEngine, registry: Registry) -> None:
    at: list[float] = []

    @action(name="limited", pool="mail", registry=registry)
    async def limited(began: float) -> None:
        at.append(t.now().timestamp() - began)

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        began = step.now().timestamp()
        await asyncio.gather(*(step.run_action(limited, began) for _ in range(6)))

    await t.open()
    await t.set_pool("mail", PoolLimits(rate=(2, 10)))
    run = await t.start(w)
    await t.advance(4)
    assert at == [0, 0]
    await t.advance(100)
    await t.result(run)
    assert at == pytest.approx([0, 0, 5, 10, 15, 20])


async def test_waits_of_any_kind_hold_no_slot(t: TestEngine, registry: Registry) -> None:
    go = event("go", int, registry=registry)
    order: list[str] = []

    @action(name="flaky", retry=Retry(max_attempts=2, initial=100, jitter=False), registry=registry)
    async def flaky() -> None:
        order.append(f"flaky {attempt.current().number}")
        if attempt.current().number == 1:
            raise ValueError("no")

    @action(name="quick", registry=registry)
    async def quick() -> None:
        order.append("quick")

    @workflow("backs-off", pool="mail", registry=registry)
    async def backs_off(step: Step) -> None:
        await step.run_action(flaky)

    @workflow("waits", pool="mail", registry=registry)
    async def waits(step: Step) -> None:
        await asyncio.gather(step.await_event(go), step.sleep(50), step.run_action(quick.options(run_after=60)))

    @workflow("quick-one", pool="mail", registry=registry)
    async def quick_one(step: Step) -> None:
        await step.run_action(quick)

    @workflow("parent", pool="mail", registry=registry)
    async def parent(step: Step) -> None:
        await step.run_workflow(waits)

    await t.open()
    await t.set_pool("mail", PoolLimits(max_parallel=1))
    runs = [await t.start(item) for item in (backs_off, waits, parent)]
    await t.settle()
    assert [pool.running for pool in await t.pools()] == [0]
    await t.result(await t.start(quick_one))
    assert order == ["flaky 1", "quick"]
    await t.advance(200)
    await t.result(runs[0])
    assert [pool.running for pool in await t.pools()] == [0]


async def test_a_step_that_is_canceled_in_the_line_or_in_its_place_leaves_it(t: TestEngine, registry: Registry) -> None:
    gate = Gate()

    @action(name="pooled", pool="mail", registry=registry)
    async def pooled(what: str) -> str:
        await gate.stand(what)
        return what

    @workflow("w", registry=registry)
    async def w(step: Step, name: str) -> str:
        try:
            async with asyncio.timeout(60):
                return await step.run_action(pooled, name)
        except TimeoutError:
            return "timeout"

    await t.open()
    await t.set_pool("mail", PoolLimits(max_parallel=1))
    inside = await t.start(w, "inside")
    await gate.holds(1)
    waiting = await t.start(w, "waiting")
    await until(waiting, lambda view: bool(view.awaiting))
    t.clock.move_to(t.now().replace(minute=30))
    assert [await run.result(timeout=WAIT) for run in (inside, waiting)] == ["timeout", "timeout"]
    assert gate.entered == ["inside"]
    await t.settle()
    assert [pool.running for pool in await t.pools()] == [0]
    await gate.let_out()
    assert await (await t.start(w, "next")).result(timeout=WAIT) == "next"


async def test_a_step_that_stands_in_line_does_not_begin_while_its_run_is_paused(
    open_engine: EngineMaker, registry: Registry
) -> None:
    gate = Gate()
    w = define(registry, gate)
    engine = await open_engine(registry, pools={"mail": PoolLimits(max_parallel=1)})
    inside = await engine.start(w, "inside", 1)
    await gate.holds(1)
    assert (await until(inside, lambda view: bool(view.running))).status == "running"
    waiting = await engine.start(w, "waiting", 1)
    assert (await until(waiting, lambda view: bool(view.awaiting))).status == "waiting"
    assert await waiting.pause() == "paused"
    await gate.let_out()
    await inside.result(timeout=WAIT)
    last = await engine.start(w, "last", 1)
    await gate.saw(2)
    assert gate.entered == ["inside0", "last0"]
    await gate.let_out(2)
    assert await last.result(timeout=WAIT) == 1
    await waiting.resume()
    assert await waiting.result(timeout=WAIT) == 1


async def test_schedule_to_close_counts_the_wait_for_a_place(t: TestEngine, registry: Registry) -> None:
    @action(name="pooled", pool="mail", registry=registry)
    async def pooled() -> None:
        raise AssertionError("it never gets a place")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[object]:
        began = step.now()
        try:
            await step.run_action(pooled.options(schedule_to_close=60, retry=True))
        except StepFailed as error:
            return [error.type, (step.now() - began).total_seconds()]
        return []

    await t.open()
    await t.set_pool("mail", PoolLimits(max_parallel=0))
    run = await t.start(w)
    await t.advance(59)
    view = await run.status()
    assert (view.status, [item.kind for item in view.awaiting]) == ("waiting", ["pool"])
    await t.advance(2)
    assert await t.result(run) == ["TimeoutError", 60]


async def test_code_sets_first_values_and_a_differing_second_process_is_reported(
    open_engine: EngineMaker, registry: Registry
) -> None:
    engine = await open_engine(registry, pools={"mail": PoolLimits(max_parallel=2)})
    await engine.set_pool("mail", PoolLimits(max_parallel=7))
    await engine.close()
    structlog.reset_defaults()
    with capture_logs() as logs:
        engine = await open_engine(registry, pools={"mail": PoolLimits(max_parallel=3)})
    (pool,) = await engine.pools()
    assert (pool.limits.max_parallel, pool.declared and pool.declared.max_parallel) == (7, 2)
    assert any(line.get("pool") == "mail" and line["log_level"] == "warning" for line in logs)
