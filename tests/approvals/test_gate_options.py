"""The gate for questions with options: each with a form, an answer or a reason of its own."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from signoff.approvals.decide import Receipt, decide_embedded_through
from signoff.people.canonical import content_hash
from signoff.workflow.choices import Option, option, options_to_json
from signoff.workflow.definitions import Ask, ask
from signoff.workflow.errors import Refused
from signoff.workflow.registry import Registry
from signoff.workflow.rules import Rule, n_of
from signoff.workflow.selectors import role
from tests.approvals.test_decide import NO_TYPES, YES, answer, refused
from tests.approvals.test_gate import NO, ask_by, stored
from tests.people.world import SHIP_SCHEMA, Asked, World


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
