"""What decisions make of a rule: pure, no rows and no clock.

A rule has parts with people of their own, its leaves in the order in which they are written, and each has one place or
several. A person fills one place. Whom a decision may count for was settled when it was made; which of those places it
fills is open as long as it can be: a further person takes any place that can be made free by moving others within what
they may count for. In a staged rule a part that is complete stays so and takes nobody any more, and the next one opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from signoff.approvals.eligibility import who_may_answer
from signoff.workflow.rules import AllOf, AnyOf, NOf, Rule
from signoff.workflow.selectors import Selector


@dataclass(frozen=True, slots=True)
class Vote:
    """A decision as the rule sees it."""

    parts: frozenset[int]  # the leaves that it may count for
    rejects: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A part that a further person could decide for."""

    part: int  # which leaf
    selectors: tuple[Selector, ...]
    words: str  # "anyone in finance"
    missing: int  # decisions, were the others to stay where they are; 0 where one of them would move


@dataclass(frozen=True, slots=True)
class Part:
    """A leaf of the rule as it stands. `takes`: a further person could decide for it now."""

    words: str  # "anyone in finance"
    have: int
    need: int
    takes: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rule has come."""

    done: bool  # complete, or ended by a veto
    vetoed: bool
    have: int
    need: int
    text: str  # "1 of 2"
    open_places: tuple[Place, ...]
    counts_for: tuple[int | None, ...]  # by vote: the leaf whose place it fills now
    parts: tuple[Part, ...]  # all leaves, in the order in which they are written

    @property
    def open_parts(self) -> frozenset[int]:
        return frozenset(place.part for place in self.open_places)

    @property
    def waits_for(self) -> str:
        """Whose decisions are missing: `anyone in finance and anyone in security`."""
        return " and ".join(dict.fromkeys(place.words for place in self.open_places)) or "nobody"


@dataclass(frozen=True, slots=True)
class _Leaf:
    selectors: tuple[Selector, ...]
    size: int
    veto: bool
    stages: tuple[tuple[int, int], ...]  # of the staged rules around it: which one, which part of it


def progress(rule: Rule | None, votes: Sequence[Vote], whom: Sequence[Sequence[Selector]] | None = None) -> Progress:
    """`rule` None is one decider. `whom`: by leaf, whom it means now; without it, whom the rule names."""
    leaves = _leaves(AnyOf() if rule is None else rule)
    filling: list[int | None] = [None] * len(votes)
    enabled = _fill(leaves, votes, filling)
    need = sum(leaf.size for leaf in leaves)
    have = sum(leaf is not None for leaf in filling)
    vetoed = any(vote.rejects and any(leaves[part].veto for part in vote.parts) for vote in votes)
    done = vetoed or have == need
    places, parts = [], []
    for part, leaf in enumerate(leaves):
        who = leaf.selectors if whom is None else tuple(whom[part])
        words, filled = who_may_answer(who), filling.count(part)
        takes = not done and part in enabled and _has_room(part, leaves, votes, filling)
        parts.append(Part(words, filled, leaf.size, takes))
        if takes:
            places.append(Place(part, who, words, leaf.size - filled))
    return Progress(done, vetoed, have, need, f"{have} of {need}", tuple(places), tuple(filling), tuple(parts))


def _leaves(rule: Rule) -> list[_Leaf]:
    found: list[_Leaf] = []
    staged_rules = 0

    def walk(rule: Rule, veto: bool, stages: tuple[tuple[int, int], ...]) -> None:
        nonlocal staged_rules
        veto = veto and rule.veto
        if not isinstance(rule, AllOf):
            found.append(_Leaf(rule.selectors, rule.n if isinstance(rule, NOf) else 1, veto, stages))
            return
        which = staged_rules
        staged_rules += rule.staged
        for stage, part in enumerate(rule.parts):
            walk(part, veto, (*stages, (which, stage)) if rule.staged else stages)

    walk(rule, True, ())
    return found


def _fill(leaves: list[_Leaf], votes: Sequence[Vote], filling: list[int | None]) -> frozenset[int]:
    """Give each vote its place, opening stage after stage; the leaves that further votes may count for.

    Places are filled in the order of the rule, and a place that is filled stays so: more votes never undo a stage.
    """
    complete: set[int] = set()
    while True:
        current = _current_stages(leaves, complete)
        reached = {
            part for part, leaf in enumerate(leaves) if all(stage <= current[which] for which, stage in leaf.stages)
        }
        for part in sorted(reached):
            while filling.count(part) < leaves[part].size and _take(part, votes, filling, set()):
                pass
        now = {part for part in reached if filling.count(part) == leaves[part].size}
        if now == complete:
            return frozenset(
                part for part in reached if all(stage == current[which] for which, stage in leaves[part].stages)
            )
        complete = now


def _current_stages(leaves: list[_Leaf], complete: set[int]) -> dict[int, int]:
    """Of each staged rule the first part that is not complete."""
    current: dict[int, int] = {}
    for part, leaf in enumerate(leaves):
        for which, stage in leaf.stages:
            if part not in complete:
                current[which] = min(current.get(which, stage), stage)
    last = {which: stage for leaf in leaves for which, stage in leaf.stages}
    return {which: current.get(which, stage) for which, stage in last.items()}


def _take(part: int, votes: Sequence[Vote], filling: list[int | None], tried: set[int]) -> bool:
    """Fill one more place of a leaf by a vote that is free, or by one whose own place another vote takes over."""
    able = [who for who, vote in enumerate(votes) if part in vote.parts and filling[who] != part and who not in tried]
    for who in sorted(able, key=lambda who: filling[who] is not None):
        tried.add(who)
        former = filling[who]
        filling[who] = part
        if former is None or _take(former, votes, filling, tried):
            return True
        filling[who] = former
    return False


def _has_room(part: int, leaves: list[_Leaf], votes: Sequence[Vote], filling: list[int | None]) -> bool:
    """Whether one more vote for this leaf finds a place, others moving where they may."""
    seen, todo = {part}, [part]
    while todo:
        here = todo.pop()
        if filling.count(here) < leaves[here].size:
            return True
        movable = [vote.parts for who, vote in enumerate(votes) if filling[who] == here]
        onward = {other for parts in movable for other in parts if other not in seen}
        seen |= onward
        todo += onward
    return False
