"""What people and programs do to a run from outside: cancel, pause, resume."""

from __future__ import annotations

import json
from datetime import timedelta

import sqlalchemy as sa

from signoff.engine import limits
from signoff.engine.ending import finalize
from signoff.engine.lookup import find_locked
from signoff.engine.outcomes import R, Row, S, lock_run, record_due, record_outcome
from signoff.engine.settings import CANCEL_GRACE
from signoff.engine.status import CODELESS, Status, status_of
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, Requested, ResultKind, RunState, StepKind


def cancel(
    tx: Tx,
    scope: Scope,
    run: str,
    *,
    reason: str | None = None,
    actor: str | None = None,
    compensate: bool = False,
    grace: float = CANCEL_GRACE,
) -> Status:
    """Asks the run to end, and returns its status then: at once if it has not started or is blocked.

    `grace` is how many seconds its handler has for `except CancelledError`. A run that is final or canceling already
    stays as it is.
    """
    row = find_locked(tx, scope, run, with_parent=True)
    actor = actor or (scope.person.actor if scope.person is not None else None)
    return status_of(_cancel(tx, row, reason, actor, compensate, grace))


def cancel_child(
    tx: Tx, child_id: int, *, reason: str | None = None, compensate: bool = False, grace: float = CANCEL_GRACE
) -> None:
    """Cancels the run of a child step whose waiting has ended; nothing happens if it is final or gone."""
    row = lock_run(tx, child_id)
    if row is not None:
        _cancel(tx, row, reason or "its parent ended", None, compensate, grace)


def cancel_children(
    tx: Tx,
    run_id: int,
    limit: int,
    *,
    reason: str | None = None,
    compensate: bool = False,
    grace: float = CANCEL_GRACE,
) -> int:
    """Cancels up to `limit` of a canceled run's children, by id, and returns how many are still to be asked."""
    open_children = (R.c.parent_id == run_id, R.c.parent_no.is_not(None), R.c.state != RunState.FINAL.value)
    waiting = sa.and_(*open_children, R.c.requested != Requested.CANCEL.value)
    ids = tx.conn.execute(sa.select(R.c.id).where(waiting).order_by(R.c.id).limit(limit)).scalars().all()
    for child_id in ids:
        cancel_child(tx, child_id, reason=reason or "its parent was canceled", compensate=compensate, grace=grace)
    return tx.conn.execute(sa.select(sa.func.count()).select_from(R).where(waiting)).scalar_one()


def pause(tx: Tx, scope: Scope, run: str, *, children: bool = False) -> Status:
    """Lets the steps of the run end and starts no new ones. Pausing a paused run changes nothing.

    Raises Conflict for a run that is final or canceling.
    """
    row = find_locked(tx, scope, run)
    _check_pausable(row, "paused")
    rows = [row, *_open_descendants(tx, row)] if children else [row]
    statuses = [status_of(_pause(tx, item)) for item in rows]
    return statuses[0]


def resume(tx: Tx, scope: Scope, run: str, *, children: bool = False) -> Status:
    """Lifts a pause. Resuming a run that is not paused changes nothing. Raises as `pause`."""
    row = find_locked(tx, scope, run)
    _check_pausable(row, "resumed")
    rows = [row, *_open_descendants(tx, row)] if children else [row]
    statuses = [status_of(_resume(tx, item)) for item in rows]
    return statuses[0]


def _cancel(tx: Tx, row: Row, reason: str | None, actor: str | None, compensate: bool, grace: float) -> Row:
    if row.state == RunState.FINAL or row.requested == Requested.CANCEL or row.ending is not None:
        return row
    blocked = row.blocked_reason is not None or (
        row.worker_id is None and tx.conn.execute(sa.select(CODELESS).where(R.c.id == row.id)).scalar_one()
    )
    # its compensations need a worker that has the code
    undo = compensate and blocked and _has_compensations(tx, row.id)
    fresh = row.next_no == 0 and row.state == RunState.QUEUED
    if fresh or (blocked and not undo):
        error = ErrorInfo("RunCanceled", reason or "canceled", {"actor": actor} if actor else None)
        return finalize(tx, row, ResultKind.CANCELED, error=error)
    row = record_due(tx, row)
    due_at = tx.now + timedelta(seconds=grace)
    value = json.dumps({"reason": reason, "actor": actor, "compensate": compensate})
    tx.conn.execute(
        sa.insert(S).values(
            run_id=row.id,
            no=row.next_no,
            kind=StepKind.CANCEL.value,
            name="cancel",
            generation=row.generation,
            asked_after=row.outcome_no,
            asked_at=tx.now,
            due_at=due_at,
        )
    )
    cancel_no = row.next_no
    row = tx.conn.execute(
        sa.update(R)
        .where(R.c.id == row.id)
        .values(
            next_no=R.c.next_no + 1,
            requested=Requested.CANCEL.value,
            wake_at=min(row.wake_at or due_at, due_at),
        )
        .returning(R)
    ).one()
    canceled = record_outcome(tx, row, cancel_no, OutcomeKind.SUCCESS, value)
    assert canceled is not None
    return canceled


def _has_compensations(tx: Tx, run_id: int) -> bool:
    named = S.c.options.contains('"compensate"', autoescape=True)
    found = sa.select(S.c.no).where(S.c.run_id == run_id, S.c.retired_in.is_(None), S.c.started, named).limit(1)
    return tx.conn.execute(found).first() is not None


def _check_pausable(row: Row, done: str) -> None:
    status = status_of(row)
    if row.state == RunState.FINAL or status in (Status.CANCELING, Status.COMPENSATING):
        raise Conflict(f"run {row.public_id!r} is {status} and cannot be {done}", run=row.public_id, state=status.value)


def _open_descendants(tx: Tx, row: Row) -> list[Row]:
    """The run's open child runs at any depth that its steps wait for, locked in order of their ids."""
    tree = sa.select(R.c.id).where(R.c.id == row.id).cte(recursive=True)
    below = sa.select(R.c.id).join(tree, R.c.parent_id == tree.c.id)
    tree = tree.union_all(below.where(R.c.parent_no.is_not(None), R.c.state != RunState.FINAL.value))
    return list(
        tx.conn.execute(
            sa.select(R)
            .where(R.c.id.in_(sa.select(tree.c.id)), R.c.id != row.id, R.c.requested != Requested.CANCEL.value)
            .where(R.c.ending.is_(None), R.c.state != "final")
            .order_by(R.c.id)
            .with_for_update()
        )
    )


def _pause(tx: Tx, row: Row) -> Row:
    if row.requested == Requested.PAUSE:
        return row
    # A run that has not started has nothing for a worker to let end; an active one is looked at once more.
    ready = None if row.state == RunState.QUEUED else 0
    return _update(tx, row, requested=Requested.PAUSE.value, ready=ready)


def _resume(tx: Tx, row: Row) -> Row:
    if row.requested != Requested.PAUSE:
        return row
    row = _update(tx, row, requested=Requested.NONE.value)
    if row.state != RunState.QUEUED:
        return _update(tx, row, ready=0)
    if row.wake_at is not None and row.wake_at > tx.now:
        return row
    return limits.let_in(tx, row)


def _update(tx: Tx, row: Row, **values: object) -> Row:
    tx.notify("run", row.id)
    if values.get("ready") is not None:
        tx.notify("ready")
    update = sa.update(R).where(R.c.id == row.id).values(touch_no=R.c.touch_no + 1, **values).returning(R)
    return tx.conn.execute(update).one()
