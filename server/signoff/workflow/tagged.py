"""The exact form: values that plain JSON would not bring back equal, as JSON with tags.

A tag is an object with one key that begins with `$`: `{"$decimal": "1.10"}`. Classes (models, dataclasses, enums) are
named and looked up among those that the annotation knows, never imported by name.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel, RootModel, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import to_jsonable_python

MARK = "$py"  # {"$py": <tagged>} stands where a value in its natural JSON form would

# Above this many digits Python refuses to print an int in decimal (sys.get_int_max_str_digits).
_MAX_DECIMAL_BITS = 4000 * 3


class Unencodable(Exception):
    """`loc` leads to the value."""

    def __init__(self, loc: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.loc = loc
        self.message = message


def pack(value: Any, classes: Mapping[str, type], loc: tuple[str | int, ...] = ()) -> Any:
    """Plain JSON with tags for `value`; raises Unencodable."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value
    if kind is int:
        return value if value.bit_length() < _MAX_DECIMAL_BITS else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [pack(item, classes, (*loc, place)) for place, item in enumerate(value)]
    if kind is dict:
        return _pack_dict(value, classes, loc)
    if isinstance(value, enum.Enum):
        if classes.get(class_key(kind)) is kind and value.name in kind.__members__:
            return {"$enum": [class_key(kind), value.name]}
        return _pack_unknown(value, loc)
    if isinstance(value, BaseModel):
        return _pack_object(value, classes, loc)
    if dataclasses.is_dataclass(value):
        return _pack_object(value, classes, loc)
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [pack(item, classes, (*loc, place)) for place, item in enumerate(value)]}
    if kind in (set, frozenset):
        # Sorted by what is written, so that equal sets have equal texts.
        items = sorted((pack(item, classes, loc) for item in value), key=repr)
        return {"$set" if kind is set else "$frozenset": items}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        if classes.get(class_key(kind)) is not kind:
            raise Unencodable(loc, f"{kind.__qualname__} is not part of the annotation")
        return {"$named": [class_key(kind), [pack(item, classes, (*loc, place)) for place, item in enumerate(value)]]}
    leaf = _PACK_LEAF.get(kind)
    if leaf is not None:
        return leaf(value)
    return _pack_unknown(value, loc)


def unpack(raw: Any, classes: Mapping[str, type]) -> Any:
    """The value of a tagged form; ValueError, KeyError, TypeError or pydantic's ValidationError if it is none."""
    if isinstance(raw, list):
        return [unpack(item, classes) for item in raw]
    if not isinstance(raw, dict):
        return raw
    if len(raw) == 1:
        (tag, body) = next(iter(raw.items()))
        if tag.startswith("$"):
            return _unpack_tag(tag, body, classes)
    return {key: unpack(item, classes) for key, item in raw.items()}


def class_key(cls: type) -> str:
    return cls.__qualname__


def _pack_dict(value: dict[Any, Any], classes: Mapping[str, type], loc: tuple[str | int, ...]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: pack(item, classes, (*loc, key)) for key, item in value.items()}
    return {
        "$dict": [
            [pack(key, classes, (*loc, str(key))), pack(item, classes, (*loc, str(key)))] for key, item in value.items()
        ]
    }


def _pack_object(value: Any, classes: Mapping[str, type], loc: tuple[str | int, ...]) -> Any:
    kind = type(value)
    if classes.get(class_key(kind)) is not kind:
        raise Unencodable(loc, f"{kind.__qualname__} is not the annotated class, and its own fields would be lost")
    fields = {name: pack(item, classes, (*loc, name)) for name, item in object_fields(value).items()}
    return {"$object": [class_key(kind), fields]}


def object_fields(value: Any) -> dict[str, Any]:
    """What of a model or dataclass goes into the journal, by name."""
    if isinstance(value, BaseModel):
        excluded = {name for name, field in type(value).model_fields.items() if field.exclude}
        fields = {
            name: item
            for name, item in value.__dict__.items()
            if name in type(value).model_fields and name not in excluded
        }
        return {**fields, **(value.__pydantic_extra__ or {})}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


def _pack_unknown(value: Any, loc: tuple[str | int, ...]) -> Any:
    # Types that pydantic reads back from their text: paths, addresses, patterns, urls. The caller compares.
    if isinstance(value, PurePath):
        return str(value)
    try:
        return to_jsonable_python(value)
    except Exception as error:  # pydantic raises whatever a type's own serializer does
        raise Unencodable(loc, f"{type(value).__qualname__} cannot be stored as JSON ({error})") from error


_SEQUENCES: dict[type, str] = {tuple: "$tuple", deque: "$deque"}


def _pack_datetime(value: datetime) -> Any:
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key is not None:
        return {"$datetime": [value.replace(tzinfo=None).isoformat(), value.tzinfo.key, value.fold]}
    return {"$datetime": [value.isoformat()]}


_PACK_LEAF: dict[type, Callable[[Any], Any]] = {
    Decimal: lambda value: {"$decimal": str(value)},
    bytes: lambda value: {"$bytes": value.hex()},
    bytearray: lambda value: {"$bytearray": value.hex()},
    datetime: _pack_datetime,
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": [value.isoformat(), value.fold]},
    timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    UUID: lambda value: {"$uuid": str(value)},
    complex: lambda value: {"$complex": [repr(value.real), repr(value.imag)]},
    SecretStr: lambda value: {"$secret": value.get_secret_value()},
    SecretBytes: lambda value: {"$secretbytes": value.get_secret_value().hex()},
    ZoneInfo: lambda value: {"$zone": value.key},
    timezone: lambda value: {"$timezone": value.utcoffset(None).total_seconds()},
}


def _unpack_datetime(body: list[Any]) -> datetime:
    moment = datetime.fromisoformat(body[0])
    return moment.replace(tzinfo=ZoneInfo(body[1]), fold=body[2]) if len(body) == 3 else moment


_UNPACK_LEAF: dict[str, Callable[[Any], Any]] = {
    "$int": lambda body: int(body, 16),
    "$float": float,
    "$decimal": Decimal,
    "$bytes": bytes.fromhex,
    "$bytearray": bytearray.fromhex,
    "$datetime": _unpack_datetime,
    "$date": date.fromisoformat,
    "$time": lambda body: time.fromisoformat(body[0]).replace(fold=body[1]),
    "$timedelta": lambda body: timedelta(*body),
    "$uuid": UUID,
    "$complex": lambda body: complex(float(body[0]), float(body[1])),
    "$secret": SecretStr,
    "$secretbytes": lambda body: SecretBytes(bytes.fromhex(body)),
    "$zone": ZoneInfo,
    "$timezone": lambda body: timezone(timedelta(seconds=body)),
}
_UNPACK_SEQUENCE: dict[str, Callable[[list[Any]], Any]] = {
    "$tuple": tuple,
    "$deque": deque,
    "$set": set,
    "$frozenset": frozenset,
}


def _unpack_tag(tag: str, body: Any, classes: Mapping[str, type]) -> Any:
    if tag in _UNPACK_LEAF:
        return _UNPACK_LEAF[tag](body)
    if tag in _UNPACK_SEQUENCE:
        return _UNPACK_SEQUENCE[tag]([unpack(item, classes) for item in body])
    if tag == "$dict":
        return {unpack(key, classes): unpack(item, classes) for key, item in body}
    if tag == "$enum":
        return classes[body[0]][body[1]]  # type: ignore[index]  # an Enum class; a wrong one raises TypeError
    if tag == "$named":
        return classes[body[0]](*[unpack(item, classes) for item in body[1]])
    if tag == "$object":
        cls, fields = classes[body[0]], {name: unpack(item, classes) for name, item in body[1].items()}
        if issubclass(cls, RootModel):
            return cls.model_validate(fields["root"], strict=False)
        # Not strict and by field name: the fields were written by us from a valid object.
        return TypeAdapter(cls).validate_python(fields, strict=False, by_alias=False, by_name=True)
    raise ValueError(f"unknown tag {tag!r}")


def sort_sets(value: Any, raw: Any) -> Any:
    """The JSON of `value` with what came from sets in one order, so that equal values have equal texts."""
    if isinstance(value, set | frozenset) and isinstance(raw, list):
        return sorted((sort_sets(item, part) for item, part in zip(value, raw, strict=True)), key=repr)
    if isinstance(value, list | tuple | deque) and isinstance(raw, list) and len(value) == len(raw):
        return [sort_sets(item, part) for item, part in zip(value, raw, strict=True)]
    if isinstance(value, dict) and isinstance(raw, dict) and len(value) == len(raw):
        return {key: sort_sets(item, part) for item, (key, part) in zip(value.values(), raw.items(), strict=True)}
    if isinstance(value, RootModel):
        return sort_sets(value.root, raw)
    if isinstance(raw, dict) and (isinstance(value, BaseModel) or dataclasses.is_dataclass(value)):
        fields = object_fields(value)
        return {key: sort_sets(fields.get(key), part) for key, part in raw.items()}
    return raw


def same(left: Any, right: Any) -> bool:
    """Whether `right` is `left` come back: equal, of the same types all the way down, NaN equal to NaN."""
    kind = type(left)
    if kind is not type(right):
        if kind is int and isinstance(right, float | Decimal):
            return bool(left == right)  # a default, which pydantic does not convert: `rate: float = 0`
        # pydantic gives fixed offsets its own tzinfo class, and a path its concrete class
        return isinstance(left, PurePath) and isinstance(right, PurePath) and left == right
    if left is right:
        return True
    if kind is float:
        return bool(left == right) or (left != left and right != right)
    if kind is complex:
        return same(left.real, right.real) and same(left.imag, right.imag)
    if kind is Decimal:
        return str(left) == str(right)
    if kind is dict:
        return len(left) == len(right) and all(
            same(left_key, right_key) and same(left_item, right_item)
            for (left_key, left_item), (right_key, right_item) in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, tuple | list | deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and _same_members(left, right)
    if isinstance(left, datetime):
        return bool(left == right and left.utcoffset() == right.utcoffset())
    if isinstance(left, SecretStr | SecretBytes):
        return bool(left.get_secret_value() == right.get_secret_value())
    if isinstance(left, BaseModel) or dataclasses.is_dataclass(left):
        return same(object_fields(left), object_fields(right))
    return bool(left == right)


def _same_members(left: set[Any] | frozenset[Any], right: set[Any] | frozenset[Any]) -> bool:
    found = {item: item for item in right}
    # what holds a NaN is equal to nothing, so it is not found
    return all(same(item, found[item]) if item in found else any(same(item, other) for other in right) for item in left)
