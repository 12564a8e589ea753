"""Clean-up through the engine (K2, K3): only of what is over, whole, and without the decisions."""

from __future__ import annotations

from typing import Any

import pytest

from signoff import Conflict, NotFound, Registry, Step, ask, event, group, workflow
from signoff.runtime.handles import Run
from signoff.store.tables import Decision
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker
from tests.engine.test_rounds import Counted

WAIT = 15


async def family(t: TestEngine, registry: Registry) -> tuple[Any, Any]:
    number = event("number", int, registry=registry)

    @workflow("child", registry=registry)
    async def child(step: Step, seconds: float) -> None:
        await step.sleep(seconds)

    @workflow("parent", registry=registry)
    async def parent(step: Step, seconds: float) -> None:
        await step.run_workflow(child, seconds)

    await t.open()
    return parent, number


async def test_a_run_that_is_not_over_is_never_deleted(t: TestEngine, registry: Registry) -> None:
    parent, _ = await family(t, registry)
    run = await t.start(parent, 60)
    await t.settle()
    with pytest.raises(Conflict) as refused:
        await run.cleanup()
    assert refused.value.run == run.id
    (answer,) = await t.cleanup([run.id])
    assert answer.result == "not_final"
    await run.pause()
    with pytest.raises(Conflict):
        await run.cleanup()
    await run.resume()
    await t.advance(60)
    await t.result(run)
    await run.cleanup()
    for gone in (run.status(), run.cleanup(), run.restart(), run.result()):
        with pytest.raises(NotFound):
            await gone


async def test_a_list_is_answered_item_by_item_and_a_dry_run_counts_exactly(t: TestEngine, registry: Registry) -> None:
    parent, number = await family(t, registry)
    over, going = await t.start(parent, 1), await t.start(parent, 3600)
    await over.send(number, 1)  # never consumed
    await t.advance(1)
    ids = [over.id, "never", going.id]
    planned = await t.cleanup(ids, dry_run=True)
    assert [item.result for item in planned] == ["deleted", "not_found", "not_final"]
    assert (planned[0].runs, planned[0].steps, planned[0].events) == (2, 2, 1)
    assert (await over.status()).status == "completed"
    assert await t.cleanup(ids) == planned
    assert [item.result for item in await t.cleanup(ids)] == ["not_found", "not_found", "not_final"]
    left = await t.runs()
    assert {item.workflow for item in left.items} == {"parent", "child"}
    assert len(left.items) == 2
    await t.advance(3600)
    assert (await going.status()).status == "completed"


async def test_decisions_stay_when_their_run_is_deleted(t: TestEngine, registry: Registry) -> None:
    question = ask("question", bool, registry=registry)

    @workflow("asks", registry=registry)
    async def asks(step: Step) -> bool:
        return await step.ask(question, title="May I?", to=group("finance"))

    await t.open()
    await t.add_person("ana@example.org", groups=["finance"])
    run = await t.start(asks)
    await t.settle()
    await t.approve(run, True, as_user="ana@example.org")
    await t.result(run)

    def decisions(tx: Any) -> int:
        return len(tx.conn.execute(Decision.__table__.select()).all())

    before = await t.store.read(decisions)
    await run.cleanup()
    assert (before, await t.store.read(decisions)) == (1, 1)


async def test_an_id_is_free_again_after_its_run_is_deleted(open_engine: EngineMaker, registry: Registry) -> None:
    kit = Counted(registry)
    engine = await open_engine(registry)
    run: Run[int] = await engine.start(kit.total.options(run_id="mine", idempotency_key="k"), 2)
    assert await run.result(timeout=WAIT) == 1
    await run.cleanup()
    again = await engine.start(kit.total.options(run_id="mine", idempotency_key="k"), 3)
    assert (await again.result(timeout=WAIT), again.existing) == (3, False)
