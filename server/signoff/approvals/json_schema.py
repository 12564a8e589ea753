"""Checks a JSON value against a JSON schema as pydantic writes them.

The answer's own type is the better judge and is asked where the process has it. This one serves processes that have
not imported the author's code: a command line, a server whose workflows run elsewhere. Keywords it does not know are
passed, as the specification says; the worker decodes every answer with the type all the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import AnyUrl, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from signoff.workflow.errors import FieldError

Loc = tuple[str | int, ...]
Schema = dict[str, Any] | bool

MAX_DEPTH: Final = 64
MASK: Final = "[redacted]"


def check_schema(value: Any, schema: Schema) -> list[FieldError]:
    """What does not fit, by field, from the outside in; [] when all does."""
    root = schema if isinstance(schema, dict) else {}
    return list(_check(value, schema, (), root, 0))


def has_secrets(schema: Any) -> bool:
    """Whether any part of the schema is marked as write-only, as pydantic marks a SecretStr."""
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(has_secrets, schema.values()))
    return isinstance(schema, list) and any(map(has_secrets, schema))


def redact(value: Any, schema: dict[str, Any]) -> Any:
    """The value with everything that the schema marks as write-only replaced.

    Where there are secrets, members that the schema does not name are replaced too: they could be one, misspelt.
    """
    return _redact(value, [schema], schema) if has_secrets(schema) else value


def _redact(value: Any, schemas: list[Any], root: dict[str, Any]) -> Any:
    """`schemas`: all that the value may be meant for, because of a union; what is secret in one of them is replaced."""
    parts = [part for schema in schemas for part in _alternatives(schema, root, 0)]
    if value is None:
        return None
    if any(part.get("writeOnly") is True for part in parts):
        return MASK
    if isinstance(value, dict):
        objects = [part for part in parts if not _OBJECT.isdisjoint(part)]
        if not objects:
            return value
        shown = {}
        for key, item in value.items():
            found = [part for part in (_member(one, key) for one in objects) if part is not None]
            shown[key] = _redact(item, found, root) if found else MASK
        return shown
    if isinstance(value, list):
        return [_redact(item, [_item(part, i) for part in parts], root) for i, item in enumerate(value)]
    return value


_OBJECT: Final = {"properties", "additionalProperties", "patternProperties"}


def _alternatives(schema: Any, root: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    schema = _resolve(schema, root)
    if isinstance(schema, dict) and depth < MAX_DEPTH:
        yield schema
        for key in ("anyOf", "oneOf", "allOf"):
            for option in schema.get(key, ()):
                yield from _alternatives(option, root, depth + 1)


def _member(schema: dict[str, Any], key: str) -> Any:
    named, others = schema.get("properties"), schema.get("additionalProperties")
    if named is not None and key in named:
        return named[key]
    if patterns := schema.get("patternProperties"):
        return next(iter(patterns.values())) if len(patterns) == 1 else {"anyOf": list(patterns.values())}
    return others if isinstance(others, dict) else {} if named is None and others is True else None


def _item(schema: dict[str, Any], place: int) -> Any:
    placed = schema.get("prefixItems", [])
    return placed[place] if place < len(placed) else schema.get("items")


def _resolve(schema: Any, root: Any) -> Any:
    for _ in range(MAX_DEPTH):
        if not (isinstance(schema, dict) and "$ref" in schema):
            return schema
        target: Any = root
        for part in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        schema = target
    return True


def _check(value: Any, schema: Schema, loc: Loc, root: dict[str, Any], depth: int) -> Iterator[FieldError]:
    if depth > MAX_DEPTH:
        yield FieldError(loc, "is nested too deeply")
        return
    schema = _resolve(schema, root)
    if isinstance(schema, bool):
        if not schema:
            yield FieldError(loc, "is not expected here", value)
        return
    for option in schema.get("allOf", ()):
        yield from _check(value, option, loc, root, depth + 1)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        yield from _check_options(value, schema, options, loc, root, depth)
    if "const" in schema and not _equal(value, schema["const"]):
        yield FieldError(loc, f"must be {schema['const']!r}", value)
    if "enum" in schema and not any(_equal(value, item) for item in schema["enum"]):
        yield FieldError(loc, f"must be one of {', '.join(repr(item) for item in schema['enum'])}", value)
    types = schema.get("type")
    if types is not None:
        types = [types] if isinstance(types, str) else types
        if not any(_TYPES[name](value) for name in types if name in _TYPES):
            yield FieldError(loc, f"must be {_spoken(types)}", value)
            return
    if isinstance(value, str):
        yield from _check_text(value, schema, loc)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, schema, loc)
    elif isinstance(value, list):
        yield from _check_list(value, schema, loc, root, depth)
    elif isinstance(value, dict):
        yield from _check_object(value, schema, loc, root, depth)


def _check_options(
    value: Any, schema: dict[str, Any], options: list[Schema], loc: Loc, root: dict[str, Any], depth: int
) -> Iterator[FieldError]:
    tag = schema.get("discriminator", {}).get("propertyName")
    if tag is not None and isinstance(value, dict):
        mapping = schema["discriminator"].get("mapping", {})
        told = value.get(tag)
        # The mapping's keys are text, whatever the tags are.
        chosen = mapping.get(told if isinstance(told, str) else json.dumps(told, default=str))
        if chosen is None:
            message = f"must be one of {', '.join(map(repr, mapping))}" if tag in value else "is required"
            yield FieldError((*loc, tag), message, told)
            return
        yield from _check(value, {"$ref": chosen}, loc, root, depth + 1)
        return
    found = [list(_check(value, option, loc, root, depth + 1)) for option in options]
    if not all(found):
        return
    # The option that came furthest speaks: for `Model | None`, the model's own fields and not "must be null".
    yield from max(found, key=lambda errors: max(len(error.loc) for error in errors))


def _check_text(value: str, schema: dict[str, Any], loc: Loc) -> Iterator[FieldError]:
    if len(value) < schema.get("minLength", 0):
        yield FieldError(loc, f"must have at least {schema['minLength']} characters", value)
    if len(value) > schema.get("maxLength", math.inf):
        yield FieldError(loc, f"must have at most {schema['maxLength']} characters", value)
    if "pattern" in schema and not _matches(schema["pattern"], value):
        yield FieldError(loc, f"must match the pattern {schema['pattern']}", value)
    form = schema.get("format", "")
    if form == "decimal":
        yield from _check_decimal(value, schema, loc)
    elif (parse := _FORMATS.get(form)) is not None:
        try:
            read = parse(value)
        except ValueError:
            yield FieldError(loc, f"must be a {form}", value)
            return
        zone = getattr(read, "tzinfo", None)
        if schema.get("zone") == "aware" and zone is None:
            yield FieldError(loc, "must have a time zone", value)
        elif schema.get("zone") == "naive" and zone is not None:
            yield FieldError(loc, "must have no time zone", value)


@lru_cache(512)
def _pattern(pattern: str) -> TypeAdapter[str] | None:
    """pydantic's own engine, as the type itself would use: what it means is the same, and it takes linear time."""
    try:
        return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except SchemaError:
        return None


def _matches(pattern: str, value: str) -> bool:
    adapter = _pattern(pattern)
    if adapter is None:
        # Only Python's engine knows it (a look-around). One that it does not know either is left to the worker.
        try:
            return re.search(pattern, value) is not None
        except re.error:
            return True
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _check_decimal(value: str, schema: dict[str, Any], loc: Loc) -> Iterator[FieldError]:
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        yield FieldError(loc, "must be a number", value)
        return
    yield from _check_number(number, schema, loc)
    _, digits, power = number.as_tuple()
    exponent = int(power)
    while exponent < 0 and len(digits) > 1 and digits[-1] == 0:  # zeros at the end count for nothing
        digits, exponent = digits[:-1], exponent + 1
    places = max(-exponent, 0)
    if places > schema.get("decimalPlaces", math.inf):
        yield FieldError(loc, f"must have no more than {schema['decimalPlaces']} decimal places", value)
    elif max(len(digits) + max(exponent, 0), places) > schema.get("maxDigits", math.inf):
        yield FieldError(loc, f"must have no more than {schema['maxDigits']} digits", value)


def _check_number(value: float | Decimal, schema: dict[str, Any], loc: Loc) -> Iterator[FieldError]:
    exact = _decimal(value)
    for key, fails, words in _BOUNDS:
        if key in schema and fails(exact, _decimal(schema[key])):
            yield FieldError(loc, f"must be {words} {schema[key]}", value)
    step = schema.get("multipleOf")
    if step and not _is_multiple(value, step):
        yield FieldError(loc, f"must be a multiple of {step}", value)


def _decimal(value: float | Decimal) -> Decimal:
    """As it is written: a bound of 0.1 is a tenth, not the float next to it."""
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def _is_multiple(value: float | Decimal, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    exact, unit = _decimal(value), _decimal(step)
    try:
        # A float may lie beside what was meant by a hair.
        hair = Decimal("1e-9") if isinstance(value, float) else Decimal(0)
        return abs(exact / unit - round(exact / unit)) <= hair if hair else exact % unit == 0
    except InvalidOperation:  # so many digits between them that none of them says
        return True


def _check_list(
    value: list[Any], schema: dict[str, Any], loc: Loc, root: dict[str, Any], depth: int
) -> Iterator[FieldError]:
    if len(value) < schema.get("minItems", 0):
        yield FieldError(loc, f"must have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", math.inf):
        yield FieldError(loc, f"must have at most {schema['maxItems']} items")
    if schema.get("uniqueItems") and len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield FieldError(loc, "must not hold an item twice")
    placed, rest = schema.get("prefixItems", []), schema.get("items", True)
    for i, item in enumerate(value):
        yield from _check(item, placed[i] if i < len(placed) else rest, (*loc, i), root, depth + 1)


def _check_object(
    value: dict[str, Any], schema: dict[str, Any], loc: Loc, root: dict[str, Any], depth: int
) -> Iterator[FieldError]:
    named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    patterns = schema.get("patternProperties", {})
    if len(value) < schema.get("minProperties", 0):
        yield FieldError(loc, f"must have at least {schema['minProperties']} items")
    if len(value) > schema.get("maxProperties", math.inf):
        yield FieldError(loc, f"must have at most {schema['maxProperties']} items")
    for key in schema.get("required", ()):
        if key not in value:
            yield FieldError((*loc, key), "is required")
    for key, item in value.items():
        if "propertyNames" in schema:
            for error in _check(key, schema["propertyNames"], (), root, depth + 1):
                yield FieldError((*loc, key, "[key]"), error.message, key)
        fitting = [sub for pattern, sub in patterns.items() if _matches(pattern, key)]
        for sub in [named[key]] if key in named else fitting or [others]:
            yield from _check(item, sub, (*loc, key), root, depth + 1)


def _equal(one: Any, other: Any) -> bool:
    # JSON's true is not its 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _spoken(types: list[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types)


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_WORDS: Final = {
    "null": "empty",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "array": "a list",
    "object": "an object",
}
_BOUNDS: Final[tuple[tuple[str, Callable[[Decimal, Decimal], bool], str], ...]] = (
    ("minimum", lambda value, bound: value < bound, "at least"),
    ("maximum", lambda value, bound: value > bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value <= bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value >= bound, "less than"),
)
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\Z")


def _email(value: str) -> str:
    if not _EMAIL.match(value):
        raise ValueError("no e-mail address")
    return value


_FORMATS: Final[dict[str, Callable[[str], object]]] = {
    "date": TypeAdapter(date).validate_python,
    "date-time": TypeAdapter(datetime).validate_python,
    "time": TypeAdapter(time).validate_python,
    "duration": TypeAdapter(timedelta).validate_python,
    "uuid": UUID,
    "uri": TypeAdapter(AnyUrl).validate_python,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "email": _email,
}
