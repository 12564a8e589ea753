"""What a question can be answered with, as buttons and forms: its options, or the yes or no of its own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from signoff.approvals.views import ApprovalView, DecisionView, OptionView
from signoff.web import forms, say
from signoff.workflow.errors import Refused

PLAIN = "answer"  # the one form of a question without options


@dataclass(slots=True)
class Choice:
    """A form that is sent by a button of its own. `option` is None for the form of a question without options.

    `direct`: nothing has to be filled in, one press answers.
    """

    key: str
    option: str | None
    label: str
    consequence: str
    look: str  # primary, danger, second
    rejects: bool
    needs_reason: bool
    form: forms.Form
    value: Any = forms.MISSING
    open: bool = False  # it was sent and came back
    reason: str = ""
    reason_errors: list[str] = field(default_factory=list)

    @property
    def direct(self) -> bool:
        return not self.needs_reason and not self.has_fields

    @property
    def has_fields(self) -> bool:
        return any(item.kind not in ("const", "hidden") for item in self.form.fields)

    @property
    def failed(self) -> bool:
        return bool(self.reason_errors or self.form.failed or self.form.errors)

    def read(self, sent: Mapping[str, Sequence[str]]) -> Any:
        """The answer, or `MISSING` when something does not fit; what was typed is kept."""
        self.open = True
        self.reason = (sent.get("comment") or [""])[-1]
        answer = self.value if self.value is not forms.MISSING else self.form.read(sent)
        if self.needs_reason and not self.reason.strip():
            self.reason_errors = ["Say why."]
            return forms.MISSING
        return answer

    def edit(self, sent: Mapping[str, Sequence[str]]) -> bool:
        """Whether only a row was added or removed, and nothing is to be read yet."""
        if not self.form.edit(sent):
            return False
        self.open, self.reason = True, (sent.get("comment") or [""])[-1]
        return True

    def blame(self, refusal: Refused) -> None:
        own = [item for item in refusal.fields if tuple(item.loc) == ("comment",)]
        self.reason_errors = [say.sentence(item.message) for item in own]
        self.form.blame([item for item in refusal.fields if item not in own])
        if not refusal.fields:
            self.form.errors.append(say.sentence(refusal.message))


def choices_of(item: ApprovalView, draft: Mapping[str, Sequence[str]] | None = None) -> list[Choice]:
    """The options in the author's order; without options one form. Filled in with what a draft holds for them."""
    choices = _choices_of(item)
    if draft is not None:
        for choice in choices:
            choice.form.restore(draft)
            if choice.option is None or choice.option == (draft.get("option") or [""])[-1]:
                choice.open = choice.option is not None
                choice.reason = (draft.get("comment") or [""])[-1]
    return choices


def _choices_of(item: ApprovalView) -> list[Choice]:
    if not item.options:
        return [Choice(PLAIN, None, "", "", "primary", False, False, forms.build(item.schema))]
    main = next((option.name for option in item.options if option.style == "primary"), None)
    main = main or next((option.name for option in item.options if not option.rejects and option.style is None), None)
    return [_choice(item, number, option, option.name == main) for number, option in enumerate(item.options)]


def _choice(item: ApprovalView, number: int, option: OptionView, main: bool) -> Choice:
    own = option.schema if option.schema is not None else item.schema
    return Choice(
        key=f"o{number}",
        option=option.name,
        label=option.label,
        consequence=option.consequence,
        look="primary" if main else option.style or "second",
        rejects=option.rejects,
        needs_reason=option.reason,
        form=forms.build({"type": "null"} if option.has_value else own, prefix=f"o{number}"),
        value=option.value if option.has_value else forms.MISSING,
    )


def chosen(choices: Sequence[Choice], option: str) -> Choice | None:
    """The choice that was sent; a question without options has but one."""
    return next((item for item in choices if item.option is None or item.option == option), None)


def told(item: ApprovalView, decision: DecisionView) -> list[tuple[str, str]]:
    """An answer in the words of its form, for people."""
    if decision.option is None:
        return forms.build(item.schema).told(decision.answer)
    option = next((one for one in item.options if one.name == decision.option), None)
    lines = [("Answer", option.label if option is not None else decision.option)]
    if option is None or not option.has_value:
        schema = option.schema if option is not None and option.schema is not None else item.schema
        lines += forms.build(schema).told(decision.answer)
    return lines
