"""The gate after people changed who may answer: places that were given away, taken over or added."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals import changes
from signoff.approvals.eligibility import Question, who_may_answer
from signoff.approvals.questions import A
from signoff.approvals.standing import candidates, standing_of
from signoff.people.groups import add_to_group, remove_from_group
from signoff.people.users import set_role
from signoff.store.tx import Tx
from signoff.workflow.rules import all_of, any_of, n_of
from signoff.workflow.selectors import group, user
from tests.approvals.test_decide import answer, refused
from tests.approvals.test_gate import FINANCE, TWO_AND_ONE, ask_by, change_approval, stored
from tests.people.world import World


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
