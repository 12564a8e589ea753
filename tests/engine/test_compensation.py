"""Compensation (C2): what a run did is undone, newest first, when it fails or a cancel asks for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import (
    Compensation,
    Conflict,
    Registry,
    Retry,
    RunCanceled,
    RunFailed,
    Step,
    StepFailed,
    action,
    event,
    mutation,
    workflow,
)
from signoff.testing import TestEngine
from tests.engine.notes import make_notes, notes, write_note

WAIT = 15


class Undoing:
    """A workflow of booked steps and what was undone of them, in order."""

    def __init__(self, registry: Registry, **options: Any) -> None:
        self.undone: list[Any] = []
        self.fail_undo: set[int] = set()
        self.undo_began: set[int] = set()
        self.hold_undo: asyncio.Event | None = None
        self.told: list[Any] = []
        self.wait_for = event("go", str, registry=registry)

        @action(name="undo", retry=Retry(max_attempts=3, initial=10, jitter=False), registry=registry)
        async def undo(what: Compensation) -> None:
            n = what.args["n"]
            self.undo_began.add(n)
            if n in self.fail_undo:
                raise ValueError(f"cannot undo {n}")
            if self.hold_undo is not None:
                await self.hold_undo.wait()
            self.undone.append((n, what.outcome, what.result, what.cause.split(":")[0]))

        @action(name="book", compensate=undo, registry=registry, **options)
        async def book(n: int) -> int:
            if n < 0:
                raise ValueError(f"no room for {n}")
            return n * 10

        @mutation(name="told", registry=registry)
        async def tell(session: AsyncSession, run_id: str, kind: str) -> None:
            self.told.append((kind, len(self.undone)))

        @workflow("trip", on_complete=tell, registry=registry)
        async def trip(step: Step, numbers: list[int], then: str = "") -> str:
            for n in numbers:
                await step.run_action(book, n)
            if then == "wait":
                then = await step.await_event(self.wait_for)
            if then == "fail":
                raise ValueError("broken")
            return "booked"

        @workflow("careful", registry=registry)
        async def careful(step: Step) -> str:
            await step.run_action(book, 1)
            try:
                await step.run_action(book, -2)
            except StepFailed:
                return "caught"
            return ""

        self.book, self.undo, self.trip, self.careful = book, undo, trip, careful


async def test_started_steps_are_undone_newest_first_and_on_complete_comes_after(
    t: TestEngine, registry: Registry
) -> None:
    kit = Undoing(registry)
    await t.open()
    run = await t.start(kit.trip, [1, 2, -3])
    with pytest.raises(RunFailed, match="no room for -3"):
        await t.result(run)
    assert kit.undone == [(-3, "failure", None, "failed"), (2, "success", 20, "failed"), (1, "success", 10, "failed")]
    assert kit.told == [("failed", 3)]
    steps = await run.steps()
    assert [(step.name, step.state) for step in steps[3:]] == [("undo", "success")] * 3


@pytest.mark.parametrize("how", ["success", "caught", "cancel"])
async def test_nothing_is_undone_without_failure_or_request(t: TestEngine, registry: Registry, how: str) -> None:
    kit = Undoing(registry)
    await t.open()
    if how == "caught":
        assert await t.result(await t.start(kit.careful)) == "caught"
    elif how == "success":
        assert await t.result(await t.start(kit.trip, [1])) == "booked"
    else:
        run = await t.start(kit.trip, [1], "wait")
        await t.settle()
        await run.cancel()
        await t.wait_for_status(run, "canceled")
    assert kit.undone == []


async def test_a_run_shows_compensating_until_all_is_undone_one_at_a_time(t: TestEngine, registry: Registry) -> None:
    kit = Undoing(registry)
    kit.hold_undo = asyncio.Event()
    await t.open()
    run = await t.start(kit.trip, [1, 2], "fail")
    async with asyncio.timeout(WAIT):
        async for _ in run.subscribe():
            if kit.undo_began:
                break
    assert (await run.status()).status == "compensating"
    assert (kit.undo_began, kit.told) == ({2}, [])
    assert await run.cancel() == "compensating"
    with pytest.raises(Conflict):
        await run.pause()
    with pytest.raises(Conflict):
        await run.send(kit.wait_for, "x")
    kit.hold_undo.set()
    with pytest.raises(RunFailed, match="broken"):
        await run.result(timeout=WAIT)
    assert [item[0] for item in kit.undone] == [2, 1]


@pytest.mark.parametrize("from_state", ["waiting", "paused", "blocked"])
async def test_a_cancel_undoes_when_asked_to(t: TestEngine, registry: Registry, from_state: str) -> None:
    kit = Undoing(registry)
    await t.open()
    run = await t.start(kit.trip, [1, 2], "wait")
    await t.settle()
    if from_state == "paused":
        await run.pause()
    elif from_state == "blocked":
        await t.close(grace=0)

        @workflow("trip", registry=Registry())
        async def changed(step: Step, numbers: list[int], then: str = "") -> str:
            await step.sleep(60, name="something else")
            return ""

        t.registry = registry.with_workflows([changed])
        await t.open()
        await t.run(run.id).send("go", "x")
        await t.settle()
    assert (await run.status()).status == from_state
    assert await run.cancel(compensate=True, reason="changed their mind") in ("canceling", "compensating")
    await t.settle()
    view = await run.status()
    assert view.status == "canceled"
    assert view.error is not None
    assert view.error.message == "changed their mind"
    assert [item[:3] for item in kit.undone] == [(2, "success", 20), (1, "success", 10)]
    assert {item[3] for item in kit.undone} == {"canceled"}


@pytest.mark.parametrize("on_error", [None, "stop", "continue"])
async def test_a_compensation_is_retried_and_on_error_says_whether_the_rest_goes_on(
    t: TestEngine, registry: Registry, on_error: Any
) -> None:
    kit = Undoing(registry, **({"on_error": on_error} if on_error else {}))
    kit.fail_undo = {2}
    await t.open()
    run = await t.start(kit.trip, [1, 2, 3], "fail")
    await t.settle()
    assert [item[0] for item in kit.undone] == [3]
    assert (await run.status()).status == "compensating"
    await t.advance(timedelta(hours=1))  # its retries
    view = await run.status()
    assert view.status == "failed"
    assert [item[0] for item in kit.undone] == ([3, 1] if on_error == "continue" else [3])
    assert view.error is not None
    assert "broken" in view.error.message
    if on_error != "continue":
        assert "cannot undo 2" in view.error.message
    undo = [step for step in await run.steps() if step.name == "undo"]
    assert (undo[1].state, len(undo[1].attempt_rows) + 1) == ("failure", 3)


async def test_compensation_goes_on_after_a_restart_in_its_middle(t: TestEngine, registry: Registry) -> None:
    kit = Undoing(registry)
    kit.fail_undo = {2}
    await t.open()
    run = await t.start(kit.trip, [1, 2, 3], "fail")
    await t.settle()
    assert [item[0] for item in kit.undone] == [3]
    await t.restart()
    assert (await run.status()).status == "compensating"
    kit.fail_undo.clear()
    await t.advance(10)
    with pytest.raises(RunFailed, match="broken"):
        await t.result(run)
    assert [item[0] for item in kit.undone] == [3, 2, 1]  # each once, the handler never again
    assert kit.told == [("failed", 3)]


async def test_the_outcome_of_a_step_that_a_cancel_interrupted_is_unknown(t: TestEngine, registry: Registry) -> None:
    began = asyncio.Event()
    undone: list[Any] = []

    @action(name="undo", registry=registry)
    async def undo(what: Compensation) -> None:
        undone.append((what.args["n"], what.outcome, what.result))

    @action(name="slow", compensate=undo, registry=registry)
    async def slow(n: int) -> int:
        if n == 2:
            began.set()
            await asyncio.sleep(WAIT)
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        later = step.run_action(slow.options(run_after=3600), 3)  # never starts: nothing to undo
        await step.run_action(slow, 1)
        await step.run_action(slow, 2)
        await later

    await t.open()
    run = await t.start(w)
    await asyncio.wait_for(began.wait(), WAIT)
    await run.cancel(compensate=True)
    with pytest.raises(RunCanceled):
        await run.result(timeout=WAIT)
    assert undone == [(2, "unknown", None), (1, "success", 1)]


async def test_a_step_lost_with_its_worker_is_undone_as_unknown(t: TestEngine, registry: Registry) -> None:
    undone: list[Any] = []
    began = asyncio.Event()

    @action(name="undo", registry=registry)
    async def undo(what: Compensation) -> None:
        undone.append((what.args["n"], what.outcome))

    @action(name="once", compensate=undo, at_most_once=True, registry=registry)
    async def once(n: int) -> None:
        began.set()
        await asyncio.sleep(WAIT)

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_action(once, 1)

    await t.open()
    run = await t.start(w)
    await asyncio.wait_for(began.wait(), WAIT)
    await t.restart()
    with pytest.raises(RunFailed, match="unknown"):
        await t.result(run)
    assert undone == [(1, "unknown")]


async def test_steps_that_never_started_are_not_undone_also_after_a_restart(t: TestEngine, registry: Registry) -> None:
    undone: list[int] = []
    fails = True

    @action(name="undo", retry=Retry(initial=10, jitter=False), registry=registry)
    async def undo(what: Compensation) -> None:
        if fails:
            raise ValueError("not yet")
        undone.append(what.args["n"])

    @action(name="book", compensate=undo, registry=registry)
    async def book(n: int) -> int:
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        later = step.run_action(book.options(run_after=3600), 2)
        await step.run_action(book, 1)
        raise ValueError(f"broken before {later.done()}")

    await t.open()
    run = await t.start(w)
    await t.wait_for_step(run, undo, "backoff")
    await t.restart()
    fails = False
    await t.advance(60)
    with pytest.raises(RunFailed, match="broken"):
        await t.result(run)
    assert undone == [1]


@pytest.mark.parametrize("kind", ["mutation", "large"])
async def test_mutations_undo_in_a_transaction_and_large_args_are_passed_on(
    t: TestEngine, registry: Registry, kind: str
) -> None:
    size = 20_000 if kind == "large" else 3

    @mutation(name="undo", registry=registry)
    async def undo(session: AsyncSession, what: Compensation) -> None:
        await write_note(session, f"{len(what.args['text'])} {len(what.result)}")

    @mutation(name="write", compensate=undo, registry=registry)
    async def write(session: AsyncSession, text: str) -> str:
        await write_note(session, "written")
        return text

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await step.run_mutation(write, "x" * size)
        await step.sleep(60)
        raise ValueError("broken")

    await t.open()
    await make_notes(t)
    run = await t.start(w)
    await t.settle()
    await t.restart()
    await t.advance(60)
    with pytest.raises(RunFailed, match="broken"):
        await t.result(run)
    assert await notes(t) == ["written", f"{size} {size}"]
