"""The gate where several decide, and where some may not: one transaction at a time."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals import claims
from signoff.approvals.decide import D, Receipt, decide_embedded_through
from signoff.approvals.questions import A, ApprovalQuestions
from signoff.engine.outcomes import S
from signoff.people.canonical import content_hash
from signoff.people.chain import LEDGER
from signoff.people.groups import add_to_group, remove_from_group
from signoff.people.users import set_role
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused
from signoff.workflow.rules import Rule, all_of, any_of, n_of
from signoff.workflow.selectors import group, role, user
from tests.approvals.test_decide import NO_TYPES, YES, answer, change_run, refused
from tests.people.world import SHIP_SCHEMA, Asked, World, token_scope

NO = {"approved": False, "note": "too dear"}
FINANCE, SECURITY = group("finance"), group("security")
TWO_AND_ONE = all_of(n_of(2, FINANCE), any_of(SECURITY))


async def ask_by(here: World, rule: Rule | None, **question: Any) -> Asked:
    return await here.ask(**({} if rule is None else {"rule": rule.to_json()}), **question)


async def stored(here: World, asked: Asked) -> Any:
    """The approval's row, its decisions, its ledger rows, and the step."""

    def read(tx: Tx) -> Any:
        approval = tx.conn.execute(sa.select(A).where(A.c.public_id == asked.approval)).one()
        decisions = tx.conn.execute(sa.select(D).where(D.c.approval_id == approval.id).order_by(D.c.id)).all()
        record = tx.conn.execute(sa.select(LEDGER).where(LEDGER.c.approval == asked.approval).order_by(LEDGER.c.id))
        step = tx.conn.execute(sa.select(S).where(S.c.run_id == asked.run_id)).one()
        return approval, decisions, [json.loads(row.content) for row in record], step

    return await here.store.read(read)


async def change_approval(here: World, asked: Asked, **values: Any) -> None:
    def change(tx: Tx) -> None:
        tx.conn.execute(sa.update(A).where(A.c.public_id == asked.approval).values(**values))

    await here.store.write(change)


# -- several deciders


async def test_two_of_a_group_decide_and_the_run_gets_both_decisions(here: World) -> None:
    ana, bob = await here.add("ana@example.org", "approver", "finance", name="Ana"), None
    bob = await here.add("bob@example.org", "approver", "finance")
    asked = await ask_by(here, n_of(2, FINANCE))
    first = await answer(here, ana, asked, comment="fine")
    assert (first.complete, first.progress) == (False, "1 of 2")
    assert first.effect == "Recorded, 1 of 2. It waits for anyone in finance"
    approval, _, _, step = await stored(here, asked)
    assert (approval.state, approval.answer, step.outcome_no) == ("open", None, None)
    here.clock.advance(timedelta(minutes=1))
    second = await answer(here, bob, asked, via="api")
    assert (second.complete, second.progress, second.effect) == (True, "2 of 2", "The run goes on")
    approval, decisions, record, step = await stored(here, asked)
    assert (approval.state, approval.decided_by) == ("decided", "bob@example.org")
    expected = [
        ("ana@example.org", "Ana", first.at, "fine"),
        ("bob@example.org", "bob@example.org", second.at, None),
    ]
    assert json.loads(step.value) == json.loads(approval.answer)
    assert json.loads(step.value) == [
        {
            "person": person,
            "name": name,
            "at": at.isoformat(),
            "answer": YES,
            "option": None,
            "comment": comment,
            "on_behalf_of": None,
            "rejects": False,
        }
        for person, name, at, comment in expected
    ]
    assert [row.person for row in decisions] == ["ana@example.org", "bob@example.org"]
    assert [row.ledger_id for row in decisions] == [first.ledger_id, second.ledger_id]
    assert [row["shown"] for row in record] == [approval.content_hash] * 2


async def test_nobody_decides_twice(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await ask_by(here, n_of(2, FINANCE))
    await answer(here, ana, asked)
    assert await refused(here, ana, asked) == "voted"
    with pytest.raises(Refused, match=r"^You decided at 2026-03-02 09:00 UTC; 1 of 2 have decided$") as caught:
        await answer(here, ana, asked)
    assert caught.value.to_problem()["status"] == 409


async def test_whoever_s_places_are_filled_is_not_asked_any_more(here: World) -> None:
    people = [await here.add(f"f{i}@example.org", "approver", "finance") for i in range(3)]
    ciso = await here.add("ciso@example.org", "approver", "security")
    asked = await ask_by(here, TWO_AND_ONE)
    for person in people[:2]:
        await answer(here, person, asked)
    assert await refused(here, people[2], asked) == "not_eligible"
    with pytest.raises(Refused, match=r"^This question waits for anyone in security now$"):
        await answer(here, people[2], asked)
    assert (await answer(here, ciso, asked)).progress == "3 of 3"


async def test_stages_come_one_after_the_other(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    ciso = await here.add("ciso@example.org", "approver", "security")
    asked = await ask_by(here, all_of(n_of(2, FINANCE), any_of(SECURITY), staged=True))
    assert await refused(here, ciso, asked) == "not_eligible"
    await answer(here, ana, asked)
    assert await refused(here, ciso, asked) == "not_eligible"
    receipt = await answer(here, bob, asked)
    assert receipt.effect == "Recorded, 2 of 3. It waits for anyone in security"
    assert (await answer(here, ciso, asked)).complete


async def test_a_person_of_two_groups_fills_one_place_and_makes_way(here: World) -> None:
    both = await here.add("both@example.org", "approver", "finance", "security")
    ana = await here.add("ana@example.org", "approver", "finance")
    sam = await here.add("sam@example.org", "approver", "security")
    for other in (ana, sam):
        asked = await ask_by(here, all_of(any_of(FINANCE), any_of(SECURITY)))
        assert not (await answer(here, both, asked)).complete
        assert await refused(here, both, asked) == "voted"
        assert (await answer(here, other, asked)).complete


async def test_a_decision_counts_for_what_the_person_was_when_they_made_it(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    bob = await here.add("bob@example.org", "approver", "finance")
    asked = await ask_by(here, n_of(2, FINANCE))
    await answer(here, ana, asked)
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    assert (await answer(here, bob, asked)).complete


async def test_to_restricts_besides_the_rule(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance", "berlin")
    bob = await here.add("bob@example.org", "approver", "finance")
    asked = await ask_by(here, any_of(FINANCE), to=[group("berlin").to_json()])
    assert await refused(here, bob, asked) == "not_eligible"
    assert json.loads((await stored(here, asked))[0].to) == [{"group": "berlin"}]
    assert (await answer(here, ana, asked)).complete
    parts_of_to = await ask_by(here, n_of(2), to=[FINANCE.to_json()])
    assert not (await answer(here, ana, parts_of_to)).complete
    assert (await answer(here, bob, parts_of_to)).complete


async def test_one_veto_ends_it_with_what_is_there(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    asked = await ask_by(here, n_of(3, FINANCE))
    await answer(here, ana, asked)
    vetoed = await answer(here, bob, asked, NO)
    assert (vetoed.complete, vetoed.progress) == (True, "2 of 3")
    _, decisions, record, step = await stored(here, asked)
    assert [(item["person"], item["rejects"]) for item in json.loads(step.value)] == [
        ("ana@example.org", False),
        ("bob@example.org", True),
    ]
    assert [row.rejects for row in decisions] == [row["rejects"] for row in record] == [False, True]


async def test_without_veto_all_are_collected(here: World) -> None:
    people = [await here.add(f"f{i}@example.org", "approver", "finance") for i in range(3)]
    asked = await ask_by(here, n_of(3, FINANCE, veto=False))
    told = [await answer(here, person, asked, given) for person, given in zip(people, (NO, YES, NO), strict=True)]
    assert [receipt.complete for receipt in told] == [False, False, True]
    assert [item["rejects"] for item in json.loads((await stored(here, asked))[3].value)] == [True, False, True]


async def test_of_many_at_once_exactly_as_many_as_needed_are_told_yes(here: World) -> None:
    people = [await here.add(f"f{i}@example.org", "approver", "finance") for i in range(8)]
    asked = await ask_by(here, n_of(3, FINANCE))
    told = await asyncio.gather(*(answer(here, person, asked) for person in people), return_exceptions=True)
    won = [receipt for receipt in told if isinstance(receipt, Receipt)]
    lost = [error.reason for error in told if isinstance(error, Refused)]
    assert sorted(receipt.progress for receipt in won) == ["1 of 3", "2 of 3", "3 of 3"]
    assert lost == ["already_decided"] * 5
    _, decisions, record, step = await stored(here, asked)
    assert {row.person for row in decisions} == {receipt.person for receipt in won}
    assert len(json.loads(step.value)) == len(record) == 3


async def test_two_at_once_for_the_last_place_of_a_part_are_one(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    asked = await ask_by(here, all_of(any_of(FINANCE), any_of(SECURITY)))
    told = await asyncio.gather(answer(here, ana, asked), answer(here, bob, asked), return_exceptions=True)
    (won,) = [receipt for receipt in told if isinstance(receipt, Receipt)]
    assert [error.reason for error in told if isinstance(error, Refused)] == ["not_eligible"]
    assert [row.person for row in (await stored(here, asked))[1]] == [won.person]


async def test_the_same_person_at_once_from_two_windows_decides_once(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await ask_by(here, n_of(2, FINANCE))
    told = await asyncio.gather(*(answer(here, ana, asked) for _ in range(4)), return_exceptions=True)
    assert [error.reason for error in told if isinstance(error, Refused)] == ["voted"] * 3
    assert len((await stored(here, asked))[1]) == 1


async def test_what_nobody_waits_for_takes_no_partial_decision(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await ask_by(here, n_of(2, FINANCE))

    def cancel(tx: Tx) -> None:
        tx.conn.execute(sa.update(S).where(S.c.run_id == asked.run_id).values(outcome_no=1, outcome_kind="canceled"))

    await here.store.write(cancel)
    assert await refused(here, ana, asked) == "closed"


async def test_the_deadline_ends_what_is_partly_decided(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    asked = await ask_by(here, n_of(2, FINANCE), timeout=60.0)
    await answer(here, ana, asked)
    here.clock.advance(timedelta(seconds=60))
    assert await refused(here, bob, asked) == "deadline"


async def test_decisions_that_lapsed_do_not_count(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    asked = await ask_by(here, n_of(2, FINANCE))
    await answer(here, ana, asked)

    def lapse(tx: Tx) -> None:
        tx.conn.execute(sa.update(D).values(lapsed_at=tx.now))

    await here.store.write(lapse)
    assert (await answer(here, bob, asked)).progress == "1 of 2"
    assert (await answer(here, ana, asked)).complete
    people = [item["person"] for item in json.loads((await stored(here, asked))[3].value)]
    assert people == ["bob@example.org", "ana@example.org"]


# -- who may not


async def test_those_who_are_excluded_and_who_asked_for_it_do_not_decide(here: World) -> None:
    intern = await here.add("intern@example.org", "approver", "finance", "interns")
    rita = await here.add("rita@example.org", "approver", "finance")
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await here.ask(
        to=[FINANCE.to_json()], exclude=[group("interns").to_json(), user("boss@example.org").to_json()],
        not_requester=True,
    )  # fmt: skip
    assert await refused(here, intern, asked) == "excluded"
    assert await refused(here, rita, asked) == "own_request"
    await here.store.write(add_to_group, here.embedded, "interns", "rita@example.org")
    assert await refused(here, rita, asked) == "excluded"
    await answer(here, ana, asked)
    anybody = await here.ask(to=[FINANCE.to_json()])
    await answer(here, rita, anybody)


async def test_a_token_that_asked_for_the_run_does_not_decide_it(here: World) -> None:
    token = token_scope(here.tenant_id)
    asked = await here.ask(not_requester=True)
    await change_approval(here, asked, requester="token:ci")
    assert await refused(here, token, asked, via="api") == "own_request"


async def test_groups_and_roles_as_they_were_when_it_was_asked(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    olga = await here.add("olga@example.org", "operator")
    bob = await here.add("bob@example.org")
    asked = await ask_by(here, n_of(3, FINANCE, role("operator"), user("zoe@example.org")), members="as_asked")
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    await here.store.write(add_to_group, here.embedded, "finance", "bob@example.org")
    await here.store.write(set_role, here.embedded, "olga@example.org", "approver")
    assert await refused(here, bob, asked) == "not_eligible"
    await answer(here, ana, asked)
    await here.store.write(set_role, here.embedded, "olga@example.org", "viewer")
    assert await refused(here, olga, asked) == "role"
    await here.store.write(set_role, here.embedded, "olga@example.org", "approver")
    await answer(here, olga, asked)
    # A person who is named needs no membership of anything.
    assert (await answer(here, await here.add("zoe@example.org"), asked)).complete


async def test_every_approver_as_they_were_when_it_was_asked(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask(members="as_asked")
    late = await here.add("late@example.org", "admin")
    assert await refused(here, late, asked) == "not_eligible"
    assert await refused(here, token_scope(here.tenant_id), asked, via="api") == "not_eligible"
    await answer(here, ana, asked)


async def test_embedded_code_speaks_for_strangers_that_the_rule_names(here: World) -> None:
    asked = await ask_by(here, all_of(any_of(user("guest@example.org")), any_of(FINANCE)))

    async def embedded(by: str) -> Receipt:
        return await decide_embedded_through(
            here.store, here.embedded, asked.run, "order/ship", YES, by=by, registry=NO_TYPES, wait=0
        )

    with pytest.raises(Refused) as caught:
        await embedded("stranger@example.org")
    assert caught.value.reason == "not_member"
    assert (await embedded("guest@example.org")).progress == "1 of 2"


async def test_the_first_rule_that_forbids_it_is_the_reason(here: World) -> None:
    """Everything is wrong at once; it is put right one by one, in the order in which the gate asks."""
    await here.add("eve@example.org", "viewer")
    await here.add("bob@example.org", "approver", "finance")
    asked = await ask_by(
        here, n_of(2, FINANCE), timeout=60.0, claim="required", not_requester=True,
        exclude=[group("interns").to_json()], schema=SHIP_SCHEMA,
    )  # fmt: skip
    await change_approval(here, asked, requester="eve@example.org", claimed_by="bob@example.org", revision=2)
    await here.store.write(add_to_group, here.embedded, "interns", "eve@example.org")
    await change_run(here.store, asked, state="final", result_kind="canceled")
    here.clock.advance(timedelta(seconds=60))

    async def reason(given: Any = "no answer", revision: int = 1) -> str:
        return await refused(here, await here.scope("eve@example.org"), asked, given, revision=revision)

    assert await reason() == "role"
    await here.store.write(set_role, here.embedded, "eve@example.org", "approver")
    assert await reason() == "not_eligible"
    await here.store.write(add_to_group, here.embedded, "finance", "eve@example.org")
    assert await reason() == "excluded"
    await here.store.write(remove_from_group, here.embedded, "interns", "eve@example.org")
    assert await reason() == "own_request"
    await change_approval(here, asked, requester="rita@example.org")
    assert await reason() == "closed"
    await change_run(here.store, asked, state="active", result_kind=None)
    assert await reason() == "deadline"
    await change_approval(here, asked, timeout_at=None)
    await change_run(here.store, asked, wake_at=None)
    assert await reason() == "revision"
    await change_approval(here, asked, state="decided", decided_by="bob@example.org", closed_at=here.clock.now())
    assert await reason(revision=2) == "already_decided"
    await change_approval(here, asked, state="open")
    assert await reason(revision=2) == "claim"
    await here.store.write(claims.release, await here.scope("bob@example.org"), asked.approval, via="page")
    assert await reason(revision=2) == "claim"
    await here.store.write(claims.claim, await here.scope("eve@example.org"), asked.approval, via="page")
    assert await reason(revision=2) == "form"
    await answer(here, await here.scope("eve@example.org"), asked, revision=2)
    assert await reason(revision=2) == "voted"


# -- claims


async def test_what_somebody_claimed_is_theirs_until_they_decided(here: World) -> None:
    ana, bob = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob")]
    asked = await ask_by(here, n_of(2, FINANCE))
    await here.store.write(claims.claim, ana, asked.approval, via="page")
    assert await refused(here, bob, asked) == "claim"
    await answer(here, ana, asked)
    assert (await stored(here, asked))[0].claimed_by is None
    assert (await answer(here, bob, asked)).complete


async def test_a_claim_of_somebody_who_cannot_decide_any_more_keeps_nobody_off(here: World) -> None:
    bob = await here.add("bob@example.org", "approver", "finance")
    asked = await here.ask(to=[FINANCE.to_json()])
    await change_approval(here, asked, claimed_by="gone@example.org", claimed_at=here.clock.now())
    await answer(here, bob, asked)


async def test_what_must_be_claimed_is_decided_by_whoever_did(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask(claim="required")
    assert await refused(here, ana, asked) == "claim"
    await here.store.write(claims.claim, ana, asked.approval, via="page")
    await answer(here, ana, asked)


# -- what is bound, and what time does


async def test_the_hash_holds_options_and_rule_and_is_the_former_one_without(here: World) -> None:
    plain = (await stored(here, await here.ask()))[0].content_hash
    shown = {"ask": "order/ship", "title": "Ship order 7?", "body": None, "facts": {}, "schema": SHIP_SCHEMA}
    assert plain == content_hash(shown)
    hashes = {plain}
    for question in (
        {"rule": n_of(2, FINANCE).to_json()},
        {"rule": n_of(3, FINANCE).to_json()},
        {"options": [{"name": "yes", "label": "Yes", "rejects": False, "reason": False}]},
        {"options": [{"name": "yes", "label": "Yes!", "rejects": False, "reason": False}]},
    ):
        hashes.add((await stored(here, await here.ask(**question)))[0].content_hash)
    assert len(hashes) == 5
    same = (await stored(here, await here.ask(to=[FINANCE.to_json()], due=60.0)))[0].content_hash
    assert same == plain


async def test_what_time_does_is_stored_with_the_question(here: World) -> None:
    now = here.clock.now()
    asked = await here.ask(
        due=100.0, timeout=400.0, remind=[50.0, 90.0], escalate_to=[FINANCE.to_json()], escalate_after=100.0,
        extend=3600.0, default='{"approved":false}',
    )  # fmt: skip
    row = (await stored(here, asked))[0]
    assert (json.loads(row.reminders), row.reminded, row.extend) == ([50.0, 90.0], 0, 3600.0)
    assert json.loads(row.escalate_to) == [{"group": "finance"}]
    assert (row.escalate_at, row.next_at) == (now + timedelta(seconds=100), now + timedelta(seconds=50))
    assert (row.on_timeout, json.loads(row.fallback)) == ("default", {"approved": False})
    secret = (await stored(here, await here.ask(timeout=1.0, default='"x"', sensitive=True)))[0]
    assert (secret.on_timeout, secret.fallback) == ("default", None)
    plain = (await stored(here, await here.ask(on_timeout="raise")))[0]
    assert (plain.on_timeout, plain.next_at, plain.reminders, plain.frozen) == (None, None, None, None)
    await here.store.write(ApprovalQuestions().close, asked.run_id, [0], "canceled", now)
