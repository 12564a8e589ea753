"""Reminders and escalations come once each, at their times, whoever is there to give them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest_asyncio
import sqlalchemy as sa
from pydantic import BaseModel

from signoff import Registry, Step, user, workflow
from signoff import ask as make_ask
from signoff.approvals import changes, clerk, thread
from signoff.approvals.questions import A
from signoff.approvals.views import approval_view
from signoff.people.users import find_person
from signoff.runtime.handles import Run
from signoff.store.scope import Scope
from signoff.testing import TestEngine
from signoff.testing.engine import START
from tests.people.world import Asked, World

HOUR = timedelta(hours=1)
BOSS = [{"user": "boss@example.org"}]


class Answer(BaseModel):
    approved: bool


def define(registry: Registry, **options: Any) -> Any:
    ship = make_ask("ship", Answer, registry=registry)
    options = {
        "to": user("ana@example.org"), "due": 4 * HOUR, "remind": [HOUR, 2 * HOUR, 6 * HOUR],
        "escalate_to": user("boss@example.org"), "escalate_after": 3 * HOUR, "timeout": 10 * HOUR,
        "default": Answer(approved=False), **options,
    }  # fmt: skip

    @workflow("w", registry=registry)
    async def w(step: Step) -> bool:
        answer: Answer = await step.ask(ship, title="Ship?", **options)
        return answer.approved

    return w


async def opened(t: TestEngine) -> None:
    await t.open()
    await t.add_person("ana@example.org")
    await t.add_person("boss@example.org", role="operator")


async def told(t: TestEngine, run: Run[Any]) -> list[tuple[str, float]]:
    """What stands in the thread, with hours since the start."""
    (approval,) = await run.approvals()
    notes = await t.store.read(thread.notes, t.scope(), approval.id)
    return [(note.kind, (note.at - START) / HOUR) for note in notes]


async def test_each_comes_once_at_its_time(t: TestEngine, registry: Registry) -> None:
    w = define(registry)
    await opened(t)
    run = await t.start(w)
    await t.advance(HOUR / 2)
    assert await told(t, run) == []
    await t.advance(7 * HOUR)
    assert await told(t, run) == [("remind", 1), ("remind", 2), ("escalate", 3), ("remind", 6)]
    await t.advance(5 * HOUR)
    assert await t.result(run) is False
    assert len(await told(t, run)) == 4


async def test_what_fell_due_while_nobody_was_there_comes_once_and_in_order(t: TestEngine, registry: Registry) -> None:
    w = define(registry)
    await opened(t)
    run = await t.start(w)
    await t.advance(1.5 * HOUR)
    await t.close(grace=0)
    t.clock.advance(3 * HOUR)
    await t.open()
    await t.settle()
    assert await told(t, run) == [("remind", 1), ("remind", 4.5), ("escalate", 4.5)]
    await t.restart()
    await t.advance(2 * HOUR)
    assert [kind for kind, _ in await told(t, run)] == ["remind", "remind", "escalate", "remind"]


async def test_nobody_is_reminded_of_what_is_over(t: TestEngine, registry: Registry) -> None:
    w = define(registry)
    await opened(t)
    answered, late = await t.start(w), await t.start(w)
    await t.settle()
    await t.approve(answered, Answer(approved=True), as_user="ana@example.org")
    await t.close(grace=0)
    t.clock.advance(11 * HOUR)  # the deadline of the other has passed too
    await t.open()
    await t.settle()
    assert await t.result(late) is False
    assert await told(t, answered) == []
    assert await told(t, late) == []


async def test_whom_it_is_escalated_to_may_answer_then_and_not_before(t: TestEngine, registry: Registry) -> None:
    w = define(registry, remind=())
    await opened(t)
    run = await t.start(w)
    await t.settle()
    (approval,) = await run.approvals()
    assert await may(t, "boss@example.org", approval.id) is False
    await t.advance(3 * HOUR)
    assert await may(t, "boss@example.org", approval.id) is True
    assert await may(t, "ana@example.org", approval.id) is True
    await t.approve(run, Answer(approved=True), as_user="boss@example.org")
    assert await t.result(run) is True


async def may(t: TestEngine, email: str, approval: str) -> bool:
    view = await t.store.read(approval_view, await scope_of(t, email), approval)
    return view.why_not is None


async def scope_of(t: TestEngine, email: str) -> Scope:
    scope = t.scope()
    person = await t.store.read(find_person, scope.tenant_id, email=email)
    assert person is not None
    return Scope(scope.tenant_id, person)


async def test_escalated_by_hand_it_is_not_escalated_again(t: TestEngine, registry: Registry) -> None:
    w = define(registry, remind=[5 * HOUR])
    await opened(t)
    run = await t.start(w)
    await t.advance(HOUR)
    (approval,) = await run.approvals()
    ana = await scope_of(t, "ana@example.org")
    await t.store.write(changes.escalate, ana, approval.id, via="page", reason="too much for me")
    await t.advance(6 * HOUR)
    assert await told(t, run) == [("escalate", 1), ("remind", 5)]


async def test_an_extended_question_is_escalated_later(t: TestEngine, registry: Registry) -> None:
    w = define(registry, remind=())
    await opened(t)
    run = await t.start(w)
    await t.settle()
    (approval,) = await run.approvals()
    boss = await scope_of(t, "boss@example.org")
    await t.store.write(changes.extend, boss, approval.id, via="page", reason="", by=5 * HOUR)
    await t.advance(7.5 * HOUR)
    assert [kind for kind, _ in await told(t, run)] == ["extend"]
    await t.advance(HOUR)
    assert await told(t, run) == [("extend", 0), ("escalate", 8)]


async def test_a_question_that_waits_for_those_it_is_escalated_to_is_stuck_no_more(
    t: TestEngine, registry: Registry
) -> None:
    w = define(registry, to=user("gone@example.org"), remind=())
    await opened(t)
    run = await t.start(w)
    await t.settle()
    assert [approval.stuck for approval in await run.approvals()] == ["nobody"]
    await t.advance(3 * HOUR)
    assert [approval.stuck for approval in await run.approvals()] == [None]


# -- several servers


async def questions(here: World, count: int) -> list[Asked]:
    made = [await here.ask(remind=[60.0, 120.0], escalate_to=BOSS, escalate_after=90.0) for _ in range(count)]
    here.clock.advance(timedelta(hours=1))
    return made


async def test_clerks_of_several_servers_give_each_once(here: World) -> None:
    made = await questions(here, 30)
    clerks = [clerk.Clerk(here.store) for _ in range(3)]
    await asyncio.gather(*(one.start() for one in clerks))
    await asyncio.gather(*(one.settled() for one in clerks))
    for one in clerks:
        await one.stop()
    for asked in made:
        notes = await here.store.read(thread.notes, here.embedded, asked.approval)
        assert [(note.kind, note.data.get("number")) for note in notes] == [
            ("remind", 1),
            ("escalate", None),
            ("remind", 2),
        ]
    left = sa.select(sa.func.count()).select_from(A).where(A.c.next_at.is_not(None))
    assert await here.store.read(lambda tx: tx.conn.execute(left).scalar()) == 0


@pytest_asyncio.fixture
async def at_work(here: World) -> AsyncIterator[clerk.Clerk]:
    one = clerk.Clerk(here.store)
    await one.start()
    yield one
    await one.stop()


async def test_a_question_that_is_asked_meanwhile_wakes_it(here: World, at_work: clerk.Clerk) -> None:
    await at_work.settled()
    asked = await here.ask(remind=[60.0])
    await at_work.settled()
    assert await here.store.read(clerk.next_due) is not None
    here.clock.advance(timedelta(seconds=61))
    await at_work.settled()
    notes = await here.store.read(thread.notes, here.embedded, asked.approval)
    assert [note.kind for note in notes] == ["remind"]
