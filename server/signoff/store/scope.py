"""In whose name a use-case runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

ROLES = ("viewer", "approver", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts: a user, or a token of its own (then `email` is `token:<name>` and `user_id` None)."""

    email: str
    name: str
    role: str
    user_id: int | None = None
    groups: frozenset[str] = frozenset()

    @property
    def actor(self) -> str:
        """How ledger, audit and rows name this person."""
        return self.email

    def role_at_least(self, role: str) -> bool:
        """Raises ValueError for a role that does not exist."""
        return self.role in ROLES and ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Scope:
    """A tenant and a person in it (None: embedded code of that tenant). `Scope.system` is for the engine only."""

    tenant_id: int
    person: Person | None = None
    via: str | None = field(default=None, compare=False)  # the door, for the record: page, api, cli

    system: ClassVar[Scope]

    @property
    def is_system(self) -> bool:
        return self is Scope.system

    @property
    def actor(self) -> str:
        return self.person.actor if self.person else "system"


Scope.system = Scope(0)
