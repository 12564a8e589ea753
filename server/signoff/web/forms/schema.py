"""From a JSON schema, as pydantic writes them and `workflow.schemas` adds to them, to the fields of a form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from signoff.approvals.json_schema import check_schema, has_secrets
from signoff.web.forms.fields import MISSING, Choice, Field, part
from signoff.web.forms.prefill import prefill
from signoff.web.say import ordinal, words

Schema = Mapping[str, Any]

MAX_FIELDS: Final = 1500  # of one form; what would be more is written as JSON
_APPROVING = re.compile(r"^(is_)?(approved?|accept(ed)?|ok|okay|confirm(ed)?|agree[d]?|allow(ed)?|grant(ed)?)$")
_LONG = re.compile(r"note|comment|reason|remark|descri|message|body|text|explanation|justif|feedback", re.IGNORECASE)
_KEYBOARDS: Final = {"email": "email", "uri": "url"}
_KINDS: Final = {"date": "date", "time": "time", "date-time": "datetime", "duration": "duration"}
_NAMES: Final = {
    "date": "Date", "time": "Time", "date-time": "Date and time", "duration": "Duration", "email": "E-mail address",
    "uri": "Link", "uuid": "UUID", "password": "Secret",
}  # fmt: skip
_TYPES: Final = {
    "string": "Text", "integer": "Whole number", "number": "Number", "boolean": "Yes or no", "array": "List",
    "object": "Named values",
}  # fmt: skip
# How pydantic calls the kinds of a union in the place of an error.
_TAGS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
_FORMAT_TAGS: Final = {"date-time": "datetime", "duration": "timedelta", "uri": "url", "decimal": "decimal"}
_YES_NO: Final = {"true": "Yes", "false": "No"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a field stands: its name, its path in the answer, its key in the object around it."""

    name: str
    path: tuple[str, ...]
    key: str = ""
    required: bool = True
    refs: tuple[str, ...] = ()  # definitions that are being unfolded around it

    def inside(self, key: str, *, required: bool = True) -> _Place:
        return _Place(f"{self.name}.{part(key)}", (*self.path, key), key, required, self.refs)


class Builder:
    def __init__(self, root: Schema) -> None:
        self._root = dict(root)
        self._defs: Mapping[str, Any] = root.get("$defs", {})
        self._count = 0

    def top(self, prefix: str) -> Field:
        """The whole answer as one field."""
        own = {key: value for key, value in self._root.items() if key != "$defs"}
        return self.field("Your answer", own, _Place(prefix, ()))

    def field(self, name: str, schema: Any, place: _Place) -> Field:
        """`name` is what it is called where the author gave no title."""
        self._count += 1
        written = schema if isinstance(schema, Mapping) else {}
        plain, refs = self._plain(written)
        item = Field(
            name=place.name,
            path=place.path,
            key=place.key,
            kind="json",
            label=_label(written, name),
            required=place.required,
            default=plain.get("default", MISSING),
            unit=str(plain.get("unit", plain.get("x-unit", ""))),
            secret=plain.get("writeOnly") is True,
        )
        options = _options(plain)
        if {"type": "null"} in [{"type": option.get("type")} for option in map(self._merged, options)]:
            item.nullable = True
            options = [option for option in options if self._merged(option).get("type") != "null"]
        if plain.get("type") == "null":
            item.kind, item.default = "const", None
        elif self._count > MAX_FIELDS or set(refs) & set(place.refs):
            self._as_json(item, plain)
        else:
            inner = replace(place, refs=(*place.refs, *refs))
            if len(options) == 1:
                more, refs = self._plain(options[0])
                if set(refs) & set(place.refs):
                    self._as_json(item, plain)
                else:
                    rest = {key: value for key, value in plain.items() if key not in ("anyOf", "oneOf")}
                    item.secret = item.secret or more.get("writeOnly") is True
                    self._fit(item, name, {**more, **rest}, replace(inner, refs=(*inner.refs, *refs)))
            elif options:
                self._fit_union(item, name, plain, options, inner)
            else:
                self._fit(item, name, plain, inner)
        return self._finish(item, plain)

    def _finish(self, item: Field, plain: Schema) -> Field:
        if item.secret and not item.name.endswith("*"):
            item.name += "*"
        if item.kind in ("group", "tuple", "list", "map", "several"):
            item.toggled = item.nullable or (not item.required and item.default is MISSING)
            item.present = not item.toggled or item.default not in (MISSING, None)
        open_ = item.nullable or (not item.required and item.default is MISSING)
        if item.kind in ("choice", "union") and open_:
            item.choices.append(Choice("", None if item.nullable else MISSING, "Not said"))
        hints = [str(plain["description"])] if plain.get("description") else []
        hints += [item.hint] if item.hint else []
        examples = plain.get("examples")
        if isinstance(examples, Sequence) and not isinstance(examples, str) and examples and not item.secret:
            shown = examples[0] if isinstance(examples[0], str) else json.dumps(examples[0], ensure_ascii=False)
            hints.append(f"For example: {shown}")
        item.hint = " ".join(hints)
        if item.kind == "list" and item.default is MISSING and not item.toggled and item.make is not None:
            item.children = [item.make(str(no)) for no in range(min(item.least, 20))]
        if item.default is not MISSING:
            prefill(item, item.default)
        return item

    # -- references

    def _plain(self, schema: Schema) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Without references, and those that were followed; what stands beside one wins over what it names."""
        result = dict(schema)
        seen: list[str] = []
        while ("$ref" in result or len(result.get("allOf", ())) == 1) and len(seen) < 20:
            if "$ref" in result:
                ref = str(result.pop("$ref"))
                seen.append(ref)
                target = self._root if ref == "#" else self._defs.get(ref.rsplit("/", 1)[-1], {})
            else:
                seen.append("")
                target = result.pop("allOf")[0]
            result = {**target, **result}
        return result, tuple(ref for ref in seen if ref)

    def _merged(self, schema: Schema) -> dict[str, Any]:
        return self._plain(schema)[0]

    # -- kinds

    def _as_json(self, item: Field, plain: Schema) -> None:
        item.kind, item.hint = "json", "Written as JSON."
        item.secret = item.secret or has_secrets({**plain, "$defs": {}}) or self._refers_to_secrets(plain)

    def _refers_to_secrets(self, plain: Schema) -> bool:
        return "$ref" in json.dumps(plain, default=str) and has_secrets(dict(self._defs))

    def _fit(self, item: Field, name: str, plain: dict[str, Any], place: _Place) -> None:
        labels: Mapping[str, str] = plain.get("labels", plain.get("x-labels", {}))
        kind = plain.get("type")
        if "const" in plain or len(plain.get("enum", ())) == 1:
            self._fit_const(item, plain["const"] if "const" in plain else plain["enum"][0], labels)
        elif "enum" in plain:
            item.kind, item.choices = "choice", _choices(plain["enum"], labels)
        elif kind == "boolean":
            spoken = {"true": "Approve", "false": "Reject"} if _APPROVING.match(name.lower()) else _YES_NO
            item.kind, item.choices = "choice", _choices([True, False], {**spoken, **labels})
        elif kind in ("integer", "number"):
            item.kind, item.whole, item.hint = "number", kind == "integer", _bounds(plain)
        elif kind == "string":
            self._fit_text(item, name, plain)
        elif kind == "object":
            self._fit_object(item, plain, place)
        elif kind == "array":
            self._fit_array(item, plain, place)
        else:
            self._as_json(item, plain)

    def _fit_const(self, item: Field, value: Any, labels: Mapping[str, str]) -> None:
        if item.nullable or not (item.required or item.default == value):
            item.kind, item.choices = "choice", _choices([value], {**_YES_NO, **labels})
        elif value is True and item.required:
            item.kind = "tick"
        else:
            # With a default it is bookkeeping, like a discriminator; without, people see what they put their name to.
            item.kind, item.default = "const" if item.required else "hidden", value
        item.choices = item.choices or _choices([value], labels)

    def _fit_text(self, item: Field, name: str, plain: Schema) -> None:
        form, most = plain.get("format", ""), plain.get("maxLength")
        item.kind = _KINDS.get(form, "text")
        item.keyboard = _KEYBOARDS.get(form, "")
        item.seconds = plain.get("step") == 1
        if form == "decimal":
            item.kind, item.exact, item.hint = "number", True, _bounds(plain)
        elif form == "date-time":
            item.zoned, item.zone = {"naive": ("", "")}.get(plain.get("zone", ""), (plain.get("zone", "any"), "UTC"))
            item.hint = "" if item.zoned else "Without a time zone."
        elif form == "time" and plain.get("zone") == "aware":
            item.kind, item.hint = "text", "With its offset from UTC, like 09:30+02:00."
        elif form == "duration":
            item.hint = "Like 2 h 30 min, or 3 days."
        elif plain.get("pattern") and not plain.get("description") and not plain.get("examples"):
            item.hint = f"In the form {plain['pattern']}"
        elif item.kind == "text" and not item.secret and not item.keyboard and not plain.get("pattern"):
            long = (most or 0) > 120 or (_LONG.search(name) and not most) or plain.get("long") or plain.get("x-long")
            item.kind = "long" if long and form in ("", "json-string") else "text"

    def _fit_object(self, item: Field, plain: Schema, place: _Place) -> None:
        others = plain.get("additionalProperties")
        patterns = plain.get("patternProperties", {})
        if "properties" in plain:
            item.kind = "group"
            required = plain.get("required", ())
            item.children = [
                self.field(key, sub, place.inside(key, required=key in required))
                for key, sub in plain["properties"].items()
            ]
        elif len(patterns) == 1 or (isinstance(others, Mapping) and others):
            values = next(iter(patterns.values())) if patterns else others
            names = {"type": "string", **plain.get("propertyNames", {})}
            item.kind = "map"
            item.item_label = _singular(words(place.key)) or "Entry"

            def row(no: str) -> Field:
                inner = _Place(f"{place.name}.{no}", (*place.path, no), no, True, place.refs)
                key = self.field("Name", names, replace(inner.inside("k"), path=inner.path))
                value = self.field("Value", values, replace(inner.inside("v"), path=inner.path))
                key.unmarked = value.unmarked = True
                return Field(inner.name, inner.path, "group", "Entry", key=no, children=[key, value], bare=True)

            self._fit_rows(item, row, plain, "Properties")
        else:
            self._as_json(item, plain)

    def _fit_array(self, item: Field, plain: Schema, place: _Place) -> None:
        placed, items = plain.get("prefixItems"), plain.get("items")
        if placed and not (isinstance(items, Mapping) and items):
            item.kind = "tuple"
            least = plain.get("minItems", 0)
            item.children = [
                self.field(ordinal(no + 1), sub, place.inside(str(no), required=no < least))
                for no, sub in enumerate(placed)
            ]
        elif isinstance(items, Mapping) and items and not placed:
            inner = self._merged(items)
            if plain.get("uniqueItems") and len(inner.get("enum", ())) > 1:
                item.kind = "several"
                item.choices = _choices(inner["enum"], inner.get("labels", inner.get("x-labels", {})))
                return
            item.kind = "list"
            item.item_label = _item_label(items, inner, place.key)

            def row(no: str) -> Field:
                at = _Place(f"{place.name}.{no}", (*place.path, no), no, True, place.refs)
                made = self.field(item.item_label, items, at)
                made.label = made.label if items.get("title") else item.item_label
                made.unmarked = True
                return made

            self._fit_rows(item, row, plain, "Items")
        else:
            self._as_json(item, plain)

    def _fit_rows(self, item: Field, row: Callable[[str], Field], plain: Schema, what: str) -> None:
        probe = row("0")  # that it can be shown; a recursive one cannot
        if probe.kind == "json" and "$ref" in json.dumps(plain, default=str):
            self._as_json(item, plain)
            return
        base = self._count

        def make(no: str) -> Field:
            self._count = base  # each row on its own: many rows are no large form
            return row(no)

        item.make, item.least, item.most = make, plain.get(f"min{what}", 0), plain.get(f"max{what}")

    def _fit_union(
        self, item: Field, name: str, plain: dict[str, Any], options: list[dict[str, Any]], place: _Place
    ) -> None:
        merged = [self._merged(option) for option in options]
        if _is_decimal(merged):
            number = next(option for option in merged if option["type"] == "number")
            digits = next(option for option in merged if option["type"] == "string")
            item.kind, item.exact, item.hint = "number", True, _bounds({**number, **digits})
            return
        if all("const" in option for option in merged):
            titles = {_key(option["const"]): str(option["title"]) for option in merged if "title" in option}
            labels = plain.get("labels", plain.get("x-labels", {}))
            item.kind, item.choices = "choice", _choices([option["const"] for option in merged], {**titles, **labels})
            return
        item.kind = "union"
        tag = plain.get("discriminator", {}).get("propertyName")
        mapping: Mapping[str, str] = plain.get("discriminator", {}).get("mapping", {})
        for no, (option, inner) in enumerate(zip(options, merged, strict=True)):
            names = [value for value, ref in mapping.items() if ref == option.get("$ref")]
            key = names[0] if len(names) == 1 else str(no)
            at = _Place(f"{place.name}@{part(key)}", place.path, key, True, place.refs)
            child = self.field(name, {**option, "default": MISSING} if "default" in option else option, at)
            label = words(names[0]) if len(names) == 1 else _kind_name(inner)
            child.label, child.bare, child.key = label, True, key
            child.tags = frozenset([*names, *_tags(inner)])
            child.fits = self._fitting(option)
            if tag is not None:
                _hide_tag(child, tag)
            item.choices.append(Choice(key, None, label))
            item.children.append(child)
        _tell_apart(item)

    def _fitting(self, option: Schema) -> Any:
        schema = {**option, "$defs": self._defs}
        return lambda value: not check_schema(value, schema)


def _options(plain: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(plain.get("type"), list):
        rest = {key: value for key, value in plain.items() if key not in ("type", "default", "title", "description")}
        return [{**rest, "type": kind} for kind in plain["type"]]
    found: list[dict[str, Any]] = []
    for option in plain.get("anyOf", plain.get("oneOf", ())):
        inner = option.get("anyOf", option.get("oneOf")) if isinstance(option, dict) else None
        if inner is not None and "discriminator" not in option:
            found += _options(option)
        elif isinstance(option, dict):
            found.append(option)
    return _paired(found)


def _paired(options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A Decimal is a number or a text: one kind among others."""
    result: list[dict[str, Any]] = []
    for option in options:
        before = result[-1] if result else {}
        if option.get("format") == "decimal" and before.get("type") == "number" and len(options) > 2:
            result[-1] = {"anyOf": [before, option]}
        else:
            result.append(option)
    return result


def _is_decimal(options: Sequence[Schema]) -> bool:
    if len(options) != 2 or {option.get("type") for option in options} != {"number", "string"}:
        return False
    number = next(option for option in options if option["type"] == "number")
    text = next(option for option in options if option["type"] == "string")
    if "format" in text:
        return bool(text["format"] == "decimal")
    return number.get("format") != "double" and not {"minLength", "maxLength", "enum", "const"} & set(text)


def _hide_tag(child: Field, tag: str) -> None:
    """The choice of the kind says it already."""
    for inner in child.children:
        if inner.key == tag and inner.kind in ("const", "choice") and len(inner.choices) <= 1:
            inner.kind = "hidden"


def _tell_apart(item: Field) -> None:
    labels = [choice.label for choice in item.choices]
    for no, choice in enumerate(item.choices):
        if labels.count(choice.label) > 1:
            label = f"{choice.label} ({ordinal(labels[: no + 1].count(choice.label)).lower()} kind)"
            item.choices[no] = replace(choice, label=label)
            item.children[no].label = label


def _tags(inner: Schema) -> list[str]:
    if "anyOf" in inner:  # a Decimal among others
        return ["decimal"]
    kind = str(inner.get("type", ""))
    found = [str(inner["title"])] if "title" in inner else []
    found += [_TAGS.get(kind, kind)]
    if form := inner.get("format"):
        found += [_FORMAT_TAGS.get(form, str(form))]
    if "enum" in inner or "const" in inner:
        found += ["enum", "literal"]
    if "prefixItems" in inner:
        found += ["tuple"]
    if inner.get("uniqueItems"):
        found += ["set", "frozenset"]
    return [*found, f"constrained-{found[-1]}"]


def _kind_name(inner: Schema) -> str:
    if inner.get("title"):
        return words(str(inner["title"]))
    if "const" in inner:
        return words(str(inner["const"]))
    if "enum" in inner:
        return "One of a list"
    if "anyOf" in inner:
        return "Number"
    return _NAMES.get(inner.get("format", ""), _TYPES.get(str(inner.get("type")), "Anything, as JSON"))


def _item_label(items: Schema, inner: Schema, key: str) -> str:
    if items.get("title"):
        return str(items["title"])
    if one := _singular(words(key)):
        return one
    return words(str(inner["title"])) if inner.get("title") and inner.get("type") == "object" else "Entry"


def _singular(name: str) -> str:
    """Of a plural as names of lists are: `tags`, `boxes`, `entries`. Nothing when it is none."""
    for ending, end in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", "")):
        if len(name) > 3 and name.endswith(ending):
            return "" if name.endswith(("ss", "us", "is")) else name.removesuffix(ending) + end
    return ""


def _label(schema: Schema, name: str) -> str:
    """The author's own title; the one that pydantic makes up from the name says it worse than we do."""
    title = schema.get("title")
    return str(title) if title and title != name.replace("_", " ").title() else words(name)


def _key(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _choices(values: Sequence[Any], labels: Mapping[str, str]) -> list[Choice]:
    keys = [_key(value) for value in values]
    if len(set(keys)) < len(keys):  # "1" and 1
        keys = [json.dumps(value) for value in values]
    return [
        Choice(key, value, str(labels.get(_key(value)) or _spoken(value)))
        for key, value in zip(keys, values, strict=True)
    ]


def _spoken(value: Any) -> str:
    if isinstance(value, str):
        return words(value) if value.strip() else "(empty)"
    return (
        {None: "none", True: "yes", False: "no"}[value]
        if value is None or isinstance(value, bool)
        else json.dumps(value)
    )


def _bounds(plain: Schema) -> str:
    low = plain.get("minimum", plain.get("exclusiveMinimum"))
    high = plain.get("maximum", plain.get("exclusiveMaximum"))
    above = "more than" if "exclusiveMinimum" in plain else "at least"
    below = "less than" if "exclusiveMaximum" in plain else "at most"
    parts = [f"{above} {_number(low)}"] if low is not None else []
    parts += [f"{below} {_number(high)}"] if high is not None else []
    parts += [f"in steps of {_number(plain['multipleOf'])}"] if plain.get("multipleOf") else []
    parts += [f"with at most {plain['decimalPlaces']} decimals"] if plain.get("decimalPlaces") else []
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else repr(value)
