from __future__ import annotations

import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    NaiveDatetime,
    SecretStr,
    TypeAdapter,
    ValidationError,
)

from signoff.approvals.json_schema import check_schema, redact
from signoff.workflow.codec import value_codec


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Line(BaseModel):
    sku: str = Field(pattern="^[A-Z]{2}[0-9]+$", max_length=8)
    count: int = Field(gt=0, lt=100)
    price: Decimal | None = None


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool
    color: Color = Color.RED
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    lines: list[Line] = Field(default=[], max_length=3)
    pair: tuple[int, str] = (1, "a")
    when: date | None = None
    at: datetime | None = None
    hour: time | None = None
    takes: timedelta | None = None
    id: UUID | None = None
    weights: dict[str, float] = {}
    tags: set[str] = set()


class Tree(BaseModel):
    name: str
    parts: list[Tree] = []


GOOD: list[tuple[Any, Any]] = [
    (Form, {"ok": True}),
    (
        Form,
        {
            "ok": False,
            "color": "blue",
            "pet": {"kind": "cat", "lives": 9},
            "lines": [{"sku": "AB12", "count": 1, "price": "1.50"}, {"sku": "AB1", "count": 99, "price": 2}],
            "pair": [3, "x"],
            "when": "2026-01-31",
            "at": "2026-01-31T10:00:00Z",
            "hour": "10:00:00",
            "takes": "P1DT2H",
            "id": "2c3f0a54-4f6e-4a5e-9c0b-3c8b7a3d0c11",
            "weights": {"a": 1, "b": 1.5},
            "tags": ["a", "b"],
        },
    ),
    (Tree, {"name": "a", "parts": [{"name": "b", "parts": [{"name": "c"}]}]}),
    (Literal["yes"], "yes"),
    (int | None, None),
    (Any, {"what": ["ever"]}),
]
BAD: list[tuple[Any, Any, set[tuple[str | int, ...]]]] = [
    (Form, {}, {("ok",)}),
    (Form, {"ok": "perhaps"}, {("ok",)}),
    (Form, {"ok": 1.5, "color": "green"}, {("ok",), ("color",)}),
    (Form, {"ok": True, "other": 1}, {("other",)}),
    (Form, {"ok": True, "pet": {"kind": "cat", "lives": 10}}, {("pet", "lives")}),
    (Form, {"ok": True, "pet": {"kind": "bird"}}, {("pet", "kind")}),
    (Form, {"ok": True, "lines": [{"sku": "ab", "count": 0}]}, {("lines", 0, "sku"), ("lines", 0, "count")}),
    (Form, {"ok": True, "lines": [{"sku": "AB1", "count": 1}] * 4}, {("lines",)}),
    (Form, {"ok": True, "pair": [1]}, {("pair",)}),
    (Form, {"ok": True, "pair": ["x", "a"]}, {("pair", 0)}),
    (Form, {"ok": True, "when": "31.1.2026"}, {("when",)}),
    (Form, {"ok": True, "at": "yesterday"}, {("at",)}),
    (Form, {"ok": True, "hour": "25:00"}, {("hour",)}),
    (Form, {"ok": True, "takes": "a while"}, {("takes",)}),
    (Form, {"ok": True, "id": "7"}, {("id",)}),
    (Form, {"ok": True, "weights": {"a": "much"}}, {("weights", "a")}),
    (Form, [], {()}),
    (Tree, {"name": "a", "parts": [{"name": "b", "parts": [{}]}]}, {("parts", 0, "parts", 0, "name")}),
    (Literal["yes"], "no", {()}),
    (int, True, {()}),
    (Literal[1, 2], True, {()}),
]


class Wolf(BaseModel):
    kind: Literal["wolf"]


class Numbered(BaseModel):
    kind: Literal[1]


Beast = Annotated[Cat | Wolf | Numbered, Field(discriminator="kind")]
Money = Annotated[Decimal, Field(ge=Decimal("0.1"), lt=100, decimal_places=2, max_digits=4)]
Code = Annotated[str, Field(pattern="^[a-z]+$")]

# With what `workflow.schemas` adds: as questions carry it.
EXACT: list[tuple[Any, Any, bool]] = [
    (Money, "0.10", True),
    (Money, "99.99", True),
    (Money, 0.1, True),
    (Money, "0.09", False),
    (Money, "100", False),
    (Money, "1.001", False),
    (Money, "1e1", True),
    (Money, "much", False),
    (Money, "NaN", False),
    (Annotated[Decimal, Field(multiple_of=Decimal("0.05"))], "1.15", True),
    (Annotated[Decimal, Field(multiple_of=Decimal("0.05"))], "1.16", False),
    (Annotated[float, Field(multiple_of=0.1)], 0.3, True),
    (Annotated[int, Field(multiple_of=7)], 7 * 10**40, True),
    (Annotated[int, Field(multiple_of=7)], 7 * 10**40 + 1, False),
    (float | str, "much", True),
    (Decimal | Literal["all"], "all", True),
    (Decimal | Literal["all"], "1.5", True),
    (Decimal | Literal["all"], "some", False),
    (AwareDatetime, "2026-01-31T10:00:00Z", True),
    (AwareDatetime, "2026-01-31T10:00:00", False),
    (NaiveDatetime, "2026-01-31T10:00:00", True),
    (NaiveDatetime, "2026-01-31T10:00:00+01:00", False),
    (timedelta, "PT2H", True),
    (timedelta, "P1W2X", False),
    (date | Color, "2026-01-31", True),
    (date | Color, "blue", True),
    (date | Color, "green", False),
    (Beast, {"kind": "wolf"}, True),
    (Beast, {"kind": 1}, True),
    (Beast, {"kind": "1x"}, False),
    (Beast, {"kind": ["wolf"]}, False),
    (Beast, {}, False),
    (tuple[int, str, date], [1, "a", "2026-01-31"], True),
    (tuple[int, str, date], [1, "a", "2026-01-32"], False),
    (tuple[int, str, date], [1, "a"], False),
    (dict[Color, int], {"red": 1}, True),
    (dict[Color, int], {"green": 1}, False),
    (dict[Code, int], {"abc": 1}, True),
    (dict[Code, int], {"abc": "x"}, False),
    (Annotated[dict[str, int], Field(min_length=1)], {}, False),
    (HttpUrl, "https://example.org/x", True),
    (HttpUrl, "nowhere", False),
    (IPv4Address, "10.0.0.1", True),
    (IPv4Address, "10.0.0.256", False),
    (Literal[True], True, True),
    (Literal[True], False, False),
    (set[int], [1, 2, 1], False),
]


@pytest.mark.parametrize(("annotation", "value", "fits"), EXACT, ids=str)
def test_without_the_type_the_schema_judges_as_it_does(annotation: Any, value: Any, fits: bool) -> None:
    codec = value_codec(annotation)
    assert (check_schema(value, codec.json_schema()) == []) is fits
    if annotation != set[int]:  # which takes a duplicate, and drops it
        try:
            TypeAdapter(annotation).validate_json(json.dumps(value))
        except ValidationError:
            assert not fits
        else:
            assert fits


def test_a_pattern_costs_no_more_time_than_the_text_is_long() -> None:
    schema = TypeAdapter(Annotated[str, Field(pattern="^(a+)+$")]).json_schema()
    assert check_schema("a" * 5000 + "!", schema) != []


def test_secrets_under_a_pattern_of_names_are_redacted() -> None:
    schema = TypeAdapter(dict[Code, SecretStr]).json_schema()
    assert redact({"abc": "hidden"}, schema) == {"abc": "[redacted]"}


def schema_of(annotation: Any) -> dict[str, Any]:
    return TypeAdapter(annotation).json_schema()


@pytest.mark.parametrize(("annotation", "value"), GOOD)
def test_what_the_type_takes_passes(annotation: Any, value: Any) -> None:
    TypeAdapter(annotation).validate_json(json.dumps(value))
    assert check_schema(value, schema_of(annotation)) == []


@pytest.mark.parametrize(("annotation", "value", "fields"), BAD)
def test_what_does_not_fit_is_named_by_field(annotation: Any, value: Any, fields: set[tuple[str | int, ...]]) -> None:
    found = check_schema(value, schema_of(annotation))
    assert {error.loc for error in found} == fields


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.builds(Line, sku=st.from_regex(r"\A[A-Z]{2}[0-9]{1,6}\Z"), count=st.integers(1, 99))
    | st.builds(Cat, lives=st.integers(0, 9))
)
def test_what_a_model_writes_passes_its_own_schema(value: BaseModel) -> None:
    assert check_schema(value.model_dump(mode="json"), schema_of(type(value))) == []


@given(plain)
def test_any_json_gets_an_answer(value: Any) -> None:
    for annotation in (Form, Tree, int, list[int]):
        found = check_schema(value, schema_of(annotation))
        assert all(error.message for error in found)


def test_a_schema_that_never_ends_is_refused() -> None:
    assert check_schema(1, {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}})[0].message == (
        "is nested too deeply"
    )


class Login(BaseModel):
    name: str
    password: SecretStr
    others: list[SecretStr] = []
    spare: SecretStr | None = None


class Logins(BaseModel):
    by_name: dict[str, Login] = {}
    one: Login | None = None


def test_secrets_are_redacted_wherever_they_stand() -> None:
    login = {"name": "a", "password": "p", "others": ["q", "r"], "spare": "s"}
    hidden = {"name": "a", "password": "[redacted]", "others": ["[redacted]"] * 2, "spare": "[redacted]"}
    assert redact(login, schema_of(Login)) == hidden
    assert redact({"by_name": {"x": login}, "one": login}, schema_of(Logins)) == {
        "by_name": {"x": hidden},
        "one": hidden,
    }
    assert redact({"one": None}, schema_of(Logins)) == {"one": None}
    assert redact({"name": "a", "passwort": "p"}, schema_of(Login)) == {"name": "a", "passwort": "[redacted]"}


def test_without_secrets_nothing_is_redacted() -> None:
    value = {"ok": True, "other": [1]}
    assert redact(value, schema_of(Form)) == value


def test_unions_take_out_the_secrets_of_each_option_and_nothing_else() -> None:
    schema = schema_of(list[Cat | Login | dict[str, int]])
    cat, login = {"kind": "cat", "lives": 3}, {"name": "a", "password": "p"}
    assert redact([cat, login, {"x": 1}], schema) == [cat, {"name": "a", "password": "[redacted]"}, {"x": 1}]
    assert redact("s", schema_of(SecretStr | int)) == "[redacted]"
    assert redact([1, "s"], schema_of(tuple[int, SecretStr])) == [1, "[redacted]"]
