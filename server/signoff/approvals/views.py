"""What pages and API see of approvals: projections for one person, never rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from signoff.approvals.body import render_body
from signoff.approvals.decide import D, check
from signoff.approvals.eligibility import selectors, who_may_answer
from signoff.approvals.questions import REASONS, A
from signoff.engine.outcomes import R, Row
from signoff.people.canonical import nameable
from signoff.people.chain import LEDGER
from signoff.people.permissions import require
from signoff.people.users import U
from signoff.store.scope import Scope
from signoff.store.tables import Definition
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound, Refused

DEF = Definition.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes


@dataclass(frozen=True, slots=True)
class Why:
    """Why the person who looks may not answer: a fixed word and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class DecisionView:
    """An answer. `answer` is as it was given, with secrets redacted; `ledger_id` is the number on the receipt."""

    person: str
    name: str
    at: datetime
    via: str
    answer: Any
    comment: str | None
    revision: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A question with all that a person needs to answer it. `why_not` is None when they may."""

    id: str
    run: str
    workflow: str
    step_no: int
    ask: str
    title: str
    body_html: str  # sanitised
    facts: dict[str, Any]
    schema: dict[str, Any]
    sensitive: bool
    to: list[dict[str, str]]
    who: str  # "anyone in finance or ana@example.org"
    requester: str | None
    state: str  # open, decided, expired, closed
    created_at: datetime
    due_at: datetime | None
    timeout_at: datetime | None
    closed_at: datetime | None
    closed_because: str | None
    revision: int
    content_hash: str
    decision: DecisionView | None
    why_not: Why | None


def approval_view(tx: Tx, scope: Scope, approval: str) -> ApprovalView:
    """One approval by its public id. `NotFound` for an unknown one and for another tenant's."""
    require(scope, "approval.view")
    found = _select(tx, scope, A.c.public_id == approval) if nameable(approval) else []
    if not found:
        raise NotFound(f"There is no approval {approval}", approval=approval)
    return _view(tx, scope, found[0])


def approvals_of_run(tx: Tx, scope: Scope, run: str) -> list[ApprovalView]:
    """All approvals of a run (a public id) in the order in which they were asked for."""
    require(scope, "approval.view")
    known = sa.select(R.c.id).where(R.c.tenant_id == scope.tenant_id, R.c.public_id == run)
    run_id = tx.conn.execute(known).scalar() if nameable(run) else None
    if run_id is None:
        raise NotFound(f"There is no run {run}", run=run)
    return [_view(tx, scope, row) for row in _select(tx, scope, A.c.run_id == run_id)]


def _select(tx: Tx, scope: Scope, which: sa.ColumnElement[bool]) -> list[Row]:
    query = (
        sa.select(A, R.c.public_id.label("run"), DEF.c.name.label("workflow"))
        .join(R, R.c.id == A.c.run_id)
        .join(DEF, DEF.c.id == R.c.definition_id)
        .where(A.c.tenant_id == scope.tenant_id, which)
        .order_by(A.c.id)
    )
    return list(tx.conn.execute(query))


def _view(tx: Tx, scope: Scope, row: Row) -> ApprovalView:
    state = row.state
    if state == "open" and row.timeout_at is not None and row.timeout_at <= tx.now:
        state = "expired"
    return ApprovalView(
        id=row.public_id,
        run=row.run,
        workflow=row.workflow,
        step_no=row.step_no,
        ask=row.ask,
        title=row.title,
        body_html=render_body(row.body),
        facts=json.loads(row.facts),
        schema=json.loads(row.schema),
        sensitive=row.sensitive,
        to=json.loads(row.to),
        who=who_may_answer(selectors(row.to)),
        requester=row.requester,
        state=state,
        created_at=row.created_at,
        due_at=row.due_at,
        timeout_at=row.timeout_at,
        closed_at=row.closed_at,
        closed_because=REASONS.get("expired" if state == "expired" else row.closed_reason or ""),
        revision=row.revision,
        content_hash=row.content_hash,
        decision=_decision(tx, row),
        why_not=_why_not(tx, scope, row),
    )


def _decision(tx: Tx, approval: Row) -> DecisionView | None:
    query = (
        sa.select(D.c.person, U.c.name, D.c.at, D.c.via, LEDGER.c.content, D.c.comment, D.c.revision, D.c.ledger_id)
        .join(LEDGER, LEDGER.c.id == D.c.ledger_id)
        .outerjoin(U, U.c.email == D.c.person)
        .where(D.c.approval_id == approval.id)
    )
    row = tx.conn.execute(query).first()
    if row is None:
        return None
    # The ledger has the answer as it was given and without its secrets; the decision has it as the run gets it.
    answer = json.loads(row.content)["answer"]
    return DecisionView(
        row.person, row.name or row.person, row.at, row.via, answer, row.comment, row.revision, row.ledger_id
    )


def _why_not(tx: Tx, scope: Scope, approval: Row) -> Why | None:
    run = tx.conn.execute(sa.select(R).where(R.c.id == approval.run_id)).one()
    try:
        check(tx, scope, run, approval)
    except Refused as refusal:
        return Why(refusal.reason, str(refusal))
    return None
