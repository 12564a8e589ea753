"""Tenants on pages: what they are called there, which one somebody used last, and whose members they are"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("signoff_tenant", schema=None) as batch_op:
        batch_op.add_column(sa.Column("title", sa.String(), nullable=True))

    with op.batch_alter_table("signoff_user", schema=None) as batch_op:
        batch_op.add_column(sa.Column("tenant_id", sa.Integer(), nullable=True))

    with op.batch_alter_table("signoff_membership", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_signoff_membership_user_id"), ["user_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("signoff_membership", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_signoff_membership_user_id"))

    with op.batch_alter_table("signoff_user", schema=None) as batch_op:
        batch_op.drop_column("tenant_id")

    with op.batch_alter_table("signoff_tenant", schema=None) as batch_op:
        batch_op.drop_column("title")
