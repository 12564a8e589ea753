from __future__ import annotations

import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter

from signoff.approvals.json_schema import check_schema, redact


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
