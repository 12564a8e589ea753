"""What stands around a question: what its run has under way besides, and what followed the last time it was asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff import NotFound, Registry, Step, action, event, workflow
from signoff import ask as make_ask
from signoff.approvals.outlook import Outlook, outlook
from signoff.people.tenants import ensure_tenant
from signoff.runtime.handles import Run
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine

ANA = "ana@example.org"


def define(registry: Registry) -> tuple[Any, Any]:
    """Asks whether to ship beside a timer, a message and another question; ships if so, and asks again if not. And a
    later version, which only asks.
    """
    ship = make_ask("shop/ship", bool, registry=registry)
    count = make_ask("shop/count", bool, registry=registry)
    paid = event("shop/paid", int, registry=registry)

    @action(name="shop/send", registry=registry)
    async def send() -> str:
        return "sent"

    @action(name="shop/note", registry=registry)
    async def note() -> str:
        return "noted"

    @workflow("shop/order", version=1, registry=registry)
    async def order(step: Step, beside: bool = False) -> str:
        await step.run_action(note)
        others: list[asyncio.Future[Any]] = []
        if beside:
            others = [
                asyncio.ensure_future(one)
                for one in (step.sleep(timedelta(days=2)), step.await_event(paid), step.ask(count, title="Counted?"))
            ]
        while not await step.ask(ship, title="Ship?"):
            await step.run_action(note)
        await step.run_action(send)
        await step.sleep(timedelta(hours=1))
        for one in others:
            one.cancel()
        return await step.run_action(send)

    @workflow("shop/order", version=2, registry=registry)
    async def later(step: Step) -> bool:
        await step.run_action(note)
        return await step.ask(ship, title="Ship?")

    return order.options(version=1), later


async def seen(t: TestEngine, run: Run[Any], ask: str = "shop/ship") -> Outlook:
    (asked,) = [item.id for item in await run.approvals() if item.ask == ask and item.state == "open"]
    return await t.store.read(outlook, t.scope(), asked)


async def test_what_the_run_has_open_besides_is_known(t: TestEngine, registry: Registry) -> None:
    order, _ = define(registry)
    await t.open()
    await t.add_person(ANA)
    run = await t.start(order, beside=True)
    await t.settle()
    found = await seen(t, run)
    assert [(step.name, step.state) for step in found.before[:1]] == [("shop/note", "success")]
    assert [step.kind for step in found.besides] == ["sleep", "event", "ask"], "all but the question itself"
    timer, _, other = found.besides
    assert timer.due_at == timer.asked_at + timedelta(days=2)
    assert (found.others[other.no].title, found.others[other.no].who) == ("Counted?", "any approver")
    assert (found.after, found.last) == ([], None), "it was never asked before"


async def test_what_followed_the_last_time_is_told(t: TestEngine, registry: Registry) -> None:
    order, _ = define(registry)
    await t.open()
    await t.add_person(ANA)
    first = await t.start(order.options(version=1, labels={"key": "o-1"}))
    for answer in (False, True):
        await t.approve(first, as_user=ANA, answer=answer)
    second = await t.start(order)
    await t.settle()
    assert (await seen(t, second)).last is None, "what still runs is not over"
    await t.advance(timedelta(hours=2))
    assert await t.result(first) == "sent"
    last = (await seen(t, second)).last
    assert last is not None
    assert (last.run, last.business_key, last.answered, last.ended) == (first.id, "o-1", "No", "completed")
    assert [step.name for step in last.steps[:3]] == ["shop/note", "shop/ship", "shop/send"], "since that answer"
    assert (len(last.steps), last.more) == (5, False)
    await t.approve(second, as_user=ANA, answer=False)
    await t.settle()
    last = (await seen(t, second)).last
    assert last is not None
    assert last.answered == "Yes", "of a run that asks it twice, the one that stood like this"
    done = next(item.id for item in await second.approvals() if item.state == "decided")
    after = await t.store.read(outlook, t.scope(), done)
    assert [step.name for step in after.after] == ["shop/note", "shop/ship"]
    assert (after.besides, after.last) == ([], None)


async def test_neither_another_version_nor_another_tenant_tells_of_it(t: TestEngine, registry: Registry) -> None:
    order, later = define(registry)
    await t.open()
    await t.add_person(ANA)
    run = await t.start(order)
    await t.approve(run, as_user=ANA, answer=True)
    await t.advance(timedelta(hours=2))
    assert await t.result(run) == "sent"
    again, newer = await t.start(order), await t.start(later)
    await t.settle()
    assert (await seen(t, again)).last is not None
    assert (await seen(t, newer)).last is None
    elsewhere = Scope(await t.store.write(ensure_tenant, "elsewhere"))
    (asked,) = [item.id for item in await run.approvals()]
    with pytest.raises(NotFound):
        await t.store.read(outlook, elsewhere, asked)


async def test_an_index_leads_to_the_last_answers(t: TestEngine, registry: Registry) -> None:
    """Among very many questions that were answered, few are looked at."""
    await t.open()

    def plan(tx: Tx) -> str:
        explain = "EXPLAIN QUERY PLAN" if tx.dialect.name == "sqlite" else "EXPLAIN"
        if tx.dialect.name != "sqlite":
            tx.conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        statement = (
            "SELECT id, run_id FROM signoff_approval WHERE tenant_id = 1 AND ask = 'x' AND state = 'decided' "
            "ORDER BY id DESC LIMIT 50"
        )
        return "\n".join(str(row) for row in tx.conn.execute(sa.text(f"{explain} {statement}")))

    found = await t.store.write(plan)
    assert "ix_signoff_approval_answered" in found
    assert "SORT" not in found.upper().replace("B-TREE", ""), found
