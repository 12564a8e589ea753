"""The shown status of a run: one function of plain values, and the same as a condition in SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from signoff.engine.outcomes import R, Row
from signoff.engine.recovery import WD, W
from signoff.workflow.kinds import Activity, Requested, RunState


class Status(StrEnum):
    """What pages, API and handles show. The first that applies, in this order (pausing and paused share a place)."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    COMPENSATING = "compensating"
    CANCELING = "canceling"
    BLOCKED = "blocked"
    PAUSED = "paused"
    PAUSING = "pausing"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SLEEPING = "sleeping"


FINAL_STATUSES = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELED})

# an ended handler whose children are still being canceled; nothing is compensated then
_CHILDREN_PHASE = '"phase": "children"'


def shown_status(
    *,
    state: str,
    result_kind: str | None = None,
    requested: str = "none",
    activity: str | None = None,
    blocked: bool = False,
    ending: str | None = None,
) -> Status:
    """The status of a run from the columns of its row; `ending` is the column's JSON text."""
    if state == RunState.FINAL:
        return Status(result_kind or Status.FAILED)
    if ending is not None:
        return Status.CANCELING if _CHILDREN_PHASE in ending else Status.COMPENSATING
    if requested == Requested.CANCEL:
        return Status.CANCELING
    if blocked:
        return Status.BLOCKED
    if requested == Requested.PAUSE:
        # an attempt that runs is let end; a run that only waits is paused at once
        return Status.PAUSING if state == RunState.ACTIVE and activity == Activity.RUNNING else Status.PAUSED
    if state == RunState.QUEUED:
        return Status.QUEUED
    return Status(activity or Status.RUNNING)


def status_of(row: Row) -> Status:
    """Of a run's row; where it was selected with `codeless`, a run that no live worker has the code of is blocked."""
    return shown_status(
        state=row.state,
        result_kind=row.result_kind,
        requested=row.requested,
        activity=row.activity,
        blocked=row.blocked_reason is not None or bool(getattr(row, "codeless", False)),
        ending=row.ending,
    )


_live = sa.select(W.c.id).where(W.c.lost_at.is_(None))
# As far as is known: a worker that was killed counts until another one finds it lost.
ATTENDED = sa.exists(_live)

# Workers run, but none that has the run's workflow and version. Not while no worker runs at all: then nothing is known.
CODELESS = sa.and_(
    R.c.state != sa.literal_column("'final'"),
    R.c.definition_id.not_in(sa.select(WD.c.definition_id).where(WD.c.worker_id.in_(_live))),
    ATTENDED,
)

# Literals, not parameters: only then does SQLite use the partial index of open runs.
OPEN = R.c.state != sa.literal_column("'final'")


def status_clause(status: Status) -> sa.ColumnElement[bool]:
    """The condition that holds for exactly the rows whose `status_of` is `status`."""
    if status in FINAL_STATUSES:
        return sa.and_(R.c.state == "final", R.c.result_kind == status.value)
    ends, cancels = R.c.ending.is_not(None), R.c.requested == "cancel"
    blocks = sa.or_(R.c.blocked_reason.is_not(None), CODELESS)
    children = R.c.ending.contains(_CHILDREN_PHASE, autoescape=True)
    pauses = sa.and_(R.c.ending.is_(None), ~blocks, R.c.requested == "pause")
    attempt = sa.and_(R.c.state == "active", R.c.activity.is_not(None), R.c.activity == "running")
    goes_on = sa.and_(R.c.ending.is_(None), ~blocks, R.c.requested == "none")
    clauses: dict[Status, Any] = {
        Status.COMPENSATING: sa.and_(ends, ~children),
        Status.CANCELING: sa.or_(sa.and_(ends, children), sa.and_(~ends, cancels)),
        Status.BLOCKED: sa.and_(~ends, ~cancels, blocks),
        Status.PAUSING: sa.and_(pauses, attempt),
        Status.PAUSED: sa.and_(pauses, ~attempt),
        Status.QUEUED: sa.and_(goes_on, R.c.state == "queued"),
        Status.RUNNING: sa.and_(goes_on, R.c.state == "active", sa.func.coalesce(R.c.activity, "running") == "running"),
        Status.WAITING: sa.and_(goes_on, R.c.state == "active", R.c.activity == "waiting"),
        Status.SLEEPING: sa.and_(goes_on, R.c.state == "active", R.c.activity == "sleeping"),
    }
    return sa.and_(OPEN, clauses[status])
