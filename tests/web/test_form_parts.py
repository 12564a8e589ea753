"""The parts of a form one by one: durations, moments with zones, rows, secrets, and errors beside their fields."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, NaiveDatetime, SecretStr, TypeAdapter

from signoff.approvals.json_schema import check_schema
from signoff.web import forms
from signoff.web.forms.moments import NotAMoment, join_moment
from signoff.web.forms.spans import read_span, say_span
from signoff.workflow.codec import Codec, dump, value_codec
from signoff.workflow.errors import InvalidInput
from tests.web.filling import render, sent_by_browser, typed
from tests.web.kinds import FILLED, Folder, Kinds

SPAN = TypeAdapter(timedelta)


def form_of(annotation: Any, **options: Any) -> forms.Form:
    return forms.build(value_codec(annotation).json_schema(), **options)


def errors_of(form: forms.Form) -> dict[str, list[str]]:
    return {item.name: item.errors for item in form.all() if item.errors}


# -- durations


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2 h 30 min", timedelta(hours=2, minutes=30)),
        ("1 day, 4 hours and 5 minutes", timedelta(days=1, hours=4, minutes=5)),
        ("1.5h", timedelta(hours=1.5)),
        ("-3 d", timedelta(days=-3)),
        ("02:30:00", timedelta(hours=2, minutes=30)),
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("250 ms", timedelta(milliseconds=250)),
        ("2W", timedelta(weeks=2)),
    ],
)
def test_durations_are_written_as_people_say_them(text: str, meant: timedelta) -> None:
    assert SPAN.validate_python(read_span(text)) == meant


@pytest.mark.parametrize("text", ["", "soon", "3", "3 parsecs", "1 h and then", "0.3 us", "99999999999 days"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert read_span(text) is None


@given(st.timedeltas())
def test_a_duration_in_words_is_the_same_duration(span: timedelta) -> None:
    assert SPAN.validate_python(read_span(say_span(SPAN.dump_python(span, mode="json")))) == span


# -- moments


@pytest.mark.parametrize(
    ("text", "zone", "meant"),
    [
        ("2026-12-01T09:30", "UTC", "2026-12-01T09:30Z"),
        ("2026-12-01T09:30", "Europe/Vienna", "2026-12-01T09:30+01:00"),
        ("2026-07-01T09:30", "Europe/Vienna", "2026-07-01T09:30+02:00"),
        ("2026-12-01T09:30", "+5", "2026-12-01T09:30+05:00"),
        ("2026-12-01T09:30", "UTC-03:30", "2026-12-01T09:30-03:30"),
        ("2026-12-01 09:30", "UTC", "2026-12-01T09:30Z"),
        ("2026-12-01T09:30:00+01:00", "America/Lima", "2026-12-01T09:30:00+01:00"),
        ("2026-12-01T09:30", "", "2026-12-01T09:30"),
    ],
)
def test_a_moment_travels_as_it_was_typed_with_its_zone(text: str, zone: str, meant: str) -> None:
    assert join_moment(text, zone, asked="any") == meant


@pytest.mark.parametrize(
    ("text", "zone", "says"),
    [
        ("2026-12-01T09:30", "", "in which time zone"),
        ("2026-12-01T09:30", "Vienna", "Name the time zone"),
        ("2026-12-01T09:30", "../../etc/passwd", "Name the time zone"),
        ("2026-03-29T02:30", "Europe/Vienna", "does not exist"),
        ("tomorrow", "UTC", "Enter a date"),
        ("2026-13-01T09:30", "Europe/Vienna", "Enter a date"),
    ],
)
def test_what_is_no_moment_says_why(text: str, zone: str, says: str) -> None:
    with pytest.raises(NotAMoment, match=says):
        join_moment(text, zone, asked="aware")


def test_the_zone_is_shown_where_it_belongs_to_the_moment() -> None:
    class Times(BaseModel):
        aware: AwareDatetime
        naive: NaiveDatetime

    form = form_of(Times)
    html = render(form)
    assert 'name="f.aware~" value="UTC"' in html
    assert "f.naive~" not in html
    sent = {"f.aware": ["2026-12-01T09:30"], "f.aware~": ["Europe/Vienna"], "f.naive": ["2026-12-01T09:30"]}
    value = Times.model_validate_json(dump(form.read(sent)))
    assert value.aware.isoformat() == "2026-12-01T09:30:00+01:00"
    assert value.naive.isoformat() == "2026-12-01T09:30:00"


def test_what_a_browsers_control_would_drop_is_shown_as_text() -> None:
    form = form_of(date, draft={"f": ["31.12.2026"]})
    assert form.top.input_type == "text"
    assert sent_by_browser(form) == {"f": ["31.12.2026"]}


# -- defaults


def test_what_is_left_as_it_stood_is_exactly_the_default() -> None:
    class Given(BaseModel):
        number: Decimal = Decimal("1.10")
        text: str = "two\r\nlines"
        maybe: int | None = 5
        nothing: int | None = None
        made: list[str] = Field(default_factory=list)
        rows: list[Decimal] = [Decimal("0.100")]
        span: timedelta = timedelta(minutes=90)

    form = form_of(Given)
    answer = form.read(sent_by_browser(form))
    assert answer == json.loads(Given().model_dump_json())
    assert form_of(Given).read({**sent_by_browser(form), "f.maybe": [""]})["maybe"] is None


def test_numbers_keep_their_digits_and_texts_their_zeros() -> None:
    assert form_of(int).read({"f": ["12 345 678 901 234 567 890"]}) == 12345678901234567890
    assert form_of(str).read({"f": ["007"]}) == "007"
    assert form_of(Decimal).read({"f": ["1,240.10"]}) == "1240.10"
    assert form_of(Any).read({"f": ['{"a": 12345678901234567890, "b": 1.10}']}) == {"a": 12345678901234567890, "b": 1.1}


@pytest.mark.parametrize("text", ["1e400", "1.00000000000000000001", "NaN", '{"a": Infinity}', "9" * 3000])
def test_json_that_would_come_out_different_is_refused(text: str) -> None:
    form = form_of(Any)
    assert form.read({"f": [text]}) is forms.MISSING
    assert errors_of(form)


@pytest.mark.parametrize("text", ["1e400", "-1e999", "nan", "0x10", "1_000_", "9" * 3000])
def test_what_is_no_number_is_refused(text: str) -> None:
    assert form_of(float).read({"f": [text]}) is forms.MISSING


# -- rows


class Line(BaseModel):
    name: str
    count: int


def test_rows_are_added_and_removed_by_the_button_that_was_pressed() -> None:
    form = form_of(list[Line])
    sent = {"f#": ["4", "7"], "f.4.name": ["a"], "f.4.count": ["x"], "f.7.name": ["b"], "f.7.count": ["2"]}
    assert form.edit({**sent, "form-add": ["f"]})
    assert [child.row for child in form.top.children] == ["4", "7", "8"]
    assert form.edit({**sent, "form-remove": ["f.4"]})
    assert [child.name for child in form.top.children] == ["f.7"]
    assert errors_of(form) == {}, "nothing is judged yet"
    assert not form.edit(sent)
    assert form.read({key: texts for key, texts in sent.items() if not key.startswith("f.4")} | {"f#": ["7"]}) == [
        {"name": "b", "count": 2}
    ]


def test_errors_in_rows_are_told_with_their_number() -> None:
    form = form_of(list[Line])
    form.read({"f#": ["4", "7"], "f.4.name": ["a"], "f.4.count": ["1"], "f.7.name": ["b"], "f.7.count": ["x"]})
    assert [label for _, label in form.failures] == ["Line 2, count"]
    form.errors, form.top.children[1].children[1].errors = [], []
    form.blame([_error(("0", "name"), "too short")])
    assert [label for _, label in form.failures] == ["Line 1, name"]


def test_too_few_too_many_and_double_rows_are_told() -> None:
    few = form_of(Annotated[list[int], Field(min_length=2, max_length=3)])
    assert len(few.top.children) == 2
    assert few.read({"f#": ["0"], "f.0": ["1"]}) is forms.MISSING
    assert errors_of(few) == {"f": ["Add at least 2 entries."]}
    twice = form_of(dict[str, int])
    twice.read({"f#": ["0", "1"], "f.0.k": ["a"], "f.0.v": ["1"], "f.1.k": ["a"], "f.1.v": ["2"]})
    assert errors_of(twice) == {"f.1.k": ["This name is there twice."]}


def test_many_rows_are_rows_still_and_a_list_beyond_all_measure_is_json() -> None:
    lines = [{"name": str(no), "count": no} for no in range(1500)]
    form = form_of(list[Line])
    assert form.read(typed(form, lines)) == lines
    adapter = Codec.for_callable(_long_default).args_schema()
    long = forms.build(adapter)
    assert long.fields[0].kind == "json"
    assert long.read(sent_by_browser(long))["numbers"] == list(range(5000))


def _long_default(numbers: list[int] = list(range(5000))) -> None: ...  # noqa: B006


def test_a_form_that_unfolds_without_end_is_json_in_the_end() -> None:
    form = form_of(Folder)
    assert [item.kind for item in form.fields] == ["text", "json"]
    assert form.read({"f.name": ["a"], "f.inside": ['[{"name": "b", "inside": []}]']})["inside"][0]["name"] == "b"


# -- secrets


class Vault(BaseModel):
    name: str
    key: SecretStr = SecretStr("unsaid")
    inner: list[SecretStr] = []
    below: list[Vault] = []


def test_a_secret_stands_in_no_page_and_in_no_draft() -> None:
    form = form_of(Vault)
    sent = {"f.name": ["n"], "f.key*": ["s3cret"], "f.inner#": ["0"], "f.inner.0*": ["s3cret"],
            "f.below*": ['[{"name": "b", "key": "s3cret"}]']}  # fmt: skip
    answer = form.read(sent)
    assert (answer["key"], answer["inner"], answer["below"][0]["key"]) == ("s3cret", ["s3cret"], "s3cret")
    html = render(form)
    assert "s3cret" not in html
    assert html.count("a secret is not kept in a page") == 3
    assert form.keeps(sent) == {"f.name": ["n"], "f.inner#": ["0"]}
    assert "unsaid" not in render(form_of(Vault))


def test_a_secret_with_a_default_may_stay_empty() -> None:
    assert "key" not in form_of(Vault).read({"f.name": ["n"]})


# -- the gate's errors


def _error(loc: tuple[str, ...], message: str) -> Any:
    class Found:
        pass

    found: Any = Found()
    found.loc, found.message = loc, message
    return found


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"code": "vie"}, "f.code"),
        ({"boxes": 21}, "f.boxes"),
        ({"price": "1.234"}, "f.price"),
        ({"mail": None, "link": "nowhere"}, "f.link"),
        ({"payment": {"kind": "bank_transfer", "iban": "none"}}, "f.payment@bank_transfer.iban"),
        ({"contacts": []}, "f.contacts"),
        ({"when": "2027-02-31"}, "f.when@0"),
        ({"spot": [1.5, 2.5], "pick_up": "2026-12-24T08:00"}, "f.pick_up"),
        ({"prices": {"a": "1", "two words": "2x"}}, "f.prices.1.v"),
        ({"folder": {"name": "a", "inside": [{"title": "b"}]}}, "f.folder.inside"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_error_of_the_gate_stands_beside_its_field(change: dict[str, Any], name: str) -> None:
    """Whatever the form lets through, the type refuses, and a person sees where."""
    answer = {**FILLED, "key": "k", **change}
    form = form_of(Kinds)
    sent = {**typed(form, {**FILLED, "key": "k"}, apart=1)}
    if "contacts" in change:
        sent = {name: texts for name, texts in sent.items() if not name.startswith("f.contacts")}
    for key, value in change.items():  # as it would be typed
        sent |= _typed_anyway(key, value)
    form.fill(sent)
    read = form.read(sent)
    with pytest.raises(InvalidInput) as refused:
        value_codec(Kinds).check(dump(answer if read is forms.MISSING else read))
    form.blame(refused.value.fields)
    assert form.errors == []
    assert set(errors_of(form)) == {name}
    # The same where the process has only the schema.
    form.fill(sent)
    if form.read(sent) is not forms.MISSING:
        form.blame(check_schema(read, value_codec(Kinds).json_schema()))
        assert form.errors == []
        assert set(errors_of(form)) == {name}


def _typed_anyway(key: str, value: Any) -> dict[str, list[str]]:
    match key:
        case "payment":
            return {"f.payment": [value["kind"]], "f.payment@bank_transfer.iban": [value["iban"]]}
        case "when":
            return {"f.when": ["0"], "f.when@0": [value]}
        case "spot" | "contacts":
            return {}
        case "pick_up":
            return {"f.pick_up": [value], "f.pick_up~": [""]}
        case "prices":
            return {"f.prices.0.k": ["a"], "f.prices.0.v": ["1"], "f.prices.1.v": ["2x"]}
        case "folder":
            return {"f.folder!": ["1"], "f.folder.name": ["a"], "f.folder.inside": [json.dumps(value["inside"])]}
    return {f"f.{key}": ["" if value is None else str(value)]}


def test_an_error_of_the_whole_answer_is_told_above_the_form() -> None:
    def odd(value: Line) -> Line:
        raise ValueError("Name and count do not go together")

    checked = Annotated[Line, AfterValidator(odd)]
    form = form_of(checked)
    form.fill({"f.name": ["a"], "f.count": ["1"]})
    with pytest.raises(InvalidInput) as refused:
        value_codec(checked).check('{"name": "a", "count": 1}')
    form.blame(refused.value.fields)
    assert form.errors == ["Name and count do not go together."]


# -- an answer in words


def test_an_answer_is_told_in_the_words_of_its_form() -> None:
    told = dict(form_of(Kinds).told({**FILLED, "key": "[redacted]"}))
    assert told["Approved"] == "Approve"
    assert told["Level"] == "Very high"
    assert told["Price"] == "1240.10 EUR"
    assert told["Takes"] == "1 d 2 h"
    assert told["Pick up"] == "2026-12-24 08:00 +02:00"
    assert told["Contacts"] == "Name: Ana, Phones: 1, 2; Name: Omar"
    assert told["Delivery, name"] == "Gate"
    assert told["Payment"] == "Bank transfer (Iban: AT611904300234573201)"
    assert told["When"] == "2027-01-31"
    assert told["Prices"] == "red: 1.50, two words: 2"
    assert told["Key"] == "[redacted]"
    assert next(iter(told)) == "Approved"
    assert form_of(Kinds).told("[redacted]") == [("Your answer", "[redacted]")]


def test_forms_on_one_page_have_names_and_ids_of_their_own() -> None:
    one, two = form_of(Line, prefix="o0"), form_of(Line, prefix="o1")
    sent = {"o0.name": ["a"], "o0.count": ["1"], "o1.name": ["b"], "o1.count": ["2"]}
    assert (one.read(sent), two.read(sent)) == ({"name": "a", "count": 1}, {"name": "b", "count": 2})
    assert not {item.id for item in one.all()} & {item.id for item in two.all()}
    one.restore({"o1.name": ["x"]})
    assert one.fields[0].text == "a", "a draft of another form changes nothing"


# -- what is shown


class Said(BaseModel):
    go: bool = Field(json_schema_extra={"labels": {"true": "Launch it", "false": "Hold"}})
    weight: float = Field(gt=0, json_schema_extra={"unit": "kg"})
    story: str = Field(default="", json_schema_extra={"long": True})
    at: NaiveDatetime | None = Field(default=None, json_schema_extra={"step": 1})
    code: str = Field(default="A1", pattern="^[A-Z][0-9]$", description="On the lid.", examples=["B2"])


def test_the_authors_words_units_bounds_and_examples_are_shown() -> None:
    form = form_of(Said)
    assert form.decision is not None
    assert [choice.label for choice in form.decision.choices] == ["Launch it", "Hold"]
    html = render(form)
    for text in ("More than 0.", ">kg<", "On the lid. For example: B2", "Without a time zone."):
        assert text in html
    assert re.search(r'<textarea id="field-story"', html)
    assert re.search(r'type="datetime-local"[^>]* step="any"', html)


def test_what_has_to_be_filled_in_is_said_in_words_and_to_screen_readers() -> None:
    form = form_of(Said)
    form.read({"f.go": ["true"], "f.weight": ["heavy"]})
    html = render(form)
    weight = re.search(r'<input class="number" id="field-weight"[^>]*>', html)
    assert weight is not None
    described = 'aria-describedby="field-weight-hint field-weight-unit field-weight-error"'
    for attribute in ('aria-required="true"', 'aria-invalid="true"', described, 'value="heavy"'):
        assert attribute in weight[0]
    assert html.count('class="must">required') == 2
    assert '<a href="#field-weight">Weight</a>: Enter a number.' in html
    assert 'id="error-summary" role="alert" tabindex="-1" data-autofocus' in html
    sent_by_browser(form)  # every reference leads somewhere
