"""The gate where several decide, where there are options, and where some may not: one transaction at a time."""

from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from pydantic import BaseModel, Field, SecretStr

from signoff.approvals import changes, claims
from signoff.approvals.decide import D, Receipt, decide_embedded_through
from signoff.approvals.eligibility import Question, who_may_answer
from signoff.approvals.questions import A, ApprovalQuestions
from signoff.approvals.standing import candidates, standing_of
from signoff.engine.outcomes import S
from signoff.people.canonical import content_hash
from signoff.people.chain import LEDGER
from signoff.people.groups import add_to_group, remove_from_group
from signoff.people.users import set_role
from signoff.store.tx import Tx
from signoff.workflow.choices import Option, option, options_to_json
from signoff.workflow.definitions import Ask, ask
from signoff.workflow.errors import Refused
from signoff.workflow.registry import Registry
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


async def test_what_rejects_without_options(here: World) -> None:
    ana = await here.add("ana@example.org")
    for schema, given, rejects in (
        ({"type": "boolean"}, False, True),
        ({"type": "boolean"}, True, False),
        (SHIP_SCHEMA, NO, True),
        (SHIP_SCHEMA, YES, False),
        ({}, {"approved": "no"}, False),
        ({}, 0, False),
        ({}, None, False),
    ):
        asked = await ask_by(here, None, schema=schema)
        await answer(here, ana, asked, given)
        assert (await stored(here, asked))[1][0].rejects is rejects


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


# -- options


class Publish(BaseModel):
    kind: Literal["publish"] = "publish"
    price: Decimal = Field(ge=0)


class Rework(BaseModel):
    kind: Literal["rework"] = "rework"
    what: str


REVIEW = [
    option("publish", form=Publish, style="primary", consequence="Everybody sees it."),
    option("rework", form=Rework, rejects=True, reason=False),
    option("drop", "Throw it away", value=Rework(what="all"), rejects=True),
]


def review(registry: Registry) -> Ask[Publish | Rework]:
    made: Ask[Publish | Rework] = ask("review", Publish | Rework, registry=registry)
    return made


async def ask_review(here: World, options: list[Option] = REVIEW, rule: Rule | None = None) -> tuple[Asked, Registry]:
    registry = Registry()
    question = review(registry)
    asked = await ask_by(
        here, rule, ask="review", schema=question.codec.json_schema(), options=options_to_json(options, question.codec)
    )
    return asked, registry


@pytest.mark.parametrize("known", [True, False])
async def test_a_decision_names_its_option_and_fills_in_its_form(here: World, known: bool) -> None:
    ana = await here.add("ana@example.org")
    asked, registry = await ask_review(here)
    types = registry if known else NO_TYPES
    for given, name in (({"price": "9.90"}, None), ({"price": "9.90"}, "sell"), ({"what": "x"}, "publish")):
        assert await refused(here, ana, asked, given, option=name, registry=types) == "form"
    with pytest.raises(Refused) as caught:
        await answer(here, ana, asked, {"price": "-1"}, option="publish", registry=types)
    assert caught.value.fields[0].loc == ("price",)
    receipt = await answer(here, ana, asked, {"price": "9.90"}, option="publish", registry=types)
    approval, decisions, record, step = await stored(here, asked)
    assert review(Registry()).codec.decode(step.value) == Publish(price=Decimal("9.90"))
    assert (decisions[0].option, decisions[0].rejects) == ("publish", False)
    assert record[0]["option"] == "publish"
    assert record[0]["answer"]["price"] == "9.90"
    assert record[0]["form"] == content_hash(json.loads(approval.options)[0]["schema"])
    assert receipt.content_hash == content_hash(record[0])


@pytest.mark.parametrize("known", [True, False])
async def test_an_option_that_stands_for_an_answer_takes_none(here: World, known: bool) -> None:
    ana = await here.add("ana@example.org")
    asked, registry = await ask_review(here)
    types = registry if known else NO_TYPES
    said = {"option": "drop", "comment": "no use", "registry": types}
    assert await refused(here, ana, asked, {"what": "some"}, **said) == "form"
    await answer(here, ana, asked, None, **said)
    _, decisions, record, step = await stored(here, asked)
    assert review(Registry()).codec.decode(step.value) == Rework(what="all")
    assert decisions[0].rejects
    assert record[0]["answer"] == {"kind": "rework", "what": "all"}


async def test_rejecting_asks_for_a_reason_unless_the_option_says_otherwise(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked, registry = await ask_review(here)
    for comment in (None, "", "  \n "):
        assert await refused(here, ana, asked, None, option="drop", comment=comment, registry=registry) == "form"
    with pytest.raises(Refused) as caught:
        await answer(here, ana, asked, None, option="drop", registry=registry)
    assert [field.loc for field in caught.value.fields] == [("comment",)]
    with pytest.raises(Refused) as caught:
        await answer(here, ana, asked, 7, option="drop", registry=registry)
    assert [field.loc for field in caught.value.fields] == [(), ("comment",)]
    await answer(here, ana, asked, {"what": "title"}, option="rework", registry=registry)
    asks_why, registry = await ask_review(here, [option("publish", form=Publish, reason=True)])
    given = {"price": 1}
    assert await refused(here, ana, asks_why, given, option="publish", registry=registry) == "form"
    await answer(here, ana, asks_why, given, option="publish", comment="I say so", registry=registry)


async def test_an_option_without_a_form_of_its_own_has_that_of_the_ask(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked, registry = await ask_review(here, [option("yes"), option("no", rejects=True)])
    await answer(here, ana, asked, {"kind": "rework", "what": "all"}, option="yes", registry=registry)
    assert not (await stored(here, asked))[1][0].rejects


async def test_a_question_without_options_takes_none(here: World) -> None:
    ana = await here.add("ana@example.org")
    assert await refused(here, ana, await here.ask(), option="publish") == "form"


async def test_embedded_code_chooses_with_values_of_the_type(here: World) -> None:
    for email in ("ana@example.org", "bob@example.org", "cyd@example.org"):
        await here.add(email)
    asked, registry = await ask_review(here, rule=n_of(3, role("approver"), veto=False))

    async def choose(given: Any, by: str, **more: Any) -> Receipt:
        return await decide_embedded_through(
            here.store, here.embedded, asked.run, "review", given, by=by, registry=registry, wait=0, **more
        )

    with pytest.raises(Refused) as caught:
        await choose(Rework(what="x"), "ana@example.org", option="publish")
    assert caught.value.reason == "form"
    await choose(Publish(price=Decimal(1)), "ana@example.org", option="publish")
    await choose({"what": "x"}, "bob@example.org", option="rework")
    await choose(Rework(what="all"), "cyd@example.org", option="drop", comment="why not")
    values = [item["answer"] for item in json.loads((await stored(here, asked))[3].value)]
    assert [review(Registry()).codec.decode_raw(value) for value in values] == [
        Publish(price=Decimal(1)),
        Rework(what="x"),
        Rework(what="all"),
    ]


@pytest.mark.parametrize(("form", "expected"), [(date, date(2026, 1, 31)), (str, "2026-01-31")])
@pytest.mark.parametrize("how", ["json", "typed"])
async def test_the_form_that_was_chosen_says_what_an_answer_means(
    here: World, form: Any, expected: Any, how: str
) -> None:
    ana = await here.add("ana@example.org")
    registry = Registry()
    when: Ask[Any] = ask("when", date | str, registry=registry)
    options = options_to_json([option("it", form=form)], when.codec)
    asked = await here.ask(ask="when", schema=when.codec.json_schema(), options=options)
    if how == "json":
        await answer(here, ana, asked, "2026-01-31", option="it", registry=registry)
    else:
        await decide_embedded_through(
            here.store, here.embedded, asked.run, "when", expected, by="ana@example.org", option="it", registry=registry
        )
    value = when.codec.decode((await stored(here, asked))[3].value)
    assert (type(value), value) == (type(expected), expected)


class Login(BaseModel):
    pin: SecretStr


async def test_secrets_of_several_reach_the_run_and_nobody_else(here: World) -> None:
    registry = Registry()
    login = ask("login", Login, registry=registry)
    people = [await here.add(f"p{i}@example.org") for i in range(2)]
    asked = await ask_by(here, n_of(2), ask="login", schema=login.codec.json_schema())
    for person in people:
        await answer(here, person, asked, {"pin": f"12{person.actor}"}, registry=registry)
    _, _, record, step = await stored(here, asked)
    assert [login.codec.decode_raw(item["answer"]) for item in json.loads(step.value)] == [
        Login(pin=SecretStr(f"12{person.actor}")) for person in people
    ]
    assert [row["answer"] for row in record] == [{"pin": "[redacted]"}] * 2


# -- what people changed


async def test_whose_place_was_given_away_decides_no_more_and_the_record_says_on_whose_behalf(here: World) -> None:
    ana, bob, cyd = [await here.add(f"{name}@example.org") for name in ("ana", "bob", "cyd")]
    asked = await here.ask(to=[user("ana@example.org").to_json()])
    await here.store.write(changes.delegate, ana, asked.approval, "bob@example.org", via="page", reason="away")
    assert await refused(here, ana, asked) == "not_eligible"
    assert await refused(here, cyd, asked) == "not_eligible"
    await answer(here, bob, asked)
    _, decisions, record, _ = await stored(here, asked)
    assert decisions[0].on_behalf_of == record[0]["on_behalf_of"] == "ana@example.org"


async def test_a_right_that_was_given_away_is_used_once(here: World) -> None:
    await here.add("ana@example.org", "approver", "finance")
    bob, cyd = [await here.add(f"{name}@example.org", "approver", "stand-ins") for name in ("bob", "cyd")]
    asked = await ask_by(here, n_of(2, FINANCE))
    given = {"kind": "reassign", "from": user("ana@example.org").to_json(), "to": [group("stand-ins").to_json()]}
    await change_approval(here, asked, changes=json.dumps([given]))
    await answer(here, bob, asked)
    assert await refused(here, cyd, asked) == "not_eligible"


async def test_whoever_decided_is_no_candidate_for_the_place_of_another(here: World) -> None:
    ana, bob, cyd = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob", "cyd")]
    asked = await ask_by(here, n_of(3, FINANCE))
    given = {"kind": "delegate", "from": user("ana@example.org").to_json(), "to": [user("bob@example.org").to_json()]}
    await change_approval(here, asked, changes=json.dumps([given]))

    def able(tx: Tx) -> list[str]:
        row = tx.conn.execute(sa.select(A).where(A.c.public_id == asked.approval)).one()
        return [person.email for person in candidates(tx, row)]

    assert await here.store.read(able) == ["bob@example.org", "cyd@example.org"]
    await answer(here, bob, asked)
    assert await here.store.read(able) == ["cyd@example.org"]
    assert await refused(here, bob, asked) == "voted"
    assert await refused(here, ana, asked) == "not_eligible"
    await answer(here, cyd, asked)
    assert await here.store.read(able) == []


async def test_a_right_counts_for_nothing_when_its_owner_lost_it(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    bob = await here.add("bob@example.org")
    asked = await here.ask(to=[FINANCE.to_json()], exclude=[group("interns").to_json()])
    await here.store.write(changes.delegate, ana, asked.approval, "bob@example.org", via="page", reason="away")
    await here.store.write(add_to_group, here.embedded, "interns", "ana@example.org")
    assert await refused(here, bob, asked) == "not_eligible"
    await here.store.write(remove_from_group, here.embedded, "interns", "ana@example.org")
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    assert await refused(here, bob, asked) == "not_eligible"
    await here.store.write(add_to_group, here.embedded, "finance", "ana@example.org")
    await here.store.write(set_role, here.embedded, "ana@example.org", "viewer")
    assert await refused(here, bob, asked) == "not_eligible"
    await here.store.write(set_role, here.embedded, "ana@example.org", "approver")
    await answer(here, bob, asked)


async def test_four_eyes_hold_for_those_who_stand_in(here: World) -> None:
    ana, rita = [await here.add(f"{name}@example.org", "approver") for name in ("ana", "rita")]
    asked = await here.ask(to=[user("ana@example.org").to_json()], not_requester=True)
    given = {"kind": "delegate", "from": user("ana@example.org").to_json(), "to": [user("rita@example.org").to_json()]}
    await change_approval(here, asked, changes=json.dumps([given]))
    assert await refused(here, rita, asked) == "own_request"
    assert await refused(here, ana, asked) == "not_eligible"


CHANGED = [
    ([], {"fin": {0}, "sec": {1}, "both": {0, 1}, "out": set()}),
    ([{"kind": "add", "to": [{"group": "out"}]}], {"fin": {0}, "sec": {1}, "out": {0, 1}}),
    ([{"kind": "escalate", "to": [{"user": "out@example.org"}]}], {"fin": {0}, "out": {0, 1}}),
    ([{"kind": "reassign", "to": [{"group": "out"}]}], {"fin": set(), "sec": set(), "both": set(), "out": {0, 1}}),
    (
        [{"kind": "reassign", "from": {"group": "finance"}, "to": [{"group": "out"}]}],
        {"fin": set(), "both": {1}, "out": {0}, "sec": {1}},
    ),
    (
        [{"kind": "reassign", "from": {"user": "fin@example.org"}, "to": [{"user": "out@example.org"}]}],
        {"fin": set(), "out": {0}, "both": {0, 1}},
    ),
    (  # handed on, and back
        [
            {"kind": "delegate", "from": {"user": "fin@example.org"}, "to": [{"user": "sec@example.org"}]},
            {"kind": "delegate", "from": {"user": "sec@example.org"}, "to": [{"user": "out@example.org"}]},
        ],
        {"fin": set(), "sec": set(), "out": {0, 1}},
    ),
    (
        [
            {"kind": "delegate", "from": {"user": "fin@example.org"}, "to": [{"user": "out@example.org"}]},
            {"kind": "delegate", "from": {"user": "out@example.org"}, "to": [{"user": "fin@example.org"}]},
        ],
        {"fin": {0}, "out": set()},
    ),
    (
        [{"kind": "reassign", "to": [{"group": "out"}]}, {"kind": "add", "to": [{"group": "finance"}]}],
        {"fin": {0, 1}, "sec": set(), "out": {0, 1}},
    ),
    ([{"kind": "of the future", "to": [{"group": "out"}]}], {"fin": {0}, "out": set()}),
]


@pytest.mark.parametrize(("changed", "expected"), CHANGED)
@pytest.mark.parametrize("members", ["live", "as_asked"])
async def test_who_decides_for_what_after_changes(
    here: World, changed: list[dict[str, Any]], expected: dict[str, set[int]], members: str
) -> None:
    people = {
        "fin": await here.add("fin@example.org", "approver", "finance"),
        "sec": await here.add("sec@example.org", "approver", "security"),
        "both": await here.add("both@example.org", "approver", "finance", "security"),
        "out": await here.add("out@example.org", "approver", "out"),
    }
    asked = await ask_by(here, TWO_AND_ONE, members=members)
    await change_approval(here, asked, changes=json.dumps(changed))

    def read(tx: Tx) -> tuple[dict[str, set[int]], set[str]]:
        row = tx.conn.execute(sa.select(A).where(A.c.public_id == asked.approval)).one()
        question = Question.of(row)
        known = {scope.actor: scope.person for scope in people.values()}
        found = {
            name: {part for one in question.authorities(scope.person, known.get) for part in one.parts}
            for name, scope in people.items()
            if scope.person is not None
        }
        return found, {person.email for person in candidates(tx, row)}

    found, able = await here.store.read(read)
    assert {name: found[name] for name in expected} == expected
    assert able == {f"{name}@example.org" for name, parts in found.items() if parts}


@pytest.mark.parametrize(
    ("question", "changed", "words"),
    [
        ({}, [], "any approver"),
        ({"to": [FINANCE.to_json()]}, [], "anyone in finance"),
        ({"to": [FINANCE.to_json()], "rule": n_of(2).to_json()}, [], "anyone in finance"),
        ({"rule": TWO_AND_ONE.to_json()}, [], "anyone in finance or anyone in security"),
        ({"rule": all_of(any_of(), FINANCE).to_json()}, [], "any approver"),
        (
            {"to": [FINANCE.to_json()]},
            [{"kind": "add", "to": [{"user": "zoe@example.org"}]}],
            "anyone in finance or zoe@example.org",
        ),
        ({"to": [FINANCE.to_json()]}, [{"kind": "reassign", "to": [{"group": "out"}]}], "anyone in out"),
        ({}, [{"kind": "reassign", "to": [{"group": "out"}]}], "anyone in out"),
        ({}, [{"kind": "add", "to": [{"group": "out"}]}], "any approver"),
        (
            {"to": [user("ana@example.org").to_json()]},
            [{"kind": "delegate", "from": {"user": "ana@example.org"}, "to": [{"user": "zoe@example.org"}]}],
            "zoe@example.org",
        ),
    ],
)
async def test_whom_it_is_put_to_in_words(
    here: World, question: dict[str, Any], changed: list[dict[str, Any]], words: str
) -> None:
    asked = await here.ask(**question)
    await change_approval(here, asked, changes=json.dumps(changed))

    def read(tx: Tx) -> tuple[str, str]:
        standing = standing_of(tx, tx.conn.execute(sa.select(A).where(A.c.public_id == asked.approval)).one())
        return who_may_answer(standing.question.asked), standing.progress.waits_for

    asked_words, waits_for = await here.store.read(read)
    assert asked_words == words
    if "rule" not in question or question["rule"] == n_of(2).to_json():
        assert waits_for == words


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


async def change_approval(here: World, asked: Asked, **values: Any) -> None:
    def change(tx: Tx) -> None:
        tx.conn.execute(sa.update(A).where(A.c.public_id == asked.approval).values(**values))

    await here.store.write(change)
