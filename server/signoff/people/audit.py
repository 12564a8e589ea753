"""The audit log: what was done and what was refused, by whom and through which door. Append-only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from signoff.people.canonical import canonical, content_hash, storable
from signoff.people.permissions import require
from signoff.store.scope import Scope
from signoff.store.tables import AuditRow
from signoff.store.tx import Tx

A = AuditRow.__table__

# What the content hash of a row covers; `id` and the seal come after it.
HASHED: Final = ("tenant_id", "at", "actor", "via", "action", "target", "allowed", "reason", "detail")


@dataclass(frozen=True, slots=True)
class AuditView:
    id: int
    at: datetime
    actor: str | None
    via: str | None
    action: str
    target: str | None
    allowed: bool
    reason: str | None
    detail: str | None


def audit(
    tx: Tx,
    scope: Scope,
    action: str,
    target: str | None = None,
    *,
    allowed: bool = True,
    reason: str | None = None,
    via: str | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Append one row. `reason` is the code of a refusal; `detail` must hold no secrets and no answers."""
    row = {
        "tenant_id": scope.tenant_id,
        "at": tx.now,
        "actor": scope.person.actor if scope.person else None,
        "via": via or scope.via,
        "action": action,
        "target": None if target is None else storable(target),
        "allowed": allowed,
        "reason": reason,
        "detail": None if detail is None else canonical(detail),
    }
    tx.conn.execute(sa.insert(A).values(**row, content_hash=content_hash(row)))


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What to look for. Texts match any part, without regard to case; an action also by its first word (`user`)."""

    person: str = ""
    action: str = ""
    target: str = ""
    since: datetime | None = None  # inclusive
    until: datetime | None = None  # exclusive
    refused_only: bool = False

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        found: list[sa.ColumnElement[bool]] = []
        for column, text in ((A.c.actor, self.person), (A.c.target, self.target)):
            if text:
                found.append(sa.func.lower(column).contains(storable(text.lower()), autoescape=True))
        if self.action:
            found.append(A.c.action.startswith(storable(self.action.lower()), autoescape=True))
        if self.since is not None:
            found.append(A.c.at >= self.since)
        if self.until is not None:
            found.append(A.c.at < self.until)
        if self.refused_only:
            found.append(A.c.allowed.is_(False))
        return found


def audit_page(
    tx: Tx, scope: Scope, wanted: AuditFilter | None = None, *, before: int | None = None, limit: int = 50
) -> list[AuditView]:
    """The newest rows first; `before` is the id to go on from. Needs `audit.view`."""
    require(scope, "audit.view")
    query = sa.select(*(A.c[name] for name in AuditView.__slots__)).where(A.c.tenant_id == scope.tenant_id)
    if wanted is not None:
        query = query.where(*wanted.conditions())
    if before is not None:
        query = query.where(A.c.id < before)
    return [AuditView(*row) for row in tx.conn.execute(query.order_by(A.c.id.desc()).limit(limit))]
