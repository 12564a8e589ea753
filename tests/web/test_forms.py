"""Forms: what they ask for, and that what is typed becomes the value that was meant."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, TypeAdapter

from signoff.web import forms
from signoff.workflow.errors import FieldError


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark_blue"


class Address(BaseModel):
    street: str
    city: str = "Graz"


class Answer(BaseModel):
    approved: bool
    urgent: bool
    colour: Colour
    size: Literal[1, 2, 3]
    boxes: int = Field(ge=1)
    price: Decimal
    weight: float
    ship_on: date
    at: datetime
    note: str = ""
    nickname: str | None = None
    maybe: bool | None = None
    limit: int = 7
    tags: list[str] = []
    counts: list[int] = []
    secret: SecretStr = SecretStr("")
    extra: dict[str, Any] = {}
    home: Address
    other: Address | None = None


def form() -> forms.Form:
    return forms.build(Answer.model_json_schema())


FILLED = {
    "f.approved": ["true"],
    "f.urgent": ["false"],
    "f.colour": ["dark_blue"],
    "f.size": ["2"],
    "f.boxes": ["3"],
    "f.price": ["1,240.10"],
    "f.weight": ["12.5"],
    "f.ship_on": ["2026-12-01"],
    "f.at": ["2026-12-01T09:30"],
    "f.note": ["first\r\nsecond"],
    "f.limit": ["7"],
    "f.tags#": ["0", "4", "2"],
    "f.tags.0": ["a"],
    "f.tags.4": [" b "],
    "f.tags.2": ["c"],
    "f.counts#": ["0", "1"],
    "f.counts.0": ["1"],
    "f.counts.1": ["22"],
    "f.extra": ['{"a": [1]}'],
    "f.home.street": ["Ring 1"],
    "f.home.city": ["Graz"],
    "f.secret*": ["  s3cret "],
    "f.maybe": [""],
}


def test_a_filled_form_becomes_the_value_that_was_meant() -> None:
    answer = form().read(FILLED)
    assert answer is not forms.MISSING
    value = Answer.model_validate_json(json.dumps(answer))
    assert (value.approved, value.urgent, value.colour, value.size) == (True, False, Colour.DARK_BLUE, 2)
    assert value.price == Decimal("1240.10")
    assert value.price.as_tuple().exponent == -2
    assert value.at == datetime.fromisoformat("2026-12-01T09:30:00+00:00")
    assert value.note == "first\nsecond"
    assert (value.tags, value.counts, value.extra) == (["a", " b ", "c"], [1, 22], {"a": [1]})
    assert (value.nickname, value.maybe, value.other) == (None, None, None)
    assert value.secret.get_secret_value() == "  s3cret "


def test_an_optional_part_is_there_when_it_is_ticked() -> None:
    sent = {**FILLED, "f.other!": ["1"], "f.other.street": ["Quay 2"], "f.other.city": [""]}
    answer = form().read(sent)
    assert answer["other"] == {"street": "Quay 2", "city": ""}


def test_what_is_missing_is_said_beside_its_field_and_what_was_typed_stays() -> None:
    built = form()
    assert built.read({"f.note": ["kept"], "f.boxes": ["2.5"], "f.weight": ["3,5"], "f.extra": ["{"]}) is forms.MISSING
    errors = {item.name: item.errors for item in built.all() if item.errors}
    assert errors["f.approved"] == ["Choose Approve or Reject."]
    assert errors["f.urgent"] == ["Choose Yes or No."]
    assert errors["f.boxes"] == ["Enter a whole number."]
    assert errors["f.weight"] == ["Use a point for decimals, like 12.5."]
    assert errors["f.home.street"] == ["Fill this in."]
    assert errors["f.extra"][0].startswith("This is no JSON")
    assert "f.note" not in errors
    assert {item.name: item.text for item in built.all()}["f.note"] == "kept"
    assert {item.name: item.text for item in built.all()}["f.weight"] == "3,5"


def test_the_gates_errors_find_their_fields() -> None:
    built = form()
    built.blame([FieldError(("boxes",), "Input should be greater than or equal to 1"),
                 FieldError(("home", "street"), "Field required"), FieldError(("nowhere",), "odd")])  # fmt: skip
    named = {item.name: item.errors for item in built.all() if item.errors}
    assert named == {"f.boxes": ["This should be greater than or equal to 1."], "f.home.street": ["Fill this in."]}
    assert built.errors == ["Odd."]


def test_a_yes_or_no_in_words_becomes_the_buttons_and_a_bare_one_a_choice() -> None:
    built = form()
    assert built.decision is not None
    assert [choice.label for choice in built.decision.choices] == ["Approve", "Reject"]
    urgent = next(item for item in built.fields if item.name == "f.urgent")
    assert [choice.label for choice in urgent.choices] == ["Yes", "No"]

    class Own(BaseModel):
        go: bool = Field(json_schema_extra={"x-labels": {"true": "Launch it", "false": "Hold"}})

    own = forms.build(Own.model_json_schema()).decision
    assert own is not None
    assert [choice.label for choice in own.choices] == ["Launch it", "Hold"]


def test_numbers_are_no_yes_or_no() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 0], "x-labels": {"1": "One"}}}, "required": ["n"]}
    assert forms.build(schema).decision is None


@pytest.mark.parametrize(
    ("annotation", "typed", "value"),
    [(bool, "true", True), (int, "12", 12), (str, "hello", "hello"), (Literal["a", "b"], "b", "b"),
     (date, "2026-01-02", date(2026, 1, 2)), (int | None, "", None)],
)  # fmt: skip
def test_an_answer_that_is_one_value(annotation: Any, typed: str, value: Any) -> None:
    adapter = TypeAdapter(annotation)
    answer = forms.build(adapter.json_schema()).read({"f": [typed]})
    assert answer is not forms.MISSING
    assert adapter.validate_json(json.dumps(answer)) == value


def test_secrets_are_never_written_into_the_form() -> None:
    class Key(BaseModel):
        key: SecretStr = SecretStr("hidden")

    built = forms.build(Key.model_json_schema())
    assert built.fields[0].input_type == "password"
    assert built.fields[0].text == ""


def test_told_in_words_an_answer_has_the_labels_of_the_form() -> None:
    lines = form().told({"approved": False, "colour": "dark_blue", "boxes": 3, "note": "", "home": {"street": "x"}})
    assert lines[:3] == [("Approved", "Reject"), ("Colour", "Dark blue"), ("Boxes", "3")]
    assert "Note" not in dict(lines)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: text.strip()))
def test_any_text_arrives_as_it_was_typed(text: str) -> None:
    class Long(BaseModel):
        note: str

    assert forms.build(Long.model_json_schema()).read({"f.note": [text]}) == {"note": text}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3))
def test_no_digit_of_an_exact_number_is_lost(number: Decimal) -> None:
    class Money(BaseModel):
        amount: Decimal

    answer = forms.build(Money.model_json_schema()).read({"f.amount": [str(number)]})
    assert Money.model_validate_json(json.dumps(answer)).amount == number


@given(st.dictionaries(st.sampled_from([item.name for item in form().all()]), st.lists(st.text(), max_size=2)))
def test_whatever_is_sent_a_form_answers_with_a_value_or_with_errors(sent: dict[str, list[str]]) -> None:
    built = form()
    answer = built.read(sent)
    assert (answer is forms.MISSING) == bool(built.failed)
