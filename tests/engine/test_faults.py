"""Faults: stalled workers (Z2), lost connections (Z3), clocks that jump (Z4), advances that cannot be written (Z5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Engine, EventTimeout, Registry, Retry, Step, Workflow, action, event, mutation, workflow
from signoff.engine import driving
from signoff.engine import worker as worker_module
from signoff.runtime.handles import Run
from signoff.store import liveness
from signoff.store.clock import ManualClock
from signoff.store.errors import DiskFull
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, notes, write_note

WAIT = 25
START = datetime(2026, 1, 5, 9, tzinfo=UTC)


async def until(run: Run[Any], *statuses: str) -> None:
    async with asyncio.timeout(WAIT):
        async for _ in run.subscribe():
            if (await run.status()).status in statuses:
                return
    raise AssertionError(f"the run ended without being {statuses}")


# -- a worker that stalls


class Party:
    """One process's code: what its steps do goes through its own events, so that a test can hold them."""

    def __init__(self, name: str) -> None:
        self.registry = Registry()
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.ends: list[str] = []

        @action(name="act", registry=self.registry)
        async def act() -> str:
            self.began.set()
            await self.go_on.wait()
            self.ends.append("act")
            return name

        @mutation(name="write", registry=self.registry)
        async def write(session: AsyncSession) -> str:
            self.began.set()
            await self.go_on.wait()
            await write_note(session, name)
            self.ends.append("write")
            return name

        @workflow("acts", registry=self.registry)
        async def acts(step: Step) -> list[str]:
            return [await step.run_action(act), await step.run_action(act)]

        @workflow("writes", registry=self.registry)
        async def writes(step: Step) -> str:
            return await step.run_mutation(write)

        self.workflows: dict[str, Workflow[[], Any]] = {"acts": acts, "writes": writes}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observers that give up a stalled worker soon."""
    for name, seconds in (("HEARTBEAT", 0.1), ("LOOK", 0.1), ("STILL", 1.0), ("UNHEALTHY", 0.8)):
        monkeypatch.setattr(liveness, name, seconds)
    monkeypatch.setattr(worker_module, "RECOVERY_EVERY", 0.1)


@asynccontextmanager
async def stalled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Its connections stay, and so does its lock; only its heart stands still."""
    assert engine.worker is not None
    beating = liveness.LockLiveness._beat
    mine = engine.worker.liveness

    def beat(self: liveness.LockLiveness, conn: Any, worker: int) -> None:
        if self is not mine:
            beating(self, conn, worker)

    with monkeypatch.context() as patch:
        patch.setattr(liveness.LockLiveness, "_beat", beat)
        yield


@pytest.mark.parametrize("kind", ["acts", "writes"])
async def test_a_stalled_worker_that_comes_back_cannot_write(
    postgres_url: str, impatient: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    slow, quick = Party("slow"), Party("quick")
    quick.go_on.set()
    async with Engine(postgres_url, registry=slow.registry, grace=0) as first:
        await make_notes(first)
        run: Run[Any] = await first.start(slow.workflows[kind])
        await asyncio.wait_for(slow.began.wait(), WAIT)
        async with Engine(postgres_url, registry=quick.registry, grace=0) as second:
            async with stalled(first, monkeypatch):
                there = second.run(run.id)
                result = await there.result(timeout=WAIT)  # it went on elsewhere
                assert result == (["quick", "quick"] if kind == "acts" else "quick")
                before = await there.steps()
                slow.go_on.set()  # now the stalled one finishes what it was at
                async with asyncio.timeout(WAIT):
                    while not slow.ends:
                        await asyncio.sleep(0.01)
            # it learns that it was given up, and works again under a new name
            assert first.worker is not None
            former = first.worker.id
            async with asyncio.timeout(WAIT):
                while first.worker.id == former:
                    await asyncio.sleep(0.01)
            assert await there.steps() == before
            assert await there.result(timeout=WAIT) == result
            assert await notes(second) == ([] if kind == "acts" else ["quick"])
            assert before[0].lost == (1 if kind == "acts" else before[0].lost)
        again: Run[Any] = await first.start(slow.workflows[kind])
        assert await again.result(timeout=WAIT) == (["slow", "slow"] if kind == "acts" else "slow")


async def test_runs_of_a_worker_whose_connection_is_gone_go_on_elsewhere_at_once(
    postgres_url: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its session the advisory lock is free: nobody waits for a heart that stands still."""
    monkeypatch.setattr(liveness, "STILL", 3600.0)
    slow, quick = Party("slow"), Party("quick")
    quick.go_on.set()
    async with Engine(postgres_url, registry=slow.registry, grace=0) as first:
        run: Run[Any] = await first.start(slow.workflows["acts"])
        await asyncio.wait_for(slow.began.wait(), WAIT)
        async with Engine(postgres_url, registry=quick.registry, grace=0) as second:
            assert first.worker is not None
            life = first.worker.liveness
            assert isinstance(life, liveness.LockLiveness)
            life._stopping.set()  # as if the process were gone: its session ends, nobody signs off
            assert await second.run(run.id).result(timeout=WAIT) == ["quick", "quick"]
            slow.go_on.set()


# -- lost connections


def terminate(url: str) -> int:
    """Ends every other session of the database, as a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as admin:
        row = admin.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


async def test_lost_connections_fail_no_run_and_repeat_no_write(postgres_url: str, registry: Registry) -> None:
    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        await asyncio.sleep(0.02)
        return n

    @mutation(name="write", registry=registry)
    async def write(session: AsyncSession, what: str) -> None:
        await write_note(session, what)

    number = event("number", int, registry=registry)

    @workflow("works", registry=registry)
    async def works(step: Step, n: int) -> int:
        total = 0
        for part in range(4):
            total += await step.run_action(act, part)
            await step.run_mutation(write, f"{n}.{part}")
            await step.sleep(0.02)
        return total + await step.await_event(number)

    async with Engine(postgres_url, registry=registry, grace=0) as engine:
        await make_notes(engine)
        runs = [await engine.start(works, n) for n in range(8)]
        for run in runs:
            await run.send(number, 100)
        results = [asyncio.create_task(run.result(timeout=WAIT)) for run in runs]
        ended = 0
        for _ in range(5):
            ended += await asyncio.to_thread(terminate, postgres_url)
            await asyncio.wait(results, timeout=0.25)
        assert ended > 5
        assert await asyncio.gather(*results) == [106] * 8
        assert sorted(await notes(engine)) == sorted(f"{n}.{part}" for n in range(8) for part in range(4))
        for run in runs:
            assert [step.state for step in await run.steps()] == ["success"] * 13
        # and what comes after is heard of as before
        late = await engine.start(works, 9)
        await late.send(number, 1)
        assert await late.result(timeout=WAIT) == 7


# -- clocks


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
async def test_a_clock_that_jumps_loses_no_timer_and_fires_none_twice(
    open_engine: EngineMaker, registry: Registry, jump: timedelta
) -> None:
    tries: list[datetime] = []
    clock = ManualClock(START)
    number = event("number", int, registry=registry)

    @action(name="flaky", retry=Retry(initial=30, jitter=False), registry=registry)
    async def flaky() -> int:
        tries.append(clock.now())
        if len(tries) == 1:
            raise ValueError("again")
        return 1

    @workflow("times", registry=registry)
    async def times(step: Step) -> list[Any]:
        seen = [step.now()]

        async def expires() -> None:
            try:
                await step.await_event(number, timeout=45)
            except EventTimeout:
                seen.append(step.now())

        async def sleeps() -> None:
            for _ in range(3):
                await step.sleep(60)
                seen.append(step.now())

        await asyncio.gather(step.run_action(flaky), expires(), sleeps())
        return [moment.isoformat() for moment in seen] if seen == sorted(seen) else ["went back"]

    engine = await open_engine(registry, clock=clock)
    run = await engine.start(times)
    async with asyncio.timeout(WAIT):
        while [step.state for step in await run.steps()] != ["backoff", "open", "open"]:
            await asyncio.sleep(0.01)
    clock.advance(jump)
    if jump < timedelta(0):
        clock.advance(timedelta(seconds=20))
        assert (await run.status()).status in ("waiting", "running", "sleeping")
        assert len(tries) == 1
    async with asyncio.timeout(WAIT):
        while (await run.status()).status != "completed":
            clock.advance(timedelta(minutes=10))
            await asyncio.sleep(0.02)
    result = await run.result(timeout=WAIT)
    assert len(result) == 5
    assert len(tries) == 2
    steps = await run.steps()
    assert [(step.kind, step.state) for step in steps] == [
        ("action", "success"), ("event", "timeout"), ("sleep", "success"), ("sleep", "success"), ("sleep", "success"),
    ]  # fmt: skip
    assert steps[1].ended_at == steps[1].due_at
    assert len(set(result[1:])) == 4


async def test_a_clock_that_jumped_back_under_a_held_run_goes_on(open_engine: EngineMaker, registry: Registry) -> None:
    """Times that are recorded never go back, and new timers run from the clock as it is."""
    clock = ManualClock(START)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        seen = []
        for _ in range(3):
            await step.sleep(60)
            seen.append(step.now())
        return ["ordered" if seen == sorted(seen) else "went back"]

    engine = await open_engine(registry, clock=clock)
    run = await engine.start(w)

    async def slept(count: int) -> None:
        async with asyncio.timeout(WAIT):
            while len([step for step in await run.steps() if step.state == "success"]) < count:
                await asyncio.sleep(0.01)

    await until(run, "sleeping")
    clock.advance(timedelta(seconds=60))
    await slept(1)
    clock.advance(timedelta(hours=-1))
    clock.advance(timedelta(hours=1, seconds=60))
    await slept(2)
    clock.advance(timedelta(hours=-1))
    await engine.close()
    engine = await open_engine(registry, clock=clock)
    clock.advance(timedelta(hours=1, seconds=60))
    assert await engine.run(run.id).result(timeout=WAIT) == ["ordered"]


# -- advances that cannot be written


async def test_an_advance_that_cannot_be_written_harms_nobody_else(t: TestEngine, registry: Registry) -> None:
    @action(name="poison", registry=registry)
    async def poison() -> None:
        return None

    @action(name="fine", registry=registry)
    async def fine(n: int) -> int:
        return n

    @workflow("bad", registry=registry)
    async def bad(step: Step) -> None:
        await step.run_action(poison)

    @workflow("good", registry=registry)
    async def good(step: Step, n: int) -> int:
        return await step.run_action(fine, n) + await step.run_action(fine, n)

    await t.open()

    def forbid(tx: Any) -> None:
        if tx.dialect.name == "sqlite":
            rule = (
                "CREATE TRIGGER poisoned BEFORE INSERT ON signoff_step WHEN NEW.name = 'poison'"
                " BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
            )
        else:
            rule = "ALTER TABLE signoff_step ADD CONSTRAINT poisoned CHECK (name <> 'poison')"
        tx.conn.execute(sa.text(rule))

    await t.store.write(forbid)
    calls: list[Any] = [good.call(n) for n in range(30)]
    calls[10:10] = [bad.call(), bad.call()]
    started = await t.start_many(calls)
    runs = [run for run in started if isinstance(run, Run)]
    assert len(runs) == 32
    poisoned = runs[10:12]
    others = runs[:10] + runs[12:]
    assert await asyncio.gather(*(run.result(timeout=WAIT) for run in others)) == [2 * n for n in range(30)]
    for run in poisoned:
        await until(run, "blocked")  # not failed: nothing of it is lost
        blocked = (await run.status()).blocked
        assert blocked is not None
        assert "poisoned" in blocked["message"]
        assert await run.steps() == []
        assert await run.cancel() == "canceled"
    assert await t.result(await t.start(good, 5)) == 10


async def test_a_failing_inline_mutation_harms_neither_its_run_nor_others(t: TestEngine, registry: Registry) -> None:
    """Its error shows only at the end of the transaction that the advance is in."""

    @mutation(name="orphan", registry=registry)
    async def orphan(session: AsyncSession) -> None:
        await session.execute(sa.text("INSERT INTO line VALUES (1, 99)"))  # of an order that is not there

    @workflow("bad", registry=registry)
    async def bad(step: Step) -> None:
        await step.run_mutation(orphan.options(inline=True))

    @workflow("good", registry=registry)
    async def good(step: Step) -> int:
        await step.sleep(0)
        return 1

    await t.open()

    def make(tx: Any) -> None:
        tx.conn.execute(sa.text("CREATE TABLE order_ (id INTEGER PRIMARY KEY)"))
        tx.conn.execute(
            sa.text(
                "CREATE TABLE line (id INTEGER PRIMARY KEY,"
                " order_id INTEGER REFERENCES order_ (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        )

    await t.store.write(make)
    run = await t.start(bad)
    others = [await t.start(good) for _ in range(10)]
    assert await asyncio.gather(*(other.result(timeout=WAIT) for other in others)) == [1] * 10
    await until(run, "blocked", "failed")
    assert await t.store.read(lambda tx: tx.conn.execute(sa.text("SELECT count(*) FROM line")).scalar()) == 0
    assert await t.result(await t.start(good)) == 1


async def test_a_full_disk_blocks_and_fails_no_run(
    sqlite_url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "FULL_PAUSE", 0.01)
    working, go_on = asyncio.Event(), asyncio.Event()
    large = "x" * 300_000

    @action(name="large", registry=registry)
    async def work() -> str:
        working.set()
        await go_on.wait()
        return large

    @mutation(name="store", registry=registry)
    async def store(session: AsyncSession, text: str) -> int:
        await write_note(session, text * 2)
        return len(text)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_mutation(store, await step.run_action(work))

    async with Engine(sqlite_url, registry=registry, grace=0) as engine:
        assert engine.worker is not None
        await make_notes(engine)
        seen: list[type[BaseException]] = []
        committed, noticed = engine.worker._committed, asyncio.Event()

        def counting(run: Any, advance: Any, result: Any) -> None:
            if isinstance(result, BaseException):
                seen.append(type(result))
                if len(seen) > 7:  # after so many failures that are its own a run is blocked
                    noticed.set()
            committed(run, advance, result)

        engine.worker._committed = counting  # type: ignore[method-assign]

        def room(tx: Tx, pages: int | None) -> None:
            (used,) = tx.execute_raw("PRAGMA page_count")[0]
            tx.execute_raw(f"PRAGMA max_page_count = {used + pages if pages is not None else 10_000_000}")

        run = await engine.start(w)
        await asyncio.wait_for(working.wait(), WAIT)
        await engine.store.write(room, 4)
        go_on.set()
        await asyncio.wait_for(noticed.wait(), WAIT)
        assert set(seen) == {DiskFull}
        assert (await run.status()).status == "running"
        await engine.store.write(room, 200)  # enough for the result and the args, not for the mutation
        async with asyncio.timeout(WAIT):
            while [step.state for step in await run.steps()][:1] != ["success"]:
                await asyncio.sleep(0.01)
            while len(await run.steps()) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # in which the mutation is tried
        assert (await run.status()).status == "running"
        await engine.store.write(room, None)
        assert await run.result(timeout=WAIT) == len(large)
        assert (await run.steps())[1].attempts == 0
