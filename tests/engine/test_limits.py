"""Limits of values, steps and journals, of the deployment and of a workflow, and what happens at them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import (
    InvalidInput,
    LimitExceeded,
    Registry,
    RunFailed,
    Step,
    StepFailed,
    action,
    event,
    mutation,
    query,
    workflow,
)
from signoff.engine.settings import EngineSettings
from tests.engine.conftest import EngineMaker
from tests.engine.notes import make_notes, notes, write_note

WAIT = 8
BIG, SMALL = "ü" * 1500, "x" * 1500  # 3,000 and 1,500 bytes


@pytest.fixture(params=["deployment", "workflow"])
def limits(request: pytest.FixtureRequest) -> tuple[EngineSettings, dict[str, int]]:
    """2,000 bytes a value, once as the deployment's setting and once as the workflow's."""
    if request.param == "deployment":
        return EngineSettings(max_value_bytes=2000, check_replay=True), {}
    return EngineSettings(check_replay=True), {"max_value_bytes": 2000}


async def test_too_large_values_are_refused_where_they_come_from(
    open_engine: EngineMaker, registry: Registry, limits: tuple[EngineSettings, dict[str, int]]
) -> None:
    settings, of_workflow = limits
    note = event("note", str, registry=registry)

    @action(name="give", registry=registry)
    async def give(size: int) -> str:
        return "ü" * size

    @action(name="take", registry=registry)
    async def take(text: str) -> int:
        return len(text)

    @mutation(name="write", registry=registry)
    async def write(session: AsyncSession, size: int) -> str:
        await write_note(session, "x")
        return "ü" * size

    @query(name="read", registry=registry)
    async def read(session: AsyncSession) -> str:
        return BIG

    @workflow("w", registry=registry, **of_workflow)  # type: ignore[arg-type]  # sizes only
    async def w(step: Step, text: str) -> list[Any]:
        seen: list[Any] = [len(await step.run_action(give, 900))]
        for call in (
            lambda: step.run_action(give, 1500),
            lambda: step.run_mutation(write, 1500),
            lambda: step.run_mutation(write.options(inline=True), 1500),
            lambda: step.run_query(read),
            lambda: step.run_query(read.options(inline=True)),
            lambda: step.do("closure", lambda: BIG),
        ):
            try:
                await call()
            except StepFailed as error:
                seen.append(error.type)
        try:
            step.run_action(take, BIG)
        except LimitExceeded as error:
            seen.append("take" in str(error))
        seen.append(await step.await_event(note))
        return seen

    @workflow("big", registry=registry, **of_workflow)  # type: ignore[arg-type]  # sizes only
    async def big(step: Step) -> str:
        return "ü" * 1500

    engine = await open_engine(registry, settings=settings)
    await make_notes(engine)
    with pytest.raises((LimitExceeded, InvalidInput)):
        await engine.start(w, BIG)
    assert (await engine.runs()).items == ()
    run = await engine.start(w, SMALL)
    with pytest.raises((LimitExceeded, InvalidInput)):
        await run.send(note, BIG)
    assert await run.events() == []
    await run.send(note, "small")
    assert await run.result(timeout=WAIT) == [900, *["LimitExceeded"] * 6, True, "small"]
    assert len(await notes(engine)) == 0
    with pytest.raises(RunFailed, match="result") as failed:
        await (await engine.start(big)).result(timeout=WAIT)
    assert "LimitExceeded" in failed.value.error.type or "limit" in str(failed.value)


@pytest.mark.parametrize("where", ["deployment", "workflow"])
async def test_a_run_ends_that_asks_for_too_many_steps(
    open_engine: EngineMaker, registry: Registry, where: str
) -> None:
    calls: list[int] = []

    @action(name="act", registry=registry)
    async def act(n: int) -> int:
        calls.append(n)
        return n

    @workflow("w", max_steps=5 if where == "workflow" else None, registry=registry)
    async def w(step: Step, count: int) -> int:
        for n in range(count):
            await step.run_action(act, n)
        return count

    settings = EngineSettings(max_steps=5) if where == "deployment" else EngineSettings()
    engine = await open_engine(registry, settings=settings)
    assert await (await engine.start(w, 5)).result(timeout=WAIT) == 5
    calls.clear()
    run = await engine.start(w, 100)
    with pytest.raises(RunFailed, match="5 steps") as failed:
        await run.result(timeout=WAIT)
    assert failed.value.error.type == "LimitExceeded"
    assert "act" in str(failed.value)
    assert failed.value.error.step_no == 5
    assert calls == [0, 1, 2, 3, 4]
    # a round's own: a restart has as many again
    await run.restart(from_step=3)
    with pytest.raises(RunFailed, match="5 steps"):
        await run.result(timeout=WAIT)
    assert calls == [0, 1, 2, 3, 4, 3, 4]


@pytest.mark.parametrize("where", ["deployment", "workflow"])
async def test_a_run_ends_whose_journal_grows_too_large(
    open_engine: EngineMaker, registry: Registry, where: str
) -> None:
    @action(name="give", registry=registry)
    async def give(n: int) -> str:
        return f"{n}" + "x" * 20_000  # stored beside the journal, counted all the same

    @workflow("w", max_journal_bytes=90_000 if where == "workflow" else None, registry=registry)
    async def w(step: Step, count: int) -> int:
        for n in range(count):
            await step.run_action(give, n)
        return count

    settings = EngineSettings(max_journal_bytes=90_000) if where == "deployment" else EngineSettings()
    engine = await open_engine(registry, settings=settings)
    assert await (await engine.start(w, 4)).result(timeout=WAIT) == 4
    run = await engine.start(w, 100)
    with pytest.raises(RunFailed, match="90000") as failed:
        await run.result(timeout=WAIT)
    assert failed.value.error.type == "LimitExceeded"
    assert len(await run.steps()) == 6


async def test_a_limit_is_counted_on_after_a_restart_of_the_engine(
    open_engine: EngineMaker, registry: Registry
) -> None:
    go = event("go", str, registry=registry)

    @workflow("w", max_journal_bytes=10_000, max_steps=20, registry=registry)
    async def w(step: Step) -> None:
        while True:
            await step.await_event(go)

    engine = await open_engine(registry)
    run = await engine.start(w)
    for _ in range(2):
        await run.send(go, "x" * 4000)
    async for _change in run.subscribe():
        if len(await run.steps()) == 3:
            break
    await engine.close()
    engine = await open_engine(registry)
    run = engine.run(run.id)
    await run.send(go, "x" * 4000)
    with pytest.raises(RunFailed, match="10000"):
        await run.result(timeout=WAIT)
