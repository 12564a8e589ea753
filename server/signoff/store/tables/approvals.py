"""Tables of questions, of what people decided, and of what they said about them."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field

from signoff.store.tables.base import Base
from signoff.store.types import BigId, UtcDateTime


class Approval(Base, table=True):
    __tablename__ = "signoff_approval"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "public_id"),
        sa.UniqueConstraint("run_id", "step_no"),
        sa.Index(
            "ix_signoff_approval_open", "tenant_id", "due_at",
            postgresql_where=sa.text("state = 'open'"), sqlite_where=sa.text("state = 'open'"),
        ),
        # the clerk: open questions by the next reminder or escalation
        sa.Index(
            "ix_signoff_approval_next", "next_at",
            postgresql_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
            sqlite_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
        ),
        # what was answered last to a question of this name
        sa.Index(
            "ix_signoff_approval_answered", "tenant_id", "ask", "id",
            postgresql_where=sa.text("state = 'decided'"), sqlite_where=sa.text("state = 'decided'"),
        ),
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    tenant_id: int
    public_id: str
    run_id: int = Field(sa_type=BigId)
    step_no: int
    ask: str
    state: str = "open"  # open, decided, expired, closed
    title: str
    body: str | None = None  # markdown
    facts: str  # JSON text
    schema_: str = Field(sa_column=sa.Column("schema", sa.Text, nullable=False))  # JSON schema of the answer
    to: str = Field(sa_column=sa.Column("to", sa.Text, nullable=False))  # JSON text: selectors
    rule: str | None = None  # JSON text; None: one answer of anybody in `to`
    options: str | None = None  # JSON text: the outcomes to choose from; None: the form alone
    exclude: str | None = None  # JSON text: selectors
    not_requester: bool = False  # four eyes
    claim: str = "optional"  # none, optional, required
    claimed_by: str | None = None
    claimed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # JSON text: what people changed about who may answer, in order: {kind: reassign|delegate|escalate|add, ...}
    changes: str | None = None
    # JSON text: the addresses that could answer when it was asked; None: membership is read live
    frozen: str | None = None
    stuck: str | None = None  # why nobody can answer now: nobody, only_requester; None: somebody can
    revision: int = 1
    content_hash: str
    requester: str | None = None
    reminders: str | None = None  # JSON text: seconds after creation, ascending
    reminded: int = 0  # how many of them have been given
    escalate_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    escalate_to: str | None = None  # JSON text: selectors
    escalated_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    next_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # of the next reminder or escalation
    extend: float | None = None  # seconds by which one click moves the deadline; None: not allowed
    on_timeout: str | None = None  # default, raise, cancel_run; None: no timeout
    fallback: str | None = None  # the default answer, JSON text
    kept_from: int | None = Field(default=None, sa_type=BigId)  # the approval of an earlier round that answered this
    due_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    timeout_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    created_at: datetime = Field(sa_type=UtcDateTime)
    closed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    closed_reason: str | None = None
    answer: str | None = None  # the ask's value, JSON text
    decided_by: str | None = None
    sensitive: bool = False


class Decision(Base, table=True):
    __tablename__ = "signoff_decision"
    __table_args__ = (
        # nobody decides twice; what lapsed because the question changed does not count
        sa.Index(
            "ix_signoff_decision_person", "approval_id", "person", unique=True,
            postgresql_where=sa.text("lapsed_at IS NULL"), sqlite_where=sa.text("lapsed_at IS NULL"),
        ),
        sa.Index("ix_signoff_decision_by", "person", "id"),
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    approval_id: int = Field(sa_type=BigId)
    person: str  # e-mail or "token:<name>"
    answer: str  # JSON text
    option: str | None = None  # the name of the one that was chosen
    rejects: bool = False  # a veto
    on_behalf_of: str | None = None  # who delegated it to them
    parts: str | None = None  # JSON text: the parts of the rule that it may count for, by place; None: it has one
    comment: str | None = None
    via: str  # page, api, cli, link, embedded
    revision: int
    at: datetime = Field(sa_type=UtcDateTime)
    ledger_id: int = Field(sa_type=BigId)
    lapsed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # the question changed afterwards


class ApprovalNote(Base, table=True):
    """The thread of an approval: what people wrote, and what happened to it, in order."""

    __tablename__ = "signoff_approval_note"
    __table_args__ = (sa.Index("ix_signoff_approval_note_approval", "approval_id", "id"),)
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    approval_id: int = Field(sa_type=BigId)
    at: datetime = Field(sa_type=UtcDateTime)
    actor: str | None = None  # None: the server itself
    via: str | None = None
    # comment, claim, release, reassign, delegate, escalate, remind, extend, change, lapse, kept
    kind: str
    text: str | None = None  # the comment or the reason
    data: str | None = None  # JSON text, by kind


class Draft(Base, table=True):
    """What somebody typed and has not sent yet."""

    __tablename__ = "signoff_draft"
    tenant_id: int = Field(primary_key=True)
    user_id: int = Field(primary_key=True)
    key: str = Field(primary_key=True)  # approval:<public id>, start:<workflow>
    data: str  # JSON text: form fields as the browser sends them, without secrets
    revision: int | None = None  # of the question it was typed for
    saved_at: datetime = Field(sa_type=UtcDateTime, index=True)
