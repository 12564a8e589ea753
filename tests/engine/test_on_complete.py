"""on_complete (O1): once for every end of a run, in its transaction."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Conflict, Registry, Step, action, mutation, workflow
from signoff.testing import TestEngine
from tests.engine.notes import make_notes, notes, write_note

WAIT = 15


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
