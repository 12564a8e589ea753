"""A whole form: the fields of an answer, the decision that its buttons carry, and the options to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from signoff.web.forms import blaming, reading, telling
from signoff.web.forms.fields import MISSING, Field, Sent
from signoff.web.forms.schema import Builder

Schema = Mapping[str, Any]

_CONTROLS: Final = ("!", "#", "~")
_SIGNS: Final = ("", ".", "@", "*", *_CONTROLS)
BESIDE: Final = ("comment", "option")  # what is typed beside the form and belongs to its draft


@dataclass(slots=True)
class Form:
    """`decision` is the yes or no that the buttons carry; `fields` are the rest."""

    top: Field
    fields: list[Field]
    decision: Field | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def root(self) -> bool:
        """Whether the answer is one value itself, not an object."""
        return self.fields == [self.top] or self.decision is self.top

    def all(self) -> Iterator[Field]:
        return self.top.walk()

    @property
    def failed(self) -> list[Field]:
        return [item for item in self.all() if item.errors]

    @property
    def failures(self) -> list[tuple[Field, str]]:
        """Fields with errors, and how to call each: with what it is part of."""
        shown = {id(item) for item in [*self.fields, *([self.decision] if self.decision else [])]}
        return [pair for item in self.top.walk() if id(item) in shown for pair in _failures(item, "")]

    def told(self, answer: Any) -> list[tuple[str, str]]:
        """An answer in the words of the form, for people; what was left empty is left out."""
        if self.root or not isinstance(answer, Mapping):
            return list(telling.lines(self.top, answer))
        decided = [] if self.decision is None else list(telling.lines(self.decision, answer.get(self.decision.key)))
        rest = {key: value for key, value in answer.items() if self.decision is None or key != self.decision.key}
        return decided + list(telling.lines(self.top, rest))

    def fill(self, sent: Sent) -> None:
        """Takes over what was typed, without judging it."""
        self.errors = []
        reading.fill(self.top, sent)

    def restore(self, draft: Sent) -> None:
        """As `fill`, when the draft has anything of this form; else what stood there at first stays."""
        if any(name.startswith(self.top.name) and name[len(self.top.name) :][:1] in _SIGNS for name in draft):
            self.fill(draft)

    def edit(self, sent: Sent) -> bool:
        """Takes over what was typed, and adds or removes the row that a pressed button asks for, if it asks for one.

        False: it was no such button, and what was sent is to be read.
        """
        if not any(sent.get(name) for name in (reading.ADD, reading.REMOVE, reading.KEEP)):
            return False
        self.fill(sent)
        reading.edit(self.top, sent)
        return True

    def read(self, sent: Sent) -> Any:
        """The answer as JSON; `MISSING` when something could not be understood (then fields carry errors)."""
        self.fill(sent)
        answer = reading.value_of(self.top)
        if self.failed:
            return MISSING
        return None if answer is MISSING else answer

    def blame(self, errors: Sequence[Any]) -> None:
        """Puts the gate's errors (with `loc` and `message`) beside their fields."""
        self.errors += blaming.blame(self.top, errors)

    def keeps(self, sent: Sent) -> dict[str, list[str]]:
        """What a draft may keep of what a browser sent: what belongs to this form, and never a secret."""
        self.fill(sent)
        names = {f"{item.name}{sign}" for item in self.all() if not item.secret for sign in ("", *_CONTROLS)}
        return {name: [str(text) for text in texts] for name, texts in sent.items() if name in names and texts}


def build(schema: Schema, *, draft: Sent | None = None, prefix: str = "f", decides: bool = True) -> Form:
    """The form of a JSON schema (as pydantic writes it). `prefix`, letters and digits, begins the names of its fields:
    several forms on one page have different ones. `decides`: whether a yes or no may become the buttons."""
    top = Builder(schema).top(prefix)
    top.label = "Your answer" if top.kind == "group" else top.label
    fields = list(top.children) if top.kind == "group" and not top.toggled else [top]
    decision = next((item for item in fields if decides and _decides(item)), None)
    form = Form(top, [item for item in fields if item is not decision], decision)
    if draft:
        form.restore(draft)
    return form


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
