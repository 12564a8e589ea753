"""Canceling a run (C1): once, with a grace for its clean-up steps, and with nothing left open."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from signoff import Conflict, Registry, RunCanceled, Step, action, ask, event, workflow
from signoff.testing import TestEngine

WAIT = 15


async def test_a_cancel_has_reason_and_actor_and_changes_nothing_twice(t: TestEngine, registry: Registry) -> None:
    @workflow("sleeps", registry=registry)
    async def sleeps(step: Step) -> None:
        try:
            await step.sleep(3600)
        except asyncio.CancelledError:
            await step.sleep(5)
            raise

    await t.open()
    run = await t.start(sleeps)
    await t.wait_for_status(run, "sleeping")
    statuses = await asyncio.gather(*(run.cancel(reason=f"reason {n}", actor="ana@example.org") for n in range(5)))
    assert statuses == ["canceling"] * 5
    await t.settle()
    assert len(await run.steps()) == 2  # one cancel request, one clean-up
    await t.advance(5)
    view = await run.status()
    assert view.status == "canceled"
    assert view.error is not None
    assert view.error.message.startswith("reason ")
    assert view.error.data == {"actor": "ana@example.org"}
    before = view.version_no
    assert await run.cancel(reason="again") == "canceled"
    assert (await run.status()).version_no == before
    with pytest.raises(RunCanceled):
        await run.result()


async def test_canceling_a_completed_run_returns_its_status(t: TestEngine, registry: Registry) -> None:
    @workflow("ends", registry=registry)
    async def ends(step: Step) -> int:
        return 1

    await t.open()
    run = await t.start(ends)
    await t.result(run)
    assert await run.cancel() == "completed"
    assert await t.result(run) == 1


async def test_the_grace_is_ten_seconds_also_over_a_restart(t: TestEngine, registry: Registry) -> None:
    cleaned = []

    @action(name="clean", registry=registry)
    async def clean(n: int) -> None:
        cleaned.append(n)

    @workflow("cleans", registry=registry)
    async def cleans(step: Step) -> None:
        try:
            await step.sleep(3600)
        finally:
            for n in range(100):
                await step.sleep(4)
                await step.run_action(clean, n)

    await t.open()
    run = await t.start(cleans)
    await t.settle()
    await run.cancel()
    await t.advance(5)
    await t.restart()
    await t.advance(4.9)
    assert ((await run.status()).status, cleaned) == ("canceling", [0, 1])
    await t.advance(0.1)
    view = await run.status()
    assert (view.status, cleaned) == ("canceled", [0, 1])
    assert [step.state for step in await run.steps()][-1] == "canceled"
    await t.advance(3600)
    assert cleaned == [0, 1]


async def test_a_canceled_run_leaves_nothing_open(t: TestEngine, registry: Registry) -> None:
    question = ask("question", bool, registry=registry)
    number = event("number", int, registry=registry)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> None:
        await asyncio.gather(
            step.ask(question, title="Well?"), step.await_event(number), step.sleep(60), step.await_event(number)
        )

    await t.open()
    run = await t.start(waits)
    await t.wait_for_status(run, "waiting")
    await run.cancel()
    await t.wait_for_status(run, "canceled")
    view = await run.status()
    assert (view.awaiting, view.next_wake_at) == ((), None)
    assert [step.state for step in await run.steps()] == ["canceled"] * 4
    (approval,) = await run.approvals()
    assert approval.state != "open"
    with pytest.raises(Conflict):
        await run.send(number, 1)
    await t.advance(3600)
    assert (await run.status()).version_no == view.version_no


async def test_outcomes_after_the_end_are_ignored(t: TestEngine, registry: Registry) -> None:
    began, let_go = threading.Event(), threading.Event()

    @action(name="deaf", registry=registry)
    def deaf() -> int:
        began.set()
        let_go.wait(WAIT)
        return 1

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> int:
        return await step.run_action(deaf)

    await t.open()
    run = await t.start(waits)
    assert await asyncio.to_thread(began.wait, WAIT)
    await run.cancel()
    async with asyncio.timeout(WAIT):
        with pytest.raises(RunCanceled):
            await run.result()
    before = await run.steps()
    let_go.set()  # a thread cannot be stopped: what it brings comes late
    await t.settle()
    assert await run.steps() == before
    assert [step.state for step in before] == ["canceled"]
    assert (await run.status()).status == "canceled"


async def test_a_run_can_swallow_its_cancel_and_is_canceled_all_the_same(t: TestEngine, registry: Registry) -> None:
    @workflow("stubborn", registry=registry)
    async def stubborn(step: Step) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await step.sleep(3600)
        return "finished anyway"

    await t.open()
    run = await t.start(stubborn)
    await t.settle()
    await run.cancel()
    await t.settle()
    assert (await run.status()).status == "canceled"
