"""What a run does about its own questions: showing something else, and reading the thread."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from signoff import Comment, InvalidInput, Registry, Step, event, n_of, workflow
from signoff import ask as make_ask
from signoff.approvals import claims, thread
from signoff.approvals.decide import decide
from signoff.approvals.notes import N
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.people.chain import LEDGER
from signoff.people.users import find_person
from signoff.runtime.handles import Run
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.workflow.errors import Refused

YES = {"approved": True}


class Answer(BaseModel):
    approved: bool
    note: str = ""


class Flow:
    """Two of the approvers answer; an event changes what they are shown."""

    def __init__(self, registry: Registry) -> None:
        self.told: list[bool] = []
        self.read: list[list[Comment]] = []
        ship = make_ask("ship", Answer, registry=registry)
        self.price = price = event("price", int, registry=registry)

        @workflow("order", registry=registry, events=[price])
        async def order(step: Step) -> int:
            asked = step.ask(ship, title="Ship?", facts={"total": 10, "order": "o-1"}, rule=n_of(2))
            total = 10
            while True:
                new = step.await_event(price)
                await step.wait([asked, new], return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    new.cancel()
                    self.read.append(await step.comments(asked))
                    return total if all(one.answer.approved for one in await asked) else 0
                total = await new
                done = await step.update_ask(asked, title=f"Ship for {total}?", facts={"total": total, "order": "o-1"})
                self.told.append(done)

        self.order = order


async def scope_of(t: TestEngine, email: str) -> Scope:
    scope = t.scope()
    person = await t.store.read(find_person, scope.tenant_id, email=email)
    assert person is not None
    return Scope(scope.tenant_id, person)


async def begun(t: TestEngine, flow: Flow) -> Run[int]:
    await t.open()
    for name in ("ana", "bob"):
        await t.add_person(f"{name}@example.org")
    run = await t.start(flow.order)
    await t.settle()
    return run


async def the_row(t: TestEngine) -> Any:
    return await t.store.read(lambda tx: tx.conn.execute(sa.select(A)).one())


async def test_claims_and_partial_votes_lapse_and_the_thread_keeps_what_was_shown(
    t: TestEngine, registry: Registry
) -> None:
    flow = Flow(registry)
    run = await begun(t, flow)
    await t.approve(run, Answer(**YES), as_user="ana@example.org")
    before = await the_row(t)
    bob = await scope_of(t, "bob@example.org")
    await t.store.write(claims.claim, bob, before.public_id, via="page")
    await run.send(flow.price, 12)
    await t.settle()
    after = await the_row(t)
    assert (after.title, json.loads(after.facts)["total"], after.revision) == ("Ship for 12?", 12, 2)
    assert after.content_hash != before.content_hash
    assert (after.claimed_by, after.claimed_at, after.state) == (None, None, "open")

    def written(tx: Tx) -> tuple[Any, ...]:
        votes = [(row.person, row.lapsed_at is not None) for row in tx.conn.execute(sa.select(D).order_by(D.c.id))]
        ledger = [(row.kind, row.actor) for row in tx.conn.execute(sa.select(LEDGER).order_by(LEDGER.c.id))]
        return votes, ledger

    assert await t.store.read(written) == (
        [("ana@example.org", True)],
        [("decision", "ana@example.org"), ("lapsed", "ana@example.org")],
    )
    (*_, change) = await t.store.read(thread.notes, t.scope(), before.public_id)
    assert (change.kind, change.actor) == ("change", None)
    assert change.data == {
        "revision": 1,
        "changed": ["title", "facts"],
        "title": "Ship?",
        "facts": {"total": 10, "order": "o-1"},
        "voted": ["ana@example.org"],
        "claimed_by": "bob@example.org",
    }
    # whoever opened the page before is told, and ana's vote is asked for again
    with pytest.raises(Refused) as caught:
        await t.store.write(decide, await scope_of(t, "ana@example.org"), before.public_id, YES, revision=1, via="page")
    assert caught.value.reason == "revision"
    await t.approve(run, Answer(**YES), as_user="ana@example.org")
    await t.approve(run, Answer(**YES), as_user="bob@example.org")
    assert await t.result(run) == 12
    assert flow.told[-1] is True


async def test_it_happens_once_whatever_is_replayed(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await begun(t, flow)
    await run.send(flow.price, 12)
    await t.settle()
    for _ in range(2):
        await t.restart()
        await t.settle()
    assert (await the_row(t)).revision == 2
    await run.send(flow.price, 12)  # the same again changes nothing
    await t.settle()
    assert (await the_row(t)).revision == 2
    await t.approve(run, Answer(**YES), as_user="ana@example.org")
    await run.send(flow.price, 13)
    await t.settle()
    assert (await the_row(t)).revision == 3


async def test_comments_reach_the_handler(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await begun(t, flow)
    ana = await scope_of(t, "ana@example.org")
    asked = (await the_row(t)).public_id
    for text in ("why so much?", "ok then"):
        await t.store.write(thread.comment, ana, asked, text, via="page")
        await t.advance(60)
    await t.approve(run, Answer(**YES), as_user="ana@example.org")
    await t.approve(run, Answer(**YES), as_user="bob@example.org")
    assert await t.result(run) == 10
    assert [(one.person, one.text) for one in flow.read[-1]] == [
        ("ana@example.org", "why so much?"),
        ("ana@example.org", "ok then"),
    ]
    assert flow.read[-1][1].at - flow.read[-1][0].at == timedelta(seconds=60)


async def test_a_question_that_is_over_is_left_alone(t: TestEngine, registry: Registry) -> None:
    ship = make_ask("ship", Answer, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[bool]:
        first = step.ask(ship, title="First?")
        second = step.ask(ship, title="Second?")
        await second
        answered = await step.update_ask(second, title="Too late?")
        still = await step.update_ask(first, body="It matters now.")
        await first
        return [answered, still]

    await t.open()
    await t.add_person("ana@example.org")
    run = await t.start(w)
    await t.settle()
    one, two = [item.id for item in await run.approvals()]

    ana = await scope_of(t, "ana@example.org")
    await t.store.write(decide, ana, two, YES, revision=None, via="page")
    await t.settle()
    first, second = await run.approvals()
    assert (first.title, first.revision, "matters" in first.body_html) == ("First?", 2, True)
    assert (second.title, second.revision) == ("Second?", 1)
    await t.store.write(decide, ana, one, YES, revision=None, via="page")
    assert await t.result(run) == [False, True]


async def test_after_a_restart_the_question_of_the_new_round_is_meant(t: TestEngine, registry: Registry) -> None:
    """The first of two that are asked at once is asked again, with a higher number than the second, which is kept."""
    ship = make_ask("ship", Answer, registry=registry)
    go = event("go", int, registry=registry)

    @workflow("w", registry=registry, events=[go])
    async def w(step: Step) -> str:
        first, second = step.ask(ship, title="First?"), step.ask(ship, title="Second?")
        await second
        await step.await_event(go)
        await step.update_ask(first, title="First again?")
        await first
        return "done"

    await t.open()
    await t.add_person("ana@example.org")
    run = await t.start(w)
    await t.settle()
    ana = await scope_of(t, "ana@example.org")
    second = (await run.approvals())[1]

    await t.store.write(decide, ana, second.id, YES, revision=None, via="page")
    await t.settle()
    await run.pause()
    await t.settle()
    await run.restart()
    await run.send(go, 1)
    await t.settle()
    shown = {(item.step_no, item.title, item.state) for item in await run.approvals()}
    assert (1, "Second?", "decided") in shown
    assert any(title == "First again?" and state == "open" for _, title, state in shown)


async def test_what_does_not_fit_is_refused_where_it_is_said(t: TestEngine, registry: Registry) -> None:
    ship = make_ask("ship", Answer, registry=registry)
    other = event("other", int, registry=registry)

    @workflow("w", registry=registry, events=[other])
    async def w(step: Step) -> list[str]:
        refused = []
        asked = step.ask(ship, title="Ship?")
        for call, given in (
            (asked, {}),
            (asked, {"title": " "}),
            (asked, {"title": 5}),
            (asked, {"facts": {"x": object()}}),
            (step.await_event(other, timeout=1, default=0), {"title": "No question"}),
        ):
            try:
                step.update_ask(call, **given)
            except InvalidInput as error:
                refused.append(str(error))
        return refused

    await t.open()
    run = await t.start(w)
    assert len(set(await t.result(run))) == 5


async def test_a_cleaned_up_run_leaves_nothing_that_a_later_question_could_get(
    t: TestEngine, registry: Registry
) -> None:
    """Row ids are given out again: votes and threads of questions that are gone must be gone too."""
    flow = Flow(registry)
    run = await begun(t, flow)
    ana = await scope_of(t, "ana@example.org")
    await t.store.write(thread.comment, ana, (await the_row(t)).public_id, "hm", via="page")
    await t.approve(run, Answer(**YES), as_user="ana@example.org")
    await run.cancel()
    await t.wait_for_status(run, "canceled")
    await run.cleanup()

    def left(tx: Tx) -> tuple[int, ...]:
        tables = (A, D, N)
        return tuple(tx.conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables)

    assert await t.store.read(left) == (0, 0, 0)
    kinds = sa.select(LEDGER.c.kind).order_by(LEDGER.c.id)
    assert await t.store.read(lambda tx: tx.conn.execute(kinds).scalars().all()) == ["decision", "closed"]
    other = await t.start(flow.order)
    await t.settle()
    await t.approve(other, Answer(**YES), as_user="ana@example.org")
    await t.approve(other, Answer(**YES), as_user="bob@example.org")
    assert await t.result(other) == 10
    await other.cleanup()
    assert (await t.store.read(left))[:2] == (1, 2)
