"""What the person who looks may do about a question, and of everything else why not and who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from signoff.approvals.claims import still_counts
from signoff.approvals.decide import check
from signoff.approvals.doors import canceled_steps, check_open, person_now
from signoff.approvals.eligibility import Find, who_may_answer
from signoff.approvals.standing import Standing, finder, require_asked, require_seat
from signoff.engine.outcomes import Row
from signoff.people.permissions import Action, may, require
from signoff.store.scope import Person, Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused

Doing = Literal["decide", "claim", "release", "delegate", "reassign", "escalate", "extend", "add", "comment"]
DOINGS: Final[tuple[Doing, ...]] = get_args(Doing)
_ACTIONS: Final[dict[Doing, Action]] = {
    "claim": "approval.claim",
    "release": "approval.claim",
    "delegate": "approval.delegate",
    "reassign": "approval.reassign",
    "escalate": "approval.escalate",
    "extend": "approval.extend",
    "add": "approval.add",
    "comment": "approval.comment",
}


@dataclass(frozen=True, slots=True)
class Why:
    """Why the person who looks may not do something: a fixed word and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Looking:
    """Somebody who looks at questions of one run: what is asked of the database once for all of them."""

    tx: Tx
    run: Row
    person: Person | Refused  # as they are now
    find: Find
    canceled: frozenset[int]

    @classmethod
    def at(cls, tx: Tx, scope: Scope, run: Row) -> Looking:
        person: Person | Refused
        try:
            person = person_now(tx, scope)
        except Refused as refusal:
            person = refusal
        return cls(tx, run, person, finder(tx, run.tenant_id), canceled_steps(tx, run))

    def abilities(self, row: Row, standing: Standing) -> dict[Doing, Why | None]:
        """By deed: None where the person may do it now. The deeds themselves check once more when they are done."""
        if isinstance(self.person, Refused):
            return dict.fromkeys(DOINGS, Why(self.person.reason, str(self.person)))
        return {doing: _why_not(_RULES[doing], _Case(self, self.person, row, standing, doing)) for doing in DOINGS}


@dataclass(frozen=True, slots=True)
class _Case:
    """A deed of whoever looks."""

    look: Looking
    person: Person
    row: Row
    standing: Standing
    doing: Doing

    @property
    def scope(self) -> Scope:
        return Scope(self.row.tenant_id, self.person)

    @property
    def find(self) -> Find:
        return self.look.find

    def needs_open(self) -> None:
        """Refused unless the question can still be answered by somebody."""
        check_open(self.look.tx, self.look.run, self.row, self.look.canceled)
        if self.row.state == "decided":
            raise Refused("already_decided", "This question was answered")

    def needs_seat(self) -> None:
        """Refused unless the question waits for them."""
        self.needs_open()
        require(self.scope, _ACTIONS[self.doing])
        require_asked(self.standing, self.person, self.find, self.row)
        require_seat(self.standing, self.person, self.find, self.row)

    def needs_seat_or_office(self) -> bool:
        """Whether they hold the office; refused when they have neither that nor a say."""
        self.needs_open()
        if may(self.scope, _ACTIONS[self.doing]):
            return True
        seated = self.standing.question.may(self.person, self.find)
        if not seated or self.standing.seat(self.person, self.find) is None:
            whom = who_may_answer(self.standing.question.asked)
            raise Refused("role", f"An operator can do this, and those whom the question waits for: {whom}")
        return False


def _why_not(rule: Callable[[_Case], None], case: _Case) -> Why | None:
    try:
        rule(case)
    except Refused as refusal:
        return Why(refusal.reason, str(refusal))
    return None


def _decide(case: _Case) -> None:
    look = case.look
    check(look.tx, case.person, look.run, case.row, case.standing, look.find, canceled=look.canceled)


def _claim(case: _Case) -> None:
    case.needs_seat()
    if case.row.claim == "none":
        raise Refused("claim", "This question is not claimed: whoever is first answers it")
    holder = case.row.claimed_by
    if holder == case.person.actor:
        raise Refused("claim", "You work on it already")
    if holder is not None and still_counts(case.look.tx, case.row, case.standing, case.find):
        raise Refused("claim", f"{holder} works on it; they or an operator can release it")


def _release(case: _Case) -> None:
    case.needs_open()
    if case.row.claimed_by is None:
        raise Refused("claim", "Nobody works on it")
    if case.row.claimed_by != case.person.actor and not case.person.role_at_least("operator"):
        raise Refused("claim", f"{case.row.claimed_by} works on it; they or an operator can release it")
    require(case.scope, "approval.claim")


def _delegate(case: _Case) -> None:
    case.needs_seat()


def _reassign(case: _Case) -> None:
    case.needs_seat_or_office()


def _escalate(case: _Case) -> None:
    case.needs_seat_or_office()
    if not case.row.escalate_to:
        raise Refused("escalate", "The question names nobody to ask besides")
    if case.row.escalated_at is not None:
        raise Refused("escalate", "The others are asked already")


def _extend(case: _Case) -> None:
    operates = case.needs_seat_or_office()
    if case.row.due_at is None and case.row.timeout_at is None:
        raise Refused("extend", "The question has no deadline")
    if not operates and case.row.extend is None:
        raise Refused("role", "Only an operator can give this question more time")


def _add(case: _Case) -> None:
    case.needs_open()
    if not may(case.scope, "approval.add"):
        raise Refused("role", "Only an operator can ask others besides")


def _comment(case: _Case) -> None:
    require(case.scope, "approval.comment")


_RULES: Final[dict[Doing, Callable[[_Case], None]]] = {
    "decide": _decide,
    "claim": _claim,
    "release": _release,
    "delegate": _delegate,
    "reassign": _reassign,
    "escalate": _escalate,
    "extend": _extend,
    "add": _add,
    "comment": _comment,
}
