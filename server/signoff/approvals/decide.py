"""The one gate. Every answer to a question, from whatever door, goes through `decide`, and nothing else answers an ask.

The checks come in a fixed order and each refuses with its own reason:

1. `wrong_tenant` (outward: not found)   2. `not_member`, `role`   3. `not_eligible`   4. `closed`   5. `deadline`
6. `revision`   7. `already_decided`   8. `form`

What is checked, and what is written, is one transaction that holds the locks of the run and the approval: of two people
at once exactly one is told yes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from signoff.approvals import ledger
from signoff.approvals.eligibility import is_eligible, names_user, selectors, who_may_answer
from signoff.approvals.forms import Checked, check_answer
from signoff.approvals.questions import REASONS, A
from signoff.engine.outcomes import R, Row, S, lock_run, record_due, record_outcome
from signoff.people.audit import audit
from signoff.people.canonical import content_hash, nameable, storable
from signoff.people.permissions import require
from signoff.people.users import clean_email, exists, find_person
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tables import Decision
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound, Refused
from signoff.workflow.kinds import OutcomeKind, RunState, StepKind
from signoff.workflow.registry import Registry

D = Decision.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes

MAX_COMMENT: Final = 10_000  # characters
WAIT: Final = 10.0  # seconds that embedded code waits for the run to ask


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a person gets for an answer that was taken."""

    decision_id: int
    ledger_id: int
    approval: str
    run: str
    person: str
    at: datetime
    content_hash: str  # of what was shown and what was answered
    effect: str


class WrongTenant(NotFound):
    """Outward the same as `NotFound`; the audit of the tenant that asked keeps the true reason."""

    reason: Final = "wrong_tenant"


def decide(
    tx: Tx,
    scope: Scope,
    approval: str,
    answer: Any,
    *,
    revision: int | None,
    via: str,
    comment: str | None = None,
    registry: Registry | None = None,
) -> Receipt:
    """Answer an approval (a public id) in the name of the scope's person.

    `answer` is a plain JSON value; the embedded call may give one of the ask's own type. `revision` is the one that the
    person saw; None where nothing was shown (the embedded call). `via`: page, api, cli, link, embedded. Raises
    `NotFound` or `Refused`, whose `reason` is one of the words above; with `form` the `fields` say what does not fit. A
    refusal undoes everything: its audit is the business of `decide_through`.
    """
    found = _find(tx, scope, approval)
    run = lock_run(tx, found.run_id)
    if run is None:
        raise Refused("closed", "The run of this question was cleaned up", approval=approval)
    run = record_due(tx, run)
    row = tx.conn.execute(tx.dialect.lock(sa.select(A).where(A.c.id == found.id))).one()
    person = check(tx, scope, run, row, revision)
    if comment is not None and len(comment) > MAX_COMMENT:
        raise Refused("form", f"A comment has at most {MAX_COMMENT} characters", approval=approval)
    checked = check_answer(row.ask, json.loads(row.schema), answer, registry, typed=via == "embedded")
    return _record(tx, run, row, person, checked, comment, via)


def check(tx: Tx, scope: Scope, run: Row, approval: Row, revision: int | None = None) -> Person:
    """Every rule but the form's: raises `Refused`, or returns the person as they are now. Pages ask it too."""
    person = _person(tx, scope)
    require(Scope(scope.tenant_id, person), "approval.decide")
    to = selectors(approval.to)
    if not is_eligible(person, to):
        message = f"This question is put to {who_may_answer(to)}, and you are not among them"
        raise Refused("not_eligible", message, approval=approval.public_id)
    _check_open(tx, run, approval)
    if revision is not None and revision != approval.revision:
        message = "The question changed after you opened it; look at it again"
        raise Refused("revision", message, approval=approval.public_id)
    if approval.state == "decided":
        message = f"{approval.decided_by} answered this question at {approval.closed_at:%Y-%m-%d %H:%M} UTC"
        raise Refused("already_decided", message, approval=approval.public_id, by=approval.decided_by)
    return person


def decide_embedded(
    tx: Tx, scope: Scope, run: str, ask: str, answer: Any, *, by: str, registry: Registry | None = None
) -> Receipt:
    """`run.decide(ask, answer, by=...)`: code inside the process answers in a person's name.

    It answers the oldest open question of this name in the run. `by` is looked up, and a member is held to all the
    rules of the gate. An address that no account has may stand for somebody outside, but only where the question names
    it or is put to nobody in particular: code cannot make up members of groups or holders of roles.
    """
    found = _run(tx, scope, run)
    if found is None:
        raise NotFound(f"There is no run {run}", run=run)
    query = sa.select(A.c.public_id, A.c.to).where(A.c.run_id == found.id, A.c.ask == ask)
    # Of several that are open the oldest; of none that is, the last one, which tells what became of it.
    query = query.order_by(A.c.state != "open", sa.case((A.c.state == "open", A.c.id), else_=-A.c.id))
    row = tx.conn.execute(query.limit(1)).first()
    if row is None:
        raise NotFound(f"Run {run} has asked no question {ask!r}", run=run, ask=ask)
    email = clean_email(by)
    person = find_person(tx, scope.tenant_id, email=email)
    if person is None:
        to = selectors(row.to)
        if exists(tx, email) or (to and not names_user(email, to)):
            raise Refused("not_member", f"{email} is not an active user here", run=run, ask=ask, approval=row.public_id)
        person = Person(email, email, "approver")
    inner = Scope(scope.tenant_id, person)
    return decide(tx, inner, row.public_id, answer, revision=None, via="embedded", registry=registry)


async def decide_through(
    store: Store,
    scope: Scope,
    approval: str,
    answer: Any,
    *,
    revision: int | None,
    via: str,
    comment: str | None = None,
    registry: Registry | None = None,
) -> Receipt:
    """`decide` in a transaction, and the audit row of a refusal in one of its own. What every door calls."""
    try:
        return await store.write(
            decide, scope, approval, answer, revision=revision, via=via, comment=comment, registry=registry
        )
    except (Refused, NotFound) as refusal:
        await store.write(record_refusal, scope, approval, refusal, via)
        raise


async def decide_embedded_through(
    store: Store,
    scope: Scope,
    run: str,
    ask: str,
    answer: Any,
    *,
    by: str,
    registry: Registry | None = None,
    wait: float = WAIT,
) -> Receipt:
    """`decide_embedded` with the audit row of a refusal. Waits up to `wait` seconds for a question that is coming."""
    await _until_asked(store, scope, run, ask, wait)
    try:
        return await store.write(decide_embedded, scope, run, ask, answer, by=by, registry=registry)
    except (Refused, NotFound) as refusal:
        target = refusal.context.get("approval") or f"{run} {ask}"
        await store.write(record_refusal, scope, target, refusal, "embedded", by)
        raise


async def _until_asked(store: Store, scope: Scope, run: str, ask: str, wait: float) -> None:
    changed = asyncio.Event()
    stop = store.subscribe(lambda notices: changed.set())
    try:
        async with asyncio.timeout(wait):
            while await store.read(_is_coming, scope, run, ask):
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return  # the gate says what is there instead
    finally:
        stop()


def _is_coming(tx: Tx, scope: Scope, run: str, ask: str) -> bool:
    """Whether no question of this name is open, but the run may be just about to ask it."""
    row = _run(tx, scope, run)
    if row is None or row.state == RunState.FINAL or row.blocked_reason is not None or row.requested != "none":
        return False
    states = set(tx.conn.execute(sa.select(A.c.state).where(A.c.run_id == row.id, A.c.ask == ask)).scalars())
    if not states:
        return True
    # It was asked and answered before: again only if the run has yet to see what happened last.
    return "open" not in states and bool(row.driven_no < row.outcome_no)


def _run(tx: Tx, scope: Scope, run: str) -> Row | None:
    if not nameable(run):
        return None
    return tx.conn.execute(sa.select(R).where(R.c.tenant_id == scope.tenant_id, R.c.public_id == run)).first()


def record_refusal(
    tx: Tx, scope: Scope, approval: str, refusal: Refused | NotFound, via: str, by: str | None = None
) -> None:
    """The audit row of an answer that was not taken."""
    reason = getattr(refusal, "reason", None) if isinstance(refusal, Refused | WrongTenant) else "not_found"
    detail = None if by is None else {"by": by[:254]}
    audit(tx, scope, "approval.decide", approval[:256], allowed=False, reason=reason, via=via, detail=detail)


def _check_open(tx: Tx, run: Row, approval: Row) -> None:
    """Raise `Refused` with `closed` or `deadline` when the question can no longer be answered by anybody."""
    if approval.state == "closed" or (approval.state == "open" and run.state == RunState.FINAL):
        why = REASONS.get(approval.closed_reason or "run_over", "it was closed")
        raise Refused("closed", f"This question is closed: {why}", approval=approval.public_id)
    if approval.state == "expired" or (
        approval.state == "open" and approval.timeout_at is not None and approval.timeout_at <= tx.now
    ):
        raise Refused("deadline", "The deadline of this question has passed", approval=approval.public_id)
    if approval.state == "open" and _is_canceling(tx, run, approval.step_no):
        raise Refused("closed", "This question is closed: the run is being canceled", approval=approval.public_id)


def _find(tx: Tx, scope: Scope, approval: str) -> Row:
    query = sa.select(A.c.id, A.c.run_id).where(A.c.public_id == approval)
    row = tx.conn.execute(query.where(A.c.tenant_id == scope.tenant_id)).first() if nameable(approval) else None
    if row is None:
        elsewhere = nameable(approval) and tx.conn.execute(query.limit(1)).first() is not None
        raise (WrongTenant if elsewhere else NotFound)(f"There is no approval {approval}", approval=approval)
    return row


def _person(tx: Tx, scope: Scope) -> Person:
    """The person as they are in this very transaction: rights taken away since the page was opened are gone."""
    person = scope.person
    if person is None:
        raise Refused("not_member", "Only a person (or a token) can answer a question")
    if person.user_id is None:
        return person
    live = find_person(tx, scope.tenant_id, user_id=person.user_id)
    if live is None:
        raise Refused("not_member", "You are no longer an active user here")
    if not live.role_at_least(person.role):
        return live
    # A token that acts for somebody may hold a lower role than they do.
    return Person(live.email, live.name, person.role, live.user_id, live.groups)


def _is_canceling(tx: Tx, run: Row, step_no: int) -> bool:
    # What a handler asks after it was canceled, while it cleans up, may be answered; what it asked before may not.
    if run.requested != "cancel":
        return False
    canceled = sa.select(sa.func.max(S.c.outcome_no)).where(
        S.c.run_id == run.id, S.c.kind == StepKind.CANCEL.value, S.c.retired_in.is_(None)
    )
    asked = sa.select(S.c.asked_after).where(S.c.run_id == run.id, S.c.no == step_no)
    cancel_no, asked_after = tx.conn.execute(canceled).scalar(), tx.conn.execute(asked).scalar_one()
    return cancel_no is not None and asked_after < cancel_no


def _record(tx: Tx, run: Row, row: Row, person: Person, checked: Checked, comment: str | None, via: str) -> Receipt:
    if record_outcome(tx, run, row.step_no, OutcomeKind.SUCCESS, checked.text) is None:
        # The journal is ahead of the approval: nothing waits for this answer any more.
        raise Refused("closed", f"This question is closed: {REASONS['canceled']}", approval=row.public_id)
    shown = "[redacted]" if row.sensitive else checked.shown
    comment = storable(comment.strip()) or None if comment else None
    content = {"ask": row.ask, "title": row.title, "shown": row.content_hash, "revision": row.revision}
    content |= {"answer": shown, "comment": comment}
    who = {"tenant_id": row.tenant_id, "run": run.public_id, "approval": row.public_id, "actor": person.actor}
    ledger_id = ledger.append(tx, kind="decision", via=via, content=content, **who)
    decision = {
        "approval_id": row.id,
        "person": person.actor,
        "answer": checked.text,
        "comment": comment,
        "via": via,
        "revision": row.revision,
        "at": tx.now,
        "ledger_id": ledger_id,
    }
    decision_id = tx.conn.execute(sa.insert(D).values(**decision).returning(D.c.id)).scalar_one()
    tx.conn.execute(
        sa.update(A)
        .where(A.c.id == row.id)
        .values(
            state="decided", answer=checked.text, decided_by=person.actor, closed_at=tx.now, closed_reason="decided"
        )
    )
    audit(tx, Scope(row.tenant_id, person), "approval.decide", row.public_id, via=via)
    tx.notify("approvals", row.tenant_id)
    return Receipt(
        decision_id=decision_id,
        ledger_id=ledger_id,
        approval=row.public_id,
        run=run.public_id,
        person=person.actor,
        at=tx.now,
        content_hash=content_hash(content),
        effect=_effect(run, row.step_no),
    )


def _effect(run: Row, step_no: int) -> str:
    if run.blocked_reason is not None:
        return "Recorded. The run is blocked and takes the answer when it goes on"
    if run.requested == "pause":
        return "Recorded. The run is paused and takes the answer when it is resumed"
    return f"The run goes on from step {step_no}"
