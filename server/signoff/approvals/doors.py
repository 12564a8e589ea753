"""What every deed on an approval begins with: finding and locking it, who asks, and the audit row of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy as sa

from signoff.approvals.questions import REASONS, A
from signoff.engine.outcomes import Row, S, lock_run, record_due
from signoff.people.audit import audit
from signoff.people.canonical import nameable
from signoff.people.users import find_person
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from signoff.workflow.kinds import RunState, StepKind

P = ParamSpec("P")
T = TypeVar("T")


class WrongTenant(NotFound):
    """Outward the same as `NotFound`; the audit of the tenant that asked keeps the true reason."""

    reason: Final = "wrong_tenant"


def find_approval(tx: Tx, scope: Scope, approval: str) -> Row:
    """The row of an approval by its public id; `NotFound` for an unknown one and for another tenant's."""
    query = sa.select(A).where(A.c.public_id == approval)
    row = tx.conn.execute(query.where(A.c.tenant_id == scope.tenant_id)).first() if nameable(approval) else None
    if row is None:
        elsewhere = nameable(approval) and tx.conn.execute(query.limit(1)).first() is not None
        raise (WrongTenant if elsewhere else NotFound)(f"There is no approval {approval}", approval=approval)
    return row


def lock_approval(tx: Tx, scope: Scope, approval: str) -> tuple[Row, Row]:
    """The run's row and the approval's, locked in this order, with what was due by now recorded. Raises NotFound, and
    `Refused` (closed) when the run was cleaned up.
    """
    found = find_approval(tx, scope, approval)
    run = lock_run(tx, found.run_id)
    if run is None:
        raise Refused("closed", "The run of this question was cleaned up", approval=approval)
    run = record_due(tx, run)
    return run, tx.conn.execute(tx.dialect.lock(sa.select(A).where(A.c.id == found.id))).one()


def person_now(tx: Tx, scope: Scope) -> Person:
    """The person as they are in this very transaction: rights taken away since the page was opened are gone."""
    person = scope.person
    if person is None:
        raise Refused("not_member", "Only a person (or a token) can do this")
    if person.user_id is None:
        return person
    live = find_person(tx, scope.tenant_id, user_id=person.user_id)
    if live is None:
        raise Refused("not_member", "You are no longer an active user here")
    if not live.role_at_least(person.role):
        return live
    # A token that acts for somebody may hold a lower role than they do.
    return Person(live.email, live.name, person.role, live.user_id, live.groups)


def check_open(tx: Tx, run: Row, approval: Row, canceled: Collection[int] | None = None) -> None:
    """Raise `Refused` with `closed` or `deadline` when the question can no longer be answered by anybody.

    `canceled`: the run's `canceled_steps`, where they were looked up for several questions.
    """
    if approval.state == "closed" or (approval.state == "open" and run.state == RunState.FINAL):
        why = REASONS.get(approval.closed_reason or "run_over", "it was closed")
        raise Refused("closed", f"This question is closed: {why}", approval=approval.public_id)
    if approval.state == "expired" or (
        approval.state == "open" and approval.timeout_at is not None and approval.timeout_at <= tx.now
    ):
        raise Refused("deadline", "The deadline of this question has passed", approval=approval.public_id)
    if approval.state == "open" and run.requested == "cancel":
        steps = canceled_steps(tx, run, approval.step_no) if canceled is None else canceled
        if approval.step_no in steps:
            raise Refused("closed", "This question is closed: the run is being canceled", approval=approval.public_id)


def canceled_steps(tx: Tx, run: Row, step_no: int | None = None) -> frozenset[int]:
    """The open questions of a run that its cancel request took the sense of, by step; `step_no`: whether this one is.

    What a handler asks after it was canceled, while it cleans up, may be answered; what it asked before may not.
    """
    if run.requested != "cancel":
        return frozenset()
    cancel = S.alias()
    cancel_no = sa.select(sa.func.max(cancel.c.outcome_no)).where(
        cancel.c.run_id == run.id, cancel.c.kind == StepKind.CANCEL.value, cancel.c.retired_in.is_(None)
    )
    asked = sa.select(S.c.no).where(S.c.run_id == run.id, S.c.kind == StepKind.ASK.value, S.c.outcome_no.is_(None))
    asked = asked.where(S.c.asked_after < cancel_no.scalar_subquery())
    if step_no is not None:
        asked = asked.where(S.c.no == step_no)
    return frozenset(tx.conn.execute(asked).scalars())


async def through(
    store: Store,
    action: str,
    use_case: Callable[Concatenate[Tx, Scope, str, P], T],
    scope: Scope,
    approval: str,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """A deed on an approval in a transaction of its own; the audit row of a refusal in another. `kwargs` has via."""
    try:
        return await store.write(use_case, scope, approval, *args, **kwargs)
    except (Refused, NotFound, InvalidInput, Conflict) as refusal:
        await store.write(record_refusal, scope, approval, refusal, str(kwargs.get("via")), action=action)
        if isinstance(refusal, Refused):
            refusal.recorded = True
        raise


def record_refusal(
    tx: Tx,
    scope: Scope,
    approval: str,
    refusal: Refused | NotFound | InvalidInput | Conflict,
    via: str,
    by: str | None = None,
    *,
    action: str = "approval.decide",
) -> None:
    """The audit row of what was not done."""
    reason = refusal.reason if isinstance(refusal, Refused | WrongTenant) else refusal.code
    detail = None if by is None else {"by": by[:254]}
    audit(tx, scope, action, approval[:256], allowed=False, reason=reason, via=via, detail=detail)
