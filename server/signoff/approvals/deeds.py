"""What somebody does about a question beyond answering it: finding it open, and whether they have a say in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from signoff.approvals.doors import check_open, lock_approval, person_now
from signoff.approvals.standing import finder, require_asked, require_seat, standing_of, waits_for
from signoff.engine.outcomes import Row
from signoff.people.permissions import Action, may, require
from signoff.store.scope import Person, Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody does about a question, locked with its run and open. `operates`: they may do more than decide."""

    run: Row
    row: Row
    person: Person
    scope: Scope
    operates: bool


def stand(
    tx: Tx, scope: Scope, approval: str, action: Action, *, or_decider: bool = False, decider: bool = False
) -> Deed:
    """Who acts on an open question. `or_decider`: whoever may decide it may do this too, whatever their role;
    `decider`: only they may.

    Raises NotFound and Refused, in this order: not_member, role, not_eligible, excluded, own_request, closed, deadline,
    already_decided, voted.
    """
    run, row = lock_approval(tx, scope, approval)
    person = person_now(tx, scope)
    inner = Scope(scope.tenant_id, person)
    asked = decider or (or_decider and not may(inner, action))
    require(inner, "approval.decide" if asked and not decider else action)
    standing, find = standing_of(tx, row), finder(tx, row.tenant_id)
    if asked:
        require_asked(standing, person, find, row)
    check_open(tx, run, row)
    if row.state == "decided":
        message = f"{row.decided_by} answered this question at {row.closed_at:%Y-%m-%d %H:%M} UTC"
        raise Refused("already_decided", message, approval=row.public_id, by=row.decided_by)
    if asked:
        require_seat(standing, person, find, row)
    return Deed(run, row, person, inner, person.role_at_least("operator"))


def is_decider(tx: Tx, row: Row, person: Person) -> bool:
    """Whether the question waits for this person as it stands now."""
    return bool(deciders(tx, row, [person]))


def deciders(tx: Tx, row: Row, people: Sequence[Person]) -> list[Person]:
    """Those of the people whom the question waits for as it stands now."""
    standing, find = standing_of(tx, row), finder(tx, row.tenant_id)
    return [one for one in people if waits_for(standing, one, find)]
