"""Answers behind the cut of a restart or fork are kept where the same question is asked again (X2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from signoff import InvalidInput, Registry, Step, action, n_of, workflow
from signoff import ask as make_ask
from signoff.approvals import kept, thread
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.people.chain import LEDGER
from signoff.runtime.handles import Run
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.workflow.errors import Refused

YES = {"approved": True}


class Answer(BaseModel):
    approved: bool
    note: str = ""


class Flow:
    """Asks three times, the last time what two must answer; then an action that fails as long as it is told to."""

    def __init__(self, registry: Registry) -> None:
        self.broken = True
        self.total = 10
        self.seen: list[list[str]] = []
        ship = make_ask("ship", Answer, registry=registry)
        pay = make_ask("pay", Answer, registry=registry)

        @action(name="load", registry=registry)
        async def load() -> int:
            return self.total

        @action(name="send", registry=registry)
        async def send() -> str:
            if self.broken:
                raise ValueError("broken")
            return "sent"

        @workflow("order", registry=registry)
        async def order(step: Step) -> list[str]:
            total = await step.run_action(load)
            first = await step.ask(ship, title="Ship?", facts={"total": total})
            second = await step.ask(ship, title="Ship?", facts={"total": total})
            both = await step.ask(pay, title="Pay?", facts={"total": total}, rule=n_of(2))
            await step.run_action(send)
            return [first.note, second.note, *(f"{one.person} {one.answer.note}" for one in both)]

        self.order = order


def text_of(tx: Tx, run: str) -> list[Any]:
    query = sa.select(LEDGER.c.id, LEDGER.c.kind, LEDGER.c.actor, LEDGER.c.content, LEDGER.c.approval)
    return [(*row[:3], json.loads(row.content), row.approval) for row in tx.conn.execute(query.order_by(LEDGER.c.id))]


async def answered(t: TestEngine, flow: Flow) -> Run[list[str]]:
    """A run that failed after all was answered."""
    await t.open()
    for name in ("ana", "bob"):
        await t.add_person(f"{name}@example.org")
    run = await t.start(flow.order)
    await t.approve(run, Answer(approved=True, note="one"), as_user="ana@example.org")
    await t.approve(run, Answer(approved=True, note="two"), as_user="bob@example.org")
    await t.approve(run, Answer(approved=True, note="a"), as_user="ana@example.org")
    await t.approve(run, Answer(approved=True, note="b"), as_user="bob@example.org")
    await t.wait_for_status(run, "failed")
    return run


RESULT = ["one", "two", "ana@example.org a", "bob@example.org b"]


async def test_a_restart_from_a_step_keeps_what_was_answered(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken = False
    await run.restart(from_step=0)
    assert await t.result(run) == RESULT
    approvals = await run.approvals()
    assert [item.state for item in approvals] == ["decided"] * 6
    old, new = approvals[:3], approvals[3:]
    rows = await t.store.read(text_of, run.id)
    first = {row[0]: row for row in rows if row[1] == "decision"}
    again = [row for row in rows if row[1] == "kept"]
    assert len(first) == len(again) == 4
    for _, _, actor, content, _ in again:
        before = first[content["kept"]]
        assert (actor, content["answer"], content["shown"]) == (before[2], before[3]["answer"], before[3]["shown"])
    assert [row[4] for row in again] == [new[0].id, new[1].id, new[2].id, new[2].id]

    def decisions(tx: Tx) -> list[Any]:
        query = sa.select(D.c.person, D.c.answer, D.c.at, A.c.public_id, A.c.kept_from).join(
            A, A.c.id == D.c.approval_id
        )
        return [tuple(row) for row in tx.conn.execute(query.order_by(D.c.id))]

    stored = await t.store.read(decisions)
    assert [row[:3] for row in stored[4:]] == [row[:3] for row in stored[:4]]
    assert all(row[4] is not None for row in stored[4:])
    notes = await t.store.read(thread.notes, t.scope(), new[0].id)
    assert [(note.kind, note.data["approval"]) for note in notes] == [("kept", old[0].id)]


async def test_a_plain_restart_has_nothing_to_ask(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken = False
    await run.restart()
    assert await t.result(run) == RESULT
    assert len(await run.approvals()) == 3


async def test_answers_are_kept_again_and_again(t: TestEngine, registry: Registry) -> None:
    """Also by a round that comes after one that did not get as far as the question."""
    flow = Flow(registry)
    run = await answered(t, flow)
    await run.restart(from_step="load")
    await t.wait_for_status(run, "failed")
    t.replace("load", errors=1)
    await run.restart(from_step="load")
    await t.wait_for_status(run, "failed")
    assert len(await run.approvals()) == 6
    flow.broken = False
    t.replace("load", value=10)
    await run.restart()
    assert await t.result(run) == RESULT


async def test_a_changed_question_is_asked_anew_and_tells_of_the_former(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken, flow.total = False, 11
    await run.restart(from_step=0)
    await t.settle()
    *_, new = await run.approvals()
    assert (new.state, new.facts) == ("open", {"total": 11})
    former = await t.store.read(lambda tx: former_of(tx, new.id))
    assert former is not None
    assert (former.kept, former.same, former.row.decided_by) == (False, False, "ana@example.org")
    await t.approve(run, Answer(approved=True, note="eleven"), as_user="ana@example.org")
    *_, second = await run.approvals()
    told = await t.store.read(lambda tx: former_of(tx, second.id))
    assert told is not None
    assert told.row.decided_by == "bob@example.org"


def former_of(tx: Tx, public_id: str) -> kept.Former | None:
    row = tx.conn.execute(sa.select(A).where(A.c.public_id == public_id)).one()
    return kept.formers_of(tx, row.tenant_id, A.c.public_id == public_id).get(row.id)


async def test_all_are_asked_again_on_request(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken = False
    await run.restart(from_step=0, ask_again=True)
    await t.settle()
    *_, new = await run.approvals()
    assert new.state == "open"
    former = await t.store.read(lambda tx: former_of(tx, new.id))
    assert former is not None
    assert (former.kept, former.same) == (False, True)
    await t.approve(run, Answer(approved=True, note="anew"), as_user="bob@example.org")
    # what was to be asked again is not kept by a later restart either
    await run.cancel(reason="stop")
    await t.wait_for_status(run, "canceled", "failed")
    await run.restart()
    await t.settle()
    *_, open_one = await run.approvals()
    assert open_one.state == "open"


async def test_some_are_asked_again_on_request(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken = False
    steps = {step.no: step.name for step in await run.steps()}
    assert steps[2] == "ship"
    with pytest.raises(InvalidInput):
        await run.restart(from_step=2, ask_again=[1])  # before the cut: it stays
    with pytest.raises(InvalidInput):
        await run.restart(from_step=0, ask_again=[0])  # no question
    await run.restart(from_step=0, ask_again=[2])
    await t.settle()
    states = [item.state for item in await run.approvals()]
    assert states == ["decided"] * 4 + ["open"]
    await t.approve(run, Answer(approved=True, note="other"), as_user="ana@example.org")
    assert await t.result(run) == ["one", "other", *RESULT[2:]]


async def test_a_fork_keeps_them_too(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    flow.broken = False
    forked = await run.fork(from_step=2)
    assert await t.result(forked) == RESULT
    states = [(item.step_no, item.state) for item in await forked.approvals()]
    assert states == [(2, "decided"), (3, "decided")]
    asked = await run.fork(from_step=2, ask_again=[2])
    await t.settle()
    assert [item.state for item in await asked.approvals()] == ["open"]
    await t.approve(asked, Answer(approved=True, note="fork"), as_user="bob@example.org")
    assert await t.result(asked) == ["one", "fork", *RESULT[2:]]
    assert [item.state for item in await run.approvals()] == ["decided"] * 3


async def test_what_expired_was_no_answer(t: TestEngine, registry: Registry) -> None:
    ship = make_ask("ship", Answer, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> bool:
        return (await step.ask(ship, title="Ship?", timeout=60, default=Answer(approved=False))).approved

    await t.open()
    await t.add_person("ana@example.org")
    run = await t.start(w)
    await t.advance(100)
    assert await t.result(run) is False
    await run.restart(from_step=0)
    await t.approve(run, Answer(approved=True), as_user="ana@example.org")
    assert await t.result(run) is True


async def test_kept_answers_survive_the_end_of_the_process(t: TestEngine, registry: Registry) -> None:
    flow = Flow(registry)
    run = await answered(t, flow)
    await t.close(grace=0)
    flow.broken = False
    await t.open()
    await run.restart(from_step=1)
    await t.close(grace=0)
    await t.open()
    assert await t.result(run) == RESULT


async def test_votes_of_some_are_kept_too(t: TestEngine, registry: Registry) -> None:
    """Where the run came down while others were still to decide."""
    flow = Flow(registry)
    await t.open()
    for name in ("ana", "bob"):
        await t.add_person(f"{name}@example.org")
    run = await t.start(flow.order)
    await t.approve(run, Answer(approved=True, note="one"), as_user="ana@example.org")
    await t.approve(run, Answer(approved=True, note="two"), as_user="bob@example.org")
    await t.approve(run, Answer(approved=True, note="a"), as_user="ana@example.org")
    await run.cancel(reason="stop")
    await t.wait_for_status(run, "canceled")
    flow.broken = False
    await run.restart()
    await t.settle()
    *_, new = await run.approvals()
    assert (new.state, [one.person for one in new.decisions]) == ("open", ["ana@example.org"])
    with pytest.raises(Refused) as caught:
        await t.approve(run, Answer(approved=True, note="a"), as_user="ana@example.org")
    assert caught.value.reason == "voted"
    await t.approve(run, Answer(approved=True, note="b"), as_user="bob@example.org")
    assert await t.result(run) == RESULT
    kinds = [row[1] for row in await t.store.read(text_of, run.id)]
    assert kinds == ["decision", "decision", "decision", "closed", "kept", "decision"]
