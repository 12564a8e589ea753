"""Who may answer: plain values, stored as JSON with the question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from signoff.workflow.errors import InvalidInput
from signoff.workflow.names import check_name

RoleName = Literal["viewer", "approver", "operator", "admin"]


@dataclass(frozen=True, slots=True)
class Group:
    name: str

    def to_json(self) -> dict[str, str]:
        return {"group": self.name}


@dataclass(frozen=True, slots=True)
class Role:
    """Everyone with this role or a higher one."""

    name: RoleName

    def to_json(self) -> dict[str, str]:
        return {"role": self.name}


@dataclass(frozen=True, slots=True)
class User:
    email: str

    def to_json(self) -> dict[str, str]:
        return {"user": self.email}


Selector = Group | Role | User


def group(name: str) -> Group:
    """The members of a group."""
    return Group(check_name(name, "group"))


def role(name: RoleName) -> Role:
    """Everyone with at least this role: viewer < approver < operator < admin."""
    if name not in get_args(RoleName):
        raise InvalidInput(f"role() takes one of {', '.join(get_args(RoleName))}, not {name!r}")
    return Role(name)


def user(email: str) -> User:
    """One person by e-mail address; upper and lower case are the same."""
    if check_name(email, "user").count("@") != 1 or email.startswith("@") or email.endswith("@"):
        raise InvalidInput(f"user() takes an e-mail address, not {email!r}")
    return User(email.strip().lower())


def selector_from_json(raw: Mapping[str, Any]) -> Selector:
    if len(raw) != 1:
        raise InvalidInput(f"not a selector: {raw!r}")
    match raw:
        case {"group": str(name)}:
            return group(name)
        case {"role": str(name)}:
            return role(name)  # type: ignore[arg-type]  # checked there
        case {"user": str(email)}:
            return user(email)
    raise InvalidInput(f"not a selector: {raw!r}")


def selectors_to_json(to: Selector | Iterable[Selector] | None, what: str = "to=") -> list[dict[str, str]]:
    """One selector, several (any of them), or None: everyone who may approve at all."""
    if to is None:
        return []
    given = [to] if isinstance(to, Group | Role | User) else list(to)
    for item in given:
        if not isinstance(item, Group | Role | User):
            raise InvalidInput(f"{what} takes group(...), role(...) or user(...), not {item!r}")
    return [item.to_json() for item in given]
