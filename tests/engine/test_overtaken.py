"""What a worker hears late: claims and commits whose news something else overtook."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from signoff import Engine, Registry, Step, action, event, workflow
from signoff.engine.claims import Claimed, claim
from signoff.engine.journal import load
from signoff.engine.settings import EngineSettings
from signoff.engine.worker import Worker
from signoff.store.postgres import PostgresLink
from signoff.store.sqlite import SqliteLink

WAIT = 25


def worker_of(engine: Engine) -> Worker:
    assert engine.worker is not None
    return engine.worker


async def test_a_run_that_begins_while_a_claim_is_read_is_not_replayed(sqlite_url: str, registry: Registry) -> None:
    worked: list[int] = []
    acting, go_on = asyncio.Event(), asyncio.Event()

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        acting.set()
        await go_on.wait()
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        worked.append(0)  # signoff: allow
        first = await step.run_action(act, 1)
        worked.append(first)  # signoff: allow
        return first

    engine = Engine(sqlite_url, registry=registry, settings=EngineSettings(check_replay=False), grace=0)
    async with engine:
        worker, read = worker_of(engine), engine.store.read
        asked, seen = asyncio.Event(), asyncio.Event()

        async def slow(call: Callable[..., Any], *args: Any) -> Any:
            if call is not claim or seen.is_set():
                return await read(call, *args)
            asked.set()
            await started.wait()
            claimed: Claimed = await read(call, *args)
            seen.set()
            await acting.wait()
            assert [loaded.row.public_id for loaded in claimed.loaded] == [run.id]
            return claimed

        started = asyncio.Event()
        await worker.settled()
        worker.store.read = slow  # type: ignore[method-assign, assignment]  # a reader's thread that is late
        worker._claim_wanted.set()
        await asyncio.wait_for(asked.wait(), WAIT)
        run = await engine.start(w)
        started.set()
        await asyncio.wait_for(seen.wait(), WAIT)
        await asyncio.wait_for(acting.wait(), WAIT)
        while worker._claiming:
            await asyncio.sleep(0.001)
        go_on.set()
        assert await run.result(timeout=WAIT) == 1
    assert worked == [0, 1]


async def test_a_run_that_begins_and_parks_while_a_claim_is_read_is_not_replayed(
    sqlite_url: str, registry: Registry
) -> None:
    worked: list[int] = []
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        worked.append(0)  # signoff: allow
        got = await step.await_event(number)
        worked.append(got)  # signoff: allow
        return got

    engine = Engine(sqlite_url, registry=registry, settings=EngineSettings(check_replay=False), grace=0)
    async with engine:
        worker, read = worker_of(engine), engine.store.read
        asked, started, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow(call: Callable[..., Any], *args: Any) -> Any:
            if call is not claim or taken.is_set():
                return await read(call, *args)
            asked.set()
            await started.wait()
            taken.set()
            return Claimed(loaded)  # the run as it was before its first advance was written

        loaded: list[Any] = []
        go_on = worker._go_on

        def noted(notice: Any, promise: Any = None) -> Any:
            if notice.data and (begun := notice.data.get("begun")) is not None:
                loaded.append(begun)
            return go_on(notice, promise)

        worker._go_on = noted  # type: ignore[method-assign]
        await worker.settled()
        worker.store.read = slow  # type: ignore[method-assign, assignment]  # a reader's thread that is late
        worker._claim_wanted.set()
        await asyncio.wait_for(asked.wait(), WAIT)
        run = await engine.start(w)
        while not worker._cache:  # it waits
            await asyncio.sleep(0.001)
        started.set()
        await asyncio.wait_for(taken.wait(), WAIT)
        while worker._claiming:
            await asyncio.sleep(0.001)
        await worker.settled()  # an event that comes between would have the advance refused and the run loaded again
        assert [begun.row.public_id for begun in loaded] == [run.id]
        await run.send(number, 1)
        assert await run.result(timeout=WAIT) == 1
    assert worked == [0, 1]


async def test_a_claim_that_overtakes_the_news_of_a_parking_loses_nothing(
    postgres_url: str, registry: Registry
) -> None:
    @action(name="act", registry=registry)
    async def act() -> None: ...

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        await step.run_action(act)  # the run is held, not only begun
        await step.sleep(timedelta(seconds=0.05))
        return "done"

    async with Engine(postgres_url, registry=registry, grace=0) as engine:
        worker = worker_of(engine)
        committed, take = worker._committed, worker._take
        held: list[tuple[Any, ...]] = []
        parked, taken = asyncio.Event(), asyncio.Event()

        def late(run: Any, advance: Any, result: Any) -> None:
            if getattr(result, "parks", False) and not parked.is_set():
                held.append((run, advance, result))
                parked.set()
            else:
                committed(run, advance, result)

        def noted(claimed: Claimed) -> None:
            take(claimed)
            if parked.is_set() and (claimed.news or claimed.loaded):
                taken.set()

        worker._committed = late  # type: ignore[method-assign]  # a loop that is late
        worker._take = noted  # type: ignore[method-assign]
        run = await engine.start(w)
        await asyncio.wait_for(parked.wait(), WAIT)
        await asyncio.sleep(0.1)  # until the run is due
        worker._claim_wanted.set()
        await asyncio.wait_for(taken.wait(), WAIT)
        committed(*held[0])
        assert await run.result(timeout=WAIT) == "done"


async def test_a_claim_that_overtakes_a_reload_loses_nothing(postgres_url: str, registry: Registry) -> None:
    acting, go_on = asyncio.Event(), asyncio.Event()

    @action(name="act", registry=registry)
    async def act() -> str:
        acting.set()
        await go_on.wait()
        return "done"

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        return await step.run_action(act)

    async with Engine(postgres_url, registry=registry, grace=0) as engine:
        worker, read, take = worker_of(engine), engine.store.read, worker_of(engine)._take
        freed, taken = False, asyncio.Event()

        async def slow(call: Callable[..., Any], *args: Any) -> Any:
            answer = await read(call, *args)
            if call is load and freed and not taken.is_set():
                worker._claim_wanted.set()
                await asyncio.wait_for(taken.wait(), WAIT)
            return answer

        def noted(claimed: Claimed) -> None:
            take(claimed)
            if freed and claimed.loaded:
                taken.set()

        worker.store.read = slow  # type: ignore[method-assign, assignment]  # a reader's thread that is late
        worker._take = noted  # type: ignore[method-assign]
        run = await engine.start(w)
        await asyncio.wait_for(acting.wait(), WAIT)
        free = sa.text("UPDATE signoff_run SET worker_id = NULL, ready = 0, epoch = epoch + 1")
        await engine.store.write(lambda tx: tx.conn.execute(free))  # others took this worker for lost
        freed = True
        go_on.set()
        assert await run.result(timeout=WAIT) == "done"


async def test_what_a_failed_commit_foretold_is_taken_back(
    database_url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    word = event("word", str, registry=registry)
    loop = asyncio.get_running_loop()

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        first = await step.await_event(word)
        seen.append(first)  # signoff: allow
        loop.call_soon_threadsafe(driven.set)
        return [first, await step.await_event(word)]

    driven, fails = asyncio.Event(), False

    def fail() -> None:
        """In the middle of a commit, once the program has gone on with what it would bring."""
        nonlocal fails
        fails = False
        asyncio.run_coroutine_threadsafe(driven.wait(), loop).result(WAIT)
        raise sqlite3.OperationalError("disk I/O error") if sqlite else psycopg.errors.DiskFull("no space left")

    sqlite = database_url.startswith("sqlite")
    link = SqliteLink if sqlite else PostgresLink
    commit = link.commit

    def failing(self: Any, notices: Any) -> None:
        if fails and any(notice.goes_on for notice in notices):
            fail()
        commit(self, notices)

    monkeypatch.setattr(link, "commit", failing)
    async with Engine(database_url, registry=registry, settings=EngineSettings(check_replay=True), grace=0) as engine:
        run = await engine.start(w)
        async with asyncio.timeout(WAIT):
            while (await run.status()).status != "waiting":
                await asyncio.sleep(0.01)
        await worker_of(engine).settled()
        fails = True
        submit, held = worker_of(engine)._committer.submit, []
        worker_of(engine)._committer.submit = lambda *item: held.append(item)  # type: ignore[method-assign]
        with pytest.raises(Exception, match="disk"):
            await run.send(word, "lost")
        assert not fails
        assert set(seen) == {"lost"}
        await run.send(word, "kept")  # gets the number that the lost one had, so that no fence tells them apart
        worker_of(engine)._committer.submit = submit  # type: ignore[method-assign]
        for item in held:
            submit(*item)
        await run.send(word, "last")
        assert await run.result(timeout=WAIT) == ["kept", "last"]
