"""Defining and starting: versions, validation, keys, delays, limits of a workflow, enqueue, joined transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import (
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
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
from signoff.engine.starting import Refusal
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, write_note
from tests.engine.test_replay_of_runs import until, waits

WAIT = 8


async def count_runs(engine: Any) -> int:
    return len((await engine.runs(limit=1000)).items)


# -- D1, D2, D7


async def test_versions_live_side_by_side_and_a_run_stays_on_its_own(open_engine: EngineMaker) -> None:
    go = event("go", int, registry=Registry())

    def define(registry: Registry, version: int) -> Any:
        if registry.find_event("go") is None:
            registry.add_message(go)

        @workflow("w", version, registry=registry)
        async def w(step: Step) -> int:
            await step.await_event(go)
            return version

        @workflow("parent", version, registry=registry)
        async def parent(step: Step) -> list[int]:
            child = step.run_workflow(w)
            return [await child, await step.run_workflow(w.options(version=1))]

        return w

    first = Registry()
    old = define(first, 1)
    engine = await open_engine(first)
    run = await engine.start(old)
    await waits(run)
    await engine.close()
    both = Registry()
    define(both, 1)
    new = define(both, 2)
    engine = await open_engine(both)
    latest, told = await engine.start(old), await engine.start(new.options(version=1))
    with pytest.raises(NotFound):
        await engine.start(new.options(version=3))
    run = engine.run(run.id)
    for one in (run, latest, told):
        await one.send(go, 1)
    assert [await one.result(timeout=WAIT) for one in (run, latest, told)] == [1, 2, 1]
    assert [(await one.status()).version for one in (run, latest, told)] == [1, 2, 1]


async def test_bad_args_and_options_raise_and_leave_nothing(open_engine: EngineMaker, registry: Registry) -> None:
    class Order(BaseModel):
        number: int = Field(gt=0)
        text: str

    @workflow("w", registry=registry)
    async def w(step: Step, order: Order, times: int = 1) -> int:
        return order.number * times

    engine = await open_engine(registry)
    with pytest.raises(InvalidInput) as refused:
        await engine.start_by_name("w", {"order": {"number": 0}, "times": "x"})
    assert {field.loc for field in refused.value.fields} == {("order", "number"), ("order", "text"), ("times",)}
    with pytest.raises(InvalidInput):
        await engine.start(w, Order.model_construct(number="no", text=1))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(NotFound):
        await engine.start_by_name("nothing", {})
    with pytest.raises(InvalidInput):
        w.options(run_after=5, run_at=engine.store.clock.now())
    with pytest.raises(InvalidInput):
        w.options(idempotency_key="line\nbreak")
    with pytest.raises(InvalidInput):
        w.options(labels={"x" * 257: "y"})
    assert await count_runs(engine) == 0
    run = await engine.start(w, Order(number=2, text="t"), times=3)
    assert await run.result(timeout=WAIT) == 6


async def test_a_step_is_of_no_use_outside_of_its_handler(open_engine: EngineMaker, registry: Registry) -> None:
    kept: list[Any] = []

    @action(name="act", registry=registry)
    async def act() -> str:
        try:
            kept[-1].sleep(1)
        except RuntimeError as error:
            return type(error).__name__
        return "worked"

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        kept.append(step)  # signoff: allow
        return await step.run_action(act)

    engine = await open_engine(registry)
    assert await (await engine.start(w)).result(timeout=WAIT) == "StepMisuse"
    with pytest.raises(RuntimeError):
        kept[-1].sleep(1)


# -- S1, S2, S3


async def test_a_start_runs_no_handler_code_and_handler_errors_end_the_run(
    open_engine: EngineMaker, registry: Registry
) -> None:
    import threading

    threads: list[str] = []

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        threads.append(threading.current_thread().name)  # signoff: allow
        raise ValueError("in the handler")

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed, match="in the handler"):
        await run.result(timeout=WAIT)
    assert threading.main_thread().name not in threads
    watcher = await open_engine(registry, worker=False) if "sqlite" not in engine.url else None
    if watcher is not None:
        other = await watcher.start(w)
        with pytest.raises(RunFailed):
            await other.result(timeout=WAIT)


async def test_the_same_start_again_is_the_same_run(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> int:
        return n

    @workflow("other", registry=registry)
    async def other(step: Step, n: int) -> int:
        return n

    engine = await open_engine(registry)
    keyed = w.options(idempotency_key="k")
    runs = await asyncio.gather(*(engine.start(keyed, 1) for _ in range(8)))
    assert len({run.id for run in runs}) == 1
    assert sorted(run.existing for run in runs) == [False, *[True] * 7]
    for bad, n in ((keyed, 2), (other.options(idempotency_key="k"), 1)):
        with pytest.raises(Conflict):
            await engine.start(bad, n)
    assert await runs[0].result(timeout=WAIT) == 1
    assert (await engine.start(keyed, 1)).existing
    own = await engine.start(w.options(run_id="mine"), 3)
    assert own.id == "mine"
    assert (await engine.start(w.options(run_id="mine"), 3)).existing
    with pytest.raises(Conflict):
        await engine.start(w.options(run_id="mine"), 4)
    await own.result(timeout=WAIT)
    await runs[0].cleanup()
    again = await engine.start(keyed, 2)
    assert not again.existing
    assert await again.result(timeout=WAIT) == 2


async def test_many_starts_refuse_the_bad_ones_and_run_the_rest(open_engine: EngineMaker, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step, n: int) -> int:
        return n

    engine = await open_engine(registry)
    first = await engine.start(w.options(idempotency_key="k"), 0)
    calls = [
        w.options(idempotency_key="k").call(0),
        w.call(1),
        w.call("x"),  # type: ignore[arg-type]  # wrong on purpose
        w.options(idempotency_key="k").call(5),
        w.options(version=9).call(2),
        w.call(3),
    ]
    results = await engine.start_many(calls)
    assert [isinstance(item, Refusal) for item in results] == [False, False, True, True, True, False]
    refusals = [item for item in results if isinstance(item, Refusal)]
    assert [item.index for item in refusals] == [2, 3, 4]
    assert [item.error.code for item in refusals] == ["invalid_input", "conflict", "not_found"]
    assert [field.loc for field in refusals[0].error.fields] == [("n",)]  # type: ignore[attr-defined]  # InvalidInput
    runs = [item for item in results if not isinstance(item, Refusal)]
    assert (runs[0].id, runs[0].existing) == (first.id, True)
    assert [await run.result(timeout=WAIT) for run in runs] == [0, 1, 3]
    assert await count_runs(engine) == 3


# -- S4


async def test_delays_labels_and_priorities(t: TestEngine, registry: Registry) -> None:
    order: list[str] = []

    @workflow("w", max_concurrent=1, registry=registry)
    async def w(step: Step, name: str) -> float:
        order.append(name)  # signoff: allow
        await step.sleep(10)
        return (step.now() - step.run.created_at).total_seconds()

    await t.open()
    runs = [
        await t.start(w.options(priority=priority, labels={"team": name[0], "n": name}), name)
        for name, priority in (("a1", 0), ("a2", 0), ("b1", 5), ("b2", 9), ("a3", -1))
    ]
    later = await t.start(w.options(run_after=timedelta(minutes=10), labels={"team": "c"}), "c")
    await t.advance(1)
    assert (await later.status()).status == "queued"
    await t.advance(100)
    for run in runs:
        await t.result(run)
    # the first one began at once; of the others the most urgent come first
    assert list(dict.fromkeys(order)) == ["a1", "b2", "b1", "a2", "a3"]
    await t.advance(timedelta(minutes=10))
    assert await t.result(later) >= 610
    found = await t.runs(labels={"team": "b"})
    assert {item.labels["n"] for item in found.items} == {"b1", "b2"}
    assert [item.id for item in (await t.runs(labels={"team": "a", "n": "a2"})).items] == [runs[1].id]


# -- S5


async def test_a_workflow_limits_its_runs_its_starts_and_its_queue(t: TestEngine, registry: Registry) -> None:
    go = event("go", int, registry=registry)

    @workflow("few", max_concurrent=2, max_queued=2, registry=registry)
    async def few(step: Step) -> int:
        return await step.await_event(go)

    @workflow("slowly", rate=(2, 60), registry=registry)
    async def slowly(step: Step) -> float:
        return (step.now() - step.run.created_at).total_seconds()

    await t.open()
    runs = [await t.start(few) for _ in range(4)]
    with pytest.raises(LimitExceeded):
        await t.start(few)
    assert await count_runs(t) == 4
    await t.settle()
    assert [(await run.status()).status for run in runs] == ["waiting", "waiting", "queued", "queued"]
    await runs[1].send(go, 1)  # waiting ones count until they end
    await t.settle()
    assert [(await run.status()).status for run in runs] == ["waiting", "completed", "waiting", "queued"]
    await runs[0].cancel()
    await t.settle()
    assert [(await run.status()).status for run in runs] == ["canceled", "completed", "waiting", "waiting"]
    await t.start(few)

    paced = [await t.start(slowly) for _ in range(5)]
    await t.advance(600)
    assert [await t.result(run) for run in paced] == pytest.approx([0, 0, 0, 0, 0])  # `now` is created_at before steps
    began = [(view.started_at - view.created_at).total_seconds() for view in [await run.status() for run in paced]]
    assert began == pytest.approx([0, 0, 30, 60, 90])


# -- S6


async def test_any_function_can_be_enqueued(t: TestEngine, registry: Registry) -> None:
    seen: list[Any] = []

    @action(name="flaky", retry=Retry(max_attempts=3, initial=60, jitter=False), registry=registry)
    async def flaky(n: int) -> int:
        if attempt.current().number < 3:
            raise ValueError("no")
        return n

    @mutation(name="add", registry=registry)
    async def add(session: AsyncSession, text: str) -> int:
        await write_note(session, text)
        return len(text)

    @query(name="count", registry=registry)
    async def count(session: AsyncSession) -> int:
        return int((await session.execute(sa.text("SELECT count(*) FROM notes"))).scalar_one())

    @action(name="hangs", registry=registry)
    async def hangs() -> None:
        seen.append("began")
        await asyncio.Event().wait()

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str, kind: str, value: Any, context: Any) -> None:
        seen.append((run_id, kind, value, context))

    await t.open()
    await make_notes(t)
    run = await t.enqueue(flaky, 4)
    await t.advance(1000)
    assert await t.result(run) == 4
    assert await t.result(await t.enqueue(add, "abc")) == 3
    assert await t.result(await t.enqueue(count)) == 1
    delayed = await t.enqueue(count.options(run_after=60))
    await t.advance(30)
    assert (await delayed.status()).status == "queued"
    await t.advance(31)
    assert await t.result(delayed) == 1
    with pytest.raises(InvalidInput):
        await t.enqueue(flaky, "x")  # type: ignore[arg-type]  # wrong on purpose
    stuck = await t.enqueue(hangs)
    await until(stuck, lambda view: bool(view.running))
    await stuck.cancel()
    await until(stuck, lambda view: view.status == "canceled")
    told = t.enqueue_with(idempotency_key="k", on_complete=done, on_complete_context="c")
    first = await told(count)
    assert await t.result(first) == 1
    assert seen[1:] == [(first.id, "completed", 1, "c")]
    assert (await told(count)).id == first.id
    many = await t.start_many([add.call("x"), add.call("yy")])
    assert [await t.result(item) for item in many if not isinstance(item, Refusal)] == [1, 2]


# -- S7


@asynccontextmanager
async def own_session(engine: Any) -> AsyncIterator[AsyncSession]:
    """A session of the author's own engine on the same database."""
    url = engine.url.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql://", "postgresql+psycopg://")
    own = create_async_engine(url)
    try:
        async with AsyncSession(own) as session:
            yield session
    finally:
        await own.dispose()


@pytest.mark.parametrize("commits", [True, False])
async def test_everything_joins_the_callers_transaction(
    open_engine: EngineMaker, registry: Registry, commits: bool
) -> None:
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.await_event(go)

    engine = await open_engine(registry)
    waiting, doomed, done, old = [await engine.start(w) for _ in range(4)]
    for run in (done, old):
        await run.send(go, 0)
        await run.result(timeout=WAIT)
    await waits(waiting)
    await waits(doomed)
    async with own_session(engine) as session:
        started = await engine.start(w.options(session=session, run_id="joined"))
        many = await engine.start_many([w.options(run_id="many").call()], session=session)
        await waiting.send(go, 7, session=session)
        made = await doomed.create_event(go, session=session)
        await doomed.cancel(session=session)
        await done.restart(from_step=0, session=session)
        await old.cleanup(session=session)
        await (session.commit() if commits else session.rollback())
    assert len(many) == 1
    if commits:
        assert await waiting.result(timeout=WAIT) == 7
        await until(doomed, lambda view: view.status == "canceled")
        assert (await started.status()).status in ("queued", "running", "waiting")
        assert made.id in [item.id for item in await doomed.events()]
        assert (await done.status()).generation == 2
        with pytest.raises(NotFound):
            await old.status()
    else:
        for run_id in ("joined", "many"):
            with pytest.raises(NotFound):
                await engine.run(run_id).status()
        assert [(await run.status()).status for run in (waiting, doomed)] == ["waiting", "waiting"]
        assert await doomed.events() == []
        assert [(await run.status()).generation for run in (done, old)] == [1, 1]
        await waiting.send(go, 8)
        assert await waiting.result(timeout=WAIT) == 8


async def test_a_mutation_step_and_on_complete_start_runs_in_their_transaction(
    open_engine: EngineMaker, registry: Registry
) -> None:
    engines: list[Any] = []

    @workflow("small", registry=registry)
    async def small(step: Step, n: int) -> int:
        return n

    @mutation(name="spawn", registry=registry)
    async def spawn(session: AsyncSession, name: str, fail: bool) -> str:
        run = await engines[0].start(small.options(session=session, run_id=name), 1)
        if fail:
            raise ValueError("no")
        return str(run.id)

    @mutation(name="after", registry=registry)
    async def after(session: AsyncSession, run_id: str, kind: str, value: Any, context: Any) -> None:
        # the run counts as final already: it can be cleaned up, and another one started, in this transaction
        await engines[0].start(small.options(session=session, run_id=f"after-{context}"), 2)
        await engines[0].run(run_id).send("go", 1, session=session) if context == "fails" else None

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        try:
            await step.run_mutation(spawn, "never", True)
        except StepFailed as error:
            return f"{error.type} {await step.run_mutation(spawn, 'spawned', False)}"
        return ""

    engines.append(await open_engine(registry))
    engine = engines[0]
    run = await engine.start(w.options(on_complete=after, on_complete_context="ok"))
    assert await run.result(timeout=WAIT) == "ValueError spawned"
    assert await engine.run("spawned").result(timeout=WAIT) == 1
    assert await engine.run("after-ok").result(timeout=WAIT) == 2
    with pytest.raises(NotFound):
        await engine.run("never").status()
    failing = await engine.start(small.options(on_complete=after, on_complete_context="fails"), 1)
    assert await failing.result(timeout=WAIT) == 1
    view = await failing.status()
    assert view.completion is not None
    assert view.completion.error is not None
    with pytest.raises(NotFound):  # rolled back with the on_complete that failed
        await engine.run("after-fails").status()


async def test_all_that_is_started_together_begins(open_engine: EngineMaker, registry: Registry) -> None:
    """Small ones are begun where they are started; the large and the delayed one have to be claimed."""

    @workflow("w", registry=registry)
    async def w(step: Step, text: str) -> int:
        return len(text)

    engine = await open_engine(registry)
    assert engine.worker is not None
    await engine.worker.settled()
    calls: list[Any] = [w.call("x"), w.call("y" * 20_000), w.options(run_after=0.05).call("zzz"), w.call("xx")]
    started = await engine.start_many(calls)
    runs = [run for run in started if not isinstance(run, Refusal)]
    assert [await run.result(timeout=WAIT) for run in runs] == [1, 20_000, 3, 2]
