"""Any model and any of its values: built, filled in, shown, sent and read, it is the value that the JSON would be."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime, TypeAdapter, create_model
from typing_extensions import TypedDict

from signoff.approvals.json_schema import check_schema
from signoff.web import forms
from signoff.workflow.codec import dump, value_codec
from signoff.workflow.tagged import same
from tests.web.filling import sent_by_browser, typed


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark_blue"
    NONE = ""


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Only(Enum):
    ONE = "one"


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Bank(BaseModel):
    kind: Literal["bank"] = "bank"
    iban: str
    days: int = 3


class Cash(BaseModel):
    kind: Literal["cash", "coins"]


class Small(BaseModel):
    name: str


class Large(BaseModel):
    name: str
    size: int


@dataclass
class Parcel:
    weight: float
    notes: list[str] = field(default_factory=list)


class Sometimes(TypedDict):
    name: str
    count: NotRequired[int]


class Tree(BaseModel):
    name: str
    under: list[Tree] = []


Payment = Annotated[Card | Bank | Cash, Field(discriminator="kind")]
PRINTED = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029")
texts = st.text(PRINTED, min_size=1, max_size=12).filter(lambda text: text.strip())
spans = st.timedeltas(timedelta(days=-400_000), timedelta(days=400_000))
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
floats = st.floats(allow_nan=False, allow_infinity=False)
ints = st.integers(-(10**30), 10**30)

LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, ints),
    (float, floats),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Annotated[Decimal, Field(ge=0, decimal_places=2)], st.decimals(0, 10**9, places=2)),
    (str, texts),
    (Annotated[str, Field(max_length=500)], st.text(st.sampled_from("ab \n<&\"'"), min_size=1).filter(str.strip)),
    (date, st.dates(date(1, 1, 1))),
    (time, st.times()),
    (datetime, st.datetimes(timezones=zones)),
    (datetime, st.datetimes()),
    (AwareDatetime, st.datetimes(timezones=zones)),
    (NaiveDatetime, st.datetimes()),
    (timedelta, spans),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Only, st.just(Only.ONE)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (Literal["just this"], st.just("just this")),
    (Literal[True], st.just(True)),
    (UUID, st.uuids()),
    (Point, st.builds(Point, ints, floats)),
    (Payment, st.one_of(st.builds(Card, kind=st.just("card"), number=texts), st.builds(Bank, iban=texts, days=ints),
                        st.builds(Cash, kind=st.sampled_from(["cash", "coins"])))),
    (date | Colour, st.one_of(st.dates(), st.sampled_from([Colour.RED, Colour.DARK_BLUE]))),
    (int | str, st.one_of(ints, texts)),
    (float | str, st.one_of(floats, texts)),
    (Decimal | Literal["all"], st.one_of(st.decimals(allow_nan=False, allow_infinity=False), st.just("all"))),
    (set[Colour], st.sets(st.sampled_from(Colour))),
    (Tree, st.builds(Tree, name=texts, under=st.lists(st.builds(Tree, name=texts), max_size=2))),
    (int | float, st.one_of(ints, floats)),
    (bool | int | None, st.one_of(st.booleans(), ints, st.none())),
    (date | datetime, st.one_of(st.dates(), st.datetimes(timezones=zones))),
    (list[int] | dict[str, int], st.one_of(st.lists(ints, max_size=3), st.dictionaries(texts, ints, max_size=3))),
    (Small | Large, st.one_of(st.builds(Small, name=texts), st.builds(Large, name=texts, size=ints))),
    (list[Payment], st.lists(st.builds(Bank, iban=texts, days=ints), max_size=3)),
    (tuple[int, ...], st.lists(ints, max_size=3).map(tuple)),
    (frozenset[int], st.frozensets(ints, max_size=3)),
    (dict[Colour, int], st.dictionaries(st.sampled_from(Colour), ints)),
    (dict[int, str], st.dictionaries(ints, texts, max_size=3)),
    (Parcel, st.builds(Parcel, weight=floats, notes=st.lists(texts, max_size=2))),
    (Sometimes, st.fixed_dictionaries({"name": texts}, optional={"count": ints})),
    (Annotated[str, Field(pattern="^[a-z]{3}$")], st.from_regex("[a-z]{3}", fullmatch=True)),
    (IPv4Address, st.ip_addresses(v=4)),
    (Path, st.sampled_from([Path("a/b"), Path("/x y")])),
    (bytes, st.text("abc é", min_size=1).filter(str.strip).map(str.encode)),
    (dict[str, Any], st.dictionaries(texts, st.one_of(ints, texts, st.none(), floats), max_size=3)),
]  # fmt: skip


def grow(inner: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda kind: (kind[0] | None, st.one_of(st.none(), kind[1]))),
        inner.map(lambda kind: (list[kind[0]], st.lists(kind[1], max_size=3))),  # type: ignore[name-defined]
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: (tuple[tuple(kind[0] for kind in kinds)], st.tuples(*[kind[1] for kind in kinds]))  # type: ignore[misc]
        ),
        inner.map(lambda kind: (dict[str, kind[0]], st.dictionaries(texts, kind[1], max_size=3))),  # type: ignore[name-defined]
        st.dictionaries(
            st.sampled_from(["city", "note", "x_y", "tags", "ready"]), inner, min_size=1, max_size=4
        ).flatmap(_model),
    )


@st.composite
def _model(draw: st.DrawFn, kinds: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> Any:
    fields: dict[str, Any] = {}
    for name, (annotation, values) in kinds.items():
        alias = draw(st.sampled_from([None, f"{name}.of", f"{name} ~*"]))
        default = draw(st.sampled_from(["none", "given", "null"]))
        if default == "none":
            fields[name] = (annotation, Field(alias=alias))
        elif default == "given":
            fields[name] = (annotation, Field(draw(values), alias=alias))
        else:
            fields[name] = (annotation | None, Field(None, alias=alias))
    model = create_model("Made", __config__={"populate_by_name": True}, **fields)
    given = {
        name: values if default.is_required() or default.default is not None else st.one_of(st.none(), values)
        for (name, (_, values)), default in zip(kinds.items(), model.model_fields.values(), strict=True)
    }
    return model, st.builds(model, **given)


kinds = st.recursive(st.sampled_from(LEAVES), grow, max_leaves=5)


def through_json(adapter: TypeAdapter[Any], value: Any) -> tuple[Any, Any]:
    """The value as JSON, and what the JSON validates to."""
    text = adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
    return json.loads(text), adapter.validate_json(text)


def check(annotation: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    schema = value_codec(annotation).json_schema()
    answer, expected = through_json(adapter, value)
    form = forms.build(schema)
    sent = typed(form, answer)
    shown = forms.build(schema, draft=sent)
    resent = sent_by_browser(shown)
    for what in (sent, resent):
        read = forms.build(schema).read(what)
        assert read is not forms.MISSING, [(item.name, item.text, item.errors) for item in shown.failed]
        back = adapter.validate_json(dump(read))
        assert same(back, expected), (read, back, expected)
        assert check_schema(read, schema) == []


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: str(kind[0])[-60:])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_kind_comes_back_as_its_json_would(kind: tuple[Any, st.SearchStrategy[Any]], data: st.DataObject) -> None:
    annotation, values = kind
    check(annotation, data.draw(values))
    made = create_model("Made", it=(annotation, ...), maybe=(annotation | None, None))
    check(made, made(it=data.draw(values), maybe=data.draw(st.one_of(st.none(), values))))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_whatever_is_made_of_them_comes_back_too(data: st.DataObject) -> None:
    annotation, values = data.draw(kinds)
    check(annotation, data.draw(values))
