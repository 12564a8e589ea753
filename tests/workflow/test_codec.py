"""F12: values come back equal and of their annotated type, and what cannot be stored says so."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from types import GenericAlias
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field
from pydantic.dataclasses import dataclass as checked_dataclass
from typing_extensions import TypedDict

from signoff.workflow.codec import Codec, ValueCodec, decode, encode, json_schema, parse
from signoff.workflow.errors import InvalidInput, RegistrationError, Undecodable
from signoff.workflow.tagged import same

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    limit: int
    until: date


@dataclasses.dataclass
class Line:
    item: str
    price: Decimal
    tags: set[str] = dataclasses.field(default_factory=set)


@checked_dataclass(frozen=True)
class Frozen:
    id: UUID
    at: datetime


class Leaves(BaseModel):
    text: str
    number: int
    ratio: float
    amount: Decimal
    blob: bytes
    at: datetime
    day: date
    clock: time
    gap: timedelta
    id: UUID
    color: Color
    word: Word
    level: Level
    pair: tuple[int, str]
    many: frozenset[int]
    secret: SecretStr


class Strict(Leaves):
    model_config = ConfigDict(strict=True)
    inner: Frozen | None = None


class Tree(BaseModel):
    value: float | Decimal | str
    children: list[Tree] = []
    by_name: dict[str, Tree] = {}


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Left(BaseModel):
    x: int


class Right(BaseModel):
    x: int


class Aliased(BaseModel):
    user_name: str = Field(alias="userName")
    serial: int = Field(serialization_alias="serialOut", validation_alias="serialIn")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def double(self) -> int:
        return self.width * 2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Numbers(RootModel[list[float]]):
    pass


class Box(BaseModel, Generic[T]):
    content: T


class Private(BaseModel):
    name: str
    _cache: int = PrivateAttr(default=0)


zones = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")]
)
moments = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=zones)  # noqa: DTZ001
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
dates = st.dates()
leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, st.integers()),
    (float, st.floats()),
    (bool, st.booleans()),
    (None, st.none()),
    (Decimal, decimals),
    (bytes, st.binary(max_size=20)),
    (datetime, moments),
    (date, dates),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Word, st.sampled_from(Word)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1, True], st.sampled_from(["a", 1, True])),
    (PurePosixPath, st.sampled_from([PurePosixPath("/a/b"), PurePosixPath("c")])),
    (IPv4Address, st.ip_addresses(v=4)),
    (complex, st.complex_numbers()),
    (SecretStr, texts.map(SecretStr)),
    (Point, st.builds(Point, st.integers(), st.floats())),
    (Line, st.builds(Line, texts, decimals, st.sets(texts, max_size=3))),
    (Frozen, st.builds(Frozen, st.uuids(), moments)),
]
hashable = [
    pair for pair in leaves if pair[0] in (str, int, Decimal, bytes, date, datetime, UUID, Color, Word, Level, Point)
]


def leaf_fields() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "text": texts,
        "number": st.integers(),
        "ratio": st.floats(),
        "amount": decimals,
        "blob": st.binary(max_size=10),
        "at": moments,
        "day": dates,
        "clock": st.times(),
        "gap": st.timedeltas(),
        "id": st.uuids(),
        "color": st.sampled_from(Color),
        "word": st.sampled_from(Word),
        "level": st.sampled_from(Level),
        "pair": st.tuples(st.integers(), texts),
        "many": st.frozensets(st.integers(), max_size=3),
        "secret": texts.map(SecretStr),
    }


leaf_models = st.builds(Leaves, **leaf_fields())
strict_models = st.builds(Strict, **leaf_fields(), inner=st.none() | st.builds(Frozen, st.uuids(), moments))


def nested(pairs: list[tuple[Any, st.SearchStrategy[Any]]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """Annotations with strategies for their values, containers inside of containers."""
    keys = st.sampled_from([pair for pair in hashable if pair[0] is not Point])

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some = {"max_size": 3}
        plain = st.sampled_from(hashable)
        return st.one_of(
            inner.map(lambda one: (GenericAlias(list, (one[0],)), st.lists(one[1], **some))),
            inner.map(lambda one: (GenericAlias(deque, (one[0],)), st.lists(one[1], **some).map(deque))),
            inner.map(lambda one: (GenericAlias(tuple, (one[0], ...)), st.lists(one[1], **some).map(tuple))),
            st.tuples(inner, inner).map(
                lambda two: (GenericAlias(tuple, (two[0][0], two[1][0])), st.tuples(two[0][1], two[1][1]))
            ),
            inner.map(
                lambda one: (
                    Optional[one[0]],  # noqa: UP045  # of a value
                    st.none() | one[1],
                )
            ),
            st.tuples(keys, inner).map(
                lambda two: (GenericAlias(dict, (two[0][0], two[1][0])), st.dictionaries(two[0][1], two[1][1], **some))
            ),
            plain.map(lambda one: (GenericAlias(set, (one[0],)), st.sets(one[1], **some))),
            plain.map(lambda one: (GenericAlias(frozenset, (one[0],)), st.frozensets(one[1], **some))),
        )

    return st.recursive(st.sampled_from(pairs), extend, max_leaves=4)


def comes_back(value: Any, annotation: Any) -> None:
    text = encode(value, annotation)
    back = decode(text, annotation)
    assert same(value, back), f"{value!r} came back as {back!r} from {text}"
    assert encode(back, annotation) == text
    # JSON for everyone who reads it: no NaN tokens
    parse_strictly(text)


def parse_strictly(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


@settings(max_examples=200)
@given(st.data())
def test_annotated_values_come_back_equal_and_of_their_type(data: st.DataObject) -> None:
    annotation, values = data.draw(nested(leaves))
    comes_back(data.draw(values), annotation)


@given(leaf_models)
def test_models_come_back(model: Leaves) -> None:
    comes_back(model, Leaves)


@given(strict_models)
def test_strict_models_come_back(model: Strict) -> None:
    comes_back(model, Strict)
    comes_back([model], list[Strict])


tree_values = st.floats() | decimals | texts
trees = st.recursive(
    st.builds(Tree, value=tree_values),
    lambda inner: st.builds(
        Tree,
        value=tree_values,
        children=st.lists(inner, max_size=2),
        by_name=st.dictionaries(texts, inner, max_size=2),
    ),
    max_leaves=5,
)


@given(trees)
def test_models_that_hold_themselves_come_back(tree: Tree) -> None:
    comes_back(tree, Tree)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (date | str, date(2024, 1, 1)),
        (date | str, "2024-01-01"),
        (str | UUID, UUID(int=5)),
        (str | Decimal | float, Decimal("1.10")),
        (int | float, 1.0),
        (bytes | str, b"abc"),
        (date | datetime, datetime(2024, 1, 1, tzinfo=UTC)),
        (date | datetime, date(2024, 1, 1)),
        (Color | str, Color.RED),
        (Word | str, "yes"),
        (Word | str, Word.YES),
        (list[int] | tuple[int, ...], (1, 2)),
        (list[int] | set[int], {1, 2}),
        (Left | Right, Right(x=1)),
        (Left | Right, Left(x=1)),
        (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(name="x")),
        (dict[str, Any], {"total": Decimal("1.10"), "tags": {"a"}, "at": datetime(2024, 1, 1, tzinfo=UTC)}),
        (list[Any], [1, "a", None, (1, 2), b"\xff"]),
        (dict[int, str], {1: "a"}),
        (dict[str, int], {"$py": 1}),
        (dict[str, int], {"$decimal": 1, "": 2}),
        (dict[tuple[int, int], float], {(1, 2): math.inf}),
        (Aliased, Aliased.model_validate({"userName": "ana", "serialIn": 3})),
        (Computed, Computed(width=2)),
        (Open, Open.model_validate({"name": "x", "more": [1, 2], "sum": Decimal("1.5")})),
        (Numbers, Numbers([1.0, math.nan, -math.inf])),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal("NaN")),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal("-Infinity")),
        (Box[Decimal], Box[Decimal](content=Decimal("1E+5"))),
        (Box[bytes], Box[bytes](content=b"\x80")),
        (Options, {"until": date(2024, 2, 29)}),
        (datetime, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
        (float, -0.0),
        (complex, complex(math.nan, -0.0)),
        (complex, complex(-0.0, math.inf)),
        (set[float], {math.nan, 1.0}),
        (dict[float, int], {math.nan: 1}),
        (list[int], [10**5000]),
        (int, -(2**63)),
        (str, "\ud800"),
        (Level | Color, Level.HIGH),
    ],
)  # fmt: skip
def test_what_plain_json_cannot_tell_apart(annotation: Any, value: Any) -> None:
    comes_back(value, annotation)


def test_equal_time_in_the_repeated_hour() -> None:
    moment = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert decode(encode(moment, datetime), datetime) == moment


def test_minus_zero_keeps_its_sign() -> None:
    assert math.copysign(1, decode(encode(-0.0, float), float)) == -1


class Defaults(BaseModel):
    rate: float = 0
    limit: Decimal = Field(default=5)
    big: float = 2**53 + 1


def test_a_default_that_is_an_int_is_stored_where_it_is_the_same_number() -> None:
    codec = ValueCodec(Defaults)
    back = codec.decode(codec.encode(Defaults(big=1)))
    assert (back.rate, back.limit, type(back.rate), type(back.limit)) == (0.0, Decimal(5), float, Decimal)
    with pytest.raises(InvalidInput):
        codec.encode(Defaults())


def test_private_attributes_are_not_stored_and_refuse_nothing() -> None:
    model = Private(name="x")
    model._cache = 7
    assert decode(encode(model, Private), Private).name == "x"


def test_common_values_are_natural_json() -> None:
    """What pages and other programs read stays readable wherever that is exact."""
    line = Line("pen", Decimal("1.50"), {"red"})
    assert parse(encode(line, Line)) == {"item": "pen", "price": "1.50", "tags": ["red"]}
    assert parse(encode(datetime(2024, 1, 1, tzinfo=UTC), datetime)) == "2024-01-01T00:00:00Z"
    assert parse(encode(UUID(int=0), UUID)) == str(UUID(int=0))
    assert parse(encode(Color.RED, Color)) == "red"
    assert parse(encode((1, "a"), tuple[int, str])) == [1, "a"]


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)


@given(plain_json)
def test_plain_json_needs_no_annotation(value: Any) -> None:
    assert same(value, decode(encode(value)))


class Sub(Left):
    more: int = 0


@pytest.mark.parametrize(
    ("annotation", "value", "loc"),
    [
        (Any, {"a": [1, {2}]}, ("a", 1)),
        (Any, {"a": {"b": Decimal(1)}}, ("a", "b")),
        (Any, (1, 2), ()),
        (Any, {1: 2}, ()),
        (Any, Word.YES, ()),
        (list[Any], [object()], (0,)),
        (dict[str, Any], {"a": Left(x=1)}, ("a",)),
        (dict[str, Any], {"a": Fraction(1, 2)}, ()),
        (list[Left], [Left(x=1), Sub(x=1, more=5)], (1,)),
        (int, "many", ()),
        (Leaves, {"text": 5}, ("text",)),
        (list[int], [1, "x"], (1,)),
    ],
)
def test_what_cannot_be_stored_names_its_field(annotation: Any, value: Any, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        encode(value, annotation)
    if loc:
        assert loc in [item.loc for item in caught.value.fields]


def test_values_are_validated_to_the_annotation() -> None:
    assert encode(5, float) == "5.0"
    assert encode("5", int) == "5"
    assert decode("5", float) == 5.0
    assert type(decode("5", float)) is float


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, '"x"'),
        (int, "{"),
        (str, ""),
        (Left, '{"x": "y"}'),
        (Left, "[]"),
        (Left, '{"$py":{"$object":["Sub",{"x":1}]}}'),
        (Left, '{"$py":{"$object":["Left",{"x":"y"}]}}'),
        (Decimal, '{"$py":{"$decimal":"x"}}'),
        (Decimal, '{"$py":{"$nonsense":"x"}}'),
        (Color, '{"$py":{"$enum":["Color","GREEN"]}}'),
        (Color, '{"$py":{"$enum":["Left","GREEN"]}}'),
        (set[int], '{"$py":{"$set":[[1]]}}'),
        (set[int], '{"$py":{"$set":[["$dict"]]},"more":1}'),
        (datetime, '{"$py":{"$datetime":["2024-01-01T00:00:00","Nowhere/Town",0]}}'),
    ],
)
def test_a_stored_value_that_does_not_fit_is_undecodable(annotation: Any, text: str) -> None:
    with pytest.raises(Undecodable):
        decode(text, annotation)


tags = st.sampled_from(["$py", "$set", "$dict", "$enum", "$object", "$named", "$time", "x"])
tagged = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tags, inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=300)
@given(
    st.text(max_size=30)
    | tagged.map(json.dumps)
    | tagged.map(lambda raw: json.dumps({"$py": raw}, separators=(",", ":")))
)
def test_no_text_does_anything_else_than_decode_or_be_refused(text: str) -> None:
    for annotation in (Leaves, Any, Color, set[int], Point):
        try:
            decode(text, annotation)
        except Undecodable:
            continue


async def place(
    order: str, /, amount: Decimal, tags: set[str] = frozenset(), *lines: Line, urgent: bool = False, **rest: date
) -> Frozen | None: ...


async def simple(order: str, amount: Decimal = Decimal(0), *, note: str | None = None) -> list[Line]: ...


@pytest.fixture
def codec() -> Codec:
    return Codec.for_callable(simple)


def test_args_are_stored_as_the_call_gave_them(codec: Codec) -> None:
    assert codec.encode_call(("o",)) == '{"order":"o"}'
    assert codec.encode_call(("o",), {"note": None}) == '{"order":"o","note":null}'
    assert codec.encode_call((), {"amount": Decimal("1.0"), "order": "o"}) == '{"amount":"1.0","order":"o"}'
    assert Codec.for_callable(lambda: 1).encode_call() is None
    assert Codec.for_callable(lambda: 1).decode_call(None) == ((), {})


def test_one_call_has_one_text_however_it_was_written(codec: Codec) -> None:
    texts = {
        codec.normalize(codec.encode_call(args, kwargs))
        for args, kwargs in [
            (("o", Decimal(1)), {}),
            (("o",), {"amount": Decimal(1)}),
            ((), {"amount": Decimal(1), "order": "o"}),
        ]
    }
    assert len(texts) == 1


@given(
    st.tuples(texts, decimals) | st.tuples(texts, decimals, st.sets(texts, max_size=2)),
    st.lists(st.builds(Line, texts, decimals), max_size=2),
    st.dictionaries(st.sampled_from(["urgent"]), st.booleans()),
    st.dictionaries(st.sampled_from(["order", "from_", "until"]), dates),
)
def test_every_kind_of_parameter_comes_back(
    args: tuple[Any, ...], lines: list[Line], urgent: dict[str, bool], rest: dict[str, date]
) -> None:
    codec = Codec.for_callable(place)
    args = (*args, *lines) if len(args) == 3 else args
    kwargs = {**urgent, **rest}
    back = codec.decode_call(codec.encode_call(args, kwargs))
    assert same((args, kwargs), back)


@pytest.mark.parametrize(
    ("args", "kwargs", "loc"),
    [
        ((), {}, ("order",)),
        ((5,), {}, ("order",)),
        (("o",), {"amont": 1}, ("amont",)),
        (("o",), {"order": "p"}, ()),
        (("o", 1, 2), {}, ()),
        (("o", "x"), {}, ("amount",)),
    ],
)
def test_wrong_args_are_listed(
    codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any], loc: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        codec.encode_call(args, kwargs)
    assert loc in [item.loc for item in caught.value.fields]
    assert "simple" in str(caught.value)


def test_all_wrong_args_are_listed_at_once(codec: Codec) -> None:
    with pytest.raises(InvalidInput) as caught:
        codec.encode_call((5, "x"), {"note": 7})
    assert [item.loc for item in caught.value.fields] == [("order",), ("amount",), ("note",)]


class OldItem(BaseModel):
    sku: str


class NewItem(BaseModel):
    sku: str
    count: int = 1


async def old(item: OldItem) -> None: ...
async def new(item: NewItem, fast: bool = False) -> None: ...
async def renamed(thing: NewItem) -> None: ...


def test_a_new_optional_parameter_or_field_changes_no_recorded_args() -> None:
    """R2: what was recorded by the old code is compared with what the new code asks for."""
    recorded = Codec.for_callable(old).encode_call((OldItem(sku="a"),))
    today = Codec.for_callable(new)
    assert today.normalize(recorded) == today.encode_call((NewItem(sku="a"),))
    assert today.normalize(recorded) != today.encode_call((NewItem(sku="b"),))
    with pytest.raises(Undecodable) as caught:
        Codec.for_callable(renamed).normalize(recorded)
    assert {item.loc for item in caught.value.fields} == {("item",), ("thing",)}


def test_args_from_outside_are_checked_and_brought_into_form(codec: Codec) -> None:
    assert codec.check_call('{"order": "o", "amount": 1.5}') == '{"order":"o","amount":"1.5"}'
    for text in ('{"order": 5}', "[]", "x", "{}", '{"order":"o","x":1}'):
        with pytest.raises(InvalidInput):
            codec.check_call(text)
    assert ValueCodec(Aliased).check('{"userName": "a", "serialIn": 1}') == '{"user_name":"a","serial":1}'
    with pytest.raises(InvalidInput) as caught:
        ValueCodec(Left).check('{"x": "y"}')
    assert caught.value.fields[0].loc == ("x",)


def test_invalid_results_name_the_function_and_field(codec: Codec) -> None:
    with pytest.raises(InvalidInput, match="simple: invalid result") as caught:
        codec.encode_result([Line("a", Decimal(1)), 5])
    assert caught.value.fields[0].loc[0] == 1
    assert codec.decode_result(codec.encode_result([Line("a", Decimal(1))])) == [Line("a", Decimal(1))]


def test_secrets_are_noticed_at_any_depth() -> None:
    async def login(user: str, keys: dict[str, list[SecretStr]]) -> Leaves: ...

    codec = Codec.for_callable(login)
    assert codec.has_secret_args
    assert codec.has_secret_result
    assert not Codec.for_callable(simple).has_secret_args


def test_an_annotation_that_cannot_be_stored_is_refused_at_once() -> None:
    class Plain:
        pass

    def bad(thing: Plain) -> None: ...
    def unknown(thing: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(RegistrationError, match=r"parameter 'thing' of .*bad"):
        Codec.for_callable(bad, namespace={"Plain": Plain})
    with pytest.raises(RegistrationError, match="Missing"):
        Codec.for_callable(unknown)


def test_json_schema_describes_the_args() -> None:
    schema = Codec.for_callable(simple).args_schema()
    assert schema["required"] == ["order"]
    assert set(schema["properties"]) == {"order", "amount", "note"}
    assert json_schema(Left)["properties"]["x"]["type"] == "integer"
