"""Who may decide: the selectors of a question against a person, and what people changed about it since.

`to` and the parts of the rule are mixes of users, groups and roles, and one match is enough; an empty one means every
approver of the tenant. A role selector means that role or one above it. Whoever decides needs the role approver besides
(checked first). Groups and roles count as they are now, or (`members="as_asked"`) as they were when it was asked.

What people change afterwards is kept in order, and read as follows:

- `{"kind": "add" | "escalate", "to": [selectors]}`: these may decide too, for any part.
- `{"kind": "reassign", "to": [selectors]}`: these instead of everybody, for any part.
- `{"kind": "reassign", "from": {"group" | "role": ...}, "to": [selectors]}`: these wherever that group or role stood.
- `{"kind": "reassign" | "delegate", "from": {"user": ...}, "to": [selectors]}`: these have the place of that person,
  who has it no more. Their decision says on whose behalf it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from signoff.people.canonical import canonical
from signoff.store.scope import ROLES, Person
from signoff.workflow.rules import AnyOf, Rule, leaves, rule_from_json
from signoff.workflow.selectors import Group, Role, Selector, User, selector_from_json

Frozen = dict[str, frozenset[Selector]]  # by address: the groups and roles of the question that somebody was in
Find = Callable[[str], Person | None]  # an active member by address


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to decide for some parts of a rule: one's own, or that of somebody who gave it away."""

    owner: str
    parts: frozenset[int]  # the leaves of the rule
    on_behalf_of: str | None = None


@dataclass(slots=True)
class Question:
    """Who may decide one approval, with all changes applied."""

    to: list[Selector]
    rule: Rule | None
    exclude: list[Selector] = field(default_factory=list)
    not_requester: bool = False
    requester: str | None = None
    frozen: Frozen | None = None
    parts: list[list[Selector]] = field(init=False)  # by leaf of the rule; [] means those in `to`
    added: list[Selector] = field(init=False, default_factory=list)  # for any part, whatever `to` says
    late: set[Selector] = field(init=False, default_factory=set)  # came by a change: read live, whatever is frozen
    held: dict[str, list[Selector]] = field(init=False, default_factory=dict)  # given away: by owner, to whom

    def __post_init__(self) -> None:
        self.parts = [list(leaf.selectors) for leaf in leaves(self.rule or AnyOf())]

    @classmethod
    def of(cls, approval: Any) -> Question:
        """Of an approval's row, or of its columns that say whom it is put to."""
        made = cls(
            to=selectors(approval.to),
            rule=None if approval.rule is None else rule_from_json(json.loads(approval.rule)),
            exclude=selectors(approval.exclude or "[]"),
            not_requester=getattr(approval, "not_requester", False),
            requester=getattr(approval, "requester", None),
            frozen=None if approval.frozen is None else frozen_from_json(json.loads(approval.frozen)),
        )
        for change in json.loads(approval.changes or "[]"):
            made.apply(change)
        return made

    def apply(self, change: dict[str, Any]) -> None:
        """A change as it is stored; see above. One of a kind that is not known changes nobody's rights."""
        kind, given = change.get("kind"), [selector_from_json(raw) for raw in change.get("to", ())]
        self.late.update(given)
        raw = change.get("from")
        source = None if raw is None else selector_from_json(raw)
        if kind in ("add", "escalate"):
            self.added += given
        elif kind == "reassign" and source is None:
            self.to, self.parts, self.added, self.held = [_NOBODY], [[] for _ in self.parts], given, {}
        elif kind in ("reassign", "delegate") and isinstance(source, User):
            for owner, holders in self.held.items():
                if holders == [source]:
                    self.held[owner] = given
            self.held.setdefault(source.email, given)
        elif kind == "reassign" and source is not None:
            for stood in (self.to, self.added, *self.parts):
                if source in stood:
                    place = stood.index(source)
                    stood[place : place + 1] = given

    @property
    def named(self) -> list[Selector]:
        """All selectors, of whatever part; [] when it is put to nobody in particular."""
        return [*self.to, *(selector for part in self.parts for selector in part), *self.added]

    @property
    def whom(self) -> list[list[Selector]]:
        """By leaf of the rule, whom it means in words that people read."""
        return [self._spoken_of(part or self.to) for part in self.parts]

    @property
    def asked(self) -> list[Selector]:
        """Whom it is put to, in words that people read: those of `to`, else those of the parts; and to whom one of
        a group or role among them gave their place.
        """
        parts = [selector for part in self.parts for selector in part]
        asked = self._spoken_of(self.to or (parts if all(self.parts) else []))
        if not any(isinstance(selector, Group | Role) for selector in asked):
            return asked
        return list(dict.fromkeys([*asked, *(one for holders in self.held.values() for one in holders)]))

    def _spoken_of(self, those: Iterable[Selector]) -> list[Selector]:
        found: list[Selector] = []
        for selector in those:
            given_to = self.held.get(selector.email) if isinstance(selector, User) else None
            found += [selector] if given_to is None else given_to
        # An empty list says every approver, whom nobody need be added to.
        found += self.added if found else []
        return [selector for selector in dict.fromkeys(found) if selector != _NOBODY]

    def authorities(self, person: Person, find: Find) -> list[Authority]:
        """What the person may decide for, as far as the rule goes and whatever was decided: their own first."""
        found = []
        if person.email not in self.held or matches(person, self.held[person.email]):
            found.append(Authority(person.email, self._own_parts(person)))
        for owner, holders in self.held.items():
            if owner != person.email and matches(person, holders):
                given_by = find(owner)
                if given_by is not None and given_by.role_at_least("approver") and not self._is_barred(given_by):
                    found.append(Authority(owner, self._own_parts(given_by), owner))
        return [one for one in found if one.parts]

    def is_excluded(self, person: Person) -> bool:
        return bool(self.exclude) and matches(person, self.exclude)

    def is_own_request(self, person: Person) -> bool:
        return self.not_requester and self.requester is not None and self.requester.lower() == person.email.lower()

    def may(self, person: Person, find: Find) -> bool:
        """Whether the question is put to this person at all, whatever was decided."""
        return person.role_at_least("approver") and not self._is_barred(person) and bool(self.authorities(person, find))

    def _is_barred(self, person: Person) -> bool:
        return self.is_excluded(person) or self.is_own_request(person)

    def _own_parts(self, person: Person) -> frozenset[int]:
        if self._means(person, self.added):
            return frozenset(range(len(self.parts)))
        if not (self._means(person, self.to) if self.to else self._was_there(person)):
            return frozenset()
        return frozenset(
            part
            for part, those in enumerate(self.parts)
            if (self._means(person, those) if those else self._was_there(person))
        )

    def _means(self, person: Person, those: Iterable[Selector]) -> bool:
        for selector in those:
            if self.frozen is None or selector in self.late or isinstance(selector, User):
                if matches(person, [selector]):
                    return True
            elif selector in self.frozen.get(person.email, ()):
                return True
        return False

    def _was_there(self, person: Person) -> bool:
        return self.frozen is None or person.email in self.frozen or self._means(person, self.named)


# Where everybody who could decide was replaced: an empty `to` would mean everybody.
_NOBODY = User("")


def selectors(to: str) -> list[Selector]:
    """The selectors of an approval's `to`, `exclude` or `escalate_to` column."""
    return [selector_from_json(raw) for raw in json.loads(to)]


def is_eligible(person: Person, to: Sequence[Selector]) -> bool:
    """Whether one of the selectors means this person; no selectors mean everybody."""
    return not to or matches(person, to)


def matches(person: Person, those: Iterable[Selector]) -> bool:
    """Whether one of the selectors means this person, as they are now."""
    return any(_matches(person, selector) for selector in those)


def names_user(email: str, to: Iterable[Selector]) -> bool:
    """Whether a selector names this very address."""
    return any(isinstance(selector, User) and selector.email.lower() == email.lower() for selector in to)


def freeze(question: Question, people: Iterable[Person]) -> str:
    """The text of the `frozen` column: who may decide now, and by which groups and roles."""
    frozen = {}
    for person in people:
        if question.may(person, _nobody):
            frozen[person.email] = [
                selector.to_json() for selector in dict.fromkeys(question.named) if _matches(person, selector)
            ]
    return canonical(frozen)


def frozen_from_json(raw: dict[str, list[dict[str, str]]]) -> Frozen:
    return {email: frozenset(map(selector_from_json, those)) for email, those in raw.items()}


def who_may_answer(to: Sequence[Selector]) -> str:
    """For pages and refusals: `anyone in finance, or ana@example.org`."""
    if not to:
        return "any approver"
    words = [_spoken(selector) for selector in to]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _nobody(email: str) -> None:
    return None


def _matches(person: Person, selector: Selector) -> bool:
    if isinstance(selector, User):
        return selector.email.lower() == person.email.lower()
    if isinstance(selector, Group):
        return selector.name in person.groups
    return person.role_at_least(selector.name)


def _spoken(selector: Selector) -> str:
    if isinstance(selector, Group):
        return f"anyone in {selector.name}"
    if isinstance(selector, Role):
        article = "an" if selector.name[0] in "aeiou" else "a"
        return f"{article} {selector.name}" + ("" if selector.name == ROLES[-1] else " or above")
    return selector.email
