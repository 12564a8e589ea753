"""Inline steps (F2): in the transaction of the advance, and what fails or times out undoes only itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Registry, Step, StepFailed, action, event, mutation, query, workflow
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, note_steps, notes, write_note

WAIT = 8


async def test_inline_steps_in_a_row_see_each_other_and_a_failing_one_undoes_only_itself(
    open_engine: EngineMaker, registry: Registry
) -> None:
    add, count, fail = note_steps(registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = []
        for text in ("a", "bb", "ccc"):
            seen.append(await step.run_mutation(add.options(inline=True), text))
            seen.append(await step.run_query(count.options(inline=True)))
        try:
            await step.run_mutation(fail.options(inline=True), "gone")
        except StepFailed as error:
            seen.append(error.type)
        seen.append(await step.run_query(count.options(inline=True)))
        seen.append(await step.run_mutation(add.options(inline=True), "dddd"))
        seen.append(await step.run_query(count))
        return seen

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 1, 2, 2, 3, 3, "LookupError", 3, 4, 4]
    assert len(await notes(engine)) == 4
    asked = [step for step in await run.steps() if step.name != "count"]
    assert [step.state for step in asked] == ["success"] * 3 + ["failure", "success"]


async def test_inline_steps_beside_ordinary_ones(open_engine: EngineMaker, registry: Registry) -> None:
    add, count, fail = note_steps(registry)
    calls: list[int] = []

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        calls.append(n)
        return n

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        results = await asyncio.gather(
            step.run_action(act, 1),
            step.run_mutation(add.options(inline=True), "in"),
            step.run_mutation(add, "own"),
            step.run_mutation(fail.options(inline=True), "no"),
            step.run_mutation(add.options(inline=True), "line"),
            step.run_action(act, 2),
            return_exceptions=True,
        )
        shown = [item.type if isinstance(item, StepFailed) else item for item in results]
        return [*shown, await step.run_query(count.options(inline=True))]

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == [1, 2, 3, "LookupError", 4, 2, 3]
    assert sorted(calls) == [1, 2]
    assert len(await notes(engine)) == 3


async def test_an_inline_step_that_is_canceled_before_its_turn_writes_nothing(
    open_engine: EngineMaker, registry: Registry
) -> None:
    add, count, fail = note_steps(registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(step.run_mutation(fail.options(inline=True), "no"))
                group.create_task(step.run_mutation(add.options(inline=True), "never"))
        return await step.run_query(count)

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    assert await run.result(timeout=WAIT) == 0
    assert [step.state for step in await run.steps()] == ["failure", "canceled", "success"]


async def test_an_inline_mutation_is_not_repeated_by_replay(open_engine: EngineMaker, registry: Registry) -> None:
    add, count, _ = note_steps(registry)
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        await step.run_mutation(add.options(inline=True), "once")
        await step.await_event(go)
        await step.run_mutation(add.options(inline=True), "twice")
        return await step.run_query(count)

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    async for _change in run.subscribe():
        if (await run.status()).status == "waiting":
            break
    await engine.close()
    engine = await open_engine(registry)
    run = engine.run(run.id)
    await run.send(go, 1)
    assert await run.result(timeout=WAIT) == 2


# what a function does when its time is up; the first two are in the middle of a statement
SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1e8) SELECT max(i) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
}


@pytest.mark.parametrize("where", ["in a statement", "between statements"])
async def test_an_inline_step_times_out_and_undoes_only_itself(
    open_engine: EngineMaker, registry: Registry, where: str
) -> None:
    add, count, _ = note_steps(registry)

    @mutation(name="hangs", registry=registry)
    async def hangs(session: AsyncSession) -> None:
        await write_note(session, "gone")
        if where == "between statements":
            await asyncio.Event().wait()
        await session.execute(sa.text(SLOW[session.get_bind().dialect.name]))

    @query(name="looks", registry=registry)
    async def looks(session: AsyncSession) -> None:
        await asyncio.Event().wait()

    @mutation(name="own", registry=registry)
    async def own(session: AsyncSession) -> None:
        """Not Signoff's timeout, but the function's: the same happens to the connection."""
        async with asyncio.timeout(0.1):
            await session.execute(sa.text(SLOW[session.get_bind().dialect.name]))

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        seen: list[Any] = [await step.run_mutation(add.options(inline=True), "a")]
        for call in (
            lambda: step.run_mutation(hangs.options(inline=True, timeout=0.1)),
            lambda: step.run_mutation(hangs.options(inline=True, schedule_to_close=0.1)),
            lambda: step.run_query(looks.options(inline=True, timeout=0.1)),
            lambda: step.run_mutation(own.options(inline=True)),
        ):
            try:
                await call()
            except StepFailed as error:
                seen.append([error.type, "timed out" in str(error)])
        seen.append(await step.run_mutation(add.options(inline=True), "bb"))
        return [*seen, await step.run_query(count.options(inline=True))]

    engine = await open_engine(registry)
    await make_notes(engine)
    run = await engine.start(w)
    first, *failures, last, counted = await run.result(timeout=4 * WAIT)
    assert (first, last, counted) == (1, 2, 2)
    assert failures == [["TimeoutError", True]] * 3 + [["TimeoutError", False]]
    assert len(await notes(engine)) == 2
    assert [step.state for step in await run.steps()] == ["success", *["failure"] * 4, "success", "success"]
    assert await (await engine.start(w)).result(timeout=4 * WAIT) == [1, *failures, 2, 4]
