"""Who may answer is changed by people, with a reason, and the change holds at the gate."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals import changes, claims, thread
from signoff.approvals.decide import decide, decide_through
from signoff.approvals.doors import through
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.people.audit import A as AUDIT
from signoff.people.users import set_active
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from signoff.workflow.registry import Registry
from tests.people.world import Asked, World

FINANCE = [{"group": "finance"}]
YES = {"approved": True}


class House:
    """Ana and Bob of finance, Carl and Lea of nothing, Omar the operator, Vera who only looks."""

    def __init__(self, here: World, people: dict[str, Scope]) -> None:
        self.here, self.people = here, people

    async def ask(self, **question: Any) -> Asked:
        return await self.here.ask(**{"to": FINANCE, **question})

    async def change(self, who: str, kind: str, asked: Asked, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("reason", "because")
        use_case = getattr(changes, kind)
        await through(
            self.here.store, f"approval.{kind}", use_case, self.people[who], asked.approval, *args, via="api", **kwargs
        )

    async def decide(self, who: str, asked: Asked) -> None:
        scope = self.people[who]
        await decide_through(self.here.store, scope, asked.approval, YES, revision=1, via="api", registry=Registry())

    async def may(self, asked: Asked) -> set[str]:
        """Who could answer: each tries, and what they did is undone."""
        found = set()
        for name, scope in self.people.items():
            try:
                await self.here.store.write(_try, scope, asked.approval)
            except _Undone:
                found.add(name)
            except Refused:
                continue
        return found

    async def row(self, asked: Asked) -> Any:
        query = sa.select(A).where(A.c.public_id == asked.approval)
        return await self.here.store.read(lambda tx: tx.conn.execute(query).one())

    async def notes(self, asked: Asked) -> list[thread.NoteView]:
        return await self.here.store.read(thread.notes, self.here.embedded, asked.approval)


class _Undone(Exception):
    pass


def _try(tx: Tx, scope: Scope, approval: str) -> None:
    decide(tx, scope, approval, YES, revision=1, via="api")
    raise _Undone


def mail(name: str) -> str:
    return f"{name}@example.org"


@pytest.fixture
async def house(here: World) -> House:
    people = {name: await here.add(mail(name), "approver", "finance") for name in ("ana", "bob")}
    people |= {name: await here.add(mail(name)) for name in ("carl", "lea")}
    people["omar"] = await here.add(mail("omar"), "operator")
    people["vera"] = await here.add(mail("vera"), "viewer")
    return House(here, people)


async def test_an_operator_puts_a_question_to_others(house: House) -> None:
    asked = await house.ask()
    assert await house.may(asked) == {"ana", "bob"}
    await house.change("omar", "reassign", asked, [mail("carl"), {"user": mail("lea")}, {"user": mail("carl")}])
    assert await house.may(asked) == {"carl", "lea"}
    (note,) = await house.notes(asked)
    assert (note.kind, note.actor, note.text) == ("reassign", mail("omar"), "because")
    assert note.data == {"to": [{"user": mail("carl")}, {"user": mail("lea")}]}
    with pytest.raises(Refused) as caught:
        await house.decide("ana", asked)
    assert caught.value.reason == "not_eligible"
    await house.decide("lea", asked)


async def test_a_persons_place_goes_to_another(house: House) -> None:
    asked = await house.ask(rule={"n_of": 2, "of": FINANCE})
    await house.change("omar", "reassign", asked, [mail("carl")], from_=mail("ana"))
    assert await house.may(asked) == {"bob", "carl"}
    await house.decide("carl", asked)
    await house.decide("bob", asked)
    assert (await house.row(asked)).state == "decided"


async def test_who_may_decide_hands_on_their_own_place_only(house: House) -> None:
    asked = await house.ask()
    for bad in ({"from_": mail("bob")}, {"from_": {"group": "finance"}}):
        with pytest.raises(Refused) as caught:
            await house.change("ana", "reassign", asked, [mail("carl")], **bad)
        assert caught.value.reason == "role"
    await house.change("ana", "reassign", asked, [mail("carl")])
    assert await house.may(asked) == {"bob", "carl"}
    for name, reason in (("ana", "not_eligible"), ("lea", "not_eligible"), ("vera", "role")):
        with pytest.raises(Refused) as caught:
            await house.change(name, "reassign", asked, [mail("lea")])
        assert caught.value.reason == reason


async def test_a_delegate_answers_on_behalf(house: House) -> None:
    asked = await house.ask(claim="required")
    await house.here.store.write(claims.claim, house.people["ana"], asked.approval, via="page")
    await house.change("ana", "delegate", asked, mail("carl"), reason="on holiday")
    row = await house.row(asked)
    assert row.claimed_by == mail("carl")
    await house.decide("carl", asked)
    query = sa.select(D.c.person, D.c.on_behalf_of)
    assert await house.here.store.read(lambda tx: tuple(tx.conn.execute(query).one())) == (mail("carl"), mail("ana"))


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("ana", {}),  # oneself
        ("bob", {}),  # may answer anyway
        ("vera", {}),  # a viewer
        ("nobody", {}),
        ("carl", {"exclude": [{"user": "carl@example.org"}]}),
    ],
)
async def test_a_place_goes_to_nobody_who_could_not_use_it(house: House, to: str, options: dict[str, Any]) -> None:
    asked = await house.ask(**options)
    before = await house.row(asked)
    with pytest.raises(InvalidInput):
        await house.change("ana", "delegate", asked, mail(to))
    assert await house.row(asked) == before
    assert await house.notes(asked) == []


async def test_who_gave_a_place_away_does_not_decide(house: House) -> None:
    asked = await house.ask()
    await house.change("ana", "delegate", asked, mail("carl"))
    assert await house.may(asked) == {"bob", "carl"}
    with pytest.raises(Refused, match=f"Your place went to {mail('carl')}"):
        await house.change("ana", "delegate", asked, mail("lea"))


async def test_others_are_added(house: House) -> None:
    asked = await house.ask()
    with pytest.raises(Refused) as caught:
        await house.change("ana", "add", asked, [mail("carl")])
    assert caught.value.reason == "role"
    await house.change("omar", "add", asked, [mail("carl")])
    assert await house.may(asked) == {"ana", "bob", "carl"}


async def test_escalated_once_by_whoever_it_is_put_to(house: House) -> None:
    asked = await house.ask(escalate_to=[{"role": "operator"}])
    with pytest.raises(Refused) as caught:
        await house.change("carl", "escalate", asked)
    assert caught.value.reason == "not_eligible"
    await house.change("ana", "escalate", asked)
    assert await house.may(asked) == {"ana", "bob", "omar"}
    with pytest.raises(Conflict):
        await house.change("omar", "escalate", asked)
    with pytest.raises(InvalidInput):
        await house.change("omar", "escalate", await house.ask())


@pytest.mark.parametrize(
    "to", [[], ["nobody@example.org"], ["vera@example.org"], [{"group": "none"}], [{"odd": "x"}], ["x"]]
)
async def test_names_must_mean_somebody(house: House, to: list[Any]) -> None:
    asked = await house.ask()
    for kind in ("reassign", "add"):
        with pytest.raises(InvalidInput) as caught:
            await house.change("omar", kind, asked, to)
        assert [field.loc for field in caught.value.fields] == [("to",)]


async def test_every_change_says_why(house: House) -> None:
    asked = await house.ask(escalate_to=[{"role": "operator"}])
    for who, kind, args in (
        ("omar", "reassign", ([mail("carl")],)),
        ("omar", "add", ([mail("carl")],)),
        ("ana", "delegate", (mail("carl"),)),
        ("omar", "escalate", ()),
    ):
        with pytest.raises(InvalidInput) as caught:
            await house.change(who, kind, asked, *args, reason="  ")
        assert [field.loc for field in caught.value.fields] == [("reason",)]
    assert await house.notes(asked) == []


async def test_whoever_loses_the_place_loses_the_claim(house: House) -> None:
    asked = await house.ask()
    await house.here.store.write(claims.claim, house.people["ana"], asked.approval, via="page")
    await house.change("omar", "reassign", asked, [mail("carl")])
    assert (await house.row(asked)).claimed_by is None
    assert [(note.kind, note.actor) for note in await house.notes(asked)] == [
        ("claim", mail("ana")),
        ("reassign", mail("omar")),
        ("release", None),
    ]


async def test_nothing_is_changed_once_it_is_over(house: House) -> None:
    asked = await house.ask(escalate_to=[{"role": "operator"}])
    await house.decide("ana", asked)
    for kind, args in (("reassign", ([mail("carl")],)), ("add", ([mail("carl")],)), ("escalate", ()), ("extend", ())):
        with pytest.raises(Refused) as caught:
            await house.change("omar", kind, asked, *args)
        assert caught.value.reason == "already_decided"
    late = await house.ask(timeout=60)
    house.here.clock.advance(timedelta(minutes=2))
    with pytest.raises(Refused) as caught:
        await house.change("omar", "add", late, [mail("carl")])
    assert caught.value.reason == "deadline"


async def test_two_changes_at_once_are_both_kept(house: House) -> None:
    asked = await house.ask()
    await asyncio.gather(
        house.change("omar", "add", asked, [mail("carl")]), house.change("omar", "add", asked, [mail("lea")])
    )
    assert await house.may(asked) == {"ana", "bob", "carl", "lea"}


async def test_a_person_who_left_has_no_place_to_hand_on(house: House) -> None:
    asked = await house.ask()
    await house.here.store.write(set_active, house.here.embedded, mail("ana"), False)
    with pytest.raises(Refused) as caught:
        await house.change("ana", "reassign", asked, [mail("carl")])
    assert caught.value.reason == "not_member"
    with pytest.raises(InvalidInput):
        await house.change("omar", "reassign", asked, [mail("carl")], from_=mail("ana"))


async def test_refusals_are_audited_by_their_deed(house: House) -> None:
    asked = await house.ask()
    with pytest.raises(Refused):
        await house.change("lea", "delegate", asked, mail("carl"))
    with pytest.raises(InvalidInput):
        await house.change("omar", "add", asked, [])
    with pytest.raises(NotFound):
        await house.change("omar", "add", Asked(0, "", "ap_none"), [mail("carl")])
    late = await house.ask(escalate_to=[{"role": "operator"}])
    await house.change("omar", "escalate", late)
    with pytest.raises(Conflict):
        await house.change("omar", "escalate", late)

    def read(tx: Tx) -> list[Any]:
        query = sa.select(AUDIT.c.action, AUDIT.c.actor, AUDIT.c.reason).where(AUDIT.c.allowed.is_(False))
        return [tuple(row) for row in tx.conn.execute(query.order_by(AUDIT.c.id))]

    assert await house.here.store.read(read) == [
        ("approval.delegate", mail("lea"), "not_eligible"),
        ("approval.add", mail("omar"), "invalid_input"),
        ("approval.add", mail("omar"), "not_found"),
        ("approval.escalate", mail("omar"), "conflict"),
    ]
