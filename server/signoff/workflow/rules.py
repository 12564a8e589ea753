"""By what rule people answer together: plain values, stored as JSON with the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar, overload

from signoff.workflow.amounts import as_whole
from signoff.workflow.errors import InvalidInput
from signoff.workflow.selectors import Group, Role, Selector, User, selector_from_json, selectors_to_json

T = TypeVar("T")

MAX_DECIDERS: Final = 100  # of one question


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One decider."""

    selectors: tuple[Selector, ...] = ()
    veto: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"any_of": selectors_to_json(self.selectors), **_no_veto(self.veto)}


@dataclass(frozen=True, slots=True)
class NOf:
    """Several different deciders."""

    n: int
    selectors: tuple[Selector, ...] = ()
    veto: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"n_of": self.n, "of": selectors_to_json(self.selectors), **_no_veto(self.veto)}


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part; `staged`: one after the other."""

    parts: tuple[Rule, ...]
    staged: bool = False
    veto: bool = True

    def to_json(self) -> dict[str, Any]:
        staged = {"staged": True} if self.staged else {}
        return {"all_of": [part.to_json() for part in self.parts], **staged, **_no_veto(self.veto)}


Rule = AnyOf | NOf | AllOf


@dataclass(frozen=True, slots=True)
class Decided(Generic[T]):
    """One of several people's decisions, as the handler gets it.

    Where the deadline came first and `default=` was given, the only one has no person (the empty string).
    """

    person: str  # e-mail address, or token:<name>
    name: str
    at: datetime
    answer: T
    option: str | None = None  # the name of the one that was chosen
    comment: str | None = None
    on_behalf_of: str | None = None  # whose place the person had been given
    rejects: bool = False


def any_of(*selectors: Selector, veto: bool = True) -> AnyOf:
    """One of these people; without selectors one of those in `to`."""
    return AnyOf(_selectors(selectors, "any_of()"), _flag(veto, "veto"))


@overload
def n_of(n: Literal[1], *selectors: Selector, veto: bool = True) -> AnyOf: ...
@overload
def n_of(n: Literal[2, 3, 4, 5, 6, 7, 8, 9, 10], *selectors: Selector, veto: bool = True) -> NOf: ...
@overload
def n_of(n: int, *selectors: Selector, veto: bool = True) -> AnyOf | NOf: ...
def n_of(n: int, *selectors: Selector, veto: bool = True) -> AnyOf | NOf:
    """`n` different people of these; without selectors of those in `to`.

    A rejecting decision ends the question; with `veto=False` it counts like any other. `n_of(1)` is `any_of()`.
    """
    as_whole(n, "n_of()", maximum=MAX_DECIDERS)
    given = _selectors(selectors, "n_of()")
    if given and all(isinstance(item, User) for item in given) and len(set(given)) < n:
        raise InvalidInput(f"n_of({n}) names {len(set(given))} people only")
    return AnyOf(given, _flag(veto, "veto")) if n == 1 else NOf(n, given, _flag(veto, "veto"))


def all_of(*parts: Rule | Selector, staged: bool = False, veto: bool = True) -> AllOf:
    """Every part, each with people of its own: a person fills one place. A selector is one decider.

    staged: one part after the other; the people of a later one cannot decide before. `veto=False` holds for all parts.
    """
    if not parts:
        raise InvalidInput("all_of() takes at least one part")
    made = []
    for part in parts:
        if not isinstance(part, Group | Role | User | AnyOf | NOf | AllOf):
            raise InvalidInput(f"all_of() takes rules and group(...), role(...), user(...), not {part!r}")
        made.append(AnyOf((part,)) if isinstance(part, Group | Role | User) else part)
    rule = AllOf(tuple(made), _flag(staged, "staged"), _flag(veto, "veto"))
    if places(rule) > MAX_DECIDERS:
        raise InvalidInput(f"a rule asks for at most {MAX_DECIDERS} deciders, not {places(rule)}")
    return rule


def several(rule: Rule | None) -> bool:
    """Whether the ask's value is a list of decisions."""
    return isinstance(rule, NOf | AllOf)


def leaves(rule: Rule) -> Iterator[AnyOf | NOf]:
    """The parts that are not made of parts, in the order in which they are written."""
    if isinstance(rule, AllOf):
        for part in rule.parts:
            yield from leaves(part)
    else:
        yield rule


def places(rule: Rule) -> int:
    """How many decisions complete it."""
    return sum(leaf.n if isinstance(leaf, NOf) else 1 for leaf in leaves(rule))


def rule_from_json(raw: Mapping[str, Any]) -> Rule:
    veto = raw.get("veto", True)
    if "any_of" in raw:
        return AnyOf(tuple(map(selector_from_json, raw["any_of"])), veto)
    if "n_of" in raw:
        return NOf(raw["n_of"], tuple(map(selector_from_json, raw["of"])), veto)
    if "all_of" in raw:
        return AllOf(tuple(map(rule_from_json, raw["all_of"])), raw.get("staged", False), veto)
    raise InvalidInput(f"not a rule: {raw!r}")


def _selectors(given: tuple[Any, ...], what: str) -> tuple[Selector, ...]:
    for item in given:
        if not isinstance(item, Group | Role | User):
            raise InvalidInput(f"{what} takes group(...), role(...) or user(...), not {item!r}")
    return given


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what}= takes True or False, not {value!r}")
    return value


def _no_veto(veto: bool) -> dict[str, bool]:
    return {} if veto else {"veto": False}
