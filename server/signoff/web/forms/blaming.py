"""The gate's errors beside the fields that they are about, in words for the person who filled them in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from signoff.web.forms.fields import Field


def blame(top: Field, errors: Sequence[Any]) -> list[str]:
    """Puts errors (with `loc` and `message`) beside their fields; what has no field there is given back."""
    rest: list[str] = []
    for error in errors:
        loc = tuple(str(part) for part in error.loc)
        found, left = _find(top, loc)
        message = friendly(error.message, found)
        if found is None:
            continue
        if (found is top or found.kind == "hidden") and (left or not _shown(top)):
            if message not in rest:
                rest.append(message)
        elif message not in found.errors:
            found.errors.append(message)
    for item in top.walk():  # one cause is told once, where it is nearest
        if item.kind == "union" and item.chosen is not None and any(one.errors for one in item.chosen.walk()):
            item.errors = []
    return rest


def _shown(top: Field) -> bool:
    return top.kind != "group" or top.toggled


def _find(item: Field, loc: tuple[str, ...]) -> tuple[Field | None, tuple[str, ...]]:
    """The field that a place in the answer is nearest to, and what of the place is left; no field when the error is
    about a kind of a union that was not chosen."""
    if not loc:
        chosen = item.chosen if item.kind == "union" else None
        return chosen if chosen is not None and not chosen.children and chosen.make is None else item, loc
    match item.kind:
        case "group":
            child = next((child for child in item.children if child.key == loc[0]), None)
            return _find(child, loc[1:]) if child is not None else (item, loc)
        case "list" | "tuple" if loc[0].isdecimal() and int(loc[0]) < len(item.children):
            return _find(item.children[int(loc[0])], loc[1:])
        case "map":
            row = next((row for row in item.children if row.path[-1:] == (loc[0],)), None)
            if row is not None:
                name, value = row.children
                return (name, ()) if loc[1:2] == ("[key]",) else _find(value, loc[1:])
        case "union" if (chosen := item.chosen) is not None:
            if _means(loc[0], chosen):
                return _find(chosen, loc[1:])
            if any(_means(loc[0], child) for child in item.children) and not any(
                loc[0] == child.key for child in chosen.children
            ):
                return None, loc
            found, left = _find(chosen, loc)
            return (found, left) if found is not chosen else (item, loc)
    return item, loc


def _means(tag: str, child: Field) -> bool:
    return tag in child.tags or re.split(r"[\[({-]", tag, maxsplit=1)[0] in child.tags


_FRIENDLY: Final[Iterable[tuple[re.Pattern[str], str]]] = (
    (re.compile(r"^(Field required|is required)"), "Fill this in."),
    (re.compile(r"valid integer"), "Enter a whole number."),
    (re.compile(r"valid number|valid decimal"), "Enter a number."),
    (re.compile(r"^Input should be a valid date\b"), "Enter a date."),
    (re.compile(r"^Input should be a valid datetime"), "Enter a date and a time."),
    (re.compile(r"^Input should be .*\btime\b format|valid time"), "Enter a time."),
    (re.compile(r"^Input should be a valid URL"), "Enter a link, like https://example.org."),
    (re.compile(r"^String should have at least 1 character"), "Fill this in."),
    (re.compile(r"^value is not a valid email address"), "Enter an e-mail address."),
)
_PATTERN: Final = re.compile(r"(should|must) match (the )?pattern")
_MOST: Final = re.compile(r"should have at most (\d+) (characters?|items?|digits?)")
_LEAST: Final = re.compile(r"should have at least (\d+) (characters?|items?)")
_DECIMALS: Final = re.compile(r"no more than (\d+) (decimal places?|digits?)")


def friendly(message: str, field: Field | None = None) -> str:
    for pattern, text in _FRIENDLY:
        if pattern.search(message):
            return text
    if _PATTERN.search(message):
        return "This does not have the form that is asked for."
    if found := _DECIMALS.search(message):
        return f"Use at most {found[1]} {found[2].replace('decimal place', 'decimal')}."
    if found := _MOST.search(message):
        return f"Use at most {found[1]} {found[2].replace('item', 'entrie') if found[1] != '1' else found[2]}."
    if found := _LEAST.search(message):
        return f"Use at least {found[1]} {found[2].replace('item', 'entrie') if found[1] != '1' else found[2]}."
    message = re.sub(r"^(Value error|Assertion failed), ", "", message)
    message = re.sub(r"^(Input should|must) be", "This should be", message)
    message = re.sub(r"^must have", "This should have", message)
    message = re.sub(r"^String should", "The text should", message)
    message = message[:1].upper() + message[1:]
    return message if message.endswith((".", "!", "?")) else f"{message}."
