"""All tables, in metadata of our own so that an author's models in the same database never clash with ours.

Values (`args`, `value`, ...) are JSON text, never JSONB: text keeps every value exactly. A value above the inline limit
stands in `signoff_payload`; its column then holds `@<payload id>` (JSON text never begins with `@`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.sql.schema import ScalarElementColumnDefault
from sqlmodel import Field, SQLModel

from signoff.store.types import BigId, UtcDateTime, registry


class Base(SQLModel, registry=registry):
    metadata: ClassVar[sa.MetaData] = registry.metadata
    if TYPE_CHECKING:
        __table__: ClassVar[Any]  # SQLModel sets it on table classes, and does not say so


class Tenant(Base, table=True):
    __tablename__ = "signoff_tenant"
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)  # for code and commands; it stays
    created_at: datetime = Field(sa_type=UtcDateTime)
    title: str | None = None  # what pages call it; None: its name


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


class User(Base, table=True):
    __tablename__ = "signoff_user"
    id: int | None = Field(default=None, primary_key=True)
    email: str = Field(unique=True)
    name: str = ""
    password_hash: str | None = None
    active: bool = True
    created_at: datetime = Field(sa_type=UtcDateTime)
    tenant_id: int | None = None  # that was used last


class Membership(Base, table=True):
    __tablename__ = "signoff_membership"
    tenant_id: int = Field(primary_key=True)
    user_id: int = Field(primary_key=True, index=True)
    role: str  # viewer, approver, operator, admin


class Group(Base, table=True):
    __tablename__ = "signoff_group"
    __table_args__ = (sa.UniqueConstraint("tenant_id", "name"),)
    id: int | None = Field(default=None, primary_key=True)
    tenant_id: int
    name: str


class GroupMember(Base, table=True):
    __tablename__ = "signoff_group_member"
    group_id: int = Field(primary_key=True)
    user_id: int = Field(primary_key=True, index=True)


class Token(Base, table=True):
    __tablename__ = "signoff_token"
    id: int | None = Field(default=None, primary_key=True)
    tenant_id: int
    name: str
    hash: str = Field(unique=True)  # SHA-256 of the token
    role: str
    user_id: int | None = None  # acts as this person, else as "token:<name>"
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class Session(Base, table=True):
    __tablename__ = "signoff_session"
    hash: str = Field(primary_key=True)  # SHA-256 of the cookie's random id
    user_id: int | None = Field(default=None, index=True)
    tenant_id: int | None = None
    role: str | None = None  # when the id was given out; a role that differs now asks for a new id
    csrf: str
    data: str | None = None
    agent: str | None = None  # what the browser calls itself, for the list of sessions
    address: str | None = None  # network address at sign-in
    provider: str | None = None  # of the sign-in: None is a local password
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)


class Identity(Base, table=True):
    """Who somebody is at an identity provider. The pair (issuer, subject) never changes; addresses may."""

    __tablename__ = "signoff_identity"
    issuer: str = Field(primary_key=True)
    subject: str = Field(primary_key=True)
    user_id: int = Field(index=True)
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)


class SetupLink(Base, table=True):
    __tablename__ = "signoff_setup_link"
    hash: str = Field(primary_key=True)
    purpose: str  # admin, password
    user_id: int | None = None
    tenant_id: int | None = None
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SignInCount(Base, table=True):
    """Sign-in attempts in a running window, shared by all processes. `key` is a SHA-256, so no addresses lie about."""

    __tablename__ = "signoff_sign_in_count"
    key: str = Field(primary_key=True)
    count: int
    ends_at: datetime = Field(sa_type=UtcDateTime, index=True)


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


def _fit_to_the_hot_path() -> None:
    """What would be the same words at every table."""
    for table in registry.metadata.tables.values():
        # Rows with a key of their own need no row id beside it on SQLite; large ones (payloads) are better off with it.
        key = table.primary_key.columns.values()
        has_own_key = len(key) > 1 or not isinstance(key[0].type, sa.Integer | BigId)
        if has_own_key and table.name != Payload.__tablename__:
            table.dialect_kwargs["sqlite_with_rowid"] = False
        # Rows inserted without SQLAlchemy's defaults get them from the database.
        for column in table.columns:
            default = column.default
            if isinstance(default, ScalarElementColumnDefault) and isinstance(default.arg, bool):
                column.server_default = sa.DefaultClause(sa.text("true" if default.arg else "false"))
            elif isinstance(default, ScalarElementColumnDefault) and isinstance(default.arg, int | str):
                column.server_default = sa.DefaultClause(str(default.arg))


_fit_to_the_hot_path()
