"""Approvals: rules, options, claims, drafts"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from signoff.store.types import BigId, UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE signoff_run SET (fillfactor = 50)")
    op.create_table(
        "signoff_approval_note",
        sa.Column("id", BigId(), nullable=False),
        sa.Column("approval_id", BigId(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("via", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=True),
        sa.Column("data", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signoff_approval_note")),
    )
    with op.batch_alter_table("signoff_approval_note", schema=None) as batch_op:
        batch_op.create_index("ix_signoff_approval_note_approval", ["approval_id", "id"], unique=False)

    op.create_table(
        "signoff_draft",
        sa.Column("tenant_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("saved_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", "key", name=op.f("pk_signoff_draft")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_draft", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_draft_saved_at"), ["saved_at"], unique=False)

    op.create_table(
        "signoff_identity",
        sa.Column("issuer", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_signoff_identity")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("signoff_identity", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_identity_user_id"), ["user_id"], unique=False)

    with op.batch_alter_table("signoff_approval", schema=None) as batch_op:
        batch_op.add_column(sa.Column("options", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("exclude", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("not_requester", sa.Boolean(), server_default=sa.text("false"), nullable=False))
        batch_op.add_column(sa.Column("claim", sa.String(), server_default="optional", nullable=False))
        batch_op.add_column(sa.Column("claimed_by", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("claimed_at", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("changes", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("frozen", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("stuck", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("reminders", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("reminded", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("escalate_at", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("escalate_to", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("escalated_at", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("next_at", UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("extend", sa.Float(), nullable=True))
        batch_op.add_column(sa.Column("on_timeout", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("fallback", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("kept_from", BigId(), nullable=True))
        batch_op.create_index(
            "ix_signoff_approval_next",
            ["next_at"],
            unique=False,
            postgresql_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
            sqlite_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_signoff_approval_answered",
            ["tenant_id", "ask", "id"],
            unique=False,
            postgresql_where=sa.text("state = 'decided'"),
            sqlite_where=sa.text("state = 'decided'"),
        )

    with op.batch_alter_table("signoff_decision", schema=None) as batch_op:
        batch_op.add_column(sa.Column("option", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("rejects", sa.Boolean(), server_default=sa.text("false"), nullable=False))
        batch_op.add_column(sa.Column("on_behalf_of", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("parts", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("lapsed_at", UtcDateTime(), nullable=True))
        batch_op.drop_constraint(batch_op.f("uq_signoff_decision_approval_id_person"), type_="unique")
        batch_op.create_index("ix_signoff_decision_by", ["person", "id"], unique=False)
        batch_op.create_index(
            "ix_signoff_decision_person",
            ["approval_id", "person"],
            unique=True,
            postgresql_where=sa.text("lapsed_at IS NULL"),
            sqlite_where=sa.text("lapsed_at IS NULL"),
        )

    with op.batch_alter_table("signoff_session", schema=None) as batch_op:
        batch_op.add_column(sa.Column("agent", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("address", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("provider", sa.String(), nullable=True))

    with op.batch_alter_table("signoff_round", schema=None) as batch_op:
        batch_op.add_column(sa.Column("answers", sa.String(), nullable=True))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE signoff_run RESET (fillfactor)")
    with op.batch_alter_table("signoff_round", schema=None) as batch_op:
        batch_op.drop_column("answers")

    with op.batch_alter_table("signoff_session", schema=None) as batch_op:
        batch_op.drop_column("provider")
        batch_op.drop_column("address")
        batch_op.drop_column("agent")

    with op.batch_alter_table("signoff_decision", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_decision_person",
            postgresql_where=sa.text("lapsed_at IS NULL"),
            sqlite_where=sa.text("lapsed_at IS NULL"),
        )
        batch_op.drop_index("ix_signoff_decision_by")
        batch_op.create_unique_constraint(
            batch_op.f("uq_signoff_decision_approval_id_person"), ["approval_id", "person"]
        )
        batch_op.drop_column("lapsed_at")
        batch_op.drop_column("parts")
        batch_op.drop_column("on_behalf_of")
        batch_op.drop_column("rejects")
        batch_op.drop_column("option")

    with op.batch_alter_table("signoff_approval", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_signoff_approval_answered",
            postgresql_where=sa.text("state = 'decided'"),
            sqlite_where=sa.text("state = 'decided'"),
        )
        batch_op.drop_index(
            "ix_signoff_approval_next",
            postgresql_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
            sqlite_where=sa.text("state = 'open' AND next_at IS NOT NULL"),
        )
        batch_op.drop_column("kept_from")
        batch_op.drop_column("fallback")
        batch_op.drop_column("on_timeout")
        batch_op.drop_column("extend")
        batch_op.drop_column("next_at")
        batch_op.drop_column("escalated_at")
        batch_op.drop_column("escalate_to")
        batch_op.drop_column("escalate_at")
        batch_op.drop_column("reminded")
        batch_op.drop_column("reminders")
        batch_op.drop_column("stuck")
        batch_op.drop_column("frozen")
        batch_op.drop_column("changes")
        batch_op.drop_column("claimed_at")
        batch_op.drop_column("claimed_by")
        batch_op.drop_column("claim")
        batch_op.drop_column("not_requester")
        batch_op.drop_column("exclude")
        batch_op.drop_column("options")

    with op.batch_alter_table("signoff_identity", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_identity_user_id"))

    op.drop_table("signoff_identity")
    with op.batch_alter_table("signoff_draft", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_draft_saved_at"))

    op.drop_table("signoff_draft")
    with op.batch_alter_table("signoff_approval_note", schema=None) as batch_op:
        batch_op.drop_index("ix_signoff_approval_note_approval")

    op.drop_table("signoff_approval_note")
