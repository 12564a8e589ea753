from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from signoff import Registry, Step, workflow
from signoff import ask as make_ask
from signoff.approvals import claims, thread
from signoff.approvals.decide import decide_through
from signoff.approvals.inbox import badge, counts, inbox
from signoff.approvals.questions import ApprovalQuestions
from signoff.approvals.views import NOTES, ApprovalView, approval_view, approvals_of_run
from signoff.people.tenants import ensure_tenant
from signoff.people.users import find_person
from signoff.store.scope import Person, Scope
from signoff.store.tx import Tx
from signoff.testing import TestEngine
from signoff.workflow.errors import NotFound, Refused
from tests.engine_usecases.support import statements_of
from tests.people.world import START, World


async def test_a_view_holds_all_that_a_person_needs(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await here.ask(
        title="Ship it?",
        body="**Now**",
        facts={"total": "12.50", "items": [1, 2]},
        to=[{"group": "finance"}, {"user": "bob@example.org"}, {"role": "operator"}],
        due=3600.0,
        timeout=7200.0,
    )
    view = await here.store.read(approval_view, ana, asked.approval)
    assert (view.id, view.run, view.ask, view.step_no) == (asked.approval, asked.run, "order/ship", 0)
    assert (view.title, view.body_html) == ("Ship it?", "<p><strong>Now</strong></p>\n")
    assert view.facts == {"total": "12.50", "items": [1, 2]}
    assert view.who == "anyone in finance, bob@example.org or an operator or above"
    assert (view.state, view.revision, view.requester) == ("open", 1, "rita@example.org")
    assert (view.created_at, view.due_at, view.timeout_at) == (
        START,
        START + timedelta(hours=1),
        START + timedelta(hours=2),
    )
    assert view.why_not is None
    assert view.decision is None
    assert [one.id for one in await here.store.read(approvals_of_run, ana, asked.run)] == [asked.approval]


async def test_a_view_says_why_the_person_may_not_answer(here: World) -> None:
    ana = await here.add("ana@example.org")
    vic = await here.add("vic@example.org", "viewer")
    asked = await here.ask(to=[{"group": "finance"}], timeout=60.0)
    for scope, reason, text in (
        (ana, "not_eligible", "This question is put to anyone in finance, and you are not among them"),
        (vic, "role", "This needs the role approver or above, and yours is viewer"),
    ):
        why = (await here.store.read(approval_view, scope, asked.approval)).why_not
        assert why is not None
        assert (why.reason, why.text) == (reason, text)


async def test_a_passed_deadline_shows_before_anyone_recorded_it(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask(timeout=60.0)
    assert await here.store.read(badge, ana) == 1
    here.clock.advance(timedelta(seconds=60))
    for _ in range(2):
        view = await here.store.read(approval_view, ana, asked.approval)
        assert (view.state, view.closed_because) == ("expired", "its deadline passed")
        assert view.why_not is not None
        assert view.why_not.reason == "deadline"
        assert await here.store.read(badge, ana) == 0
        assert (await here.store.read(inbox, ana)).rows == []
        await here.store.write(ApprovalQuestions().close, asked.run_id, [0], "expired", here.clock.now())


async def test_a_decided_view_tells_who_when_and_what_without_secrets(here: World) -> None:
    ana = await here.add("ana@example.org", name="Ana")
    schema = {"type": "object", "properties": {"pin": {"type": "string", "writeOnly": True}, "ok": {"type": "boolean"}}}
    asked = await here.ask(schema=schema)
    receipt = await decide_through(
        here.store, ana, asked.approval, {"pin": "1234", "ok": True}, revision=1, via="page", registry=Registry()
    )
    view = await here.store.read(approval_view, ana, asked.approval)
    decision = view.decision
    assert decision is not None
    assert (decision.person, decision.name, decision.at, decision.via) == ("ana@example.org", "Ana", START, "page")
    assert decision.answer == {"pin": "[redacted]", "ok": True}
    assert decision.ledger_id == receipt.ledger_id
    assert view.why_not is not None
    assert view.why_not.reason == "already_decided"
    assert await here.store.read(badge, ana) == 0


async def test_other_tenants_see_nothing(here: World) -> None:
    asked = await here.ask()
    elsewhere = Scope(await here.store.write(ensure_tenant, "elsewhere"), Person("token:x", "x", "admin"))
    for use_case, name in ((approval_view, asked.approval), (approvals_of_run, asked.run)):
        with pytest.raises(NotFound):
            await here.store.read(use_case, elsewhere, name)
    assert (await here.store.read(inbox, elsewhere, "all")).rows == []
    assert await here.store.read(counts, elsewhere) == {"mine": 0, "groups": 0, "requested": 0, "all": 0, "stuck": 0}


async def test_every_role_may_look(here: World) -> None:
    asked = await here.ask()
    nobody = Scope(here.tenant_id, Person("x@example.org", "", "stranger"))
    for use_case, *args in (
        (approval_view, asked.approval),
        (approvals_of_run, asked.run),
        (inbox,),
        (badge,),
    ):
        with pytest.raises(Refused):
            await here.store.read(use_case, nobody, *args)  # type: ignore[arg-type]  # several signatures


async def test_many_questions_of_a_run_are_read_with_as_many_statements_as_one(
    t: TestEngine, registry: Registry
) -> None:
    plain = make_ask("plain", bool, registry=registry)

    @workflow("many", registry=registry)
    async def many(step: Step, questions: int) -> int:
        return sum(await asyncio.gather(*(step.ask(plain, title=f"Is {no} right?") for no in range(questions))))

    await t.open()
    for name in ("ana", "bob"):
        await t.add_person(f"{name}@example.org")
    tenant = t.scope().tenant_id
    ana, bob = [
        Scope(tenant, await t.store.read(find_person, tenant, email=f"{name}@example.org")) for name in ("ana", "bob")
    ]
    counted = []
    for questions in (1, 12):
        run = await t.start(many, questions)
        await t.settle()
        for item in await run.approvals():
            await t.store.write(claims.claim, bob, item.id, via="page")
            await t.store.write(thread.comment, bob, item.id, "It is.", via="page")

        def read(tx: Tx, of: str = run.id) -> tuple[list[str], list[ApprovalView]]:
            return statements_of(tx, approvals_of_run, ana, of)

        statements, views = await t.store.read(read)
        assert [view.title for view in views] == [f"Is {no} right?" for no in range(questions)]
        assert {view.claimed_by for view in views} == {"bob@example.org"}
        assert [[note.kind for note in view.notes] for view in views] == [["claim", "comment"]] * questions
        assert all(view.why_not is not None and view.why_not.reason == "claim" for view in views)
        counted.append(len(statements))
    assert counted[1] == counted[0]


async def test_of_a_long_thread_the_newest_entries_are_shown(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    for no in range(NOTES + 2):
        await here.store.write(thread.comment, ana, asked.approval, f"No. {no}", via="page")
    view = await here.store.read(approval_view, ana, asked.approval, whole_thread=False)
    assert ([note.text for note in view.notes], view.more_notes) == ([f"No. {no}" for no in range(2, NOTES + 2)], True)
    whole = await here.store.read(approval_view, ana, asked.approval)
    assert (len(whole.notes), whole.more_notes) == (NOTES + 2, False)
