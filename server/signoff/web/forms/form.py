"""A whole form: the fields of an answer, the decision that its buttons carry, and the options to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from signoff.web.forms import blaming, reading, telling
from signoff.web.forms.fields import MISSING, Field, Sent, part
from signoff.web.forms.schema import Builder
from signoff.web.say import listed, words

Schema = Mapping[str, Any]

OPTION: Final = "option"  # the name of the buttons that choose an option
_EXTRA: Final = (OPTION, "comment")  # what is typed beside the form and kept in its draft


@dataclass(slots=True)
class Option:
    """One outcome in the author's words. `form` is its own; `value` its fixed answer; with neither the ask's form."""

    name: str
    label: str
    consequence: str = ""
    rejects: bool = False
    needs_comment: bool = False
    style: str = ""
    value: Any = MISSING
    form: Form | None = None


@dataclass(slots=True)
class Form:
    """`decision` is the yes or no that the buttons carry, unless there are `options`; `fields` are the rest."""

    top: Field
    fields: list[Field]
    decision: Field | None = None
    options: list[Option] = field(default_factory=list)
    option: str = ""  # the one that was chosen
    extra: dict[str, str] = field(default_factory=dict)  # what was typed beside the form
    errors: list[str] = field(default_factory=list)

    @property
    def root(self) -> bool:
        """Whether the answer is one value itself, not an object."""
        return self.fields == [self.top] or self.decision is self.top

    @property
    def chosen(self) -> Option | None:
        return next((option for option in self.options if option.name == self.option), None)

    @property
    def asks(self) -> bool:
        """Whether there is anything to fill in but the decision or option itself."""
        shown = [item for item in self.fields if item.kind not in ("hidden", "const")]
        return bool(shown) or any(option.form is not None and option.form.asks for option in self.options)

    def all(self) -> Iterator[Field]:
        yield from self.top.walk()
        for option in self.options:
            if option.form is not None:
                yield from option.form.all()

    @property
    def failed(self) -> list[Field]:
        return [item for item in self.all() if item.errors]

    @property
    def failures(self) -> list[tuple[Field, str]]:
        """Fields with errors, and how to call each: with what it is part of."""
        shown = {id(item) for item in [*self.fields, *([self.decision] if self.decision else [])]}
        found = [pair for item in self.top.walk() if id(item) in shown for pair in _failures(item, "")]
        return found + [pair for one in self.options if one.form is not None for pair in one.form.failures]

    def told(self, answer: Any, option: str | None = None) -> list[tuple[str, str]]:
        """An answer in the words of the form, for people; what was left empty is left out."""
        chosen = next((one for one in self.options if one.name == option), None)
        if chosen is not None and chosen.form is not None:
            return chosen.form.told(answer)
        if self.root or not isinstance(answer, Mapping):
            return list(telling.lines(self.top, answer))
        items = [*([self.decision] if self.decision else []), *self.fields]
        return [line for item in items for line in telling.lines(item, answer.get(item.key))]

    # -- what a browser sends

    def fill(self, sent: Sent) -> None:
        """Takes over what was typed, without judging it: a draft, or a post that only changes rows."""
        self.errors = []
        self.extra = {name: str(sent[name][-1]) for name in _EXTRA if sent.get(name)}
        self.option = self.extra.get(OPTION, "")
        reading.fill(self.top, sent)
        for option in self.options:
            if option.form is not None:
                option.form.fill(sent)

    def edit(self, sent: Sent) -> Field | None:
        """Fills in, and adds or removes the row that a pressed button asks for; the field whose rows changed."""
        self.fill(sent)
        tops = [self.top, *(option.form.top for option in self.options if option.form is not None)]
        return next((found for top in tops if (found := reading.edit(top, sent)) is not None), None)

    def read(self, sent: Sent) -> Any:
        """The answer as JSON; `MISSING` when something could not be understood (then fields carry errors)."""
        self.fill(sent)
        if self.options:
            if (chosen := self.chosen) is None:
                self.errors.append(f"Choose {listed([option.label for option in self.options])}.")
                return MISSING
            if chosen.value is not MISSING:
                return chosen.value
            if chosen.form is not None:
                return chosen.form.read(sent)
        answer = reading.value_of(self.top)
        if self.failed:
            return MISSING
        return None if answer is MISSING else answer

    def blame(self, errors: Sequence[Any]) -> None:
        """Puts the gate's errors (with `loc` and `message`) beside their fields."""
        chosen = self.chosen
        top = chosen.form.top if chosen is not None and chosen.form is not None else self.top
        self.errors += blaming.blame(top, errors)

    def kept(self, sent: Sent) -> dict[str, list[str]]:
        """Of what a browser sent: what a draft may keep. Never a secret, and nothing that is not of this form."""
        names = {item.name for item in self.all() if not item.secret}
        known = {*_EXTRA, *names, *(f"{name}{sign}" for name in names for sign in "!#~")}
        self.fill(sent)
        known |= {f"{item.name}{sign}" for item in self.all() if not item.secret for sign in ("", "!", "#", "~")}
        return {name: [str(text) for text in texts] for name, texts in sent.items() if name in known}


def build(
    schema: Schema,
    *,
    options: Sequence[Mapping[str, Any]] | None = None,
    draft: Sent | None = None,
    prefix: str = "f",
) -> Form:
    """The form of a JSON schema (as pydantic writes it). `prefix` begins the names of its fields."""
    top = Builder(schema).top(prefix)
    spread = top.kind == "group" and not top.toggled
    fields = list(top.children) if spread else [top]
    decision = None
    if not options:
        decision = next((item for item in fields if _decides(item)), None)
    form = Form(top, [item for item in fields if item is not decision], decision)
    form.options = [_option(entry, prefix) for entry in options or ()]
    if draft:
        form.fill(draft)
    return form


def _option(entry: Mapping[str, Any], prefix: str) -> Option:
    name = str(entry["name"])
    schema = entry.get("schema", entry.get("form"))
    rejects = bool(entry.get("rejects"))
    reason = entry.get("reason")
    return Option(
        name=name,
        label=str(entry.get("label") or words(name)),
        consequence=str(entry.get("consequence") or ""),
        rejects=rejects,
        needs_comment=rejects if reason is None else bool(reason),
        style=str(entry.get("style") or ""),
        value=entry.get("value", MISSING),
        form=build(schema, prefix=f"{prefix}-{part(name)}") if isinstance(schema, Mapping) else None,
    )


def _failures(item: Field, around: str) -> Iterator[tuple[Field, str]]:
    label = f"{around}, {item.label[:1].lower()}{item.label[1:]}" if around else item.label
    if item.errors:
        yield item, label
    for no, child in enumerate(item.children, 1):
        if item.kind in ("list", "map"):
            row = f"{around}, {item.item_label.lower()} {no}" if around else f"{item.item_label} {no}"
            if child.children:
                for inner in child.children if child.kind == "group" else [child]:
                    yield from _failures(inner, row)
            elif child.errors:
                yield child, row
        else:
            yield from _failures(child, label)


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
