"""Reading journals: rows of the store as replay wants them, for many runs in one query each."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import sqlalchemy as sa

from signoff.engine.outcomes import RUN_COLUMNS, R, Row, RunRow, S
from signoff.replay.messages import JournalEntry
from signoff.store import payloads
from signoff.store.tables import Definition, Round, Run, Tenant
from signoff.store.tx import Tx
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, StepKind

D = Definition.__table__
ROUND = Round.__table__
T = Tenant.__table__
# run and number come first
StepRow: Any = namedtuple("StepRow", tuple(S.columns.keys()))  # type: ignore[misc]  # the table knows the names


@dataclass(slots=True)
class StepState:
    """What the worker must know beyond replay of a step that is open, or may have to be undone."""

    attempts: int = 0
    lost: int = 0
    due_at: datetime | None = None
    started: bool = False
    asked_at: datetime | None = None


@dataclass(slots=True)
class Loaded:
    """A run with its journal, as one read saw them."""

    row: Row
    args: str | None
    entries: list[JournalEntry]
    states: dict[int, StepState]
    seeds: dict[int, str] = field(default_factory=dict)
    tenant: str = ""
    parent: str | None = None


# what a new row holds where a start gives nothing
_NEW = {name: None if item.is_required() else item.default for name, item in Run.model_fields.items()}


def newborn(tx: Tx, values: Mapping[str, Any]) -> Loaded:
    """A run that was just stored with these values, as a read would give it. Its args are inline, it has no parent."""
    loaded = Loaded(cast(Row, SimpleNamespace(**{**_NEW, **values})), values["args"], [], {})
    _name(tx, [loaded])
    return loaded


@dataclass(slots=True)
class News:
    """What was recorded of a run since its program last saw the journal."""

    row: Row
    entries: list[JournalEntry]


def entry_of(row: Any, texts: dict[str, str]) -> JournalEntry:
    value = texts.get(row.value, row.value) if row.value is not None else None
    kind = OutcomeKind(row.outcome_kind) if row.outcome_kind is not None else None
    error = None
    if kind in (OutcomeKind.FAILURE, OutcomeKind.CANCELED) and value is not None:
        error, value = ErrorInfo.from_json(json.loads(value)), None
    return JournalEntry(
        no=row.no,
        kind=StepKind(row.kind),
        name=row.name,
        args=texts.get(row.args, row.args) if row.args is not None else None,
        generation=row.generation,
        asked_after=row.asked_after,
        asked_at=row.asked_at,
        retired_in=row.retired_in,
        options=row.options,
        due_at=row.due_at,
        outcome_no=row.outcome_no,
        outcome_kind=kind,
        ended_at=row.ended_at,
        value=value,
        error=error,
        by_handler=bool(row.by_handler),
    )


def rows_of(tx: Tx, run_ids: Sequence[int]) -> dict[int, Row]:
    """The rows of the runs that exist."""
    found = tx.dialect.fetch_rows(tx, R, RUN_COLUMNS, "id", run_ids) if run_ids else []
    return {row[0]: cast(Row, RunRow._make(row)) for row in found}


def load(tx: Tx, run_ids: Sequence[int], known: Mapping[int, Row] | None = None) -> dict[int, Loaded]:
    """The runs (those that exist) with their whole journals; `known` rows are taken as they are."""
    if known is not None:
        rows: Sequence[Row] = [known[run_id] for run_id in run_ids]
    else:
        rows = list(rows_of(tx, run_ids).values())
    started = [row.id for row in rows if row.next_no > 0]
    found = tx.dialect.fetch_rows(tx, S, StepRow._fields, "run_id", started) if started else []
    steps: list[Any] = [StepRow._make(step) for step in found]
    steps.sort(key=lambda step: step[:2])  # by run and number
    texts = _texts(tx, steps, rows)
    loaded = {row.id: Loaded(row, texts.get(row.args, row.args) if row.args else None, [], {}) for row in rows}
    for step in steps:
        run = loaded[step.run_id]
        run.entries.append(entry_of(step, texts))
        undoable = step.options is not None and '"compensate"' in step.options
        if (step.outcome_no is None or undoable) and step.retired_in is None:
            run.states[step.no] = StepState(step.attempts, step.lost, step.due_at, bool(step.started), step.asked_at)
    rounds = [row.id for row in rows if row.generation > 1]
    if rounds:
        for item in tx.conn.execute(sa.select(ROUND).where(ROUND.c.run_id.in_(rounds))):
            loaded[item.run_id].seeds[item.generation] = item.seed
    _name(tx, loaded.values())
    return loaded


def load_news(tx: Tx, known: dict[int, int]) -> dict[int, News]:
    """Of each run (id -> last outcome known) its row and the outcomes recorded since."""
    rows = rows_of(tx, list(known)).values()
    news = {row.id: News(row, []) for row in rows}
    ahead = [row.id for row in rows if row.outcome_no > known[row.id]]
    if ahead:
        lowest = min(known[run_id] for run_id in ahead)
        steps = tx.conn.execute(
            sa.select(S)
            .where(S.c.run_id.in_(ahead), S.c.outcome_no > lowest, S.c.retired_in.is_(None))
            .order_by(S.c.run_id, S.c.outcome_no)
        ).all()
        texts = _texts(tx, steps, ())
        for step in steps:
            if step.outcome_no > known[step.run_id]:
                news[step.run_id].entries.append(entry_of(step, texts))
    return news


def _texts(tx: Tx, steps: Iterable[Any], rows: Iterable[Row]) -> dict[str, str]:
    stored = [text for step in steps for text in (step.args, step.value) if text is not None and text.startswith("@")]
    stored += [row.args for row in rows if row.args is not None and row.args.startswith("@")]
    found = payloads.get_many(tx, stored) if stored else []
    return {key: text for key, text in zip(stored, found, strict=True) if text is not None}


_tenants: dict[tuple[str, int], str] = {}


def _name(tx: Tx, runs: Iterable[Loaded]) -> None:
    key = str(tx.conn.engine.url)
    for run in runs:
        tenant = (key, run.row.tenant_id)
        if tenant not in _tenants:
            _tenants[tenant] = tx.conn.execute(sa.select(T.c.name).where(T.c.id == run.row.tenant_id)).scalar() or ""
        run.tenant = _tenants[tenant]
        if run.row.parent_id is not None:
            run.parent = tx.conn.execute(sa.select(R.c.public_id).where(R.c.id == run.row.parent_id)).scalar()
