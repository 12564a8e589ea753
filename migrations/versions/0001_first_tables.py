"""First tables"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from signoff.store.types import BigId, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signoff_approval",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("step_no", sa.Integer(), nullable=False),
        sa.Column("ask", sa.String(), nullable=False),
        sa.Column("state", sa.String(), server_default="open", nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("body", sa.String(), nullable=True),
        sa.Column("facts", sa.String(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("to", sa.Text(), nullable=False),
        sa.Column("rule", sa.String(), nullable=True),
        sa.Column("revision", sa.Integer(), server_default="1", nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("requester", sa.String(), nullable=True),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("timeout_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=True),
        sa.Column("closed_reason", sa.String(), nullable=True),
        sa.Column("answer", sa.String(), nullable=True),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("sensitive", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_approval")),
        sa.UniqueConstraint("run_id", "step_no", name=op.f("uq_signoff_approval_run_id_step_no")),
        sa.UniqueConstraint("tenant_id", "public_id", name=op.f("uq_signoff_approval_tenant_id_public_id")),
    )
    with op.batch_alter_table("signoff_approval", schema=None) as batch_op:
        batch_op.create_index(
            "ix_signoff_approval_open",
            ["tenant_id", "due_at"],
            unique=False,
            postgresql_where=sa.text("state = 'open'"),
            sqlite_where=sa.text("state = 'open'"),
        )

    op.create_table(
        "signoff_attempt",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("step_no", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "step_no", "number", name=op.f("pk_signoff_attempt")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_audit",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("via", sa.String(), nullable=True),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=True),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=True),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("seal_no", sa.Integer(), nullable=True),
        sa.Column("seal", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_audit")),
        sa.UniqueConstraint("tenant_id", "seal_no", name=op.f("uq_signoff_audit_tenant_id_seal_no")),
    )
    with op.batch_alter_table("signoff_audit", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_audit_tenant", ["tenant_id", "id"], unique=False)
        batch_op.create_index(
            "ix_signoff_audit_unsealed",
            ["tenant_id", "id"],
            unique=False,
            postgresql_where=sa.text("seal_no IS NULL"),
            sqlite_where=sa.text("seal_no IS NULL"),
        )

    op.create_table(
        "signoff_chain",
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seal", sa.String(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("pk_signoff_chain")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_completion",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("done", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "generation", name=op.f("pk_signoff_completion")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_completion", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_completion_next_at"), ["next_at"], unique=False)

    op.create_table(
        "signoff_decision",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("approval_id", BigId(), nullable=False),
        sa.Column("person", sa.String(), nullable=False),
        sa.Column("answer", sa.String(), nullable=False),
        sa.Column("comment", sa.String(), nullable=True),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("ledger_id", BigId(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_decision")),
        sa.UniqueConstraint("approval_id", "person", name=op.f("uq_signoff_decision_approval_id_person")),
    )
    op.create_table(
        "signoff_definition",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), server_default="0", nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("bundle", sa.String(), server_default="", nullable=False),
        sa.Column("kind", sa.String(), server_default="workflow", nullable=False),
        sa.Column("settings", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_definition")),
        sa.UniqueConstraint(
            "tenant_id", "name", "version", "bundle", name=op.f("uq_signoff_definition_tenant_id_name_version_bundle")
        ),
    )
    op.create_table(
        "signoff_event",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("by_id", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.String(), server_default="buffered", nullable=False),
        sa.Column("value", sa.String(), nullable=True),
        sa.Column("is_error", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("problem", sa.String(), nullable=True),
        sa.Column("sender", sa.String(), nullable=True),
        sa.Column("channel", sa.String(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("sent_at", UtcDateTime(), nullable=True),
        sa.Column("consumed_by", sa.Integer(), nullable=True),
        sa.Column("sensitive", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_event")),
        sa.UniqueConstraint("tenant_id", "public_id", name=op.f("uq_signoff_event_tenant_id_public_id")),
    )
    with op.batch_alter_table("signoff_event", schema=None) as batch_op:
        batch_op.create_index(
            "ix_signoff_event_key",
            ["run_id", "idempotency_key"],
            unique=True,
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        )
        batch_op.create_index("ix_signoff_event_run", ["run_id", "name", "state", "id"], unique=False)

    op.create_table(
        "signoff_group",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_group")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_signoff_group_tenant_id_name")),
    )
    op.create_table(
        "signoff_group_member",
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "user_id", name=op.f("pk_signoff_group_member")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_group_member", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_group_member_user_id"), ["user_id"], unique=False)

    op.create_table(
        "signoff_label",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("pk_signoff_label")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_label", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_label_value", ["key", "value", "run_id"], unique=False)

    op.create_table(
        "signoff_ledger",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("approval", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("via", sa.String(), nullable=True),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("seal_no", sa.Integer(), nullable=True),
        sa.Column("seal", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_ledger")),
        sa.UniqueConstraint("tenant_id", "seal_no", name=op.f("uq_signoff_ledger_tenant_id_seal_no")),
    )
    with op.batch_alter_table("signoff_ledger", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_ledger_tenant", ["tenant_id", "id"], unique=False)
        batch_op.create_index(
            "ix_signoff_ledger_unsealed",
            ["tenant_id", "id"],
            unique=False,
            postgresql_where=sa.text("seal_no IS NULL"),
            sqlite_where=sa.text("seal_no IS NULL"),
        )

    op.create_table(
        "signoff_limit",
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("workflow", sa.String(), nullable=False),
        sa.Column("running", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tokens", sa.Float(), nullable=True),
        sa.Column("tokens_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "workflow", name=op.f("pk_signoff_limit")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_log",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("step_no", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_log")),
    )
    with op.batch_alter_table("signoff_log", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_log_run", ["run_id", "id"], unique=False)

    op.create_table(
        "signoff_membership",
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", name=op.f("pk_signoff_membership")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_payload",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", BigId(), nullable=True),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_payload")),
    )
    with op.batch_alter_table("signoff_payload", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_payload_run_id"), ["run_id"], unique=False)

    op.create_table(
        "signoff_pool",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("max_parallel", sa.Integer(), nullable=True),
        sa.Column("rate", sa.Integer(), nullable=True),
        sa.Column("per", sa.Float(), nullable=True),
        sa.Column("serial_keys", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("declared", sa.String(), nullable=True),
        sa.Column("tokens", sa.Float(), nullable=True),
        sa.Column("tokens_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_signoff_pool")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_pool_slot",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("step_no", sa.Integer(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("worker_id", BigId(), nullable=True),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step_no", name=op.f("pk_signoff_pool_slot")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_pool_slot", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_pool_slot_pool", ["pool", "key"], unique=False)
        batch_op.create_index(batch_op.f("ix_signoff_pool_slot_worker_id"), ["worker_id"], unique=False)

    op.create_table(
        "signoff_round",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("seed", sa.String(), nullable=False),
        sa.Column("from_outcome_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("former", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "generation", name=op.f("pk_signoff_round")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_run",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("definition_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), server_default="queued", nullable=False),
        sa.Column("requested", sa.String(), server_default="none", nullable=False),
        sa.Column("activity", sa.String(), nullable=True),
        sa.Column("blocked_reason", sa.String(), nullable=True),
        sa.Column("blocked_hash", sa.String(), nullable=True),
        sa.Column("result_kind", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", BigId(), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("outcome_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("outcome_at", UtcDateTime(), nullable=True),
        sa.Column("driven_no", sa.Integer(), server_default="-1", nullable=False),
        sa.Column("next_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("touch_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ready", sa.Integer(), nullable=True),
        sa.Column("wake_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("args", sa.String(), nullable=True),
        sa.Column("value", sa.String(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("requester", sa.String(), nullable=True),
        sa.Column("labels", sa.String(), nullable=True),
        sa.Column("parent_id", BigId(), nullable=True),
        sa.Column("parent_no", sa.Integer(), nullable=True),
        sa.Column("options", sa.String(), nullable=True),
        sa.Column("ending", sa.String(), nullable=True),
        sa.Column("code_hash", sa.String(), nullable=True),
        sa.Column("journal_bytes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("admitted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_run")),
        sa.UniqueConstraint("public_id", "tenant_id", name=op.f("uq_signoff_run_public_id_tenant_id")),
    )
    with op.batch_alter_table("signoff_run", schema=None) as batch_op:
        batch_op.create_index(
            "ix_signoff_run_held",
            ["definition_id", sa.literal_column("priority DESC"), "id"],
            unique=False,
            postgresql_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
            sqlite_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
        )
        batch_op.create_index("ix_signoff_run_list", ["tenant_id", "id"], unique=False)
        batch_op.create_index(
            "ix_signoff_run_open",
            ["tenant_id", "id"],
            unique=False,
            postgresql_where=sa.text("state <> 'final'"),
            sqlite_where=sa.text("state <> 'final'"),
        )
        batch_op.create_index(
            "ix_signoff_run_parent",
            ["parent_id"],
            unique=False,
            postgresql_where=sa.text("parent_id IS NOT NULL"),
            sqlite_where=sa.text("parent_id IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_signoff_run_ready",
            ["ready", sa.literal_column("priority DESC"), "id"],
            unique=False,
            postgresql_where=sa.text("ready IS NOT NULL"),
            sqlite_where=sa.text("ready IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_signoff_run_wake",
            ["wake_at"],
            unique=False,
            postgresql_where=sa.text("wake_at IS NOT NULL"),
            sqlite_where=sa.text("wake_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_signoff_run_worker",
            ["worker_id"],
            unique=False,
            postgresql_where=sa.text("worker_id IS NOT NULL"),
            sqlite_where=sa.text("worker_id IS NOT NULL"),
        )

    op.create_table(
        "signoff_session",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("tenant_id", sa.Integer(), nullable=True),
        sa.Column("role", sa.String(), nullable=True),
        sa.Column("csrf", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_signoff_session")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_session", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_session_user_id"), ["user_id"], unique=False)

    op.create_table(
        "signoff_setup_link",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("tenant_id", sa.Integer(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_signoff_setup_link")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_sign_in_count",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_signoff_sign_in_count")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_sign_in_count", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_sign_in_count_ends_at"), ["ends_at"], unique=False)

    op.create_table(
        "signoff_start_key",
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_signoff_start_key")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_start_key", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_start_key_run_id"), ["run_id"], unique=False)

    op.create_table(
        "signoff_step",
        sa.Column("run_id", BigId(), nullable=False),
        sa.Column("no", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        sa.Column("retired_in", sa.Integer(), nullable=True),
        sa.Column("asked_after", sa.Integer(), server_default="0", nullable=False),
        sa.Column("asked_at", UtcDateTime(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("outcome_no", sa.Integer(), nullable=True),
        sa.Column("outcome_kind", sa.String(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("args", sa.String(), nullable=True),
        sa.Column("value", sa.String(), nullable=True),
        sa.Column("options", sa.String(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lost", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("by_handler", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("child_id", BigId(), nullable=True),
        sa.Column("progress", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "no", name=op.f("pk_signoff_step")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signoff_tenant",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_tenant")),
        sa.UniqueConstraint("name", name=op.f("uq_signoff_tenant_name")),
    )
    op.create_table(
        "signoff_token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_token")),
        sa.UniqueConstraint("hash", name=op.f("uq_signoff_token_hash")),
    )
    op.create_table(
        "signoff_user",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("name", sa.String(), server_default="", nullable=False),
        sa.Column("password_hash", sa.String(), nullable=True),
        sa.Column("active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_user")),
        sa.UniqueConstraint("email", name=op.f("uq_signoff_user_email")),
    )
    op.create_table(
        "signoff_worker",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("heartbeat", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("lost_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_worker")),
    )
    op.create_table(
        "signoff_worker_definition",
        sa.Column("worker_id", BigId(), nullable=False),
        sa.Column("definition_id", sa.Integer(), nullable=False),
        sa.Column("code_hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "definition_id", name=op.f("pk_signoff_worker_definition")),
        sqlite_with_rowid=False,
    )
    tenants = sa.table("signoff_tenant", sa.column("name", sa.String()), sa.column("created_at", UtcDateTime()))
    op.bulk_insert(tenants, [{"name": "default", "created_at": datetime.now(UTC)}])


def downgrade() -> None:
    op.drop_table("signoff_worker_definition")
    op.drop_table("signoff_worker")
    op.drop_table("signoff_user")
    op.drop_table("signoff_token")
    op.drop_table("signoff_tenant")
    op.drop_table("signoff_step")
    with op.batch_alter_table("signoff_start_key", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_start_key_run_id"))

    op.drop_table("signoff_start_key")
    with op.batch_alter_table("signoff_sign_in_count", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_sign_in_count_ends_at"))

    op.drop_table("signoff_sign_in_count")
    op.drop_table("signoff_setup_link")
    with op.batch_alter_table("signoff_session", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_session_user_id"))

    op.drop_table("signoff_session")
    with op.batch_alter_table("signoff_run", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_run_worker",
            postgresql_where=sa.text("worker_id IS NOT NULL"),
            sqlite_where=sa.text("worker_id IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_signoff_run_wake",
            postgresql_where=sa.text("wake_at IS NOT NULL"),
            sqlite_where=sa.text("wake_at IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_signoff_run_ready",
            postgresql_where=sa.text("ready IS NOT NULL"),
            sqlite_where=sa.text("ready IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_signoff_run_parent",
            postgresql_where=sa.text("parent_id IS NOT NULL"),
            sqlite_where=sa.text("parent_id IS NOT NULL"),
        )
        batch_op.drop_index(
            "ix_signoff_run_open",
            postgresql_where=sa.text("state <> 'final'"),
            sqlite_where=sa.text("state <> 'final'"),
        )
        batch_op.drop_index("ix_signoff_run_list")
        batch_op.drop_index(
            "ix_signoff_run_held",
            postgresql_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
            sqlite_where=sa.text("state = 'queued' AND ready IS NULL AND wake_at IS NULL"),
        )

    op.drop_table("signoff_run")
    op.drop_table("signoff_round")
    with op.batch_alter_table("signoff_pool_slot", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_pool_slot_worker_id"))
        batch_op.drop_index("ix_signoff_pool_slot_pool")

    op.drop_table("signoff_pool_slot")
    op.drop_table("signoff_pool")
    with op.batch_alter_table("signoff_payload", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_payload_run_id"))

    op.drop_table("signoff_payload")
    op.drop_table("signoff_membership")
    with op.batch_alter_table("signoff_log", schema=None) as batch_op:
        batch_op.drop_index("ix_signoff_log_run")

    op.drop_table("signoff_log")
    op.drop_table("signoff_limit")
    with op.batch_alter_table("signoff_ledger", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_ledger_unsealed",
            postgresql_where=sa.text("seal_no IS NULL"),
            sqlite_where=sa.text("seal_no IS NULL"),
        )
        batch_op.drop_index("ix_signoff_ledger_tenant")

    op.drop_table("signoff_ledger")
    with op.batch_alter_table("signoff_label", schema=None) as batch_op:
        batch_op.drop_index("ix_signoff_label_value")

    op.drop_table("signoff_label")
    with op.batch_alter_table("signoff_group_member", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_group_member_user_id"))

    op.drop_table("signoff_group_member")
    op.drop_table("signoff_group")
    with op.batch_alter_table("signoff_event", schema=None) as batch_op:
        batch_op.drop_index("ix_signoff_event_run")
        batch_op.drop_index(
            "ix_signoff_event_key",
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        )

    op.drop_table("signoff_event")
    op.drop_table("signoff_definition")
    op.drop_table("signoff_decision")
    with op.batch_alter_table("signoff_completion", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_completion_next_at"))

    op.drop_table("signoff_completion")
    op.drop_table("signoff_chain")
    with op.batch_alter_table("signoff_audit", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_audit_unsealed",
            postgresql_where=sa.text("seal_no IS NULL"),
            sqlite_where=sa.text("seal_no IS NULL"),
        )
        batch_op.drop_index("ix_signoff_audit_tenant")

    op.drop_table("signoff_audit")
    op.drop_table("signoff_attempt")
    with op.batch_alter_table("signoff_approval", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_approval_open",
            postgresql_where=sa.text("state = 'open'"),
            sqlite_where=sa.text("state = 'open'"),
        )

    op.drop_table("signoff_approval")
