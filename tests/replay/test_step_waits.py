"""Waiting for events and people: what `step.await_event`, `first_event` and `ask` carry and give."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr

from signoff.replay.messages import AskDetail, EventDetail
from signoff.replay.step import Step
from signoff.workflow import errors
from signoff.workflow.definitions import action, event
from signoff.workflow.kinds import OutcomeKind, ResultKind, StepKind
from signoff.workflow.selectors import group, role, user
from tests.replay.journal import Journal, registry
from tests.replay.test_step import Answer, first, handled, paid, ship


@action("login", registry=registry)
def login(password: SecretStr) -> None: ...


refused = event("refused", str, registry=registry)
secret = event("secret", str, sensitive=True, registry=registry)


def test_an_event_is_handed_over_decoded_or_in_its_envelope() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        value = await step.await_event(paid, timeout=timedelta(minutes=1))
        whole = await step.await_event(paid, id="e1", envelope=True)
        return [repr(value), repr(whole.value), whole.name, whole.id, str(whole.sender), whole.sent_at.isoformat()]

    journal = Journal(handler)
    assert first(journal).detail == EventDetail(("paid",), None, 60.0)
    journal.event(0, "paid", "1.50")
    assert first(journal).detail == EventDetail((), "e1", None)
    sent_at = journal.now.isoformat()
    journal.event(1, "paid", "2")
    assert journal.result == ["Decimal('1.50')", "Decimal('2')", "paid", "e1", "s", sent_at]


def test_an_event_wait_ends_by_error_timeout_or_default() -> None:
    @handled
    async def handler(step: Step) -> list[Any]:
        found: list[Any] = [await step.await_event(paid, timeout=1, default=None)]
        with pytest.raises(errors.EventTimeout) as late:
            await step.await_event(paid, timeout=1)
        assert isinstance(late.value, TimeoutError)
        with pytest.raises(errors.EventError, match="broken") as broken:
            await step.await_event(paid)
        with pytest.raises(errors.NotFound):
            await step.await_event(id="unknown")
        return [*found, broken.value.data]

    journal = Journal(handler)
    journal.settle(0, kind=OutcomeKind.TIMEOUT)
    journal.settle(1, kind=OutcomeKind.TIMEOUT)
    journal.fail(2, "broken", "EventError", {"why": 1})
    journal.fail(3, "no such event", "NotFound")
    assert journal.result == [None, {"why": 1}]


def test_first_event_tells_which_came() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        with pytest.raises(errors.InvalidInput, match="twice"):
            step.first_event(paid, paid)
        with pytest.raises(errors.InvalidInput):
            step.first_event()
        which, value = await step.first_event(paid, refused, timeout=9)
        assert which is refused
        return [which.name, value]

    journal = Journal(handler)
    assert first(journal).detail == EventDetail(("paid", "refused"), None, 9.0)
    journal.event(0, "refused", "broke")
    assert journal.result == ["refused", "broke"]


def test_secret_values_events_and_questions_say_so() -> None:
    @handled
    async def handler(step: Step) -> None:
        _ = step.ask(ship, title="?", sensitive=True)
        _ = step.run_action(login, SecretStr("x"))
        await step.await_event(secret)

    assert [new.ask.options.sensitive for new in Journal(handler).asked if new.ask.options] == [True, True, True]


@dataclass
class Total:
    amount: Decimal


def test_a_question_carries_all_that_people_need() -> None:
    @handled
    async def handler(step: Step) -> bool:
        answer = await step.ask(
            ship, title="Ship?", body="**now**",
            facts={"total": Total(Decimal("9.90")), "tags": {"b", "a"}, "on": date(2026, 1, 2)},
            to=[group("finance"), role("operator"), user("Ana@example.org")],
            due=timedelta(days=2), timeout=timedelta(days=7), default=Answer(approved=False),
        )  # fmt: skip
        return answer.approved

    journal = Journal(handler)
    asked = first(journal)
    assert (asked.kind, asked.name, asked.args) == (StepKind.ASK, "ship", None)
    assert isinstance(asked.detail, AskDetail)
    question = dict(asked.detail.question)
    assert question.pop("schema")["properties"].keys() == {"approved", "note"}
    assert json.loads(question.pop("default")) == {"approved": False, "note": ""}
    assert question == {
        "title": "Ship?",
        "body": "**now**",
        "facts": {"total": {"amount": "9.90"}, "tags": ["a", "b"], "on": "2026-01-02"},
        "to": [{"group": "finance"}, {"role": "operator"}, {"user": "ana@example.org"}],
        "due": 172800.0,
        "timeout": 604800.0,
        "on_timeout": "raise",
        "sensitive": False,
    }
    json.dumps(asked.detail.question)
    assert asked.detail.timeout == 604800.0
    journal.settle(0, {"approved": True})
    assert journal.result is True


@pytest.mark.parametrize(
    "bad",
    [
        {"title": ""},
        {"title": 7},
        {"body": 7},
        {"to": "finance"},
        {"facts": {1: 2}},
        {"facts": {"x": object()}},
        {"default": Answer(approved=True)},
        {"timeout": 1, "default": "yes"},
        {"timeout": 1, "on_timeout": "explode"},
        {"timeout": 1, "on_timeout": "cancel_run", "default": Answer(approved=True)},
        {"on_timeout": "cancel_run"},
        {"name": "bad\nname"},
    ],
)
def test_a_bad_question_raises_at_the_call(bad: dict[str, Any]) -> None:
    @handled
    async def handler(step: Step) -> str:
        with pytest.raises(errors.InvalidInput):
            step.ask(ship, **{"title": "?", **bad})
        with pytest.raises(errors.InvalidInput):
            step.ask(paid, title="?")  # type: ignore[arg-type]  # an event
        with pytest.raises(errors.InvalidInput):
            step.await_event(ship)  # type: ignore[call-overload]  # an ask
        return "ok"

    assert Journal(handler).result == "ok"


@pytest.mark.parametrize(("how", "expected"), [("default", "False"), ("raise", "late"), ("cancel_run", None)])
def test_a_question_whose_time_is_over(how: str, expected: str | None) -> None:
    @handled
    async def handler(step: Step) -> str:
        more: dict[str, Any] = {"default": Answer(approved=False)} if how == "default" else {"on_timeout": how}
        try:
            return str((await step.ask(ship, title="?", timeout=1, **more)).approved)
        except errors.EventTimeout:
            return "late"

    journal = Journal(handler)
    journal.settle(0, kind=OutcomeKind.TIMEOUT)
    if expected is None:
        assert journal.finish is not None
        assert journal.finish.kind is ResultKind.CANCELED
    else:
        assert journal.result == expected
