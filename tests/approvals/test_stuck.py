"""Questions that nobody can answer are marked when they are asked, and whenever people or the question change."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals import changes, claims, thread
from signoff.approvals.clerk import Clerk
from signoff.approvals.decide import decide_through
from signoff.approvals.eligibility import Question
from signoff.approvals.questions import A
from signoff.people.groups import add_to_group, remove_from_group
from signoff.people.users import set_active, set_role
from signoff.store.tx import Tx
from signoff.workflow.registry import Registry
from tests.people.world import Asked, World, ask_in_new_run, world

FINANCE = [{"group": "finance"}]
TWO = {"n_of": 2, "of": FINANCE}


async def stuck(here: World, asked: Asked) -> str | None:
    query = sa.select(A.c.stuck).where(A.c.public_id == asked.approval)
    return await here.store.read(lambda tx: tx.conn.execute(query).scalar_one())


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({}, None),
        ({"to": FINANCE}, None),
        ({"to": [{"group": "legal"}]}, "nobody"),
        ({"to": [{"user": "Ana@example.org"}]}, None),
        ({"to": [{"user": "vera@example.org"}]}, "nobody"),  # a viewer
        ({"to": [{"user": "gone@example.org"}]}, "nobody"),
        ({"to": [{"role": "operator"}]}, "nobody"),
        ({"to": [{"role": "operator"}, {"group": "finance"}]}, None),
        ({"to": FINANCE, "exclude": [{"user": "ana@example.org"}]}, None),
        ({"to": FINANCE, "exclude": [{"role": "approver"}]}, "nobody"),
        ({"to": FINANCE, "exclude": FINANCE, "rule": TWO}, "nobody"),
        ({"to": [{"user": "rita@example.org"}]}, None),
        ({"to": [{"user": "rita@example.org"}], "not_requester": True}, "only_requester"),
        ({"to": FINANCE, "rule": {"any_of": [{"user": "rita@example.org"}]}}, "nobody"),
        ({"rule": TWO}, None),
        ({"rule": {"n_of": 3, "of": FINANCE}}, "too_few"),
        ({"to": FINANCE, "members": "as_asked"}, None),
        ({"to": [{"group": "legal"}], "members": "as_asked"}, "nobody"),
    ],
)
async def test_when_it_is_asked(here: World, question: dict[str, Any], expected: str | None) -> None:
    await here.add("ana@example.org", "approver", "finance")
    await here.add("bob@example.org", "approver", "finance")
    await here.add("rita@example.org")
    await here.add("vera@example.org", "viewer")
    await here.add("gone@example.org", "operator", "finance")
    await here.store.write(set_active, here.embedded, "gone@example.org", False)
    assert await stuck(here, await here.ask(**question)) == expected


async def test_a_group_that_loses_its_last_member_and_gets_another(here: World) -> None:
    await here.add("ana@example.org", "approver", "finance")
    await here.add("bob@example.org")
    asked, other = await here.ask(to=FINANCE), await here.ask()
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    assert (await stuck(here, asked), await stuck(here, other)) == ("nobody", None)
    await here.store.write(add_to_group, here.embedded, "finance", "bob@example.org")
    assert await stuck(here, asked) is None
    await here.store.write(set_role, here.embedded, "bob@example.org", "viewer")
    assert await stuck(here, asked) == "nobody"
    await here.store.write(set_role, here.embedded, "bob@example.org", "approver")
    await here.store.write(set_active, here.embedded, "bob@example.org", False)
    assert await stuck(here, asked) == "nobody"
    await here.add("cleo@example.org", "approver", "finance")
    assert await stuck(here, asked) is None


async def test_a_claim_ends_in_the_transaction_that_takes_the_right(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    asked = await here.ask(to=FINANCE)
    await here.store.write(claims.claim, ana, asked.approval, via="page")
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    row = await here.store.read(lambda tx: tx.conn.execute(sa.select(A)).one())
    assert (row.claimed_by, row.claimed_at, row.stuck) == (None, None, "nobody")
    last = (await here.store.read(thread.notes, here.embedded, asked.approval))[-1]
    assert (last.kind, last.actor, last.data) == ("release", None, {"of": "ana@example.org"})


async def test_who_has_voted_is_not_counted_on_again(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    await here.add("bob@example.org", "approver", "finance")
    root = await here.add("root@example.org", "operator")
    asked = await here.ask(rule=TWO)
    assert await stuck(here, asked) is None
    answer = {"approved": True}
    given: dict[str, Any] = {"revision": 1, "via": "page", "registry": Registry()}
    await decide_through(here.store, ana, asked.approval, answer, **given)
    assert await stuck(here, asked) is None
    await here.store.write(remove_from_group, here.embedded, "finance", "bob@example.org")
    assert await stuck(here, asked) == "nobody"
    await here.store.write(changes.add, root, asked.approval, ["root@example.org"], via="page", reason="bob left")
    assert await stuck(here, asked) is None
    await decide_through(here.store, root, asked.approval, answer, **given)


async def test_a_vote_that_leaves_too_few(here: World) -> None:
    """Carl could fill either place; once he has filled one, nobody is left for the other."""
    carl = await here.add("carl@example.org", "approver", "finance", "legal")
    rule = {"all_of": [{"any_of": FINANCE}, {"any_of": [{"group": "legal"}]}]}
    asked = await here.ask(rule=rule)
    assert await stuck(here, asked) == "too_few"
    await decide_through(
        here.store, carl, asked.approval, {"approved": True}, revision=1, via="page", registry=Registry()
    )
    assert await stuck(here, asked) == "nobody"
    await here.add("lea@example.org", "approver", "legal")
    assert await stuck(here, asked) is None


async def test_many_questions_of_many_people_are_judged_together(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        await here.add(f"m{number}@example.org", "approver", "finance")
    asked = [await here.ask(to=FINANCE, not_requester=True, rule=rule) for rule in [None] * 20 + [TWO] * 10]
    for number, one in enumerate(asked):
        change = sa.update(A).where(A.c.public_id == one.approval).values(requester=f"m{number}@example.org")
        await here.store.write(lambda tx, change=change: tx.conn.execute(change))
    looks = 0
    may = Question.may

    def counted(question: Question, *args: Any) -> bool:
        nonlocal looks
        looks += 1
        return may(question, *args)

    monkeypatch.setattr(Question, "may", counted)
    await here.store.write(remove_from_group, here.embedded, "finance", "m29@example.org")
    assert [await stuck(here, one) for one in asked] == [None] * 30
    assert looks < 30 * 6  # not each person for each question


async def test_a_question_asked_while_the_last_who_could_answer_leaves_is_marked_soon(postgres_url: str) -> None:
    """Neither transaction sees the other; the clerk looks once more."""
    async with world(postgres_url) as here:
        await here.add("ana@example.org", "approver", "legal")
        clerk = Clerk(here.store)
        await clerk.start()
        asking, go_on = threading.Event(), threading.Event()

        def ask(tx: Tx) -> Asked:
            asked = ask_in_new_run(tx, here.tenant_id, {"to": [{"group": "legal"}]})
            asking.set()
            go_on.wait(20)
            return asked

        question = asyncio.create_task(here.store.write(ask))
        await asyncio.to_thread(asking.wait, 20)
        await here.store.write(remove_from_group, here.embedded, "legal", "ana@example.org")
        go_on.set()
        asked = await question
        async with asyncio.timeout(20):
            while await stuck(here, asked) != "nobody":
                await asyncio.sleep(0.05)
        await clerk.stop()
