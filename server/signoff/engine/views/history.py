"""What came to a run besides its steps: events, log lines, and restarts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from signoff.engine.lookup import find_run
from signoff.engine.outcomes import Row
from signoff.engine.views.values import REDACTED, shown_text, texts_of
from signoff.store.scope import Scope
from signoff.store.tables import Event, LogLine, Round
from signoff.store.tx import Tx

E = Event.__table__
LOG = LogLine.__table__
ROUND = Round.__table__


@dataclass(frozen=True, slots=True)
class EventView:
    id: str
    run: str
    name: str
    by_id: bool
    state: str  # created, buffered, consumed, set_aside
    value: str | None
    is_error: bool
    problem: Mapping[str, Any] | None
    sender: str | None
    channel: str | None
    idempotency_key: str | None
    created_at: datetime
    sent_at: datetime | None
    consumed_by: int | None


@dataclass(frozen=True, slots=True)
class LogView:
    id: int
    step_no: int | None
    attempt: int | None
    at: datetime
    level: str
    message: str
    data: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RoundView:
    """A restart or fork. `former` is how the round before had ended: result_kind, value, error, ended_at."""

    generation: int
    started_at: datetime
    actor: str | None
    reason: str | None
    former: Mapping[str, Any] | None


def events_view(tx: Tx, scope: Scope, run: str, *, last: int | None = None) -> list[EventView]:
    """Oldest first; `last`: only so many of the newest."""
    row = find_run(tx, scope, run)
    newest = tx.conn.execute(sa.select(E).where(E.c.run_id == row.id).order_by(E.c.id.desc()).limit(last)).all()
    rows = newest[::-1]
    texts = texts_of(tx, [item.value for item in rows])
    return [_event_view(item, run, texts) for item in rows]


def event_view(tx: Tx, row: Row, run: str) -> EventView:
    return _event_view(row, run, texts_of(tx, [row.value]))


def _event_view(row: Row, run: str, texts: Mapping[str, str]) -> EventView:
    return EventView(
        id=row.public_id,
        run=run,
        name=row.name,
        by_id=row.by_id,
        state=row.state,
        value=shown_text(row.value, texts, row.sensitive),
        is_error=row.is_error,
        problem=json.loads(row.problem) if row.problem else None,
        sender=row.sender,
        channel=row.channel,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        sent_at=row.sent_at,
        consumed_by=row.consumed_by,
    )


def logs_view(tx: Tx, scope: Scope, run: str, *, after: int = 0, limit: int = 1_000) -> list[LogView]:
    """Oldest first; `after` is the id of the last line seen."""
    row = find_run(tx, scope, run)
    newer = sa.select(LOG).where(LOG.c.run_id == row.id, LOG.c.id > after)
    return [_log_view(line) for line in tx.conn.execute(newer.order_by(LOG.c.id).limit(limit))]


def last_logs_view(tx: Tx, scope: Scope, run: str, limit: int, *, step_no: int | None = None) -> list[LogView]:
    """The newest lines, of the whole run or of one step, the oldest of them first."""
    row = find_run(tx, scope, run)
    query = sa.select(LOG).where(LOG.c.run_id == row.id).order_by(LOG.c.id.desc()).limit(limit)
    lines = tx.conn.execute(query if step_no is None else query.where(LOG.c.step_no == step_no)).all()
    return [_log_view(line) for line in lines[::-1]]


def _log_view(line: Row) -> LogView:
    data = json.loads(line.data) if line.data else None
    return LogView(line.id, line.step_no, line.attempt, line.at, line.level, line.message, data)


def rounds_view(tx: Tx, scope: Scope, run: str) -> list[RoundView]:
    """The restarts of a run (and the fork that made it), oldest first; none for a run that was only started."""
    row = find_run(tx, scope, run)
    secret = bool(json.loads(row.options or "{}").get("sensitive"))
    rounds = tx.conn.execute(
        sa.select(ROUND).where(ROUND.c.run_id == row.id, ROUND.c.generation > 1).order_by(ROUND.c.generation)
    )
    views = []
    for item in rounds:
        former = json.loads(item.former) if item.former else None
        if former is not None and secret and former.get("value") is not None:
            former["value"] = json.loads(REDACTED)
        views.append(RoundView(item.generation, item.started_at, item.actor, item.reason, former))
    return views
