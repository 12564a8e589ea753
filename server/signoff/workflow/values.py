"""Values as JSON text and back: what comes back is equal and of the annotated type.

A value stands in the journal in the JSON that pydantic writes for its annotation, as long as that brings it back equal;
encoding checks it. Where JSON cannot (bytes, infinities, secrets, a date in a `date | str`), the exact form of `tagged`
is written. Without an annotation a value must be plain JSON. A fast path serves plain strings, numbers and booleans.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from signoff.workflow.errors import FieldError, InvalidInput, RegistrationError, Undecodable
from signoff.workflow.schemas import schema_of
from signoff.workflow.tagged import MARK, Unencodable, class_key, pack, same, sort_sets, unpack

MISSING: Any = inspect.Parameter.empty
_UNTYPED = (MISSING, Any, object)
_MARKED = '{"' + MARK + '":'
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring_ascii
_to_json, _from_json = pydantic_core.to_json, pydantic_core.from_json


def parse(text: str) -> Any:
    """JSON text to plain values; ValueError when it is none."""
    try:
        return _from_json(text)
    except ValueError:
        return json.loads(text)  # takes what the fast parser refuses: lone surrogates


def dump(raw: Any) -> str:
    """Plain JSON values to text; the caller knows that they are plain."""
    if type(raw) is str and raw.isascii():
        return _quote(raw)
    try:
        return _to_json(raw, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError):
        return _dumps(raw)  # lone surrogates, as escapes


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the schema of an annotation says of its values."""

    classes: Mapping[str, type] = field(default_factory=dict)  # those that it names
    secret: bool = False
    sets: bool = False

    @classmethod
    def of(cls, adapter: TypeAdapter[Any]) -> _Facts:
        found: dict[str, set[type]] = {}
        kinds: set[str] = set()
        todo: list[Any] = [adapter.core_schema]
        seen: set[int] = set()
        while todo:
            item = todo.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, dict):
                kinds.add(str(item.get("type")))
                named = (
                    item.get("function") if item.get("type") == "call" else item.get("cls")
                )  # a call: of a NamedTuple
                if isinstance(named, type):
                    found.setdefault(class_key(named), set()).add(named)
                todo.extend(value for key, value in item.items() if key not in ("cls", "metadata", "serialization"))
            elif isinstance(item, list | tuple):
                todo.extend(item)
        text = repr(adapter.core_schema)
        return cls(
            # A name that two classes share is left out: it would be a guess.
            {key: classes.pop() for key, classes in found.items() if len(classes) == 1},
            "SecretStr" in text or "SecretBytes" in text or "pydantic.types.Secret" in text,
            not kinds.isdisjoint({"set", "frozenset"}),
        )


class ValueCodec:
    """Encodes and decodes values of one annotation."""

    __slots__ = ("_adapter", "_facts", "_plain", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        # For an exact type of the fast path: that type, whose values are their own JSON.
        self._plain: type | None = annotation if annotation in (str, int, float, bool) else None
        if annotation is None or annotation is type(None):
            self._plain = type(None)
        self._adapter: TypeAdapter[Any] | None = None if annotation in _UNTYPED else _adapter(annotation)
        self._facts: _Facts | None = None

    @property
    def facts(self) -> _Facts:
        if self._facts is None:
            self._facts = _Facts() if self._adapter is None else _Facts.of(self._adapter)
        return self._facts

    @property
    def has_secret(self) -> bool:
        return self.facts.secret

    def encode(self, value: Any) -> str:
        """JSON text; InvalidInput with the fields that do not fit the annotation or cannot be stored."""
        if type(value) is self._plain:
            if value is None:
                return "null"
            if self._plain is str:
                return dump(value)
            if self._plain is bool:
                return "true" if value else "false"
            number: Any = value
            if -_BIG < number < _BIG:  # not for NaN and infinity, nor for ints that JSON parsers may refuse
                return repr(value)
        if self._adapter is None:
            return _encode_plain(value)
        try:
            valid = self._adapter.validate_python(value)
        except ValidationError as error:
            raise InvalidInput("the value does not fit its annotation", _fields(error)) from error
        return self._encode_valid(valid)

    def _encode_valid(self, valid: Any) -> str:
        adapter = self._adapter
        assert adapter is not None
        # Whatever a type's own serializer or validator raises: the exact form may do.
        with contextlib.suppress(Exception):
            text = adapter.dump_json(valid, by_alias=False, round_trip=True, warnings=False).decode()
            if self.facts.sets:
                text = dump(sort_sets(valid, parse(text)))
            if not text.startswith(_MARKED) and same(valid, adapter.validate_json(text, by_alias=True, by_name=True)):
                return text
        try:
            text = _MARKED + dump(pack(valid, self.facts.classes)) + "}"
            back = self._decode_marked(parse(text))
        except Unencodable as error:
            raise InvalidInput("the value cannot be stored", [FieldError(error.loc, error.message)]) from error
        except Exception as error:  # as above, and there is no other form left
            raise InvalidInput(f"the value cannot be stored: it does not come back ({error})") from error
        if not same(valid, back):
            raise InvalidInput(f"the value cannot be stored: it would come back as {_short(back)}, not {_short(valid)}")
        return text

    def decode(self, text: str) -> Any:
        """The value; Undecodable when the text does not fit the annotation."""
        plain = self._plain
        try:
            if plain is not None or self._adapter is None:
                raw = parse(text)
                if type(raw) is plain:
                    return raw
                if self._adapter is None:
                    return self._decode_marked(raw) if text.startswith(_MARKED) else raw
            if text.startswith(_MARKED):
                return self._decode_marked(parse(text))
            return self._adapter.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise Undecodable("the stored value does not fit its annotation", _fields(error)) from error
        except Exception as error:  # what a damaged text or an author's validator raises
            raise Undecodable(f"the stored value does not fit its annotation: {error}") from error

    def decode_raw(self, raw: Any) -> Any:
        """As `decode`, from parsed JSON."""
        if type(raw) is self._plain:
            return raw
        if self._adapter is None and not (type(raw) is dict and MARK in raw):
            return raw
        return self.decode(dump(raw))

    def check(self, text: str) -> str:
        """JSON from outside, validated and in the form that the journal keeps; InvalidInput with the fields."""
        try:
            return self.encode(self.decode(text))
        except Undecodable as error:
            raise InvalidInput("the value does not fit", error.fields or [FieldError((), error.message)]) from error

    @property
    def adapter(self) -> TypeAdapter[Any] | None:
        return self._adapter

    def json_schema(self) -> dict[str, Any]:
        return {} if self._adapter is None else schema_of(self._adapter)

    def _decode_marked(self, raw: Any) -> Any:
        value = unpack(raw[MARK], self.facts.classes)
        return (
            value
            if self._adapter is None
            else self._adapter.validate_python(value, strict=False, by_alias=True, by_name=True)
        )


_BIG = 2**63
_codecs: dict[Any, ValueCodec] = {}


def value_codec(annotation: Any) -> ValueCodec:
    """The codec of an annotation, made once. RegistrationError if pydantic cannot handle the annotation."""
    try:
        return _codecs[annotation]
    except KeyError:
        codec = _codecs[annotation] = ValueCodec(annotation)
        return codec
    except TypeError:  # an unhashable annotation, Annotated[int, [...]]
        return ValueCodec(annotation)


def encode(value: Any, annotation: Any = MISSING) -> str:
    return value_codec(annotation).encode(value)


def decode(text: str, annotation: Any = MISSING) -> Any:
    return value_codec(annotation).decode(text)


def json_schema(annotation: Any) -> dict[str, Any]:
    return value_codec(annotation).json_schema()


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise RegistrationError(str(error).split("\n", 1)[0]) from error


def _encode_plain(value: Any) -> str:
    """Without an annotation: plain JSON, checked all the way down."""
    try:
        exact = _check_plain(value, ())
    except Unencodable as error:
        raise InvalidInput(
            "without an annotation a value must be plain JSON", [FieldError(error.loc, error.message)]
        ) from error
    except RecursionError as error:
        raise InvalidInput("the value is nested too deep") from error
    return dump(value) if exact else _MARKED + dump(pack(value, {})) + "}"


def _check_plain(value: Any, loc: tuple[str | int, ...]) -> bool:
    """Whether JSON brings it back as it is; Unencodable if it is not of JSON's types."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return bool(-_BIG < value < _BIG) or value.bit_length() < 10_000
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all([_check_plain(item, (*loc, place)) for place, item in enumerate(value)])  # noqa: C419  # all are checked
    if kind is dict:
        exact = MARK not in value
        for key, item in value.items():
            if type(key) is not str:
                raise Unencodable(loc, f"the key {key!r} is no string")
            exact &= _check_plain(item, (*loc, key))
        return exact
    raise Unencodable(loc, f"{kind.__qualname__} is not plain JSON: annotate it to store it")


def _fields(error: ValidationError) -> list[FieldError]:
    return [
        FieldError(
            tuple(item["loc"]), item["msg"], item.get("input") if not isinstance(item.get("input"), BaseModel) else None
        )
        for item in error.errors(include_url=False, include_context=False)
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
