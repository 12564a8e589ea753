"""An answer in the words of its form, for people who read it later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from signoff.web.forms.fields import Field
from signoff.web.forms.moments import split_moment
from signoff.web.forms.prefill import kind_of, same
from signoff.web.forms.spans import say_span
from signoff.web.say import plain


def lines(item: Field, value: Any) -> Iterator[tuple[str, str]]:
    """(label, text) of what was filled in; what was left empty is left out."""
    if value in (None, "", [], {}) or item.kind == "hidden":
        return
    if item.kind == "group" and isinstance(value, Mapping):
        for child in item.children:
            inside = f"{child.label}, " if child.kind == "group" else ""
            for label, text in lines(child, value.get(child.key)):
                yield (f"{inside}{label[:1].lower()}{label[1:]}" if inside else label), text
    elif text := say(item, value):
        yield item.label, text


def say(item: Field, value: Any) -> str:
    if value in (None, "", [], {}):
        return "none"
    match item.kind:
        case "group" if isinstance(value, Mapping):
            return ", ".join(f"{label}: {text}" for label, text in lines(item, value))
        case "list" if isinstance(value, list) and item.make is not None:
            row = item.make("0")
            return ("; " if row.children else ", ").join(say(row, inner) for inner in value)
        case "map" if isinstance(value, Mapping) and item.make is not None:
            _, inner = item.make("0").children
            return ", ".join(f"{key}: {say(inner, one)}" for key, one in value.items())
        case "tuple" if isinstance(value, list):
            return ", ".join(
                f"{child.label}: {say(child, inner)}" for child, inner in zip(item.children, value, strict=False)
            )
        case "several" if isinstance(value, list):
            return ", ".join(_chosen(item, inner) for inner in value)
        case "choice" | "tick" | "const":
            return _chosen(item, value)
        case "union":
            if (kind := kind_of(item, value)) is None:
                return plain(value)
            return f"{kind.label} ({say(kind, value)})" if kind.kind == "group" else say(kind, value)
        case "duration":
            return say_span(value)
        case "datetime" if isinstance(value, str):
            clock, zone = split_moment(value)
            return " ".join(filter(None, [clock.replace("T", " "), zone]))
        case "number":
            return " ".join(filter(None, [plain(value), item.unit]))
        case "json":
            return json.dumps(value, ensure_ascii=False, default=str)
    return plain(value)


def _chosen(item: Field, value: Any) -> str:
    return next((choice.label for choice in item.choices if choice.key and same(choice.value, value)), plain(value))
