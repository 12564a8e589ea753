"""Deleting runs that are over. Decisions, ledger and audit stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from signoff.engine.lookup import find_run, in_scope
from signoff.engine.outcomes import R, S
from signoff.store.scope import Scope
from signoff.store.tables import (
    Approval,
    ApprovalNote,
    Attempt,
    Completion,
    Decision,
    Event,
    Label,
    LogLine,
    Payload,
    PoolSlot,
    Round,
    StartKey,
)
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict
from signoff.workflow.kinds import RunState

APPROVAL = Approval.__table__
DONE = Completion.__table__

EVENT = Event.__table__

_MODELS = (Attempt, Payload, LogLine, Label, StartKey, PoolSlot, Round)
_OF_RUN = (S, EVENT, DONE, *(model.__table__ for model in _MODELS))
_OF_APPROVAL = (Decision.__table__, ApprovalNote.__table__)

BATCH = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became, or in a dry run would become, of one id. Counts are of rows; `runs` counts child runs too."""

    run: str
    result: Literal["deleted", "not_found", "not_final"]
    runs: int = 0
    steps: int = 0
    events: int = 0


def cleanup(tx: Tx, scope: Scope, run: str) -> Cleaned:
    """Deletes a final run with its journal, events, logs and children. Raises NotFound, and Conflict if not final."""
    row = find_run(tx, scope, run)
    (cleaned,) = cleanup_many(tx, scope, [run])
    if cleaned.result == "not_final":
        raise Conflict(
            f"run {run!r} cannot be deleted: it, a child run or its on_complete is not over yet",
            run=run,
            state=row.state,
        )
    return cleaned


def cleanup_many(tx: Tx, scope: Scope, runs: Sequence[str], *, dry_run: bool = False) -> list[Cleaned]:
    """As `cleanup`, for each id; says of each what became of it. An id named twice is deleted once."""
    results: dict[str, Cleaned] = {}
    gone: set[int] = set()
    for public_id in runs:
        if public_id not in results:
            results[public_id] = _clean(tx, scope, public_id, gone, dry_run)
    return [results[public_id] for public_id in runs]


def _clean(tx: Tx, scope: Scope, public_id: str, gone: set[int], dry_run: bool) -> Cleaned:
    root = tx.conn.execute(
        sa.select(R.c.id).where(R.c.public_id == public_id, in_scope(scope, R.c.tenant_id)).order_by(R.c.id).limit(1)
    ).scalar()
    if root is None or root in gone:
        return Cleaned(public_id, "not_found")
    top = sa.select(R.c.id).where(R.c.id == root).cte(recursive=True)
    tree = top.union_all(sa.select(R.c.id).join(top, R.c.parent_id == top.c.id).where(R.c.parent_no.is_not(None)))
    rows = tx.conn.execute(
        sa.select(R.c.id, R.c.state).where(R.c.id.in_(sa.select(tree.c.id))).order_by(R.c.id).with_for_update()
    ).all()
    ids = [row.id for row in rows if row.id not in gone]
    if any(row.state != RunState.FINAL for row in rows) or _owes_completion(tx, ids):
        return Cleaned(public_id, "not_final")
    steps = _count(tx, S, ids)
    events = _count(tx, EVENT, ids)
    gone.update(ids)
    if not dry_run:
        for at in range(0, len(ids), BATCH):
            _delete(tx, ids[at : at + BATCH])
    return Cleaned(public_id, "deleted", len(ids), steps, events)


def _delete(tx: Tx, ids: Sequence[int]) -> None:
    for table in _OF_RUN:
        tx.conn.execute(sa.delete(table).where(table.c.run_id.in_(ids)))
    # What people decided stays. Row ids may be given out again, so it must not point at one. Questions without answer
    # go with all that hangs on them; the ledger has what some had decided of them.
    of_runs = APPROVAL.c.run_id.in_(ids)
    unanswered = sa.select(APPROVAL.c.id).where(of_runs, APPROVAL.c.state != "decided")
    for table in _OF_APPROVAL:
        tx.conn.execute(sa.delete(table).where(table.c.approval_id.in_(unanswered)))
    tx.conn.execute(sa.delete(APPROVAL).where(of_runs, APPROVAL.c.state != "decided"))
    tx.conn.execute(sa.update(APPROVAL).where(of_runs).values(run_id=-APPROVAL.c.id))
    detached = sa.and_(R.c.parent_id.in_(ids), R.c.id.not_in(ids))
    tx.conn.execute(sa.update(R).where(detached).values(parent_id=None, parent_no=None))
    tx.conn.execute(sa.update(S).where(S.c.child_id.in_(ids)).values(child_id=None))
    tx.conn.execute(sa.delete(R).where(R.c.id.in_(ids)))
    for run_id in ids:
        tx.notify("run", run_id)


def _owes_completion(tx: Tx, ids: Sequence[int]) -> bool:
    """Whether an on_complete still has to run: deleting its run would lose it."""
    waiting = sa.select(DONE.c.run_id).where(DONE.c.run_id.in_(ids), ~DONE.c.done, DONE.c.next_at.is_not(None)).limit(1)
    return tx.conn.execute(waiting).first() is not None


def _count(tx: Tx, table: sa.Table, ids: Sequence[int]) -> int:
    counted = sa.select(sa.func.count()).select_from(table).where(table.c.run_id.in_(ids))
    return int(tx.conn.execute(counted).scalar_one())
