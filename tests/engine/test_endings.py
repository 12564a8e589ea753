"""How runs end: on_complete (O1), cancel (C1), compensation (C2), pause (C3)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
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
    ask,
    attempt,
    event,
    mutation,
    workflow,
)
from signoff.runtime.handles import Run
from signoff.testing import TestEngine

WAIT = 15


async def make_notes(t: TestEngine) -> None:
    await t.store.write(lambda tx: tx.conn.execute(sa.text("CREATE TABLE note (what VARCHAR(200))")))


async def notes(t: TestEngine) -> list[str]:
    return await t.store.read(lambda tx: list(tx.conn.execute(sa.text("SELECT what FROM note")).scalars()))


async def write_note(session: AsyncSession, what: str) -> None:
    await session.execute(sa.text("INSERT INTO note VALUES (:what)"), {"what": what})


# -- on_complete


async def test_on_complete_is_told_of_every_kind_of_end(t: TestEngine, registry: Registry) -> None:
    told: list[Any] = []

    @mutation(name="told", registry=registry)
    async def tell(session: AsyncSession, run_id: str, kind: str, value: Any, context: Any) -> None:
        told.append((run_id, kind, value["message"] if isinstance(value, dict) else value, context))
        with pytest.raises(Conflict):  # the run counts as final here
            await t.run(run_id).send("late", 1, session=session)

    @workflow("ends", on_complete=tell, registry=registry)
    async def ends(step: Step, how: str) -> str:
        if how == "failed":
            raise ValueError("broken")
        if how == "canceled":
            await step.sleep(3600)
        return how

    await t.open()
    context = {"order": 5}
    for how in ("completed", "failed", "canceled"):
        await t.start(ends.options(run_id=how, on_complete=tell, on_complete_context=context), how)
    never_began = await t.start(ends.options(run_id="never began", run_after=60), "canceled")
    await t.settle()
    await t.run("canceled").cancel(reason="enough")
    await never_began.cancel(reason="not wanted")
    await t.settle()
    assert sorted(told) == [
        ("canceled", "canceled", "enough", context),
        ("completed", "completed", "completed", context),
        ("failed", "failed", "broken", context),
        ("never began", "canceled", "not wanted", None),
    ]


async def test_on_complete_is_in_the_transaction_that_ends_the_run(t: TestEngine, registry: Registry) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str, kind: str) -> None:
        await write_note(session, kind)
        await session.flush()
        inside.set()
        await go_on.wait()

    @workflow("ends", registry=registry)
    async def ends(step: Step) -> int:
        return 1

    await t.open()
    await make_notes(t)
    run = await t.start(ends.options(on_complete=done))
    await asyncio.wait_for(inside.wait(), WAIT)
    assert ((await run.status()).status == "completed", await notes(t)) == (False, [])
    go_on.set()
    assert await run.result(timeout=WAIT) == 1
    assert await notes(t) == ["completed"]


async def test_a_failing_on_complete_undoes_only_itself_is_shown_and_tried_again(
    t: TestEngine, registry: Registry
) -> None:
    tries: list[Any] = []
    works = False

    @mutation(name="writes", registry=registry)
    async def writes(session: AsyncSession) -> None:
        await write_note(session, "kept")

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str) -> None:
        tries.append(t.now())
        await write_note(session, "by on_complete")
        if not works:
            raise ValueError("not now")

    @workflow("ends", registry=registry)
    async def ends(step: Step) -> int:
        await step.run_mutation(writes.options(inline=True))  # in the very transaction that ends the run
        return 1

    await t.open()
    await make_notes(t)
    run = await t.start(ends.options(on_complete=done))
    assert await t.result(run) == 1
    view = await run.status()
    assert await notes(t) == ["kept"]
    assert view.completion is not None
    assert (view.completion.done, view.completion.error and view.completion.error["message"]) == (False, "not now")
    assert view.completion.next_at is not None
    assert view.completion.next_at > t.now()
    await t.restart()
    await t.advance(timedelta(hours=3))
    waits = [later - before for before, later in itertools.pairwise(tries)]
    assert len(waits) > 8
    assert waits[0] < timedelta(seconds=3) < waits[-1]
    works = True
    await t.advance(timedelta(hours=2))
    assert await notes(t) == ["kept", "by on_complete"]
    view = await run.status()
    assert view.completion is not None
    assert view.completion.done
    assert (view.status, view.result) == ("completed", "1")
    count = len(tries)
    await t.advance(timedelta(days=3))
    assert len(tries) == count


async def test_a_failing_on_complete_is_left_after_a_day_and_tried_by_hand(t: TestEngine, registry: Registry) -> None:
    tries = []
    works = False

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str) -> None:
        tries.append(t.now())
        if not works:
            raise ValueError("not now")

    @workflow("ends", registry=registry)
    async def ends(step: Step) -> int:
        return 1

    await t.open()
    run = await t.start(ends.options(on_complete=done))
    await t.result(run)
    await t.advance(timedelta(days=3))
    assert timedelta(days=1) <= tries[-1] - tries[0] < timedelta(hours=26)
    view = await run.status()
    assert view.completion is not None
    assert (view.completion.done, view.completion.next_at) == (False, None)
    works = True
    await run.retry_on_complete()
    await t.settle()
    view = await run.status()
    assert view.completion is not None
    assert view.completion.done


async def test_on_complete_comes_once_per_generation(t: TestEngine, registry: Registry) -> None:
    told = []

    @mutation(name="done", registry=registry)
    async def done(session: AsyncSession, run_id: str, kind: str, value: Any) -> None:
        told.append((kind, value))

    @action(name="work", registry=registry)
    async def work() -> int:
        return len(told)

    @workflow("ends", on_complete=done, registry=registry)
    async def ends(step: Step) -> int:
        return await step.run_action(work)

    await t.open()
    run = await t.start(ends)
    await t.result(run)
    for _ in range(2):
        await run.restart(from_step="work")
        await t.result(run)
        await t.restart()
    await t.settle()
    assert told == [("completed", 0), ("completed", 1), ("completed", 2)]


# -- cancel


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


# -- compensation


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


# -- pause


async def test_pausing_lets_running_steps_end_and_starts_nothing_new(t: TestEngine, registry: Registry) -> None:
    begun: list[str] = []
    ends: dict[str, asyncio.Event] = {"good": asyncio.Event(), "bad": asyncio.Event()}

    @action(name="run", registry=registry)
    async def run_(name: str) -> str:
        begun.append(name)
        await ends[name].wait()
        if name == "bad":
            raise ValueError("bad")
        return name

    @action(name="after", registry=registry)
    async def after(n: int) -> None:
        begun.append(f"after {n}")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        async def branch(n: int, name: str) -> str:
            try:
                return await step.run_action(run_, name)
            except StepFailed:
                return "failed"
            finally:
                await step.run_action(after, n)

        return list(await asyncio.gather(branch(0, "good"), branch(1, "bad")))

    await t.open()
    run = await t.start(w)
    async with asyncio.timeout(WAIT):
        while len(begun) < 2:
            await asyncio.sleep(0.01)
    assert [await run.pause() for _ in range(2)] == ["pausing"] * 2
    ends["bad"].set()
    ends["good"].set()
    await until(run, lambda status: status == "paused")
    assert begun[2:] == []
    assert [step.state for step in await run.steps()] == ["success", "failure"]
    assert await run.pause() == "paused"
    before = (await run.status()).version_no
    await run.pause()
    assert (await run.status()).version_no == before
    await run.resume()
    assert await t.result(run) == ["good", "failed"]
    assert sorted(begun[2:]) == ["after 0", "after 1"]


async def until(run: Run[Any], holds: Callable[[str], bool]) -> None:
    async with asyncio.timeout(WAIT):
        async for _ in run.subscribe():
            if holds((await run.status()).status):
                return


async def test_resuming_lifts_a_pause_that_is_not_reached_yet(t: TestEngine, registry: Registry) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @action(name="run", registry=registry)
    async def run_() -> int:
        begun.set()
        await end.wait()
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(run_) + await step.run_action(run_)

    await t.open()
    run = await t.start(w)
    await asyncio.wait_for(begun.wait(), WAIT)
    assert await run.pause() == "pausing"
    assert await run.resume() == "running"
    assert await run.resume() == "running"
    end.set()
    assert await run.result(timeout=WAIT) == 2


async def test_a_restart_while_pausing_ends_paused(t: TestEngine, registry: Registry) -> None:
    begun = []

    @action(name="run", registry=registry)
    async def run_() -> int:
        begun.append(attempt.current().number)
        if len(begun) == 1:
            await asyncio.sleep(WAIT)
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.run_action(run_)

    await t.open()
    run = await t.start(w)
    async with asyncio.timeout(WAIT):
        while not begun:
            await asyncio.sleep(0.01)
    await run.pause()
    await t.restart()
    await t.settle()
    assert ((await run.status()).status, len(begun)) == ("paused", 1)
    await run.resume()
    assert await t.result(run) == 1


async def test_no_attempt_begins_while_paused_and_events_and_time_are_kept(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)
    tries = []

    @action(name="flaky", retry=Retry(initial=10, jitter=False), registry=registry)
    async def flaky() -> int:
        tries.append(t.now())
        if len(tries) == 1:
            raise ValueError("again")
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        slept = step.sleep(60)
        first = await step.run_action(flaky)
        got = await step.await_event(number)
        await slept
        return [first, got, (step.now() - step.run.created_at).total_seconds()]

    await t.open()
    run = await t.start(w)
    await t.wait_for_step(run, flaky, "backoff")
    await run.pause()
    await run.send(number, 5)
    await t.advance(600)
    assert (len(tries), (await run.status()).status) == (1, "paused")
    await run.resume()
    # the pause stopped no clock: the sleep was over long ago
    result = await t.result(run)
    assert result[:2] == [1, 5]
    assert result[2] >= 60
    assert len(tries) == 2


async def test_a_final_or_canceling_run_cannot_be_paused(t: TestEngine, registry: Registry) -> None:
    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        return None

    await t.open()
    run = await t.start(w)
    await t.result(run)
    for refused in (run.pause, run.resume):
        with pytest.raises(Conflict) as conflict:
            await refused()
        assert (conflict.value.run, conflict.value.state) == (run.id, "completed")
