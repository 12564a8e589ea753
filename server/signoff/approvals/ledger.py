"""The decision ledger: a row for each answer and each question that ended without one. Append-only, outlives runs."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from signoff.people.canonical import canonical
from signoff.people.chain import CHAINS, LEDGER, Verification, row_hash, verify_chain
from signoff.people.permissions import require
from signoff.store.scope import Scope
from signoff.store.tx import Tx

_CHAIN: Final = next(chain for chain in CHAINS if chain.name == "ledger")


def append(
    tx: Tx,
    *,
    tenant_id: int,
    kind: str,
    run: str,
    approval: str,
    content: dict[str, Any],
    actor: str | None = None,
    via: str | None = None,
) -> int:
    """Write a row and return its id. `run` and `approval` are public ids; `kind` is decision, expired or closed."""
    row = {
        "tenant_id": tenant_id,
        "at": tx.now,
        "kind": kind,
        "run": run,
        "approval": approval,
        "actor": actor,
        "via": via,
        "content": canonical(content),
    }
    return int(
        tx.conn.execute(
            sa.insert(LEDGER).values(**row, content_hash=row_hash(_CHAIN, row)).returning(LEDGER.c.id)
        ).scalar_one()
    )


def verify(tx: Tx, scope: Scope) -> Verification:
    """Whether the tenant's ledger is what was written, with nothing changed, moved or missing. Needs `audit.view`."""
    require(scope, "audit.view")
    return verify_chain(tx, scope.tenant_id, "ledger")
