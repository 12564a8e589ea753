"""Who may answer a question: its selectors against a person as they are now.

`to` is a mix of users, groups and roles, and one match is enough; an empty `to` means every approver of the tenant. A
role selector means that role or one above it. Whoever answers needs the role approver besides (checked first).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from signoff.store.scope import ROLES, Person
from signoff.workflow.selectors import Group, Role, Selector, User, selector_from_json


def selectors(to: str) -> list[Selector]:
    """The selectors of an approval's `to` column."""
    return [selector_from_json(raw) for raw in json.loads(to)]


def is_eligible(person: Person, to: Sequence[Selector]) -> bool:
    """Whether the question is put to this person."""
    return not to or any(_matches(person, selector) for selector in to)


def names_user(email: str, to: Sequence[Selector]) -> bool:
    """Whether a selector names this very address."""
    return any(isinstance(selector, User) and selector.email.lower() == email.lower() for selector in to)


def who_may_answer(to: Sequence[Selector]) -> str:
    """For pages and refusals: `anyone in finance, or ana@example.org`."""
    if not to:
        return "any approver"
    words = [_spoken(selector) for selector in to]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _matches(person: Person, selector: Selector) -> bool:
    if isinstance(selector, Group):
        return selector.name in person.groups
    if isinstance(selector, Role):
        return person.role_at_least(selector.name)
    return selector.email.lower() == person.email.lower()


def _spoken(selector: Selector) -> str:
    if isinstance(selector, Group):
        return f"anyone in {selector.name}"
    if isinstance(selector, Role):
        article = "an" if selector.name[0] in "aeiou" else "a"
        return f"{article} {selector.name}" + ("" if selector.name == ROLES[-1] else " or above")
    return selector.email
