"""Child runs: waiting, failing, canceling and pausing along, detached ones (W1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from signoff import (
    InvalidInput,
    NotFound,
    Registry,
    RunCanceled,
    RunFailed,
    Step,
    action,
    event,
    workflow,
)
from signoff.runtime.handles import Run
from signoff.testing import TestEngine

WAIT = 15


class Order(BaseModel):
    name: str
    count: int = 1


async def children_of(t: TestEngine, run: Run[Any]) -> list[str]:
    return [str(item.status) for item in (await t.runs(parent=run.id)).items]


async def test_a_parent_waits_for_typed_results_across_restarts(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step, order: Order) -> Order:
        await step.sleep(60)
        return Order(name=order.name.upper(), count=order.count + 1)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> list[Any]:
        made = await asyncio.gather(*(step.run_workflow(child, Order(name=name)) for name in "ab"))
        return [f"{order.name}{order.count}" for order in made]

    await t.open()
    run = await t.start(parent)
    await t.wait_for_status(run, "waiting")
    await t.restart()
    await t.advance(60)
    assert await t.result(run) == ["A2", "B2"]


async def test_parent_and_child_are_linked(t: TestEngine, registry: Registry) -> None:
    seen = event("seen", str, registry=registry)

    @workflow("child", registry=registry)
    async def child(step: Step) -> str | None:
        await step.await_event(seen)
        return step.run.parent

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> str | None:
        return await step.run_workflow(child)

    await t.open()
    run = await t.start(parent)
    view = await t.wait_for_status(run, "waiting")
    (item,) = view.awaiting
    (step,) = await run.steps()
    assert item.kind == "child"
    assert item.child_run == step.child_run is not None
    below = t.run(step.child_run)
    assert (await below.status()).parent == run.id
    await below.send(seen, "x")
    assert await t.result(run) == run.id


async def test_failed_canceled_and_refused_children_are_caught(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step, n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        await step.sleep(3600)
        return n

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> list[Any]:
        told: list[Any] = []
        try:
            await step.run_workflow(child, -1)
        except RunFailed as error:
            told += [type(error).__name__, error.error.type, error.error.message, error.run is not None]
        try:
            await step.run_workflow(child, "many")  # type: ignore[arg-type]  # on purpose
        except InvalidInput as error:
            told += [type(error).__name__, [field.loc[-1] for field in error.fields]]
        try:
            await step.run_workflow(child.options(version=9), 1)
        except NotFound as error:
            told.append(type(error).__name__)
        try:
            await step.run_workflow(child, 5)
        except RunCanceled as error:
            told.append(f"{type(error).__name__} {error.run}")
        return told

    await t.open()
    run = await t.start(parent)
    await t.settle()
    last = [step for step in await run.steps() if step.child_run][-1]
    assert last.child_run is not None
    await t.run(last.child_run).cancel()
    assert await t.result(run) == [
        "RunFailed", "ValueError", "negative", True,
        "InvalidInput", ["n"],
        "NotFound",
        f"RunCanceled {last.child_run}",
    ]  # fmt: skip
    assert sorted(await children_of(t, run)) == ["canceled", "failed"]


async def test_an_error_of_a_child_that_nobody_catches_fails_the_parent(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        raise ValueError("broken")

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> None:
        await step.run_workflow(child)

    await t.open()
    with pytest.raises(RunFailed, match="broken"):
        await t.result(await t.start(parent))


async def test_a_detached_child_is_neither_waited_for_nor_canceled_along(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> int:
        await step.sleep(60)
        return 1

    @workflow("ends", registry=registry)
    async def ends(step: Step) -> str:
        return await step.start_workflow(child)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> None:
        await step.start_workflow(child)
        await step.sleep(3600)

    await t.open()
    ended, canceled = await t.start(ends), await t.start(waits)
    child_id = await t.result(ended)
    await t.settle()
    assert (await t.run(child_id).status()).status == "sleeping"
    await t.settle()
    await canceled.cancel()
    await t.wait_for_status(canceled, "canceled")
    await t.advance(60)
    assert await t.run(child_id).result(timeout=WAIT) == 1
    assert await children_of(t, canceled) == ["completed"]


async def test_a_canceled_parent_is_canceling_until_its_children_are_final(t: TestEngine, registry: Registry) -> None:
    @workflow("grandchild", registry=registry)
    async def grandchild(step: Step) -> None:
        try:
            await step.sleep(3600)
        except asyncio.CancelledError:
            await step.sleep(5)  # takes its time
            raise

    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.run_workflow(grandchild)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> None:
        await asyncio.gather(*(step.run_workflow(child) for _ in range(3)))

    await t.open()
    run = await t.start(parent)
    await t.settle()
    assert await run.cancel(reason="enough") == "canceling"
    await t.advance(4)
    assert (await run.status()).status == "canceling"
    assert set(await children_of(t, run)) == {"canceling"}
    await t.restart()
    assert (await run.status()).status == "canceling"
    await t.advance(2)
    assert (await run.status()).status == "canceled"
    below = (await t.runs(workflow="child")).items + (await t.runs(workflow="grandchild")).items
    assert [item.status for item in below] == ["canceled"] * 6
    assert [step.state for step in await run.steps()] == ["canceled"] * 3
    ended = (await run.status()).ended_at
    assert ended is not None
    assert all(item.ended_at is not None and item.ended_at <= ended for item in below)


async def test_a_great_many_children_are_canceled_along(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        try:
            await step.sleep(3600)
        finally:
            await step.sleep(5)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> None:
        await asyncio.gather(*(step.run_workflow(child) for _ in range(150)))

    await t.open()
    run = await t.start(parent)
    await t.settle()
    await run.cancel()
    await t.settle()
    page = await t.runs(workflow="child", limit=200)
    assert [item.status for item in page.items] == ["canceling"] * 150  # no batch waits for the one before
    await t.advance(5)
    await t.wait_for_status(run, "canceled")
    page = await t.runs(workflow="child", limit=200)
    assert [item.status for item in page.items] == ["canceled"] * 150


async def test_a_parent_that_cleans_up_after_a_cancel_still_waits_for_its_children(
    t: TestEngine, registry: Registry
) -> None:
    cleaned = []

    @action(name="clean", registry=registry)
    async def clean() -> None:
        cleaned.append(1)

    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        try:
            await step.sleep(3600)
        finally:
            await step.sleep(5)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> None:
        try:
            await step.run_workflow(child)
        except asyncio.CancelledError:
            await step.run_action(clean)
            raise

    await t.open()
    run = await t.start(parent)
    await t.settle()
    await run.cancel()
    await t.settle()
    assert cleaned == [1]
    assert (await run.status()).status == "canceling"
    await t.advance(5)
    assert ((await run.status()).status, await children_of(t, run)) == ("canceled", ["canceled"])


async def test_children_of_a_parent_that_ends_without_them_are_canceled(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.sleep(3600)

    @workflow("fails", registry=registry)
    async def fails(step: Step) -> None:
        begun = step.run_workflow(child)
        await step.sleep(1)
        raise ValueError(f"gave up; the child is over: {begun.done()}")

    @workflow("returns", registry=registry)
    async def returns(step: Step) -> str:
        try:
            async with asyncio.timeout(60):
                await step.run_workflow(child)
        except TimeoutError:
            return "late"
        return ""

    await t.open()
    failing, late = await t.start(fails), await t.start(returns)
    await t.advance(60)
    with pytest.raises(RunFailed, match="gave up; the child is over: False"):
        await t.result(failing)
    assert await t.result(late) == "late"
    await t.settle()
    assert [await children_of(t, run) for run in (failing, late)] == [["canceled"], ["canceled"]]


async def test_pausing_leaves_children_running_unless_told(t: TestEngine, registry: Registry) -> None:
    @workflow("child", registry=registry)
    async def child(step: Step) -> int:
        await step.sleep(60)
        await step.sleep(60)
        return 7

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> int:
        return await step.run_workflow(child)

    await t.open()
    alone, together = await t.start(parent), await t.start(parent)
    await t.settle()
    await alone.pause()
    await together.pause(children=True)
    await t.advance(timedelta(minutes=5))
    assert (await alone.status()).status == (await together.status()).status == "paused"
    assert await children_of(t, alone) == ["completed"]
    assert await children_of(t, together) == ["paused"]
    await alone.resume()
    assert await t.result(alone) == 7
    await together.resume(children=True)
    await t.advance(60)
    assert await t.result(together) == 7


async def test_a_child_restarted_alone_never_wakes_its_parent(t: TestEngine, registry: Registry) -> None:
    go = event("go", int, registry=registry)
    broken = True

    @action(name="work", registry=registry)
    async def work() -> int:
        if broken:
            raise ValueError("broken")
        return 1

    @workflow("child", registry=registry)
    async def child(step: Step) -> int:
        return await step.run_action(work)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> list[Any]:
        try:
            got: Any = await step.run_workflow(child)
        except RunFailed:
            got = "failed"
        return [got, await step.await_event(go)]

    await t.open()
    run = await t.start(parent)
    await t.settle()
    before = (await run.status()).version_no
    (first, _) = await run.steps()
    assert first.child_run is not None
    broken = False
    below = t.run(first.child_run)
    for _ in range(2):
        await below.restart(from_step="work")
        assert await t.result(below) == 1
        await t.settle()
        assert (await run.status()).version_no == before
    await run.send(go, 5)
    assert await t.result(run) == ["failed", 5]
    await below.restart(from_step="work")  # the parent is over now
    assert await t.result(below) == 1
    assert await t.result(run) == ["failed", 5]


async def test_a_parent_restarted_from_its_child_starts_another(t: TestEngine, registry: Registry) -> None:
    starts = []

    @action(name="work", registry=registry)
    async def work(n: int) -> int:
        starts.append(n)
        return n

    @workflow("child", registry=registry)
    async def child(step: Step, n: int) -> int:
        return await step.run_action(work, n)

    @workflow("parent", registry=registry)
    async def parent(step: Step) -> int:
        return await step.run_workflow(child, 1) + await step.run_workflow(child, 2)

    await t.open()
    run = await t.start(parent)
    assert await t.result(run) == 3
    await run.restart(from_step=1)
    assert await t.result(run) == 3
    assert starts == [1, 2, 2]
    assert await children_of(t, run) == ["completed"] * 3
