"""Tables of what holds runs back: pools of steps, and limits of workflows."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field

from signoff.store.tables.base import Base
from signoff.store.types import BigId, UtcDateTime


class Pool(Base, table=True):
    __tablename__ = "signoff_pool"
    name: str = Field(primary_key=True)
    max_parallel: int | None = None  # None: no limit; 0 pauses
    rate: int | None = None  # starts in `per` seconds
    per: float | None = None
    serial_keys: bool = False
    declared: str | None = None  # what the code that made it said, JSON text
    tokens: float | None = None
    tokens_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class PoolSlot(Base, table=True):
    __tablename__ = "signoff_pool_slot"
    __table_args__ = (sa.Index("ix_signoff_pool_slot_pool", "pool", "key"),)
    run_id: int = Field(sa_type=BigId, primary_key=True)
    step_no: int = Field(primary_key=True)
    pool: str
    key: str | None = None
    worker_id: int | None = Field(default=None, sa_type=BigId, index=True)
    since: datetime = Field(sa_type=UtcDateTime)


class Limit(Base, table=True):
    """Counters of workflows that limit concurrency or start rate (S5); the row is what admissions queue on."""

    __tablename__ = "signoff_limit"
    tenant_id: int = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    running: int = 0
    tokens: float | None = None
    tokens_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
