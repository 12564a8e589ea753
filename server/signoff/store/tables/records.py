"""Tables that are only added to: the ledger and the audit log, whose rows are sealed into chains."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field

from signoff.store.tables.base import Base
from signoff.store.types import BigId, UtcDateTime


class LedgerRow(Base, table=True):
    """Append-only. A sealer fills `seal` = hash(previous seal, content_hash) in order of `seal_no`."""

    __tablename__ = "signoff_ledger"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "seal_no"),
        sa.Index("ix_signoff_ledger_tenant", "tenant_id", "id"),
        sa.Index(
            "ix_signoff_ledger_unsealed", "tenant_id", "id",
            postgresql_where=sa.text("seal_no IS NULL"), sqlite_where=sa.text("seal_no IS NULL"),
        ),
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    tenant_id: int
    at: datetime = Field(sa_type=UtcDateTime)
    kind: str  # decision, kept, lapsed, expired, closed
    run: str  # public ids: the ledger outlives the run
    approval: str
    actor: str | None = None
    via: str | None = None
    content: str  # JSON text: shown (hash), answer, comment, question
    content_hash: str
    seal_no: int | None = None
    seal: str | None = None


class Chain(Base, table=True):
    """The head of a tenant's chain of sealed rows. Only sealers lock it, so deciding never queues on it."""

    __tablename__ = "signoff_chain"
    tenant_id: int = Field(primary_key=True)
    name: str = Field(primary_key=True)  # ledger, audit
    no: int = 0  # the last seal_no given out
    seal: str = ""


class AuditRow(Base, table=True):
    __tablename__ = "signoff_audit"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "seal_no"),
        sa.Index("ix_signoff_audit_tenant", "tenant_id", "id"),
        sa.Index(
            "ix_signoff_audit_unsealed", "tenant_id", "id",
            postgresql_where=sa.text("seal_no IS NULL"), sqlite_where=sa.text("seal_no IS NULL"),
        ),
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    tenant_id: int
    at: datetime = Field(sa_type=UtcDateTime)
    actor: str | None = None
    via: str | None = None
    action: str
    target: str | None = None
    allowed: bool
    reason: str | None = None  # error code of a refusal
    detail: str | None = None
    content_hash: str
    seal_no: int | None = None
    seal: str | None = None
