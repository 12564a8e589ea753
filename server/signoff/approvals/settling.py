"""What follows from a change of who may answer: of one question, or of a tenant's people."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import sqlalchemy as sa

from signoff.approvals import claims, stuck
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.approvals.stuck import CAUSES, Judge
from signoff.engine.outcomes import Row
from signoff.people.users import people
from signoff.store.tx import Tx

_BATCH = 1_000


def settle(tx: Tx, row: Row) -> None:
    """After who may answer changed: a claim of somebody who cannot any more ends; it is seen whether anybody can."""
    if row.claimed_by is not None and not claims.still_counts(tx, row):
        claims.drop(tx, row, "they may not answer any more")
    stuck.refresh(tx, row)


def settle_all(tx: Tx, tenant_id: int) -> None:
    """Of all open questions of a tenant, after its people changed; claims of those who lost their right end."""
    judge = Judge(people(tx, tenant_id))
    is_open = sa.and_(A.c.tenant_id == tenant_id, A.c.state == "open")
    columns = [A.c[name] for name in CAUSES]
    query = sa.select(A.c.id, A.c.stuck, A.c.claimed_by, *columns).where(is_open).order_by(A.c.id)
    votes = (
        sa.select(D)
        .join(A, A.c.id == D.c.approval_id)
        .where(is_open, D.c.lapsed_at.is_(None))
        .order_by(D.c.approval_id, D.c.id)
    )
    voted = {key: list(rows) for key, rows in groupby(tx.conn.execute(votes), lambda row: row.approval_id)}
    known: dict[tuple[Any, ...], str | None] = {}
    changed: dict[str | None, list[int]] = {}
    for row in tx.conn.execute(query).all():
        # many questions have few causes, but everyone's own requests, which matter only under four eyes
        key = tuple(getattr(row, name) for name in CAUSES if name != "requester" or row.not_requester)
        if row.id in voted:
            found = judge.verdict(row, voted[row.id])
        elif key in known:
            found = known[key]
        else:
            found = known[key] = judge.verdict(row, ())
        if found != row.stuck:
            changed.setdefault(found, []).append(row.id)
        if row.claimed_by is not None:
            _check_claim(tx, row.id)
    for found, ids in changed.items():
        for at in range(0, len(ids), _BATCH):
            some = A.c.id.in_(ids[at : at + _BATCH])
            tx.conn.execute(tx.dialect.lock(sa.select(A.c.id).where(some).order_by(A.c.id)))
            tx.conn.execute(sa.update(A).where(some, A.c.state == "open").values(stuck=found))


def _check_claim(tx: Tx, approval_id: int) -> None:
    row = tx.conn.execute(tx.dialect.lock(sa.select(A).where(A.c.id == approval_id))).one()
    if row.state == "open" and row.claimed_by is not None and not claims.still_counts(tx, row):
        claims.drop(tx, row, "they may not answer any more")
