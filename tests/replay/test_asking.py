"""What `step.ask` carries to those who decide, and what it makes of their decisions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from signoff.replay.messages import AskDetail
from signoff.replay.step import Step
from signoff.workflow import errors
from signoff.workflow.choices import option
from signoff.workflow.definitions import ask
from signoff.workflow.kinds import OutcomeKind
from signoff.workflow.registry import Registry
from signoff.workflow.rules import Decided, all_of, any_of, n_of
from signoff.workflow.selectors import group, role, user
from tests.replay.journal import CREATED, Journal
from tests.replay.test_step import first, handled

registry = Registry()


class Offer(BaseModel):
    price: Decimal


buy = ask("buy", Offer, registry=registry)


def decision(person: str, price: str, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC).isoformat()
    raw = {"person": person, "name": person.title(), "at": at, "answer": {"price": price}, "option": None}
    return {**raw, "comment": None, "on_behalf_of": None, "rejects": False, **more}


def test_a_question_carries_rule_options_and_times() -> None:
    @handled
    async def handler(step: Step) -> None:
        await step.ask(
            buy, title="Buy?", to=group("finance"), exclude=[group("interns")], not_requester=True,
            rule=all_of(n_of(2), user("ciso@example.org"), staged=True),
            options=[option("buy"), option("no", value=Offer(price=Decimal(0)), rejects=True)],
            due=timedelta(hours=2), remind=[timedelta(hours=1), 60, 60.0], escalate_to=role("admin"), timeout=86400,
            claim="required", extend=timedelta(hours=1), members="as_asked",
        )  # fmt: skip

    detail = first(Journal(handler)).detail
    assert isinstance(detail, AskDetail)
    question = dict(detail.question)
    del question["schema"]
    assert question == {
        "title": "Buy?",
        "body": "",
        "facts": {},
        "to": [{"group": "finance"}],
        "exclude": [{"group": "interns"}],
        "not_requester": True,
        "members": "as_asked",
        "rule": {
            "all_of": [{"n_of": 2, "of": []}, {"any_of": [{"user": "ciso@example.org"}]}],
            "staged": True,
        },
        "options": [
            {"name": "buy", "label": "Buy", "rejects": False, "reason": False},
            {"name": "no", "label": "No", "rejects": True, "reason": True, "value": {"price": "0"}},
        ],
        "claim": "required",
        "due": 7200.0,
        "remind": [60.0, 3600.0],
        "escalate_to": [{"role": "admin"}],
        "escalate_after": 7200.0,
        "timeout": 86400.0,
        "on_timeout": "raise",
        "extend": 3600.0,
        "sensitive": False,
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"rule": group("finance")},
        {"rule": "two"},
        {"options": []},
        {"options": [option("a", value=7)]},
        {"options": [option("a", form=int)]},
        {"exclude": "interns"},
        {"not_requester": "yes"},
        {"members": "then"},
        {"claim": True},
        {"remind": [-1]},
        {"remind": range(51)},
        {"escalate_to": group("bosses")},
        {"escalate_to": [], "due": 1},
        {"escalate_after": 5},
        {"extend": 60},
        {"extend": 0, "timeout": 60},
        {"combine": "sum"},
    ],
)
def test_what_does_not_fit_raises_at_the_call(bad: dict[str, Any]) -> None:
    @handled
    async def handler(step: Step) -> str:
        with pytest.raises(errors.InvalidInput):
            step.ask(buy, title="?", **bad)
        return "ok"

    assert Journal(handler).result == "ok"


@pytest.mark.parametrize("rule", [n_of(2, group("finance")), all_of(any_of(), any_of())])
def test_of_several_the_handler_gets_their_decisions_typed(rule: Any) -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        return [repr(decision) for decision in await step.ask(buy, title="?", rule=rule)]

    journal = Journal(handler)
    journal.settle(
        0, [decision("ana", "1.50", option="buy", comment="ok"), decision("bob", "2", on_behalf_of="cyd", rejects=True)]
    )
    at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    expected = [
        Decided("ana", "Ana", at, Offer(price=Decimal("1.50")), option="buy", comment="ok"),
        Decided("bob", "Bob", at, Offer(price=Decimal(2)), on_behalf_of="cyd", rejects=True),
    ]
    assert journal.result == [repr(decision) for decision in expected]


@pytest.mark.parametrize("rule", [None, any_of(group("finance")), n_of(1)])
def test_of_one_the_handler_gets_the_answer(rule: Any) -> None:
    @handled
    async def handler(step: Step) -> str:
        return str((await step.ask(buy, title="?", rule=rule)).price)

    journal = Journal(handler)
    journal.settle(0, {"price": "1.50"})
    assert journal.result == "1.50"


def total(decisions: list[Decided[Offer]]) -> Decimal:
    return sum((decision.answer.price for decision in decisions), Decimal(0))


@pytest.mark.parametrize("rule", [None, any_of(), n_of(2)])
def test_combine_makes_the_value_whatever_the_rule(rule: Any) -> None:
    @handled
    async def handler(step: Step) -> str:
        return str(await step.ask(buy, title="?", rule=rule, combine=total))

    journal = Journal(handler)
    detail = first(journal).detail
    assert isinstance(detail, AskDetail)
    # so that the gate records a list
    assert "any_of" not in detail.question["rule"]
    journal.settle(0, [decision("ana", "1.50"), decision("bob", "2")])
    assert journal.result == "3.50"


def test_an_error_of_combine_is_raised_where_the_handler_waits() -> None:
    def fails(decisions: list[Decided[Offer]]) -> int:
        raise StopIteration if len(decisions) > 1 else LookupError("none fits")

    @handled
    async def handler(step: Step) -> list[str]:
        found: list[BaseException | int] = await asyncio.gather(
            step.ask(buy, title="?", name="one", combine=fails),
            step.ask(buy, title="?", name="two", combine=fails),
            return_exceptions=True,
        )
        return [repr(error) for error in found]

    journal = Journal(handler)
    journal.settle(1, [decision("ana", "1"), decision("bob", "1")])
    journal.settle(0, [decision("ana", "1")])
    assert journal.result == ["LookupError('none fits')", "RuntimeError('StopIteration()')"]


def test_combine_runs_under_the_guard_of_the_handler() -> None:
    def reads(decisions: list[Decided[Offer]]) -> str:
        with open(__file__) as file:
            return file.readline()

    @handled
    async def handler(step: Step) -> str:
        return str(await step.ask(buy, title="?", combine=reads))

    with Journal(handler) as journal, pytest.raises(errors.Stuck, match="opens a file"):
        journal.settle(0, [decision("ana", "1")])


def test_a_deadline_gives_the_default_as_the_decision_of_nobody() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        (only,) = await step.ask(buy, title="?", rule=n_of(2), timeout=1, default=Offer(price=Decimal(7)))
        more = await step.ask(buy, title="?", rule=n_of(2), timeout=1, default=Offer(price=Decimal(7)), combine=total)
        return [only.person, only.name, only.at.isoformat(), str(only.answer.price), str(only.rejects), str(more)]

    journal = Journal(handler)
    journal.settle(0, kind=OutcomeKind.TIMEOUT)
    journal.settle(1, kind=OutcomeKind.TIMEOUT)
    assert journal.result == ["", "", (CREATED + timedelta(seconds=1)).isoformat(), "7", "False", "7"]


@pytest.mark.parametrize(
    ("rule", "recorded"), [(n_of(2), {"price": "1"}), (None, [decision("ana", "1")]), (n_of(2), "yes")]
)
def test_what_another_rule_recorded_blocks(rule: Any, recorded: Any) -> None:
    @handled
    async def handler(step: Step) -> None:
        await step.ask(buy, title="?", rule=rule)

    with Journal(handler) as journal, pytest.raises(errors.Undecodable):
        journal.settle(0, recorded)


def test_an_ask_that_is_canceled_before_its_decisions_are_combined_stays_so() -> None:
    @handled
    async def handler(step: Step) -> str:
        call = step.ask(buy, title="?", combine=total)
        other = step.ask(buy, title="?", name="other")
        await other
        call.cancel()
        return str(call.cancelled())

    journal = Journal(handler)
    journal.settle(1, {"price": "1"})
    assert journal.result == "True"
