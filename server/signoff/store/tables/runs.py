"""Tables of runs: what can be run and who runs it, runs and their journals, and what was sent and logged."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field

from signoff.store.tables.base import Base
from signoff.store.types import BigId, UtcDateTime


class Definition(Base, table=True):
    """A workflow (name, version) that was ever registered or started; `tenant_id` and `bundle` only for bundles."""

    __tablename__ = "signoff_definition"
    __table_args__ = (sa.UniqueConstraint("tenant_id", "name", "version", "bundle"),)
    id: int | None = Field(default=None, primary_key=True)
    tenant_id: int = 0  # 0: of the process
    name: str
    version: int
    bundle: str = ""
    kind: str = "workflow"  # or "function": a one-step run of engine.enqueue
    # limits and defaults as the code that registered last declares them, JSON text
    settings: str | None = None


class Worker(Base, table=True):
    __tablename__ = "signoff_worker"
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    name: str  # host:pid:random
    heartbeat: int = 0
    started_at: datetime = Field(sa_type=UtcDateTime)
    lost_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class WorkerDefinition(Base, table=True):
    __tablename__ = "signoff_worker_definition"
    worker_id: int = Field(sa_type=BigId, primary_key=True)
    definition_id: int = Field(primary_key=True)
    code_hash: str


class Run(Base, table=True):
    __tablename__ = "signoff_run"
    __table_args__ = (
        sa.UniqueConstraint("public_id", "tenant_id"),
        # claims: woken (0) before new (1), then priority, then age
        sa.Index(
            "ix_signoff_run_ready", "ready", sa.text("priority DESC"), "id",
            postgresql_where=sa.text("ready IS NOT NULL"), sqlite_where=sa.text("ready IS NOT NULL"),
        ),
        sa.Index(
            "ix_signoff_run_wake", "wake_at",
            postgresql_where=sa.text("wake_at IS NOT NULL"), sqlite_where=sa.text("wake_at IS NOT NULL"),
        ),
        # runs that their workflow's limits hold back, in the order in which they are let in
        sa.Index(
            "ix_signoff_run_held", "definition_id", sa.text("priority DESC"), "id",
            postgresql_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
            sqlite_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
        ),
        # lists: a tenant's newest, and its open runs among very many that are over
        sa.Index("ix_signoff_run_list", "tenant_id", "id"),
        sa.Index(
            "ix_signoff_run_open", "tenant_id", "id",
            postgresql_where=sa.text("state <> 'final'"), sqlite_where=sa.text("state <> 'final'"),
        ),
        sa.Index(
            "ix_signoff_run_worker", "worker_id",
            postgresql_where=sa.text("worker_id IS NOT NULL"), sqlite_where=sa.text("worker_id IS NOT NULL"),
        ),
        sa.Index(
            "ix_signoff_run_parent", "parent_id",
            postgresql_where=sa.text("parent_id IS NOT NULL"), sqlite_where=sa.text("parent_id IS NOT NULL"),
        ),
        # a row changes with each advance: with room beside it the versions before are cleared away without a vacuum
        {"postgresql_with": {"fillfactor": 50}},
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    tenant_id: int
    public_id: str
    definition_id: int
    state: str = "queued"  # RunState
    requested: str = "none"  # Requested
    activity: str | None = None  # Activity, while active
    blocked_reason: str | None = None  # JSON text; set = blocked
    blocked_hash: str | None = None  # code hashes that could not go on, with spaces between
    result_kind: str | None = None  # ResultKind
    generation: int = 1
    priority: int = 0
    # the fence: who drives the run, and what was seen
    worker_id: int | None = Field(default=None, sa_type=BigId)
    epoch: int = 0
    outcome_no: int = 0  # the last outcome given out
    outcome_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # its time; never decreases
    driven_no: int = -1  # outcomes up to here are handed over and what followed is committed; -1: not started
    next_no: int = 0  # number of the next step
    touch_no: int = 0  # raised by every write to the run that a watcher should see
    # when a worker is needed: now (0 woken, 1 new) or at a moment
    ready: int | None = None
    wake_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    created_at: datetime = Field(sa_type=UtcDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    args: str | None = None
    value: str | None = None
    error: str | None = None  # JSON text of ErrorInfo
    requester: str | None = None
    labels: str | None = None  # JSON text
    parent_id: int | None = Field(default=None, sa_type=BigId)
    parent_no: int | None = None  # the parent's step that waits for this run; None when detached
    options: str | None = None  # JSON text: retention, on_complete {name, context}, sensitive, limits ...
    # how the run is ending while its compensations run: JSON text {kind, error, value, from_no, cause}
    ending: str | None = None
    code_hash: str | None = None  # of the worker that advanced it last
    journal_bytes: int = 0
    admitted: bool = False  # counts in its workflow's concurrency limit


class Round(Base, table=True):
    """A restart or fork: generation > 1 (or the copied seed of a fork's generation 1)."""

    __tablename__ = "signoff_round"
    run_id: int = Field(sa_type=BigId, primary_key=True)
    generation: int = Field(primary_key=True)
    seed: str
    from_outcome_no: int = 0  # outcomes above belong to this round
    started_at: datetime = Field(sa_type=UtcDateTime)
    actor: str | None = None
    reason: str | None = None
    # how the round before ended, kept for the page: JSON text {result_kind, value, error, ended_at}
    former: str | None = None
    # answers from behind the cut, JSON text {keep: [approval ids], again: [approval ids]}: kept when the same question
    # is asked in this round, or asked again as the restart wished
    answers: str | None = None


class StartKey(Base, table=True):
    __tablename__ = "signoff_start_key"
    tenant_id: int = Field(primary_key=True)
    key: str = Field(primary_key=True)
    run_id: int = Field(sa_type=BigId, index=True)
    digest: str  # of workflow and args


class Label(Base, table=True):
    """Labels of a run once more, for search."""

    __tablename__ = "signoff_label"
    __table_args__ = (sa.Index("ix_signoff_label_value", "key", "value", "run_id"),)
    run_id: int = Field(sa_type=BigId, primary_key=True)
    key: str = Field(primary_key=True)
    value: str


class Step(Base, table=True):
    """The journal. Open while `outcome_no` is null."""

    __tablename__ = "signoff_step"
    run_id: int = Field(sa_type=BigId, primary_key=True)
    no: int = Field(primary_key=True)
    kind: str
    name: str
    generation: int = 1
    retired_in: int | None = None  # the generation whose start retired it
    asked_after: int = 0
    asked_at: datetime = Field(sa_type=UtcDateTime)
    due_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # sleep, delay, deadline, back-off, grace
    outcome_no: int | None = None
    outcome_kind: str | None = None  # OutcomeKind
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    args: str | None = None
    value: str | None = None  # JSON text; on failure the JSON text of ErrorInfo
    options: str | None = None  # JSON text of StepOptions and Detail that hold while it is open
    attempts: int = 0  # failed attempts so far
    lost: int = 0  # lost attempts so far
    started: bool = False  # an attempt was started (what C2 compensates)
    by_handler: bool = False
    child_id: int | None = Field(default=None, sa_type=BigId)
    progress: str | None = None  # JSON text {fraction, text}, the last reported


class Attempt(Base, table=True):
    """A failed or lost attempt. `next_at` is set while the step backs off after it."""

    __tablename__ = "signoff_attempt"
    run_id: int = Field(sa_type=BigId, primary_key=True)
    step_no: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    ended_at: datetime = Field(sa_type=UtcDateTime)
    error: str  # JSON text of ErrorInfo
    next_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class Payload(Base, table=True):
    __tablename__ = "signoff_payload"
    id: str = Field(primary_key=True)
    run_id: int | None = Field(default=None, sa_type=BigId, index=True)
    data: str


class LogLine(Base, table=True):
    __tablename__ = "signoff_log"
    __table_args__ = (sa.Index("ix_signoff_log_run", "run_id", "id"),)
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    run_id: int = Field(sa_type=BigId)
    step_no: int | None = None  # None: the handler's own
    attempt: int | None = None
    at: datetime = Field(sa_type=UtcDateTime)
    level: str
    message: str
    data: str | None = None


class Event(Base, table=True):
    """A message to a run. The buffer of a name is its rows in state `buffered`, by id."""

    __tablename__ = "signoff_event"
    __table_args__ = (
        sa.UniqueConstraint("tenant_id", "public_id"),
        sa.Index("ix_signoff_event_run", "run_id", "name", "state", "id"),
        sa.Index(
            "ix_signoff_event_key", "run_id", "idempotency_key", unique=True,
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        ),
    )  # fmt: skip
    id: int | None = Field(default=None, sa_type=BigId, primary_key=True)
    tenant_id: int
    public_id: str
    run_id: int = Field(sa_type=BigId)
    name: str
    by_id: bool = False  # made by create_event: reached by its id only
    state: str = "buffered"  # created, buffered, consumed, set_aside
    value: str | None = None
    is_error: bool = False
    problem: str | None = None  # why it was set aside, JSON text
    sender: str | None = None
    channel: str | None = None
    idempotency_key: str | None = None
    digest: str | None = None
    created_at: datetime = Field(sa_type=UtcDateTime)
    sent_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    consumed_by: int | None = None  # step number
    sensitive: bool = False  # its value is shown to nobody


class Completion(Base, table=True):
    """An on_complete that did not succeed inside the final transaction and is tried again."""

    __tablename__ = "signoff_completion"
    run_id: int = Field(sa_type=BigId, primary_key=True)
    generation: int = Field(primary_key=True)
    done: bool = False
    attempts: int = 0
    next_at: datetime | None = Field(default=None, sa_type=UtcDateTime, index=True)
    error: str | None = None
