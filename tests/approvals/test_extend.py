"""Deadlines that people move, in the engine that keeps them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from signoff import Registry, Step, action, event, workflow
from signoff import ask as make_ask
from signoff.approvals import changes
from signoff.engine.outcomes import R
from signoff.people.users import find_person
from signoff.runtime.handles import Run
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.testing.engine import START
from signoff.workflow.errors import InvalidInput, Refused

HOUR = timedelta(hours=1)


class Answer(BaseModel):
    approved: bool


async def scope_of(t: TestEngine, email: str) -> Scope:
    scope = t.scope()
    person = await t.store.read(find_person, scope.tenant_id, email=email)
    assert person is not None
    return Scope(scope.tenant_id, person)


async def operator(t: TestEngine) -> Scope:
    return await scope_of(t, await t.add_person("omar@example.org", role="operator"))


async def question(run: Run[str]) -> str:
    (approval,) = await run.approvals()
    return approval.id


def is_ready(tx: Tx, run: str) -> bool:
    """Whether the news of a run still wait for its worker."""
    return tx.conn.execute(sa.select(R.c.ready).where(R.c.public_id == run)).scalar() is not None


class Flow:
    """A run that waits an hour for an answer, and perhaps for an action besides."""

    def __init__(self, registry: Registry) -> None:
        self.gate = asyncio.Event()
        self.ship = ship = make_ask("ship", Answer, registry=registry)
        self.ping = ping = event("ping", int, registry=registry)

        @action(name="slow", registry=registry)
        async def slow() -> str:
            await self.gate.wait()
            return "slow"

        @workflow("alone", registry=registry)
        async def alone(step: Step) -> str:
            answer = await step.ask(ship, title="Ship?", timeout=HOUR, due=HOUR / 2, default=Answer(approved=False))
            return str(answer.approved)

        @workflow("beside", registry=registry, events=[ping])
        async def beside(step: Step) -> str:
            asked = step.ask(ship, title="Ship?", timeout=HOUR, default=Answer(approved=False))
            got = step.await_event(ping)
            name = await step.run_action(slow)
            return f"{name} {await got} {(await asked).approved}"

        self.alone, self.beside = alone, beside


async def test_an_extended_deadline_is_kept_and_the_old_one_does_nothing(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    await t.open()
    omar = await operator(t)
    run = await t.start(flow.alone)
    await t.advance(HOUR / 2)
    await t.store.write(changes.extend, omar, await question(run), via="page", by=2 * HOUR, reason="he is on a plane")
    (step,) = await run.steps()
    assert step.due_at == START + 3 * HOUR
    await t.advance(HOUR)
    assert (await run.status()).status == "waiting"
    assert (await run.approvals())[0].state == "open"
    await t.advance(2 * HOUR)
    assert await t.result(run) == "False"
    (step,) = await run.steps()
    assert (step.state, step.ended_at) == ("timeout", START + 3 * HOUR)
    (approval,) = await run.approvals()
    assert (approval.state, approval.timeout_at, approval.due_at) == ("expired", START + 3 * HOUR, START + 2.5 * HOUR)


async def test_an_extended_deadline_holds_across_a_restart(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    await t.open()
    omar = await operator(t)
    run = await t.start(flow.alone)
    await t.settle()
    await t.store.write(changes.extend, omar, await question(run), via="page", by=HOUR, reason="")
    await t.close(grace=0)
    t.clock.advance(1.5 * HOUR)  # past the old deadline, while nobody looks
    await t.open()
    await t.settle()
    assert (await run.status()).status == "waiting"
    await t.advance(HOUR)
    assert await t.result(run) == "False"


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_run_that_is_at_work_hears_of_it(t: TestEngine, registry: Registry, meanwhile: bool) -> None:
    """Its worker holds it, with the old deadline in memory; an event in between tells it other news."""
    flow = Flow(registry)
    await t.open()
    omar = await operator(t)
    run = await t.start(flow.beside)
    await t.wait_for_step(run, "slow", "running")
    asked = await question(run)
    await t.store.write(changes.extend, omar, asked, via="page", by=HOUR, reason="")
    if meanwhile:
        await run.send(flow.ping, 1)
    else:
        while await t.store.read(is_ready, run.id):
            await asyncio.sleep(0)
    t.clock.advance(1.5 * HOUR)
    flow.gate.set()
    await t.wait_for_step(run, "slow", "success")
    await t.settle()
    assert (await run.approvals())[0].state == "open"
    if not meanwhile:
        await run.send(flow.ping, 1)
    await t.approve(run, Answer(approved=True), as_user="omar@example.org")
    assert await t.result(run) == "slow 1 True"
    await t.advance(5 * HOUR)
    steps = await run.steps()
    assert {step.name: step.state for step in steps} == {"ship": "success", "ping": "success", "slow": "success"}


async def test_an_answered_wait_that_was_extended_is_answered_once(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    await t.open()
    omar = await operator(t)
    run = await t.start(flow.alone)
    await t.settle()
    asked = await question(run)
    await t.store.write(changes.extend, omar, asked, via="page", by=HOUR, reason="")
    await t.approve(run, Answer(approved=True), as_user="omar@example.org")
    assert await t.result(run) == "True"
    await t.advance(5 * HOUR)
    assert [step.state for step in await run.steps()] == ["success"]
    with pytest.raises(Refused) as caught:
        await t.store.write(changes.extend, omar, asked, via="page", by=HOUR, reason="")
    assert caught.value.reason in ("already_decided", "closed")


async def test_who_may_extend_and_by_how_much(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    await t.open()
    omar, ana = await operator(t), await scope_of(t, await t.add_person("ana@example.org"))
    run = await t.start(flow.alone)
    await t.settle()
    asked = await question(run)
    with pytest.raises(Refused) as caught:
        await t.store.write(changes.extend, ana, asked, via="page", reason="")
    assert caught.value.reason == "role"
    for by in (None, 0, -5):
        with pytest.raises(InvalidInput):
            await t.store.write(changes.extend, omar, asked, via="page", by=by, reason="")
    await t.advance(2 * HOUR)
    with pytest.raises(Refused) as caught:
        await t.store.write(changes.extend, omar, asked, via="page", by=HOUR, reason="")
    assert caught.value.reason in ("deadline", "closed")
