"""The places of a form: what each asks for, and what was typed there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, Final
from urllib.parse import quote

MISSING: Final[Any] = object()
Sent = Mapping[str, Sequence[str]]

MAX_ROWS: Final = 2000  # of one list; a longer one is written as JSON
_NATIVE: Final = {
    "date": (re.compile(r"\d{4}-\d\d-\d\d"), date.fromisoformat),
    "time": (re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,3})?)?"), time.fromisoformat),
    "datetime": (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?"), datetime.fromisoformat),
}
_INPUTS: Final = {"date": "date", "time": "time", "datetime": "datetime-local"}


def part(key: str) -> str:
    """A key as part of a field's name. Only we write `.`, and the signs at the end of control names, unescaped."""
    return quote(key, safe="").replace(".", "%2E").replace("~", "%7E")


@dataclass(frozen=True, slots=True)
class Choice:
    key: str
    value: Any
    label: str


@dataclass(slots=True)
class Field:
    """One place to type or choose in, or a part of the form that holds others.

    Kinds: `choice` (one of `choices`), `several` (a set of them), `tick` (a box that has to be ticked), `const` and
    `hidden` (nothing to enter), `text`, `long`, `number`, `date`, `time`, `datetime`, `duration`, `json`; and with
    `children`: `group` (an object), `tuple`, `list` and `map` (rows, made by `make`), `union` (one for each choice).

    Beside `name` a browser sends, where they apply: `name!` (the part is filled in), `name#` (once for each row, its
    id), `name~` (the time zone). The name of a secret ends with `*`: whatever keeps what was typed leaves those out.
    """

    name: str
    path: tuple[str, ...]
    kind: str
    label: str
    key: str = ""  # in the object that it belongs to
    hint: str = ""
    required: bool = True
    nullable: bool = False
    toggled: bool = False  # a part that may be left out
    present: bool = True  # a part that is filled in
    secret: bool = False
    bare: bool = False  # its label is said by what is around it
    unmarked: bool = False  # a row: it is there to be filled in, which goes without saying
    default: Any = MISSING
    exact: bool = False  # a number that travels as text, so that no digit is lost
    whole: bool = False
    unit: str = ""
    keyboard: str = ""  # inputmode
    seconds: bool = False
    zoned: str = ""  # any, aware: the zone is asked for
    choices: list[Choice] = field(default_factory=list)
    children: list[Field] = field(default_factory=list)
    make: Callable[[str], Field] | None = None  # rows: the row of an id
    item_label: str = ""
    least: int = 0  # rows
    most: int | None = None
    over: bool = False  # more were sent than can be
    fits: Callable[[Any], bool] | None = None  # in a union: whether a value is of this kind
    tags: frozenset[str] = frozenset()  # in a union: what an error calls this kind
    text: str = ""
    ticked: tuple[str, ...] = ()  # several
    zone: str = ""
    origin: tuple[Any, ...] = ()  # what stood there at first, and the value that it stood for
    origins: dict[str, Any] = field(default_factory=dict)  # rows: the values of those that were there at first
    errors: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return field_id(self.name)

    @property
    def described_by(self) -> str:
        parts = [f"{self.id}-hint"] if self.hint or self.lost else []
        parts += [f"{self.id}-unit"] if self.unit and self.kind == "number" else []
        return " ".join(parts + ([f"{self.id}-error"] if self.errors else []))

    @property
    def row(self) -> str:
        """The id of a row among its list's."""
        return self.name.rpartition(".")[2].removesuffix("*")

    @property
    def lost(self) -> bool:
        """A secret that was typed and is not shown again."""
        return self.secret and bool(self.text)

    @property
    def must(self) -> bool:
        """Whether to say that it has to be filled in: a choice that is made already leaves nothing open."""
        if self.kind in ("choice", "union"):
            return all(choice.key for choice in self.choices) and self.default is MISSING
        composite = self.kind in ("group", "tuple", "list", "map", "several", "const")
        return self.required and not self.nullable and not composite

    @property
    def multiline(self) -> bool:
        return self.kind in ("long", "json") or (self.kind == "text" and "\n" in self.text)

    @property
    def input_type(self) -> str:
        """The browser's own control where it can show what was typed; it would drop anything else."""
        if self.secret:
            return "password"
        if self.kind not in _NATIVE or not self.text:
            return _INPUTS.get(self.kind, "text")
        pattern, parse = _NATIVE[self.kind]
        try:
            return _INPUTS[self.kind] if pattern.fullmatch(self.text) and parse(self.text) else "text"
        except ValueError:
            return "text"

    @property
    def shows_seconds(self) -> bool:
        return self.seconds or self.text.count(":") > 1

    @property
    def chosen(self) -> Field | None:
        """The kind of a union that is chosen."""
        return next((child for child in self.children if child.key == self.text), None)

    def walk(self) -> Iterator[Field]:
        yield self
        for child in self.children:
            yield from child.walk()


def field_id(name: str) -> str:
    prefix, _, rest = name.partition(".")
    text = rest or "answer" if prefix == "f" else f"{prefix}-{rest}"
    return "field-" + re.sub(r"[^A-Za-z0-9_]", lambda found: "-" if found[0] == "." else f"_{ord(found[0]):x}", text)
