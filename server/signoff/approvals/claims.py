"""Claims: somebody says that they are at it, so that others need not be."""

from __future__ import annotations

import sqlalchemy as sa

from signoff.approvals.deeds import stand
from signoff.approvals.eligibility import Find
from signoff.approvals.notes import clean_text, note
from signoff.approvals.questions import A
from signoff.approvals.standing import Standing, finder, standing_of, waits_for
from signoff.engine.outcomes import Row
from signoff.people.audit import audit
from signoff.people.tokens import ACTOR, find_token
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused


def claim(tx: Tx, scope: Scope, approval: str, *, via: str, take_over: bool = False) -> None:
    """Claim a question that is put to oneself; claiming it twice changes nothing.

    A claim of somebody who cannot answer any more does not count, and an operator may take over anybody's. Raises
    NotFound and Refused, `claim` when somebody else has it or when questions like it are not claimed.
    """
    held = stand(tx, scope, approval, "approval.claim", decider=True)
    row, person = held.row, held.person
    if row.claim == "none":
        raise Refused("claim", "This question is not claimed: whoever is first answers it", approval=approval)
    former = row.claimed_by
    if former == person.actor:
        return
    if former is not None and not (take_over and held.operates) and still_counts(tx, row):
        message = f"{former} claimed this question at {row.claimed_at:%Y-%m-%d %H:%M} UTC"
        raise Refused("claim", message, approval=approval, by=former)
    _set(tx, row, person.actor)
    data = None if former is None else {"from": former}
    note(tx, row, "claim", scope=held.scope, via=via, data=data)
    audit(tx, held.scope, "approval.claim", row.public_id, via=via, detail=data)


def release(tx: Tx, scope: Scope, approval: str, *, via: str, reason: str | None = None) -> None:
    """Give up one's claim; operators give up anybody's. Nothing happens to a question that nobody claimed.

    Raises NotFound and Refused, `claim` when it is somebody else's.
    """
    held = stand(tx, scope, approval, "approval.claim")
    row, person = held.row, held.person
    if row.claimed_by is None:
        return
    own = row.claimed_by == person.actor
    if not own and not held.operates:
        message = f"This is the claim of {row.claimed_by}; they or an operator release it"
        raise Refused("claim", message, approval=approval, by=row.claimed_by)
    _set(tx, row, None)
    data = None if own else {"of": row.claimed_by}
    note(tx, row, "release", scope=held.scope, via=via, text=clean_text(reason, "reason") or None, data=data)
    audit(tx, held.scope, "approval.release", row.public_id, via=via, detail=data)


def still_counts(tx: Tx, row: Row, standing: Standing | None = None, find: Find | None = None) -> bool:
    """Whether whoever claimed it can still answer it: rights may have been taken away since. `standing` and `find`:
    where they are known already.
    """
    if row.claimed_by is None:
        return False
    find = finder(tx, row.tenant_id) if find is None else find
    if row.claimed_by.startswith(ACTOR):
        person = find_token(tx, row.tenant_id, row.claimed_by.removeprefix(ACTOR))
    else:
        person = find(row.claimed_by)
    return person is not None and waits_for(standing or standing_of(tx, row), person, find)


def drop(tx: Tx, row: Row, why: str) -> None:
    """The server itself ends a claim, because whoever holds it cannot answer any more."""
    if row.claimed_by is not None:
        _set(tx, row, None)
        note(tx, row, "release", text=why, data={"of": row.claimed_by})


def _set(tx: Tx, row: Row, actor: str | None) -> None:
    at = None if actor is None else tx.now
    tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(claimed_by=actor, claimed_at=at))
