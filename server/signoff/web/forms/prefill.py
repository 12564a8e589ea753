"""What stands in a form at first: defaults, and the values of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from signoff.web.forms.fields import MAX_ROWS, Field
from signoff.web.forms.moments import split_moment
from signoff.web.forms.spans import say_span


def prefill(item: Field, value: Any) -> None:
    """Puts a JSON value into the form. What is left as it is means exactly that value again."""
    if item.secret or item.kind in ("const", "hidden", "tick"):
        return
    if item.toggled:
        item.present = value is not None
    if item.kind in ("list", "map") and isinstance(value, list | Mapping) and len(value) > MAX_ROWS:
        item.kind = "json"
    match item.kind:
        case "group" if isinstance(value, Mapping):
            for child in item.children:
                if child.key in value:
                    prefill(child, value[child.key])
        case "tuple" if isinstance(value, list):
            for child, inner in zip(item.children, value, strict=False):
                prefill(child, inner)
        case "list" if isinstance(value, list) and item.make is not None:
            item.origins = {str(no): inner for no, inner in enumerate(value)}
            item.children = [row_of(item, no) for no in item.origins]
        case "map" if isinstance(value, Mapping) and item.make is not None:
            item.origins = {str(no): pair for no, pair in enumerate(value.items())}
            item.children = [row_of(item, no) for no in item.origins]
        case "several" if isinstance(value, list):
            item.ticked = tuple(choice.key for choice in item.choices if any(same(choice.value, one) for one in value))
        case "union":
            if (chosen := kind_of(item, value)) is not None:
                item.text = chosen.key
                prefill(chosen, value)
        case "choice":
            item.text = next((choice.key for choice in item.choices if choice.key and same(choice.value, value)), "")
        case "group" | "tuple" | "list" | "map" | "several":
            pass
        case _:
            _write(item, value)


def kind_of(item: Field, value: Any) -> Field | None:
    """The kind of a union that a value is of. A model ignores what it does not know: one that knows all comes first."""
    fitting = [child for child in item.children if child.fits is not None and child.fits(value)]
    exact = [child for child in fitting if _knows(child, value)]
    return next(iter(exact or fitting), None)


def _knows(kind: Field, value: Any) -> bool:
    if kind.kind == "group" and isinstance(value, Mapping):
        return value.keys() <= {child.key for child in kind.children}
    return not (kind.whole and isinstance(value, float))


def row_of(item: Field, no: str) -> Field:
    """The row of an id, with the value that it had at first."""
    assert item.make is not None
    row = item.make(no)
    if no in item.origins:
        if item.kind == "map":
            for child, inner in zip(row.children, item.origins[no], strict=True):
                prefill(child, inner)
        else:
            prefill(row, item.origins[no])
    return row


def _write(item: Field, value: Any) -> None:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    if item.kind == "json" and value is not None:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    elif item.kind == "duration" and value is not None:
        text = say_span(value)
    elif item.kind == "datetime" and value is not None:
        text, item.zone = split_moment(text)
    item.text = clean(text)
    item.origin = (item.text, item.zone, value)


def clean(text: str) -> str:
    """As a browser would send it: its line ends are ours, and what UTF-8 cannot carry is replaced."""
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
