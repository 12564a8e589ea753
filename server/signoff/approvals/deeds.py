"""What somebody does about a question beyond answering it: finding it open, and whether they have a say in it."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.approvals.doors import check_open, lock_approval, person_now
from signoff.approvals.eligibility import Question
from signoff.approvals.standing import finder, require_asked, require_seat, standing_of
from signoff.engine.outcomes import Row
from signoff.people.permissions import Action, may, require
from signoff.store.scope import Person, Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused
from signoff.workflow.selectors import Selector


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody does about a question, locked with its run and open. `operates`: they may do more than decide."""

    run: Row
    row: Row
    person: Person
    scope: Scope
    operates: bool


def stand(tx: Tx, scope: Scope, approval: str, action: Action, *, or_decider: bool = False) -> Deed:
    """Who acts on an open question. `or_decider`: whoever may decide it may do this too, whatever their role.

    Raises NotFound and Refused: not_member, role, not_eligible, closed, deadline, already_decided.
    """
    run, row = lock_approval(tx, scope, approval)
    person = person_now(tx, scope)
    inner = Scope(scope.tenant_id, person)
    if or_decider and not may(inner, action):
        require(inner, "approval.decide")
        require_decider(tx, run, row, person)
    else:
        require(inner, action)
    check_open(tx, run, row)
    if row.state == "decided":
        message = f"{row.decided_by} answered this question at {row.closed_at:%Y-%m-%d %H:%M} UTC"
        raise Refused("already_decided", message, approval=row.public_id, by=row.decided_by)
    return Deed(run, row, person, inner, person.role_at_least("operator"))


def require_decider(tx: Tx, run: Row, row: Row, person: Person) -> None:
    """Raise Refused unless the question is put to this person as it stands now."""
    standing, find = standing_of(tx, row), finder(tx, row.tenant_id)
    require_asked(standing, person, find, row)
    require_seat(standing, person, find, row)


def is_decider(tx: Tx, run: Row, row: Row, person: Person) -> bool:
    """Whether the question is put to this person as it stands now."""
    if not person.role_at_least("approver"):
        return False
    try:
        require_decider(tx, run, row, person)
    except Refused:
        return False
    return True


def named(row: Row) -> list[Selector]:
    """Whom the question names, in whatever part."""
    return Question.of(row).named
