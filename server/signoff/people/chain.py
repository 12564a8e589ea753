"""Seals: rows of the ledger and the audit log, linked into one chain per tenant so that no later change goes unseen.

A row carries its content hash from the moment it is written. A sealer gives rows their place afterwards, each seal
being the hash of the one before it and the row's content hash, so that writing never waits for the chain. The head of a
chain stands in a row of its own: rows cut off its end are missed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from signoff.people import audit
from signoff.people.canonical import content_hash
from signoff.store.tables import Chain, LedgerRow
from signoff.store.tx import Tx

C = Chain.__table__
LEDGER = LedgerRow.__table__

BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Chained:
    """A table whose rows are chained, and which columns a row's content hash covers."""

    name: str
    table: sa.Table
    hashed: tuple[str, ...]


CHAINS: Final = (
    Chained("ledger", LEDGER, ("tenant_id", "at", "kind", "run", "approval", "actor", "via", "content")),
    Chained("audit", audit.A, audit.HASHED),
)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found: `problem` is None when the chain holds, else it tells of the first row that is not as it was.

    `sealed` and `unsealed` count the rows that were found right. `row`: the id of the first that was not, or of the
    one before which others are missing; None when they are missing at the end.
    """

    name: str
    sealed: int
    unsealed: int
    problem: str | None = None
    row: int | None = None

    @property
    def holds(self) -> bool:
        return self.problem is None


def row_hash(chained: Chained, row: Mapping[str, Any]) -> str:
    """The content hash of a row as it is stored, or about to be."""
    return content_hash({name: row[name] for name in chained.hashed})


def next_seal(seal: str, row_content_hash: str) -> str:
    return hashlib.sha256(f"{seal}\n{row_content_hash}".encode()).hexdigest()


def seal_pending(tx: Tx, limit: int = BATCH) -> int:
    """Seal rows of all tenants, up to `limit` of each chain and tenant; returns how many. Several may run at once."""
    sealed = 0
    for chained in CHAINS:
        t = chained.table
        for tenant_id in (
            tx.conn.execute(sa.select(t.c.tenant_id).where(t.c.seal_no.is_(None)).distinct()).scalars().all()
        ):
            sealed += _seal(tx, chained, tenant_id, limit)
    return sealed


def has_pending(tx: Tx) -> bool:
    """Whether any row waits for its seal."""
    tables = [chained.table for chained in CHAINS]
    return any(tx.conn.execute(sa.select(t.c.id).where(t.c.seal_no.is_(None)).limit(1)).first() for t in tables)


def verify_chain(tx: Tx, tenant_id: int, name: str) -> Verification:
    """Read the tenant's whole chain and recompute every hash."""
    chained = next(chain for chain in CHAINS if chain.name == name)
    t = chained.table
    head = tx.conn.execute(sa.select(C).where(C.c.tenant_id == tenant_id, C.c.name == name)).first()
    no, seal, unsealed, problem = 0, "", 0, None
    # Sealed rows in their order, then those that wait for a seal.
    query = sa.select(t).where(t.c.tenant_id == tenant_id).order_by(t.c.seal_no.is_(None), t.c.seal_no, t.c.id)
    for found in tx.conn.execute(query.execution_options(yield_per=BATCH)).mappings():
        row: dict[str, Any] = {str(name): value for name, value in found.items()}
        if row_hash(chained, row) != row["content_hash"]:
            problem = f"row {row['id']} is not what was written"
        elif row["seal_no"] is None:
            unsealed += 1
        elif row["seal_no"] != no + 1:
            problem = f"between seals {no} and {row['seal_no']} rows are missing"
        elif (seal := next_seal(seal, row["content_hash"])) != row["seal"]:
            problem = f"the seal of row {row['id']} does not follow from the row before it"
        else:
            no += 1
        if problem is not None:
            return Verification(name, no, unsealed, problem, row["id"])
    if (no, seal) != ((head.no, head.seal) if head else (0, "")):
        problem = f"rows after seal {no} are missing, or the head of the chain was changed"
    return Verification(name, no, unsealed, problem)


def _seal(tx: Tx, chained: Chained, tenant_id: int, limit: int) -> int:
    head = _locked_head(tx, chained, tenant_id)
    if head is None:
        return 0  # another process is sealing this chain
    t = chained.table
    no, seal = head.no, head.seal
    waiting = sa.select(t.c.id, t.c.content_hash).where(t.c.tenant_id == tenant_id, t.c.seal_no.is_(None))
    rows = []
    # By id; a row with a lower id that commits later is sealed later: its place in the chain is its seal_no.
    for row_id, row_content_hash in tx.conn.execute(waiting.order_by(t.c.id).limit(limit)):
        no, seal = no + 1, next_seal(seal, row_content_hash)
        rows.append((row_id, no, seal))
    if rows:
        tx.dialect.update_rows(tx, t, ("id",), ("seal_no", "seal"), rows)
        tx.conn.execute(
            sa.update(C).where(C.c.tenant_id == tenant_id, C.c.name == chained.name).values(no=no, seal=seal)
        )
    return len(rows)


def _locked_head(tx: Tx, chained: Chained, tenant_id: int) -> sa.Row[Any] | None:
    mine = (C.c.tenant_id == tenant_id, C.c.name == chained.name)
    if tx.conn.execute(sa.select(C.c.no).where(*mine)).first() is None:
        insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
        tx.conn.execute(
            insert(C).values(tenant_id=tenant_id, name=chained.name, no=0, seal="").on_conflict_do_nothing()
        )
    return tx.conn.execute(tx.dialect.claim(sa.select(C).where(*mine))).first()
