"""Races of the worker that a slow machine meets sooner or later, forced one by one."""

from __future__ import annotations

import asyncio
import contextvars
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Registry, Retry, RunCanceled, RunFailed, Step, action, event, mutation, workflow
from signoff.engine import completion
from signoff.engine.advance import apply_advances
from signoff.engine.pools import PoolLimits
from signoff.engine.settings import EngineSettings
from signoff.store import payloads
from signoff.store.errors import CommitUnknown
from signoff.store.store import Store
from signoff.store.writer import Turn
from signoff.workflow.codec import Codec
from signoff.workflow.errors import Undecodable
from tests.engine.conftest import EngineMaker

WAIT = 8


async def test_large_arguments_survive_a_repeated_commit(open_engine: EngineMaker, registry: Registry) -> None:
    @action(name="size", registry=registry)
    async def size(text: str) -> int:
        return len(text)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(size, "x" * (2 * payloads.INLINE_LIMIT))

    engine = await open_engine(registry)
    failed: list[int] = []

    def failing_once(tx: Any, advances: Any) -> Any:
        results = apply_advances(tx, advances)
        if not failed:
            failed.append(len(advances))
            raise RuntimeError("rolled back")
        return results

    def twice(tx: Any, advances: Any) -> Any:
        try:
            with tx.savepoint():
                return failing_once(tx, advances)
        except RuntimeError:
            return apply_advances(tx, advances)

    engine.worker._committer._apply = twice
    run = await engine.start(w)
    assert await asyncio.wait_for(run.result(), WAIT) == 2 * payloads.INLINE_LIMIT
    assert failed
    stored = await engine.store.read(
        lambda tx: tx.conn.execute(sa.text("SELECT args FROM signoff_step WHERE kind = 'action'")).scalar()
    )
    text = await engine.store.read(payloads.get, stored)
    assert json.loads(text) == {"text": "x" * (2 * payloads.INLINE_LIMIT)}


async def test_a_write_turn_of_sqlite_that_is_canceled_as_it_is_granted_goes_back(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store:
        turn: list[Turn] = []
        put = store.backend._writer.put  # type: ignore[union-attr]  # a SQLite store

        def keep(job: Any) -> None:
            turn.append(job)
            put(job)

        store.backend._writer.put = keep  # type: ignore[method-assign,union-attr]  # to see the turn

        async def mutate() -> None:
            async with store.session():
                pass

        task = asyncio.create_task(mutate())
        await asyncio.sleep(0)
        # runs before the task hears that it was granted
        next(job for job in turn if isinstance(job, Turn)).granted.add_done_callback(lambda _: task.cancel())
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(store.write(lambda tx: None), WAIT)


async def test_a_canceled_wait_for_the_runs_turn_keeps_nobody_waiting(
    open_engine: EngineMaker, registry: Registry
) -> None:
    began, ends = asyncio.Event(), asyncio.Event()

    @action(name="long", registry=registry)
    async def long() -> int:
        began.set()
        await ends.wait()
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(long)

    engine = await open_engine(registry)
    started = await engine.start(w)
    worker = engine.worker
    await asyncio.wait_for(began.wait(), WAIT)
    (run,) = worker.active.values()
    for late in (False, True):
        await worker.turn(run)
        second = asyncio.create_task(worker.turn(run))
        third = asyncio.create_task(worker.turn(run))
        await asyncio.sleep(0)
        if late:
            worker.turn_over(run)  # grants the second its turn
            second.cancel()
        else:
            second.cancel()
            await asyncio.sleep(0)
            worker.turn_over(run)
        await asyncio.wait_for(third, WAIT)
        with pytest.raises(asyncio.CancelledError):
            await second
        worker.turn_over(run)
        assert not run.busy
    ends.set()
    assert await asyncio.wait_for(started.result(), WAIT) == 1


async def test_an_outcome_recorded_while_a_mutation_runs_is_not_overlooked(
    open_engine: EngineMaker, registry: Registry
) -> None:
    begun, told = asyncio.Event(), asyncio.Event()
    go = event("go", str, registry=registry)

    @mutation(name="slow", registry=registry)
    async def slow(session: AsyncSession) -> int:
        begun.set()
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        return list(await asyncio.gather(step.await_event(go), step.run_mutation(slow)))

    engine = await open_engine(registry)
    turn = engine.worker.turn

    async def turn_after_event(run: Any) -> None:
        await turn(run)
        if not told.is_set():  # the run's turn is taken, its row is not: others may write
            told.set()
            await asyncio.create_task(engine.run(run.public_id).send(go, "x"), context=contextvars.Context())

    engine.worker.turn = turn_after_event  # type: ignore[method-assign]  # to send at the worst moment
    run = await engine.start(w)
    assert await asyncio.wait_for(run.result(), WAIT) == ["x", 1]
    assert begun.is_set()


async def test_outcomes_that_come_with_the_end_are_kept(open_engine: EngineMaker, registry: Registry) -> None:
    """They are durable, or at least known: the end of the handler must not turn them into cancellations."""
    both = asyncio.Event()
    calls: list[str] = []

    async def hold_until_both() -> None:
        await both.wait()

    @action(name="bad", registry=registry)
    async def bad() -> None:
        await hold_until_both()
        raise ValueError("no")

    @action(name="good", registry=registry)
    async def good() -> str:
        calls.append("good")
        await hold_until_both()
        return "done"

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        other = asyncio.ensure_future(step.run_action(good))
        await step.run_action(bad)
        await other

    engine = await open_engine(registry)
    run = await engine.start(w)
    while not calls or not any(len(active.tasks) == 2 for active in engine.worker.active.values()):
        await asyncio.sleep(0.01)
    (active,) = engine.worker.active.values()
    active.busy = True  # so that both outcomes come in one advance
    both.set()
    while len(active.pending) < 2 or active.tasks:
        await asyncio.sleep(0.01)
    active.busy = False
    engine.worker.pump(active)
    with pytest.raises(RunFailed):
        await asyncio.wait_for(run.result(), WAIT)
    kinds = await engine.store.read(
        lambda tx: tx.conn.execute(
            sa.text("SELECT name, outcome_kind FROM signoff_step WHERE kind = 'action' ORDER BY no")
        ).all()
    )
    assert dict(kinds) == {"good": "success", "bad": "failure"}


async def test_outcomes_that_come_with_a_mismatch_are_kept(
    open_engine: EngineMaker, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Event()
    decode = Codec.decode_result

    def refuse_one(codec: Codec, text: str | None) -> Any:
        if text == "1":
            raise Undecodable("not what it was")
        return decode(codec, text)

    monkeypatch.setattr(Codec, "decode_result", refuse_one)

    @action(name="bad", registry=registry)
    async def first() -> int:
        await both.wait()
        return 1

    @action(name="good", registry=registry)
    async def second() -> int:
        await both.wait()
        return 2

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await asyncio.gather(step.run_action(first), step.run_action(second))

    engine = await open_engine(registry)
    run = await engine.start(w)
    while not any(len(active.tasks) == 2 for active in engine.worker.active.values()):
        await asyncio.sleep(0.01)
    (active,) = engine.worker.active.values()
    active.busy = True
    both.set()
    while len(active.pending) < 2 or active.tasks:
        await asyncio.sleep(0.01)
    active.busy = False
    engine.worker.pump(active)
    while (await run.status()).status != "blocked":
        await asyncio.sleep(0.01)
    kinds = await engine.store.read(
        lambda tx: tx.conn.execute(sa.text("SELECT outcome_kind FROM signoff_step ORDER BY no")).scalars().all()
    )
    assert list(kinds) == ["success", "success"]


async def test_an_unclear_commit_of_a_mutation_is_looked_up(open_engine: EngineMaker, registry: Registry) -> None:
    calls: list[int] = []

    @mutation(name="once", registry=registry)
    async def once(session: AsyncSession) -> int:
        calls.append(1)
        return len(calls)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        return [await step.run_mutation(once), await step.run_mutation(once)]

    engine = await open_engine(registry)
    commit = engine.store._commit
    happened = iter([True, False])

    async def lose_the_answer(session: Any) -> None:
        lost = next(happened, None)
        if lost is not False:
            await commit(session)
        if lost is not None:
            raise CommitUnknown("lost")

    engine.store._commit = lose_the_answer  # type: ignore[method-assign]  # a connection that breaks in the commit
    run = await engine.start(w)
    assert await asyncio.wait_for(run.result(), WAIT) == [1, 3]


async def test_runs_claimed_without_an_answer_are_claimed_again(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return 7

    engine = await open_engine(registry)
    worker = engine.worker
    claim, lost = worker._claim, False

    async def lose_the_answer(room: int) -> Any:
        nonlocal lost
        claimed = await claim(room)
        if claimed.loaded and not lost:
            lost = True
            raise CommitUnknown("lost")
        return claimed

    worker._claim = lose_the_answer  # type: ignore[method-assign]  # a connection that breaks in the commit
    run = await engine.start(w.options(run_after=0.01))  # one without a delay begins without being claimed
    assert await asyncio.wait_for(run.result(), WAIT) == 7
    assert lost


async def test_what_an_attempt_brings_while_its_worker_stops_is_kept(
    open_engine: EngineMaker, registry: Registry
) -> None:
    begun, calls = asyncio.Event(), 0

    @action(name="last words", registry=registry)
    async def last_words() -> str:
        nonlocal calls
        calls += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # it is a task's
            return "said"
        return "never"

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        return await step.with_options(at_most_once=True).run_action(last_words)

    first = await open_engine(registry)
    run = await first.start(w)
    await asyncio.wait_for(begun.wait(), WAIT)
    await first.close()
    second = await open_engine(registry)
    assert await asyncio.wait_for(second.run(run.id).result(), WAIT) == "said"
    assert calls == 1


async def test_a_mutation_that_hangs_does_not_keep_its_worker_from_stopping(
    open_engine: EngineMaker, registry: Registry
) -> None:
    begun = asyncio.Event()

    @mutation(name="hang", registry=registry)
    async def hang(session: AsyncSession) -> None:
        begun.set()
        await asyncio.Event().wait()

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_mutation(hang)

    engine = await open_engine(registry)
    await engine.start(w)
    await asyncio.wait_for(begun.wait(), WAIT)
    await asyncio.wait_for(engine.close(), WAIT)


async def test_each_delayed_step_starts_in_its_time_while_another_runs(
    open_engine: EngineMaker, registry: Registry
) -> None:
    second = asyncio.Event()

    @action(name="one", registry=registry)
    async def one() -> int:
        await second.wait()  # so that nothing is written when the second is due
        return 1

    @action(name="two", registry=registry)
    async def two() -> int:
        second.set()
        return 2

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        calls = (step.with_options(run_after=0.1 * n).run_action(fn) for n, fn in enumerate((one, one, two)))
        return list(await asyncio.gather(*calls))

    engine = await open_engine(registry)
    run = await engine.start(w)
    assert await asyncio.wait_for(run.result(), WAIT) == [1, 1, 2]


async def test_a_run_that_is_unblocked_while_its_steps_run_goes_on(
    open_engine: EngineMaker, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, broken = asyncio.Event(), True
    decode = Codec.decode_result

    def refuse(codec: Codec, text: str | None) -> Any:
        if text == "1" and broken:
            raise Undecodable("not what it was")
        return decode(codec, text)

    monkeypatch.setattr(Codec, "decode_result", refuse)

    @action(name="quick", registry=registry)
    async def quick() -> int:
        return 1

    @action(name="slow", registry=registry)
    async def slow() -> int:
        await ends.wait()
        return 2

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        return list(await asyncio.gather(step.run_action(quick), step.run_action(slow)))

    engine = await open_engine(registry)
    run = await engine.start(w)
    while (await run.status()).status != "blocked":
        await asyncio.sleep(0.01)
    broken = False
    await engine.store.write(
        lambda tx: tx.conn.execute(sa.text("UPDATE signoff_run SET blocked_hash = 'other'"))
    )  # as if other code had blocked it
    await engine.worker.refresh_definitions()
    async with asyncio.timeout(WAIT):
        while (await run.status()).status == "blocked":  # else its result would be that it is
            await asyncio.sleep(0.01)
    ends.set()
    assert await asyncio.wait_for(run.result(), WAIT) == [1, 2]


async def test_a_pause_holds_back_attempts_that_stand_in_line(open_engine: EngineMaker, registry: Registry) -> None:
    begun: list[int] = []
    go_on = asyncio.Event()

    @action(name="pooled", pool="narrow", registry=registry)
    async def pooled(n: int) -> int:
        begun.append(n)
        await go_on.wait()
        return n

    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> int:
        return await step.run_action(pooled, n)

    engine = await open_engine(registry)
    await engine.set_pool("narrow", PoolLimits(max_parallel=1))
    first = await engine.start(w, 1)
    while not begun:
        await asyncio.sleep(0.01)
    second = await engine.start(w, 2)
    while not any(engine.worker.executor.waiting(active.id) for active in engine.worker.active.values()):
        await asyncio.sleep(0.01)
    await second.pause()
    go_on.set()
    await asyncio.wait_for(first.result(), WAIT)
    while (await second.status()).status != "paused":
        await asyncio.sleep(0.01)
    assert begun == [1]
    await second.resume()
    assert await asyncio.wait_for(second.result(), WAIT) == 2


async def test_a_full_worker_hears_of_what_happens_to_its_runs(open_engine: EngineMaker, registry: Registry) -> None:
    begun = asyncio.Event()

    @action(name="endless", registry=registry)
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_action(endless)

    engine = await open_engine(registry, settings=EngineSettings(max_active=1))
    first = await engine.start(w)
    await asyncio.wait_for(begun.wait(), WAIT)
    second = await engine.start(w)
    begun.clear()
    engine.worker._tell = lambda run_id, told: None  # type: ignore[method-assign]  # as if another process canceled it
    await first.cancel()
    with pytest.raises(RunCanceled):
        await asyncio.wait_for(first.result(), WAIT)
    await asyncio.wait_for(begun.wait(), WAIT)
    await second.cancel()


async def test_an_on_complete_that_cannot_be_tried_does_not_stop_the_others(
    open_engine: EngineMaker, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fails = iter([True, True, False])

    @mutation(name="finally", registry=registry)
    async def finally_(session: AsyncSession, run_id: str, kind: str, value: Any, context: Any) -> None:
        if next(fails, False):
            raise ValueError("not yet")
        done.append(run_id)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return 1

    engine = await open_engine(registry)
    inside, broken = completion.complete_inside, iter([True])

    async def break_once(*args: Any) -> None:
        if next(broken, False):
            raise LookupError("a payload is gone")
        await inside(*args)

    monkeypatch.setattr(completion, "complete_inside", break_once)
    monkeypatch.setattr(completion, "PAUSE", timedelta(milliseconds=10))
    monkeypatch.setattr(completion, "POLICY", Retry(max_attempts=None, initial=0.01))
    runs = [await engine.start(w.options(on_complete=finally_, on_complete_context=n)) for n in range(2)]
    for run in runs:
        await asyncio.wait_for(run.result(), WAIT)
    while len(done) < 2:
        await asyncio.sleep(0.01)
    assert sorted(done) == sorted(run.id for run in runs)
