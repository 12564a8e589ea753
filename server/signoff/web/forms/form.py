"""Turns the JSON schema of an answer into a form, and what a browser sends back into the answer.

A form works without scripts: each value is one text under a name like `f.address.city`. What was typed is kept as it
was typed, so that a form with errors comes back unchanged; the gate validates the answer once more with the real type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from signoff.web.say import plain, words

Schema = Mapping[str, Any]
_YES_NO = {"true": "Yes", "false": "No"}
_APPROVING = re.compile(r"^(is_)?(approved?|accept(ed)?|ok|okay|confirm(ed)?|agree[d]?|allow(ed)?|grant(ed)?)$")
_LONG = re.compile(r"note|comment|reason|remark|descri|message|body|text|explanation|justif|feedback", re.IGNORECASE)
_INPUT_TYPES = {"date": "date", "time": "time", "email": "email", "uri": "url", "password": "password"}
_GROUPED = re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$")
_NUMBER = re.compile(r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$")
MISSING = object()


@dataclass(frozen=True, slots=True)
class Choice:
    key: str
    value: Any
    label: str


@dataclass(slots=True)
class Field:
    """One place to type or choose in; a `group` holds others."""

    name: str
    path: tuple[str, ...]
    kind: str  # choice, text, long, number, lines, json, group, const
    label: str
    hint: str = ""
    required: bool = True
    nullable: bool = False
    input_type: str = "text"
    exact: bool = False  # a number that travels as text, so that no digit is lost
    whole: bool = False
    unit: str = ""
    max_length: int | None = None
    choices: list[Choice] = field(default_factory=list)
    children: list[Field] = field(default_factory=list)
    default: Any = MISSING
    item: Field | None = None
    text: str = ""
    present: bool = True  # an optional group that is filled in
    errors: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return "field-" + re.sub(r"[^A-Za-z0-9_-]", "-", self.name.removeprefix("f.") or "answer")

    @property
    def described_by(self) -> str:
        parts = [f"{self.id}-hint"] if self.hint else []
        return " ".join(parts + ([f"{self.id}-error"] if self.errors else []))

    @property
    def optional(self) -> bool:
        """Whether to say so: a choice that is made already leaves nothing open."""
        if self.kind == "choice":
            return any(choice.key == "" for choice in self.choices)
        return not self.required or self.nullable

    def walk(self) -> Iterator[Field]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class Form:
    """`decision` is the yes or no that the buttons carry; `fields` are the rest."""

    fields: list[Field]
    decision: Field | None = None
    root: bool = False  # the answer is the one value itself, not an object
    errors: list[str] = field(default_factory=list)

    def all(self) -> Iterator[Field]:
        for item in [*self.fields, *([self.decision] if self.decision else [])]:
            yield from item.walk()

    @property
    def failed(self) -> list[Field]:
        return [item for item in self.all() if item.errors]

    def told(self, answer: Any) -> list[tuple[str, str]]:
        """An answer in the words of the form, for people; what was left empty is left out."""
        lines = []
        for item in [*([self.decision] if self.decision else []), *self.fields]:
            value = answer if self.root else answer.get(item.path[-1]) if isinstance(answer, Mapping) else None
            if value in (None, "", []) or item.kind == "const":
                continue
            chosen = [choice.label for choice in item.choices if choice.key and choice.value == value]
            lines.append((item.label, chosen[0] if chosen else plain(value)))
        return lines

    def read(self, sent: Mapping[str, Sequence[str]]) -> Any:
        """The answer as JSON; `MISSING` when something could not be understood (then fields carry errors)."""
        for item in self.all():
            _take(item, sent)
        fields = [*([self.decision] if self.decision else []), *self.fields]
        if self.root:
            answer = _value(fields[0])
            answer = None if answer is MISSING and not fields[0].errors else answer
        else:
            answer = _object(fields)
        return MISSING if self.failed else answer

    def blame(self, errors: Sequence[Any]) -> None:
        """Puts the gate's errors (with `loc` and `message`) beside their fields."""
        by_path = {item.path: item for item in self.all()}
        for error in errors:
            path = tuple(str(part) for part in error.loc)
            found = None
            for begin in (0, 1):
                for end in range(len(path), begin, -1):
                    if found is None and path[begin:end]:
                        found = by_path.get(path[begin:end])
            if found is None and self.root:
                found = next(self.all())
            (found.errors if found is not None else self.errors).append(_friendly(error.message))


def build(schema: Schema) -> Form:
    """The form of a JSON schema (as pydantic writes it)."""
    resolver = _Resolver(schema)
    top = resolver.plain(schema)
    if top.get("type") == "object" and top.get("properties"):
        fields = [
            resolver.field(name, sub, ("f", name), name in top.get("required", ()))
            for name, sub in top["properties"].items()
        ]
        decision = next((item for item in fields if _decides(item)), None)
        return Form([item for item in fields if item is not decision], decision)
    if top.get("type") == "null":
        return Form([Field("f", (), "const", "", default=None)], root=True)
    only = resolver.field("Your answer", schema, ("f",), True)
    only.path = ()
    return Form([], only, root=True) if _decides(only) else Form([only], root=True)


def _decides(item: Field) -> bool:
    """A required yes or no in words of its own becomes the buttons; a bare Yes and No stays a choice in the form."""
    return (
        item.kind == "choice"
        and item.required
        and item.default is MISSING
        and [choice.value for choice in item.choices if isinstance(choice.value, bool)] == [True, False]
        and len(item.choices) == 2
        and [choice.label for choice in item.choices] != ["Yes", "No"]
    )


class _Resolver:
    def __init__(self, root: Schema) -> None:
        self.defs: Mapping[str, Any] = root.get("$defs", {})

    def plain(self, schema: Schema) -> dict[str, Any]:
        """Without references; what stands beside a reference wins over what it names."""
        seen = 0
        result = dict(schema)
        while ("$ref" in result or len(result.get("allOf", ())) == 1) and seen < 20:
            seen += 1
            if "$ref" in result:
                target = self.defs.get(str(result.pop("$ref")).rsplit("/", 1)[-1], {})
            else:
                target = result.pop("allOf")[0]
            result = {**target, **result}
        return result

    def field(self, name: str, schema: Schema, path: tuple[str, ...], required: bool) -> Field:
        plain = self.plain(schema)
        options = [self.plain(option) for option in plain.get("anyOf", plain.get("oneOf", ()))]
        nullable = any(option.get("type") == "null" for option in options)
        options = [option for option in options if option.get("type") != "null"]
        own = {key: value for key, value in plain.items() if key not in ("anyOf", "oneOf")}
        exact = False
        if len(options) == 1:
            plain = {**options[0], **own}
        elif {option.get("type") for option in options} == {"number", "string"} and len(options) == 2:
            exact = True  # Decimal
            plain = {**next(option for option in options if option["type"] == "number"), **own}
        item = Field(
            name=".".join(path),
            path=path[1:],
            kind="json",
            label=_label(schema, name),
            hint=str(plain.get("description", "")),
            required=required,
            nullable=nullable,
            default=plain.get("default", MISSING),
            exact=exact,
            max_length=plain.get("maxLength"),
            unit=str(plain.get("x-unit", "")),
        )
        self._fit(item, name, plain)
        if item.default is not MISSING:
            _prefill(item, item.default)
        return item

    def _fit(self, item: Field, name: str, plain: dict[str, Any]) -> None:
        labels: Mapping[str, str] = plain.get("x-labels", {})
        kind = plain.get("type")
        if "const" in plain:
            item.kind, item.default = "const", plain["const"]
        elif "enum" in plain:
            item.kind = "choice"
            item.choices = [_choice(value, labels) for value in plain["enum"]]
        elif kind == "boolean":
            item.kind = "choice"
            spoken = {"true": "Approve", "false": "Reject"} if _APPROVING.match(name.lower()) else _YES_NO
            item.choices = [_choice(value, {**spoken, **labels}) for value in (True, False)]
        elif kind in ("integer", "number"):
            item.kind, item.whole = "number", kind == "integer"
            item.hint = item.hint or _bounds(plain)
        elif kind == "string":
            self._text(item, name, plain)
        elif kind == "object" and plain.get("properties"):
            item.kind = "group"
            item.children = [
                self.field(key, sub, (*item.name.split("."), key), key in plain.get("required", ()))
                for key, sub in plain["properties"].items()
            ]
            item.present = item.required and not item.nullable
        elif kind == "array" and (inner := self._simple(plain.get("items"))) is not None:
            item.kind, item.item = "lines", inner
            item.hint = item.hint or "One per line."
        else:
            item.hint = item.hint or "Written as JSON."
        if item.kind == "choice" and (item.nullable or not item.required) and item.default in (MISSING, None):
            item.choices.append(Choice("", None if item.nullable else MISSING, "Not said"))

    def _simple(self, schema: Any) -> Field | None:
        if not isinstance(schema, Mapping):
            return None
        inner = self.field("item", schema, ("item",), True)
        return inner if inner.kind in ("text", "long", "number", "choice") and not inner.nullable else None

    def _text(self, item: Field, name: str, plain: dict[str, Any]) -> None:
        form = plain.get("format", "")
        item.kind = "text"
        if form == "date-time":
            item.input_type = "datetime-local"
            item.hint = item.hint or "In UTC."
        elif form in _INPUT_TYPES:
            item.input_type = _INPUT_TYPES[form]
        elif plain.get("writeOnly"):
            item.input_type = "password"
        elif form == "duration":
            item.hint = item.hint or "As P1DT2H (1 day 2 hours) or 02:30:00."
        elif (item.max_length or 0) > 120 or (_LONG.search(name) and not item.max_length) or plain.get("x-long"):
            item.kind = "long"
        if examples := plain.get("examples"):
            item.hint = item.hint or f"For example: {examples[0]}"


def _label(schema: Schema, name: str) -> str:
    """The author's own title; the one that pydantic makes up from the name says it worse than we do."""
    title = schema.get("title")
    return str(title) if title and title != name.replace("_", " ").title() else words(name)


def _choice(value: Any, labels: Mapping[str, str]) -> Choice:
    key = value if isinstance(value, str) else json.dumps(value)
    return Choice(key, value, labels.get(key) or (words(value) if isinstance(value, str) else key))


def _bounds(plain: Schema) -> str:
    low = plain.get("minimum", plain.get("exclusiveMinimum"))
    high = plain.get("maximum", plain.get("exclusiveMaximum"))
    above = "more than" if "exclusiveMinimum" in plain else "at least"
    below = "less than" if "exclusiveMaximum" in plain else "at most"
    parts = [f"{above} {low:g}"] if low is not None else []
    parts += [f"{below} {high:g}"] if high is not None else []
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _prefill(item: Field, value: Any) -> None:
    if item.kind == "group":
        item.present = isinstance(value, Mapping)
        for child in item.children:
            if isinstance(value, Mapping) and child.path[-1] in value:
                _prefill(child, value[child.path[-1]])
    elif item.input_type == "password" or item.kind == "const":
        pass
    elif value is None:
        item.text = ""
    elif item.kind == "lines" and isinstance(value, list):
        item.text = "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in value)
    elif item.input_type == "datetime-local":
        item.text = re.sub(r"(Z|[+-]00:00)$", "", str(value))
    else:
        item.text = value if isinstance(value, str) else json.dumps(value)


def _take(item: Field, sent: Mapping[str, Sequence[str]]) -> None:
    item.errors = []
    if item.kind == "group":
        if not item.required or item.nullable:
            item.present = bool(sent.get(f"{item.name}!"))
        return
    item.text = str((sent.get(item.name) or [""])[-1]).replace("\r\n", "\n")


def _object(fields: Sequence[Field]) -> dict[str, Any]:
    result = {}
    for item in fields:
        value = _value(item)
        if value is not MISSING:
            result[item.path[-1]] = value
    return result


def _value(item: Field) -> Any:
    match item.kind:
        case "const":
            return item.default
        case "group":
            if not item.present:
                return None if item.nullable else MISSING
            return _object(item.children)
        case "choice":
            chosen = next((choice for choice in item.choices if choice.key == item.text), None)
            if chosen is None:
                item.errors.append(f"Choose {_either(item)}.")
                return MISSING
            return chosen.value
    text = item.text if item.kind in ("long", "lines") or item.input_type == "password" else item.text.strip()
    if item.kind == "lines":
        return _lines(item, text)
    if not text.strip():
        return _empty(item)
    return _one(item, text)


def _empty(item: Field) -> Any:
    if item.nullable:
        return None
    if item.kind in ("text", "long") and not item.required and item.input_type == "text":
        return ""
    if item.required:
        item.errors.append("Fill this in.")
    return MISSING


def _lines(item: Field, text: str) -> Any:
    assert item.item is not None
    result = []
    for line in text.split("\n"):
        if line.strip():
            item.item.errors, item.item.text = [], line.strip()
            value = _value(item.item) if item.item.kind == "choice" else _one(item.item, line.strip())
            if item.item.errors:
                item.errors.append(f"“{line.strip()[:60]}”: {item.item.errors[0]}")
            result.append(value)
    if not result and not item.required:
        return None if item.nullable else []
    return result


def _one(item: Field, text: str) -> Any:
    if item.kind == "number":
        number = text.replace(" ", "").replace("\u202f", "").replace("\u00a0", "")
        if _GROUPED.match(number):
            number = number.replace(",", "")
        if not _NUMBER.match(number):
            item.errors.append(
                "Use a point for decimals, like 12.5." if re.match(r"^\d+,\d+$", number) else "Enter a number."
            )
            return MISSING
        if item.whole and not re.match(r"^[+-]?\d+$", number):
            item.errors.append("Enter a whole number.")
            return MISSING
        if item.exact:
            return number.removeprefix("+")
        return int(number) if re.match(r"^[+-]?\d+$", number) else float(number)
    if item.kind == "json":
        try:
            return json.loads(text)
        except ValueError as error:
            item.errors.append(f"This is no JSON: {error}.")
            return MISSING
    if item.input_type == "datetime-local" and not re.search(r"(Z|[+-]\d{2}:?\d{2})$", text):
        return f"{text}Z"
    return text


def _either(item: Field) -> str:
    labels = [choice.label for choice in item.choices if choice.key != ""]
    return f"{', '.join(labels[:-1])} or {labels[-1]}" if 1 < len(labels) <= 4 else "one"


_FRIENDLY = (
    (re.compile(r"^Field required"), "Fill this in."),
    (re.compile(r"valid integer"), "Enter a whole number."),
    (re.compile(r"valid number|valid decimal"), "Enter a number."),
    (re.compile(r"^Input should be a valid date\b"), "Enter a date."),
    (re.compile(r"^Input should be a valid datetime"), "Enter a date and a time."),
    (re.compile(r"^String should have at least 1 character"), "Fill this in."),
)


def _friendly(message: str) -> str:
    for pattern, text in _FRIENDLY:
        if pattern.search(message):
            return text
    message = re.sub(r"^(Value error|Assertion failed), ", "", message)
    message = re.sub(r"^Input should be", "This should be", message)
    message = re.sub(r"^String should", "The text should", message)
    return message if message.endswith((".", "!", "?")) else f"{message}."
