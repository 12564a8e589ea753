"""Sending events: keys, refusals, transactions, and many at once (E5, E6, E8)."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import (
    Conflict,
    Engine,
    InvalidInput,
    NeedsDecision,
    NotFound,
    Registry,
    Step,
    ask,
    event,
    mutation,
    workflow,
)
from signoff.people.tenants import ensure_tenant
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker

WAIT = 15


async def test_a_key_gives_the_first_event_also_consumed_and_after_the_end(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("sums", registry=registry)
    async def sums(step: Step) -> int:
        return await step.await_event(number) + await step.await_event(number)

    await t.open()
    run, other = await t.start(sums), await t.start(sums)
    first = await run.send(number, 1, idempotency_key="a")
    await t.settle()
    assert (await run.send(number, 1, idempotency_key="a")).id == first.id
    with pytest.raises(Conflict):
        await run.send(number, 2, idempotency_key="a")
    assert (await other.send(number, 2, idempotency_key="a")).id != first.id  # a key is the run's own
    await run.send(number, 10)
    assert await t.result(run) == 11
    assert (await run.send(number, 1, idempotency_key="a")).id == first.id
    with pytest.raises(Conflict):
        await run.send(number, 2, idempotency_key="a")
    assert len(await run.events()) == 2


async def test_sends_of_one_key_at_once_are_one_event(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> int:
        return await step.await_event(number)

    await t.open()
    run = await t.start(waits)
    sent = await asyncio.gather(*(run.send(number, 1, idempotency_key="a") for _ in range(10)))
    assert len({item.id for item in sent}) == 1
    assert await t.result(run) == 1


async def test_a_run_that_takes_no_events_says_why(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)
    other = event("other", int, registry=registry)
    question = ask("question", bool, registry=registry)

    @workflow("open", registry=registry)
    async def opened(step: Step) -> None:
        await step.sleep(60)

    @workflow("stays", registry=registry)
    async def stays(step: Step) -> None:
        try:
            await step.sleep(600)
        except asyncio.CancelledError:
            await step.sleep(5)

    @workflow("declares", events=[number], registry=registry)
    async def declares(step: Step) -> int:
        return await step.await_event(number)

    @workflow("asks", registry=registry)
    async def asks(step: Step) -> bool:
        return await step.ask(question, title="Well?")

    await t.open()
    over = await t.start(opened)
    await t.advance(60)
    canceling = await t.start(stays)
    await t.wait_for_status(canceling, "sleeping")
    await canceling.cancel()
    await t.settle()
    for run, state in ((over, "completed"), (canceling, "canceling")):
        for refuse in (run.send(number, 1), run.create_event(number)):
            with pytest.raises(Conflict) as refused:
                await refuse
            error = refused.value
            assert (error.run, error.event, error.state) == (run.id, "number", state)

    await over.cleanup()
    await t.store.write(ensure_tenant, "other")
    foreign = await t.start(opened.options(tenant="other"))
    for missing in (t.run(over.id), t.run("never"), t.run(foreign.id)):
        for refuse in (missing.send(number, 1), missing.create_event(number)):
            with pytest.raises(NotFound) as not_found:
                await refuse
            assert not_found.value.run == missing.id

    strict = await t.start(declares)
    for refuse in (strict.send(other, 1), strict.create_event(other)):
        with pytest.raises(InvalidInput, match="declares no event 'other'"):
            await refuse

    await strict.create_event(number, id="once")
    await strict.send(number, 1, id="once")
    with pytest.raises(Conflict, match="answered already"):
        await strict.send(number, 1, id="once")
    with pytest.raises(NotFound):
        await strict.send(number, 1, id="unknown")

    asking = await t.start(asks)
    await t.wait_for_status(asking, "waiting")
    (approval,) = await asking.approvals()
    with pytest.raises(NeedsDecision):
        await asking.send("question", True)
    with pytest.raises(NeedsDecision):
        await asking.send("question", True, id=approval.id)
    assert await asking.events() == []


async def test_an_event_and_the_wake_up_are_one_transaction(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> int:
        return await step.await_event(number)

    @mutation(name="sends", registry=registry)
    async def sends(session: AsyncSession, run_id: str, fail: bool) -> None:
        await t.run(run_id).send(number, 3, session=session)
        if fail:
            raise ValueError("no")

    await t.open()
    run = await t.start(waits)
    await t.wait_for_status(run, "waiting")
    with pytest.raises(Exception, match="no"):
        await (await t.enqueue(sends, run.id, True)).result(timeout=WAIT)
    assert await run.events() == []
    assert (await run.status()).status == "waiting"
    await (await t.enqueue(sends, run.id, False)).result(timeout=WAIT)
    assert await t.result(run) == 3


async def test_an_event_of_a_committed_transaction_that_nobody_was_told_of_is_found(
    database_url: str, open_engine: EngineMaker, registry: Registry
) -> None:
    """The sender's process ends between its commit and the notice: the run wakes all the same."""
    number = event("number", int, registry=registry)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> int:
        return await step.await_event(number)

    engine = await open_engine(registry)
    run = await engine.start(waits)
    async with asyncio.timeout(WAIT):
        async for _ in run.subscribe():
            if (await run.status()).status == "waiting":
                break
    await engine.close(grace=0)
    sender = await open_engine(registry, worker=False)
    await sender.run(run.id).send(number, 5)
    ready = await sender.store.read(lambda tx: tx.conn.execute(sa.text("SELECT ready FROM signoff_run")).scalar())
    assert ready == 0  # what claims go by is in the same transaction as the event
    engine = await open_engine(registry)
    assert await engine.run(run.id).result(timeout=WAIT) == 5


async def test_of_sends_in_one_commit_a_refused_one_leaves_nothing_and_the_others_arrive(
    t: TestEngine, registry: Registry
) -> None:
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.await_event(number)

    @workflow("deaf", registry=registry)
    async def deaf(step: Step) -> None:
        return None

    question = ask("question", str, registry=registry)

    @workflow("asks", registry=registry)
    async def asks(step: Step) -> str:
        return await step.ask(question, title="What?")

    await t.open()
    runs = [await t.start(w) for _ in range(5)]
    asking = await t.start(asks)
    over = await t.start(deaf)
    await t.result(over)
    await t.settle()
    big = "x" * 20_000  # stored apart, before anything is refused
    t.store.backend._writer.put(lambda link: time.sleep(0.3))  # so that the sends gather behind it
    results = await asyncio.gather(
        *(run.send(number, at) for at, run in enumerate(runs)),
        over.send(number, 1),
        t.run("unknown").send(number, 1),
        asking.send("question", big),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results[5:]] == ["Conflict", "NotFound", "NeedsDecision"]
    assert [await t.result(run) for run in runs] == [0, 1, 2, 3, 4]
    left = await t.store.read(
        lambda tx: list(tx.conn.execute(sa.text("SELECT count(*) FROM signoff_payload")).scalars())
    )
    assert left == [0]


async def test_a_run_that_somebody_holds_keeps_no_other_send_waiting(postgres_url: str, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.await_event(number)

    async with Engine(postgres_url, registry=registry, grace=0) as engine:
        held, free = await engine.start(w), await engine.start(w)
        async with asyncio.timeout(WAIT):
            while {(await run.status()).status for run in (held, free)} != {"waiting"}:
                await asyncio.sleep(0.01)
        conn = await psycopg.AsyncConnection.connect(postgres_url)
        await conn.execute("SELECT 1 FROM signoff_run WHERE public_id = %s FOR UPDATE", (held.id,))
        late = asyncio.create_task(held.send(number, 1))
        await asyncio.sleep(0)
        await free.send(number, 2)
        assert await free.result(timeout=WAIT) == 2
        assert not late.done()
        await conn.rollback()
        await conn.close()
        await late
        assert await held.result(timeout=WAIT) == 1


async def test_of_runs_that_begin_to_wait_together_each_gets_what_was_sent_to_it_before(
    t: TestEngine, registry: Registry
) -> None:
    number, other = event("number", int, registry=registry), event("other", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        await step.sleep(60)
        # two at once, of which the first gets the earlier event
        return list(await asyncio.gather(step.await_event(number), step.await_event(number)))

    await t.open()
    runs = await asyncio.gather(*(t.start(w) for _ in range(30)))
    for at, run in enumerate(runs):
        for n in range(at % 3):
            await run.send(number, n)
        await run.send(other, 7)
    await t.advance(60)
    for at, run in enumerate(runs):
        sent = [item.state for item in await run.events() if item.name == "number"]
        assert sent == ["consumed"] * (at % 3)
        for n in range(at % 3, 2):
            await run.send(number, n)
    assert [await t.result(run) for run in runs] == [[0, 1]] * 30
