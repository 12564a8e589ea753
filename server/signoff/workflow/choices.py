"""The outcomes that a question offers, in the author's own words, each with its own form."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from signoff.workflow.codec import MISSING, ValueCodec, parse, value_codec
from signoff.workflow.errors import InvalidInput
from signoff.workflow.names import check_name

Style = Literal["primary", "danger"]

MAX_OPTIONS: Final = 20
MAX_WORDS: Final = 1000  # characters of a label or consequence


@dataclass(frozen=True, slots=True)
class Option:
    """One outcome. `reason`: whether whoever chooses it must say why."""

    name: str
    label: str
    form: Any = None  # a type; None: `value`, or the ask's own form
    value: Any = MISSING
    consequence: str = ""
    rejects: bool = False
    reason: bool = False
    style: Style | None = None

    def to_json(self, codec: ValueCodec) -> dict[str, Any]:
        """As it is stored; `codec` is the ask's. InvalidInput when its form or value is no answer to the ask."""
        raw: dict[str, Any] = {"name": self.name, "label": self.label, "rejects": self.rejects, "reason": self.reason}
        if self.consequence:
            raw["consequence"] = self.consequence
        if self.style is not None:
            raw["style"] = self.style
        if self.form is not None:
            if not _is_part(self.form, codec.annotation):
                raise InvalidInput(
                    f"the form of option {self.name!r} must be the ask's type or one of its union, not {self.form!r}"
                )
            raw["schema"] = value_codec(self.form).json_schema()
        elif self.value is not MISSING:
            try:
                raw["value"] = parse(codec.encode(self.value))
            except InvalidInput as error:
                message = f"the value of option {self.name!r} is no answer to the ask"
                raise InvalidInput(message, error.fields) from error
        return raw


def option(
    name: str,
    label: str | None = None,
    *,
    form: Any = None,
    value: Any = MISSING,
    consequence: str = "",
    rejects: bool = False,
    reason: bool | None = None,
    style: Style | None = None,
) -> Option:
    """One of the outcomes that people choose from.

    form: the type that is filled in, of the ask's union; value: the answer itself, with no form; neither: the ask's own
    form. label: on the button; the name by default. consequence: what choosing it does, shown beside it. rejects: it
    counts as a rejection. reason: whether a comment must say why; by default where it rejects.
    """
    check_name(name, "option")
    if form is not None and value is not MISSING:
        raise InvalidInput(f"option {name!r}: give form= or value=, not both")
    words = name.replace("_", " ").replace("-", " ")
    label = words[:1].upper() + words[1:] if label is None else label
    texts: tuple[tuple[str, Any], ...] = (("label", label), ("consequence", consequence))
    for what, text in texts:
        if not isinstance(text, str) or len(text) > MAX_WORDS or (what == "label" and not text.strip()):
            raise InvalidInput(f"option {name!r}: {what}= is a text of at most {MAX_WORDS} characters, not {text!r}")
    if style not in (None, *get_args(Style)):
        raise InvalidInput(f"option {name!r}: style= takes 'primary' or 'danger', not {style!r}")
    flags: tuple[tuple[str, Any], ...] = (("rejects", rejects), ("reason", rejects if reason is None else reason))
    for what, flag in flags:
        if not isinstance(flag, bool):
            raise InvalidInput(f"option {name!r}: {what}= takes True or False, not {flag!r}")
    return Option(name, label, form, value, consequence, rejects, rejects if reason is None else reason, style)


def options_to_json(options: Iterable[Option], codec: ValueCodec) -> list[dict[str, Any]]:
    """All options of one ask as they are stored; `codec` is the ask's."""
    given = list(options)
    for item in given:
        if not isinstance(item, Option):
            raise InvalidInput(f"options= takes what option(...) made, not {item!r}")
    names = [item.name for item in given]
    if not 1 <= len(names) <= MAX_OPTIONS or len(set(names)) < len(names):
        raise InvalidInput(f"options= takes 1 to {MAX_OPTIONS} options with different names, not {names}")
    return [item.to_json(codec) for item in given]


def parts_of(annotation: Any) -> list[Any]:
    """The members of a union, all the way down; of another type the type itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner = get_args(annotation)[0]
        return parts_of(inner) if _is_union(inner) else [annotation]
    if _is_union(annotation):
        return [part for item in get_args(annotation) for part in parts_of(item)]
    alias = getattr(annotation, "__value__", None)  # `type Answer = Approve | Reject`
    return [annotation] if alias is None else parts_of(alias)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _is_part(form: Any, annotation: Any) -> bool:
    """Whether a type stands for some of another's values in a way that can be told by looking."""
    if any(annotation is anything for anything in (Any, MISSING, object)):
        return True
    parts = parts_of(annotation)
    if all(part in parts for part in parts_of(form)):
        return True
    words = {value for part in parts if get_origin(part) is Literal for value in get_args(part)}
    return get_origin(form) is Literal and set(get_args(form)) <= words
