"""The journal of a run as it is shown: its steps, their failed tries, and what is awaited."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from signoff.engine.lookup import find_run
from signoff.engine.outcomes import R, Row, S
from signoff.engine.views.values import shown_error, shown_text, texts_of
from signoff.store.scope import Scope
from signoff.store.tables import Approval, Attempt, PoolSlot
from signoff.store.tx import Tx
from signoff.workflow.kinds import FUNCTION_KINDS, ErrorInfo, OutcomeKind, StepKind

APPROVAL = Approval.__table__
ATTEMPT = Attempt.__table__
SLOT = PoolSlot.__table__

StepShown = Literal[
    "open", "running", "backoff", "delayed", "success", "failure", "timeout", "canceled"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """A try that failed or was lost. `next_at`: when the next one is due."""

    number: int
    started_at: datetime | None
    ended_at: datetime
    error: ErrorInfo
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepView:
    no: int
    kind: str
    name: str
    generation: int
    retired_in: int | None
    state: StepShown
    asked_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    attempts: int
    lost: int
    args: str | None
    result: str | None
    error: ErrorInfo | None
    progress: Progress | None
    child_run: str | None
    approval: str | None
    by_handler: bool
    pool: str | None
    attempt_rows: tuple[AttemptView, ...] = ()


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a run waits for. `who`: the selectors of those who may answer, as plain JSON."""

    kind: str  # event, ask, child, sleep, pool
    name: str
    step_no: int
    since: datetime
    due_at: datetime | None = None
    who: tuple[Any, ...] = ()
    approval_id: str | None = None
    child_run: str | None = None


def steps_view(tx: Tx, scope: Scope, run: str, *, after: int = -1, limit: int | None = None) -> list[StepView]:
    """The journal in the order of asking, retired rows too; `after` is the number of the last step seen."""
    row = find_run(tx, scope, run)
    return _shown(tx, row, steps_select(row.id).where(S.c.no > after), limit)


def open_steps_view(tx: Tx, scope: Scope, run: str, *, limit: int | None = None) -> list[StepView]:
    """What a run has under way, in the order of asking."""
    row = find_run(tx, scope, run)
    return _shown(tx, row, steps_select(row.id).where(S.c.outcome_no.is_(None), S.c.retired_in.is_(None)), limit)


def steps_following(tx: Tx, scope: Scope, run: str, no: int, *, limit: int | None = None) -> list[StepView]:
    """What a run asked for after step `no` had its outcome, in the order of asking; nothing while it has none."""
    row = find_run(tx, scope, run)
    came = sa.select(S.c.outcome_no).where(S.c.run_id == row.id, S.c.no == no).scalar_subquery()
    later = steps_select(row.id).where(S.c.no > no, S.c.retired_in.is_(None), S.c.asked_after >= came)
    return _shown(tx, row, later, limit)


def _shown(tx: Tx, row: Row, select: sa.Select[Any], limit: int | None) -> list[StepView]:
    """Those of a run's steps that are no bookkeeping, with their failed tries."""
    select = select.where(S.c.kind.not_in((StepKind.MARKER, StepKind.CANCEL))).order_by(S.c.no)
    steps = tx.conn.execute(select.limit(limit)).all()
    slots = slots_of(tx, row.id, steps)
    texts = texts_of(tx, values_of(steps))
    tries: dict[int, list[AttemptView]] = {}
    if any(step.attempts or step.lost for step in steps):
        within = ATTEMPT.c.step_no.between(steps[0].no, steps[-1].no)
        rows = tx.conn.execute(
            sa.select(ATTEMPT).where(ATTEMPT.c.run_id == row.id, within).order_by(ATTEMPT.c.step_no, ATTEMPT.c.number)
        )
        for item in rows:
            error = ErrorInfo.from_json(json.loads(item.error))
            view = AttemptView(item.number, item.started_at, item.ended_at, error, item.next_at)
            tries.setdefault(item.step_no, []).append(view)
    return [step_view(step, tx.now, row, slots, texts, tuple(tries.get(step.no, ()))) for step in steps]


def step_state(
    *,
    kind: str,
    outcome_kind: str | None,
    started: bool,
    tried: bool,
    due_at: datetime | None,
    now: datetime,
    running: bool,
) -> StepShown:
    """What a step shows. `tried`: an attempt failed or was lost. `running`: its run is, and it holds what it needs."""
    if outcome_kind is not None:
        return OutcomeKind(outcome_kind).value
    if kind not in FUNCTION_KINDS and kind != StepKind.CHILD:
        return "open"
    if due_at is not None and due_at > now:
        return "backoff" if tried else "delayed"
    if started and running and kind in FUNCTION_KINDS:
        return "running"
    return "open"


def steps_select(run_id: int) -> sa.Select[Any]:
    """The steps of a run, with the ids of their child runs and questions; one row each."""
    child = R.alias()
    return (
        sa.select(
            S, child.c.public_id.label("child_run"), APPROVAL.c.public_id.label("approval"), APPROVAL.c.to.label("who")
        )
        .outerjoin(child, child.c.id == S.c.child_id)
        .outerjoin(APPROVAL, sa.and_(APPROVAL.c.run_id == S.c.run_id, APPROVAL.c.step_no == S.c.no))
        .where(S.c.run_id == run_id)
    )


def step_view(
    step: Row, now: datetime, run: Row, slots: frozenset[int], texts: Mapping[str, str], tries: tuple[AttemptView, ...]
) -> StepView:
    options = json.loads(step.options) if step.options else {}
    secret, pool = bool(options.get("sensitive")), options.get("pool")
    failed = step.outcome_kind in (OutcomeKind.FAILURE, OutcomeKind.CANCELED)
    state = step_state(
        kind=step.kind,
        outcome_kind=step.outcome_kind,
        started=step.started,
        tried=step.attempts + step.lost > 0,
        due_at=step.due_at,
        now=now,
        running=run.activity == "running" and step.retired_in is None and (pool is None or step.no in slots),
    )
    progress = json.loads(step.progress) if step.progress else None
    return StepView(
        no=step.no,
        kind=step.kind,
        name=step.name,
        generation=step.generation,
        retired_in=step.retired_in,
        state=state,
        asked_at=step.asked_at,
        ended_at=step.ended_at,
        due_at=step.due_at,
        attempts=step.attempts,
        lost=step.lost,
        args=shown_text(step.args, texts, secret),
        result=None if failed else shown_text(step.value, texts, secret),
        error=shown_error(step.value, texts) if failed else None,
        progress=Progress(progress["fraction"], progress.get("text") or "") if progress else None,
        child_run=step.child_run,
        approval=step.approval,
        by_handler=step.by_handler,
        pool=pool,
        attempt_rows=tries,
    )


def awaited(step: Row, view: StepView) -> Awaited | None:
    """What an open step keeps its run waiting for; None: it is under way."""
    if step.kind in FUNCTION_KINDS:
        if view.pool is None or view.state != "open":
            return None
        return Awaited("pool", view.pool, view.no, view.asked_at)
    who = tuple(json.loads(step.who)) if step.who else ()
    return Awaited(view.kind, view.name, view.no, view.asked_at, view.due_at, who, view.approval, view.child_run)


def slots_of(tx: Tx, run_id: int, steps: Sequence[Row]) -> frozenset[int]:
    """The steps that hold a place in their pool. Without pools nothing is asked."""
    if not any(step.outcome_no is None and step.options and '"pool"' in step.options for step in steps):
        return frozenset()
    return frozenset(tx.conn.execute(sa.select(SLOT.c.step_no).where(SLOT.c.run_id == run_id)).scalars())


def values_of(steps: Iterable[Row]) -> Iterable[str | None]:
    for step in steps:
        yield step.args
        yield step.value
