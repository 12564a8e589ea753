"""What a browser sends: first into the form as it was typed, then out of it as the JSON that was meant."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

from signoff.web.forms.fields import MAX_ROWS, MISSING, Field, Sent
from signoff.web.forms.moments import NotAMoment, join_moment
from signoff.web.forms.prefill import clean, row_of
from signoff.web.forms.spans import read_span
from signoff.web.say import count

_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WHOLE: Final = re.compile(r"[+-]?\d+")
_ROW: Final = re.compile(r"\d{1,6}")
_SPACES: Final = re.compile("[ '\u00a0\u2009\u202f]")
_DIGITS: Final = 2000  # of one number; beyond it is no number that a person means
_EXACT: Final = 2**53

ADD, REMOVE, KEEP = "form-add", "form-remove", "form-keep"  # buttons that send nothing yet


# -- into the form


def fill(item: Field, sent: Sent) -> None:
    """Takes over what was typed, without judging it."""
    item.errors = []
    if item.toggled:
        item.present = bool(sent.get(f"{item.name}!"))
    match item.kind:
        case "group" | "tuple":
            for child in item.children:
                fill(child, sent)
        case "union":
            item.text = _last(sent, item.name)
            for child in item.children:
                fill(child, sent)
        case "list" | "map":
            item.children = [row_of(item, no) for no in _rows(item, sent)]
            for child in item.children:
                fill(child, sent)
        case "several":
            item.ticked = tuple(sent.get(item.name, ()))
        case "const" | "hidden":
            pass
        case _:
            item.text = _last(sent, item.name)
            if item.zoned and f"{item.name}~" in sent:
                item.zone = _last(sent, f"{item.name}~")


def _last(sent: Sent, name: str) -> str:
    return clean(str((sent.get(name) or [""])[-1]))


def _rows(item: Field, sent: Sent) -> list[str]:
    given = [no for no in sent.get(f"{item.name}#", ()) if _ROW.fullmatch(no)]
    if not given:  # from a program that left the ids out
        before = len(item.name) + 1
        given = [found[0] for key in sent if key.startswith(f"{item.name}.") and (found := _ROW.match(key, before))]
    rows = list(dict.fromkeys(given))
    item.over = len(rows) > MAX_ROWS
    return rows[:MAX_ROWS]


def edit(item: Field, sent: Sent) -> Field | None:
    """Adds or removes the row that a pressed button asks for; the field whose rows changed."""
    add, remove = _last(sent, ADD), _last(sent, REMOVE)
    for field in item.walk():
        if field.kind not in ("list", "map") or field.make is None:
            continue
        if field.name == add and len(field.children) < MAX_ROWS:
            no = max((int(child.row) for child in field.children), default=-1) + 1
            field.children.append(field.make(str(no)))
            field.present = True
            return field
        kept = [child for child in field.children if child.name != remove]
        if remove and len(kept) < len(field.children):
            field.children = kept
            return field
    return None


# -- out of it


def value_of(item: Field) -> Any:
    """The JSON value, or `MISSING` when it is left out; with errors beside the fields that say no value."""
    if item.kind in ("const", "hidden"):
        return item.default
    if item.toggled and not item.present:
        return None if item.nullable else MISSING
    match item.kind:
        case "group":
            return _object(item)
        case "tuple":
            return _tuple(item)
        case "list":
            return _list(item)
        case "map":
            return _map(item)
        case "several":
            return [choice.value for choice in item.choices if choice.key in item.ticked]
        case "tick":
            return _tick(item)
        case "choice":
            return _choice(item)
        case "union":
            return _union(item)
    return _leaf(item)


def _object(item: Field) -> dict[str, Any]:
    result = {}
    for child in item.children:
        value = value_of(child)
        if value is not MISSING:
            result[child.key] = value
    return result


def _tuple(item: Field) -> list[Any]:
    values = [value_of(child) for child in item.children]
    while values and values[-1] is MISSING:
        values.pop()
    return [None if value is MISSING else value for value in values]


def _list(item: Field) -> list[Any]:
    result = []
    for index, child in enumerate(item.children):
        _place(child, (*item.path, str(index)))
        result.append(value_of(child))
    _count(item, len(result))
    return result


def _map(item: Field) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for row in item.children:
        name, value = (value_of(child) for child in row.children)
        if name is MISSING:
            continue
        name = name if isinstance(name, str) else json.dumps(name)
        if name in result:
            row.children[0].errors.append("This name is there twice.")
        _place(row, (*item.path, name))
        result[name] = value
    _count(item, len(item.children))
    return result


def _count(item: Field, rows: int) -> None:
    if item.over:
        item.errors.append(f"At most {MAX_ROWS:,} entries can be sent.")
    if rows < item.least:
        item.errors.append(f"Add at least {count(item.least, 'entry', 'entries')}.")
    if item.most is not None and rows > item.most:
        item.errors.append(f"At most {count(item.most, 'entry is', 'entries are')} possible.")


def _place(row: Field, path: tuple[str, ...]) -> None:
    """A row's place in the answer is its position, or its name; only now it is known."""
    before = len(row.path)
    for field in row.walk():
        field.path = (*path, *field.path[before:])


def _tick(item: Field) -> Any:
    if item.text == "true":
        return True
    item.errors.append("Tick this to go on.")
    return MISSING


def _choice(item: Field) -> Any:
    chosen = next((choice for choice in item.choices if choice.key == item.text), None)
    if chosen is None:
        item.errors.append(f"Choose {_either(item)}.")
        return MISSING
    return chosen.value


def _union(item: Field) -> Any:
    if (chosen := item.chosen) is not None:
        return value_of(chosen)
    return _choice(item)


def _either(item: Field) -> str:
    labels = [choice.label for choice in item.choices if choice.key != ""]
    return f"{', '.join(labels[:-1])} or {labels[-1]}" if 1 < len(labels) <= 4 else "one"


def _leaf(item: Field) -> Any:
    if item.origin and (item.text, item.zone) == item.origin[:2]:
        return item.origin[2]
    free = item.secret or item.kind in ("text", "long")
    text = item.text if free else item.text.strip()
    if not (text if item.secret else text.strip()):
        return _empty(item, text)
    match item.kind:
        case "number":
            return _read_number(item, text)
        case "json":
            return _read_json(item, text)
        case "duration":
            if (span := read_span(text)) is None:
                item.errors.append("Enter a duration, like 2 h 30 min.")
            return MISSING if span is None else span
        case "datetime":
            try:
                return join_moment(text, item.zone, asked=item.zoned)
            except NotAMoment as error:
                item.errors.append(str(error))
                return MISSING
    return text


def _empty(item: Field, text: str) -> Any:
    if item.secret and not item.required and item.default is not None:
        return MISSING  # a default that is not shown
    if item.nullable:
        return None
    if item.required:
        item.errors.append("Fill this in.")
        return MISSING
    if item.kind in ("text", "long"):
        return text
    return MISSING


def _read_number(item: Field, text: str) -> Any:
    number = _SPACES.sub("", text).replace("\u2212", "-")
    if _GROUPED.fullmatch(number):
        number = number.replace(",", "")
    if not _NUMBER.fullmatch(number):
        comma = re.fullmatch(r"[+-]?\d+,\d+", number)
        item.errors.append("Use a point for decimals, like 12.5." if comma else "Enter a number.")
    elif item.whole and not _WHOLE.fullmatch(number):
        item.errors.append("Enter a whole number.")
    elif len(number) > _DIGITS:
        item.errors.append(f"Enter a number of at most {_DIGITS} digits.")
    elif item.exact:
        return number.removeprefix("+")
    elif item.whole:
        return int(number)
    elif not math.isfinite(float(number)):
        item.errors.append("This number is too large.")
    elif _WHOLE.fullmatch(number) and abs(int(number)) > _EXACT:
        return int(number)
    else:
        return float(number)
    return MISSING


def _read_json(item: Field, text: str) -> Any:
    try:
        return json.loads(text, parse_float=_exact_float, parse_int=_bounded_int, parse_constant=_refuse)
    except ValueError as error:
        item.errors.append(f"This is no JSON: {error}.")
    except RecursionError:
        item.errors.append("This is nested too deep.")
    return MISSING


def _exact_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"{text[:40]} has more digits than a number keeps; write it in quotes")
    return number


def _bounded_int(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
