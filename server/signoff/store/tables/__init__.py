"""All tables, in metadata of our own so that an author's models in the same database never clash with ours.

Values (`args`, `value`, ...) are JSON text, never JSONB: text keeps every value exactly. A value above the inline limit
stands in `signoff_payload`; its column then holds `@<payload id>` (JSON text never begins with `@`).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from signoff.store.tables.approvals import Approval, ApprovalNote, Decision, Draft
from signoff.store.tables.base import Base
from signoff.store.tables.people import (
    Group,
    GroupMember,
    Identity,
    Membership,
    Session,
    SetupLink,
    SignInCount,
    Tenant,
    Token,
    User,
)
from signoff.store.tables.pools import Limit, Pool, PoolSlot
from signoff.store.tables.records import AuditRow, Chain, LedgerRow
from signoff.store.tables.runs import (
    Attempt,
    Completion,
    Definition,
    Event,
    Label,
    LogLine,
    Payload,
    Round,
    Run,
    StartKey,
    Step,
    Worker,
    WorkerDefinition,
)
from signoff.store.types import BigId, registry

__all__ = [
    "Approval", "ApprovalNote", "Attempt", "AuditRow", "Base", "Chain", "Completion", "Decision", "Definition", "Draft",
    "Event", "Group", "GroupMember", "Identity", "Label", "LedgerRow", "Limit", "LogLine", "Membership", "Payload",
    "Pool", "PoolSlot", "Round", "Run", "Session", "SetupLink", "SignInCount", "StartKey", "Step", "Tenant", "Token",
    "User", "Worker", "WorkerDefinition",
]  # fmt: skip


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
