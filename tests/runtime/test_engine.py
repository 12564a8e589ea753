"""The engine as programs use it, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa

from signoff import (
    Conflict,
    Engine,
    InvalidInput,
    NotFound,
    Refused,
    Registry,
    RunBlocked,
    RunCanceled,
    RunFailed,
    Step,
    workflow,
)
from signoff.engine.pools import PoolLimits
from signoff.runtime.handles import Run
from signoff.runtime.subscription import Logged, RunChanged, StepChanged
from signoff.store.errors import StoreClosed, WorkerRefused
from tests.runtime import shop

SECONDS = 20


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with Engine(database_url, registry=shop.registry) as engine:
        yield engine


async def until(run: Run[Any], *statuses: str) -> None:
    async with asyncio.timeout(SECONDS):
        async for change in run.subscribe():
            if isinstance(change, RunChanged) and change.run.status in statuses:
                return
    raise AssertionError(f"the run ended without being {statuses}")


async def test_a_run_is_started_and_gives_its_result(engine: Engine) -> None:
    run = await engine.start(shop.double_it, number=21)
    assert await run.result(timeout=SECONDS) == 42
    view = await run.status()
    assert (view.status, view.result, view.workflow, view.version) == ("completed", "42", "shop/double", 1)
    assert [step.name for step in await run.steps()] == ["shop/double"]


async def test_bad_args_are_refused_and_leave_no_row(engine: Engine) -> None:
    with pytest.raises(InvalidInput) as refused:
        await engine.start(shop.double_it, number="many")  # type: ignore[arg-type]  # on purpose
    assert [field.loc for field in refused.value.fields] == [("number",)]
    with pytest.raises(InvalidInput):
        await engine.start(shop.double_it)  # type: ignore[call-arg]  # on purpose
    assert (await engine.runs()).items == ()


async def test_a_start_is_repeated_by_its_key_and_refused_with_other_args(engine: Engine) -> None:
    first = await engine.start(shop.double_it.options(idempotency_key="k"), 1)
    again = await engine.start(shop.double_it.options(idempotency_key="k"), number=1)
    assert (again.id, first.existing, again.existing) == (first.id, False, True)
    with pytest.raises(Conflict):
        await engine.start(shop.double_it.options(idempotency_key="k"), 2)


async def test_start_many_refuses_bad_items_and_starts_the_rest(engine: Engine) -> None:
    good, bad, same = await engine.start_many(
        [
            shop.double_it.options(idempotency_key="m").call(4),
            shop.double_it.call("four"),  # type: ignore[arg-type]  # on purpose
            shop.double_it.options(idempotency_key="m").call(4),
        ]
    )
    assert isinstance(good, Run)
    assert isinstance(same, Run)
    assert not isinstance(bad, Run)
    assert (bad.index, bad.code, [field.loc for field in bad.fields]) == (1, "invalid_input", [("number",)])
    assert same.id == good.id
    assert same.existing
    assert await good.result(timeout=SECONDS) == 8


async def test_one_function_is_enqueued_without_a_workflow(engine: Engine) -> None:
    run = await engine.enqueue(shop.double, 4)
    assert await run.result(timeout=SECONDS) == 8
    with pytest.raises(RunFailed) as failed:
        await (await engine.enqueue(shop.broken)).result(timeout=SECONDS)
    assert failed.value.error.data == {"part": 7}


async def test_an_enqueued_function_takes_start_options_and_is_told_of_its_end(engine: Engine) -> None:
    await engine.store.write(lambda tx: tx.conn.execute(sa.text("CREATE TABLE shop_note (what TEXT)")))
    enqueue = engine.enqueue_with(idempotency_key="k", on_complete=shop.tell, on_complete_context={"for": "ana"})
    run = await enqueue(shop.double, 4)
    assert await run.result(timeout=SECONDS) == 8
    assert (await enqueue(shop.double, 4)).existing
    told = await engine.store.read(lambda tx: tx.conn.execute(sa.text("SELECT what FROM shop_note")).scalars().all())
    assert told == [f"{run.id} completed 8 ana"]
    with pytest.raises(InvalidInput):
        await engine.enqueue_with(on_complete=shop.tell, on_complete_context=5)(shop.double, 4)


async def test_a_start_by_name_takes_plain_json(engine: Engine) -> None:
    run = await engine.start_by_name("shop/sleep", {"duration": "PT0S"}, labels={"a": "b"})
    assert await run.result(timeout=SECONDS) == "awake"
    with pytest.raises(InvalidInput):
        await engine.start_by_name("shop/sleep", {"duration": "soon"})
    with pytest.raises(NotFound):
        await engine.start_by_name("shop/nothing")


async def test_a_start_joins_the_callers_transaction(engine: Engine, database_url: str) -> None:
    async with engine.store.session() as session:
        run = await engine.start(shop.double_it.options(session=session), 5)
    assert await run.result(timeout=SECONDS) == 10
    lost: list[Run[int]] = []
    with contextlib.suppress(ZeroDivisionError):
        async with engine.store.session() as session:
            lost.append(await engine.start(shop.double_it.options(session=session), 6))
            raise ZeroDivisionError
    with pytest.raises(NotFound):
        await lost[0].status()


async def test_failure_cancel_and_timeout_are_told_apart(engine: Engine) -> None:
    failed = await engine.start(shop.break_it)
    with pytest.raises(RunFailed, match="out of order") as error:
        await failed.result(timeout=SECONDS)
    assert error.value.error.step_no == 0

    sleeping = await engine.start(shop.sleep_for, timedelta(days=1))
    with pytest.raises(TimeoutError, match=sleeping.id):
        await sleeping.result(timeout=0.01)
    await until(sleeping, "sleeping")
    await sleeping.cancel(reason="enough")
    with pytest.raises(RunCanceled):
        await sleeping.result(timeout=SECONDS)
    assert (await sleeping.status()).status == "canceled"


async def test_events_are_checked_buffered_and_consumed(engine: Engine) -> None:
    run = await engine.start(shop.wait_for_payment)
    with pytest.raises(InvalidInput) as wrong:
        await run.send("shop/payment", {"amount": "a lot"})
    assert [field.loc for field in wrong.value.fields] == [("amount",)]
    with pytest.raises(InvalidInput):
        await run.send("shop/undeclared", 1)
    await run.send(shop.payment, shop.Payment(amount=12), idempotency_key="p", sender="bank")
    assert await run.result(timeout=SECONDS) == 12
    (event,) = await run.events()
    assert (event.state, event.sender, event.consumed_by) == ("consumed", "bank", 0)
    with pytest.raises(Conflict):
        await run.send(shop.payment, shop.Payment(amount=13))


async def test_a_question_is_answered_once(engine: Engine) -> None:
    run = await engine.start(shop.ask_to_ship)
    await until(run, "waiting")
    (approval,) = await run.approvals()
    assert approval.state == "open"
    await run.decide(shop.ship, shop.Answer(approved=True), by="ana@example.org")
    assert await run.result(timeout=SECONDS) is True
    with pytest.raises(Refused):
        await run.decide(shop.ship, shop.Answer(approved=False), by="omar@example.org")


async def test_subscribers_hear_everything_with_a_version_that_only_grows(engine: Engine) -> None:
    run = await engine.start(shop.show_progress)
    async with asyncio.timeout(SECONDS):
        changes = [change async for change in run.subscribe()]
    versions = [change.version for change in changes]
    assert versions == sorted(versions)
    assert isinstance(changes[-1], RunChanged)
    assert changes[-1].run.status == "completed"
    steps = [change.step for change in changes if isinstance(change, StepChanged)]
    assert (steps[-1].name, steps[-1].state) == ("shop/progress", "success")
    lines = [change.line.message for change in changes if isinstance(change, Logged)]
    assert lines == ["began", "halfway"]


async def test_who_subscribes_late_sees_the_present(engine: Engine) -> None:
    run = await engine.start(shop.double_it, 1)
    await run.result(timeout=SECONDS)
    changes = [change async for change in run.subscribe()]
    assert isinstance(changes[-1], RunChanged)
    assert changes[-1].run.result == "2"
    assert any(isinstance(change, StepChanged) and change.step.result == "2" for change in changes)


async def test_subscribers_hear_of_steps_that_a_restart_retires(engine: Engine) -> None:
    run = await engine.start(shop.wait_twice)
    await run.send(shop.payment, shop.Payment(amount=1))
    changes = run.subscribe()
    async with asyncio.timeout(SECONDS):
        async for change in changes:
            if isinstance(change, RunChanged) and [item.step_no for item in change.run.awaiting] == [1]:
                break
        await run.pause()
        await run.restart(from_step=0)
        retired = set()
        async for change in changes:
            if isinstance(change, StepChanged) and change.step.retired_in == 2:
                retired.add(change.step.no)
            if retired == {0, 1}:
                break


async def test_a_restarted_run_keeps_its_handle(engine: Engine) -> None:
    run = await engine.start(shop.twice, 3)
    assert await run.result(timeout=SECONDS) == 12
    assert await run.restart(from_step=1) == 2
    assert await run.result(timeout=SECONDS) == 12
    fork = await run.fork(from_step=0, args={"number": 5})
    assert await fork.result(timeout=SECONDS) == 20
    assert (await fork.status()).forked_from == run.id


async def test_pause_and_resume(engine: Engine) -> None:
    run = await engine.start(shop.wait_for_payment)
    await until(run, "waiting")
    await run.pause()
    await run.send(shop.payment, shop.Payment(amount=1))
    await until(run, "paused")
    await run.resume()
    assert await run.result(timeout=SECONDS) == 1


async def test_runs_are_listed_and_cleaned_up(engine: Engine) -> None:
    done = await engine.start(shop.double_it.options(labels={"lot": "a"}), 1)
    await done.result(timeout=SECONDS)
    open_ = await engine.start(shop.wait_for_payment)
    assert [item.id for item in (await engine.runs(labels={"lot": "a"})).items] == [done.id]
    assert [item.id for item in (await engine.runs(status="completed")).items] == [done.id]
    tried = await engine.cleanup([done.id, open_.id, "nobody"], dry_run=True)
    assert [item.result for item in tried] == ["deleted", "not_final", "not_found"]
    assert (await done.status()).status == "completed"
    await engine.cleanup([done.id])
    with pytest.raises(NotFound):
        await done.status()
    with pytest.raises(Conflict):
        await open_.cleanup()


async def test_a_process_without_a_worker_starts_and_watches(engine: Engine, database_url: str) -> None:
    async with Engine(database_url, registry=shop.registry, worker=False) as other:
        run = await other.start(shop.double_it, 8)
        assert await run.result(timeout=SECONDS) == 16


async def test_a_second_worker_on_a_sqlite_file_is_refused(sqlite_url: str) -> None:
    async with Engine(sqlite_url, registry=shop.registry):
        with pytest.raises(WorkerRefused):
            async with Engine(sqlite_url, registry=shop.registry):
                pass


async def test_an_engine_that_is_open_is_not_opened_again(sqlite_url: str) -> None:
    async with Engine(sqlite_url, registry=shop.registry) as engine:
        with pytest.raises(RuntimeError, match="open already"):
            await engine.open()
        assert await (await engine.start(shop.double_it, 8)).result(timeout=SECONDS) == 16
    async with engine:  # and its file is free for it again
        assert await (await engine.start(shop.double_it, 9)).result(timeout=SECONDS) == 18


async def test_who_waits_for_a_run_is_told_that_the_engine_was_closed(database_url: str) -> None:
    async with Engine(database_url, registry=shop.registry) as engine:
        run = await engine.start(shop.wait_for_payment)
        await until(run, "waiting")

        async def listen() -> None:
            async for _ in run.subscribe():
                listening.set()

        listening = asyncio.Event()
        waiters = [asyncio.create_task(run.result()), asyncio.create_task(listen())]
        await asyncio.wait_for(listening.wait(), SECONDS)
    async with asyncio.timeout(5):  # a subscriber would look by itself after 15 s
        told = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(one) for one in told] == [StoreClosed, StoreClosed]


async def test_results_of_a_closed_engine_come_from_the_next(database_url: str) -> None:
    async with Engine(database_url, registry=shop.registry) as first:
        waiting = await first.start(shop.wait_for_payment)
        await until(waiting, "waiting")
    async with Engine(database_url, registry=shop.registry) as second:
        run = second.run(waiting.id, shop.wait_for_payment)
        await run.send(shop.payment, shop.Payment(amount=3))
        assert await run.result(timeout=SECONDS) == 3


async def test_a_run_that_the_code_no_longer_fits_is_blocked_until_code_that_fits_comes(database_url: str) -> None:
    def version_of(steps: int) -> Registry:
        registry = Registry()
        registry.add_function(shop.double)
        registry.add_message(shop.payment)

        @workflow("shop/changing", registry=registry)
        async def one(step: Step) -> int:
            await step.await_event(shop.payment)
            return 1

        other = Registry()
        other.add_function(shop.double)
        other.add_message(shop.payment)

        @workflow("shop/changing", registry=other)
        async def two(step: Step) -> int:
            await step.run_action(shop.double, 1)
            await step.await_event(shop.payment)
            return 2

        return registry if steps == 1 else other

    async with Engine(database_url, registry=version_of(1)) as engine:
        run = await engine.start_by_name("shop/changing")
        await until(run, "waiting")
    async with Engine(database_url, registry=version_of(2)) as engine:
        blocked = engine.run(run.id)
        await blocked.send("shop/payment", {"amount": 1})
        with pytest.raises(RunBlocked) as error:
            await blocked.result(timeout=SECONDS)
        assert error.value.blocked
        assert error.value.blocked["code"] == "mismatch"
    async with Engine(database_url, registry=version_of(1)) as engine:
        assert await engine.run(run.id).result(timeout=SECONDS) == 1


async def test_ids_of_another_tenant_are_not_found(engine: Engine) -> None:
    from signoff.people.tenants import ensure_tenant

    await engine.store.write(ensure_tenant, "other")
    foreign = await engine.start(shop.double_it.options(tenant="other"), 1)
    assert await foreign.result(timeout=SECONDS) == 2
    (many,) = await engine.start_many([shop.double_it.options(tenant="other").call(2)])
    assert isinstance(many, Run)
    assert await many.result(timeout=SECONDS) == 4
    assert (await many.status()).tenant == "other"
    with pytest.raises(NotFound):
        await engine.run(foreign.id).status()
    with pytest.raises(NotFound):
        await engine.start(shop.double_it.options(tenant="nobody"), 1)


async def test_mutations_write_to_tables_of_the_author(engine: Engine) -> None:
    await engine.store.write(lambda tx: tx.conn.execute(sa.text("CREATE TABLE shop_note (what TEXT)")))
    assert await (await engine.enqueue(shop.note, "four")).result(timeout=SECONDS) == 4
    assert await (await engine.enqueue(shop.count)).result(timeout=SECONDS) == 1


async def test_pools_are_declared_once_and_changed_live(database_url: str) -> None:
    async with Engine(database_url, registry=shop.registry, pools={"printer": PoolLimits(max_parallel=2)}) as engine:
        await engine.set_pool("printer", PoolLimits(max_parallel=0))
        run = await engine.enqueue(shop.double.options(pool="printer"), 1)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.3)
        await engine.set_pool("printer", PoolLimits(max_parallel=1))
        assert await run.result(timeout=SECONDS) == 2
    async with Engine(database_url, registry=shop.registry, pools={"printer": PoolLimits(max_parallel=5)}) as engine:
        (pool,) = await engine.pools()
        assert (pool.name, pool.limits.max_parallel) == ("printer", 1)
