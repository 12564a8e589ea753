"""Runs as they are now, one by one and in lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from signoff.engine.definitions import D
from signoff.engine.lookup import find_run, in_scope
from signoff.engine.outcomes import R, Row, S
from signoff.engine.status import ATTENDED, CODELESS, FINAL_STATUSES, OPEN, Status, status_clause, status_of
from signoff.engine.views.steps import Awaited, StepView, awaited, slots_of, step_view, steps_select, values_of
from signoff.engine.views.values import shown_error, shown_text, texts_of
from signoff.store.scope import Scope
from signoff.store.tables import Completion, Label, Tenant
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput
from signoff.workflow.kinds import ErrorInfo, RunState, StepKind

T = Tenant.__table__
DONE = Completion.__table__
LABEL = Label.__table__

# they say themselves why they do not go on
_RESTING = FINAL_STATUSES | {Status.BLOCKED, Status.PAUSED}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of a list."""

    id: str
    workflow: str
    version: int
    tenant: str
    status: Status
    generation: int
    priority: int
    labels: Mapping[str, str]
    requester: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_wake_at: datetime | None


@dataclass(frozen=True, slots=True)
class CompletionView:
    """An on_complete that did not succeed in the transaction that ended the run."""

    done: bool
    attempts: int
    next_at: datetime | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is now. `version_no` only grows. `hint`: why it stands still although nothing is wrong with it."""

    id: str
    workflow: str
    version: int
    tenant: str
    status: Status
    generation: int
    priority: int
    labels: Mapping[str, str]
    requester: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    args: str | None
    result: str | None
    error: ErrorInfo | None
    blocked: Mapping[str, Any] | None
    hint: str | None
    requested: str
    next_wake_at: datetime | None
    awaiting: tuple[Awaited, ...]
    running: tuple[StepView, ...]
    forked_from: str | None
    completion: CompletionView | None
    version_no: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What a list shows; all given conditions hold. `text` begins a run's id, or stands in a name or label."""

    status: Sequence[Status] = ()
    workflow: str | None = None
    version: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
    parent: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """`next` goes into the next call as `after`; None: there is no more.

    `unattended`: some of these could go on, but no worker is running.
    """

    items: tuple[RunSummary, ...]
    next: str | None
    unattended: bool = False


def run_view(tx: Tx, scope: Scope, run: str) -> RunView:
    """Raises NotFound for unknown and foreign ids alike, as every view here."""
    row = _runs_row(tx, scope, run)
    steps = tx.conn.execute(
        steps_select(row.id)
        .where(S.c.outcome_no.is_(None), S.c.retired_in.is_(None), S.c.kind.not_in((StepKind.MARKER, StepKind.CANCEL)))
        .order_by(S.c.no)
    ).all()
    slots = slots_of(tx, row.id, steps)
    texts = texts_of(tx, [row.args, row.value, row.error, *values_of(steps)])
    shown = [step_view(step, tx.now, row, slots, texts, ()) for step in steps]
    options = json.loads(row.options) if row.options else {}
    secret = bool(options.get("sensitive"))
    waits = [wait for step, view in zip(steps, shown, strict=True) if (wait := awaited(step, view)) is not None]
    return RunView(
        **_summary_fields(row),
        parent=row.parent,
        args=shown_text(row.args, texts, secret),
        result=shown_text(row.value, texts, secret),
        error=shown_error(row.error, texts),
        blocked=_blocked(row),
        hint=_hint(row),
        requested=row.requested,
        awaiting=tuple(waits),
        running=tuple(view for view in shown if view.state == "running"),
        forked_from=options.get("forked_from"),
        completion=_completion(tx, row) if options.get("on_complete") and row.state == RunState.FINAL else None,
        version_no=row.touch_no,
    )


def page(tx: Tx, scope: Scope, filter: RunFilter, after: str | None = None, limit: int = 50) -> RunPage:
    """The newest runs first. Every condition is one that an index serves, or is checked on the way down."""
    texts = [filter.workflow, filter.parent, filter.text, *filter.labels, *filter.labels.values()]
    if any("\0" in text for text in texts if text is not None):
        return RunPage((), None)  # no text that is stored has it, and PostgreSQL would not even look
    select = _runs_select().where(in_scope(scope, R.c.tenant_id), *conditions(scope, filter))
    if after is not None:
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise InvalidInput(f"{after!r} is no place in a list")
        select = select.where(R.c.id < int(after))
    rows = tx.conn.execute(select.order_by(R.c.id.desc()).limit(limit + 1)).all()
    more = str(rows[limit - 1].id) if len(rows) > limit else None
    items = tuple(RunSummary(**_summary_fields(row)) for row in rows[:limit])
    unattended = bool(rows) and not rows[0].attended and any(item.status not in _RESTING for item in items)
    return RunPage(items, more, unattended)


def _runs_select() -> sa.Select[Any]:
    """Runs with their names; one row each."""
    parent = R.alias()
    return (
        sa.select(
            R,
            D.c.name.label("workflow"),
            D.c.version,
            sa.func.coalesce(T.c.name, "").label("tenant"),
            parent.c.public_id.label("parent"),
            CODELESS.label("codeless"),
            ATTENDED.label("attended"),
        )
        .join(D, D.c.id == R.c.definition_id)
        .outerjoin(T, T.c.id == R.c.tenant_id)
        .outerjoin(parent, parent.c.id == R.c.parent_id)
    )


def _runs_row(tx: Tx, scope: Scope, run: str) -> Row:
    found = find_run(tx, scope, run)
    return tx.conn.execute(_runs_select().where(R.c.id == found.id)).one()


def _blocked(row: Row) -> dict[str, Any] | None:
    if row.blocked_reason:
        reason: dict[str, Any] = json.loads(row.blocked_reason)
        return reason
    if not row.codeless:
        return None
    return {"code": "no_code", "message": _no_code(row)}


def _no_code(row: Row) -> str:
    return f"no live worker has {row.workflow!r} version {row.version}"


def _hint(row: Row) -> str | None:
    if status_of(row) in _RESTING:
        return None
    if not row.attended:
        return "no worker is running"
    return _no_code(row) if row.codeless else None


def _summary_fields(row: Row) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "workflow": row.workflow,
        "version": row.version,
        "tenant": row.tenant,
        "status": status_of(row),
        "generation": row.generation,
        "priority": row.priority,
        "labels": json.loads(row.labels) if row.labels else {},
        "requester": row.requester,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "next_wake_at": row.wake_at,
    }


def conditions(scope: Scope, wanted: RunFilter) -> Iterable[sa.ColumnElement[bool]]:
    """What a run of the list must be, in terms that indexes serve."""
    if wanted.status:
        statuses = [Status(status) for status in wanted.status]
        yield sa.or_(*(status_clause(status) for status in statuses))
        if not {Status.COMPLETED, Status.FAILED, Status.CANCELED}.intersection(statuses):
            yield OPEN  # lets the partial index of open runs be used
    if wanted.workflow is not None:
        yield R.c.definition_id.in_(sa.select(D.c.id).where(D.c.name == wanted.workflow))
    if wanted.version is not None:
        yield D.c.version == wanted.version
    for key, value in wanted.labels.items():
        yield R.c.id.in_(sa.select(LABEL.c.run_id).where(LABEL.c.key == key, LABEL.c.value == value))
    if wanted.created_after is not None:
        yield R.c.created_at >= wanted.created_after
    if wanted.created_before is not None:
        yield R.c.created_at < wanted.created_before
    if wanted.parent is not None:
        above = R.alias()
        named = sa.select(above.c.id).where(above.c.public_id == wanted.parent, in_scope(scope, above.c.tenant_id))
        yield R.c.parent_id.in_(named)
    if wanted.text:
        names = sa.select(D.c.id).where(D.c.name.icontains(wanted.text, autoescape=True))
        begins = R.c.public_id.startswith(wanted.text, autoescape=True)
        labelled = sa.exists().where(LABEL.c.run_id == R.c.id, LABEL.c.value.icontains(wanted.text, autoescape=True))
        yield sa.or_(begins, R.c.definition_id.in_(names), labelled)


def _completion(tx: Tx, row: Row) -> CompletionView | None:
    found = tx.conn.execute(
        sa.select(DONE).where(DONE.c.run_id == row.id, DONE.c.generation == row.generation)
    ).one_or_none()
    if found is None:
        return None
    return CompletionView(found.done, found.attempts, found.next_at, json.loads(found.error) if found.error else None)
