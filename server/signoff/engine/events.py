"""Messages to a run: sending, buffering, and handing them to the waits of its handler."""

from __future__ import annotations

import hashlib
import json
from collections import namedtuple
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from signoff.engine.definitions import definition_by_id
from signoff.engine.lookup import OpenStep, find_locked, find_run, look_up
from signoff.engine.outcomes import (
    E,
    Ended,
    R,
    Row,
    S,
    lock_run,
    record_due,
    record_outcome,
    record_together,
)
from signoff.engine.starting import MAX_VALUE_BYTES, new_public_id
from signoff.engine.status import status_of
from signoff.engine.views import EventView, event_view
from signoff.replay.messages import EventDetail
from signoff.store import payloads
from signoff.store.dialect import padded
from signoff.store.scope import Scope
from signoff.store.tables import Approval
from signoff.store.tx import Tx
from signoff.workflow.errors import (
    Conflict,
    InvalidInput,
    LimitExceeded,
    NeedsDecision,
    NotFound,
    Undecodable,
)
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, Requested, RunState, StepKind
from signoff.workflow.names import check_name
from signoff.workflow.registry import Registry

APPROVAL = Approval.__table__

# Says why a value (JSON text) does not fit the event of this name, as plain JSON; None: it fits, or nobody knows.
Misfit = Callable[[str, str], dict[str, Any] | None]


class Taken(NamedTuple):
    """What a wait gets, as the outcome to record."""

    kind: OutcomeKind
    value: str | None
    error: ErrorInfo | None
    at: datetime | None = None  # when the event was sent


def misfit_by(registry: Registry) -> Misfit:
    """Compares with the events that the code of this process declares."""

    def misfit(name: str, text: str) -> dict[str, Any] | None:
        event = registry.find_event(name)
        if event is None:
            return None
        try:
            event.codec.decode(text)
        except Undecodable as error:
            return {"message": str(error), "errors": [field.to_json() for field in error.fields]}
        return None

    return misfit


# built once: building and hashing a statement costs more than running it
_RUN: sa.BindParameter[int] = sa.bindparam("run_id")
_OPEN = (S.c.run_id == _RUN, S.c.outcome_no.is_(None), S.c.retired_in.is_(None))
_OPEN_STEPS = (
    sa.select(S.c.no, S.c.kind, S.c.name, S.c.options)
    .where(*_OPEN, S.c.kind.in_([StepKind.EVENT.value, StepKind.ASK.value]))
    .order_by(S.c.no)
)
_OPEN_WAITS = (
    sa.select(S.c.no, S.c.options, S.c.due_at).where(*_OPEN, S.c.kind == StepKind.EVENT.value).order_by(S.c.no)
)
_OPEN_ASKS = sa.select(S.c.name, S.c.options).where(*_OPEN, S.c.kind == StepKind.ASK.value)
_BUFFERED = sa.select(E).where(E.c.run_id == _RUN, E.c.state == "buffered").order_by(E.c.id).limit(1)
_BUFFERED_NAMES = _BUFFERED.where(E.c.name.in_(sa.bindparam("names", expanding=True)), ~E.c.by_id)
# one name is the rule, and an `IN` is compiled anew for each number of names
_BUFFERED_NAME = _BUFFERED.where(E.c.name == sa.bindparam("name"), ~E.c.by_id)
_BUFFERED_ID = _BUFFERED.where(E.c.public_id == sa.bindparam("event_id"), E.c.by_id)
_CONSUME = (
    sa.update(E).where(E.c.id == sa.bindparam("b_id")).values(state="consumed", consumed_by=sa.bindparam("step_no"))
)
MAX_BATCH = 256  # waits that are looked up with one statement
_BY_ID = sa.select(E).where(E.c.id == sa.bindparam("event"))
_NEW = sa.insert(E).returning(E)

# Sent as it is: it stands between an event and the run that waits for it. The tenant: see lookup.OF_TENANT
_BUFFERED_BY_ID = (
    "SELECT 1 FROM signoff_run r JOIN signoff_event e ON e.run_id = r.id WHERE r.tenant_id + 0 = ? AND r.public_id = ?"
    " AND e.name = ? AND e.state = 'buffered' AND NOT e.by_id LIMIT 1"
)
_EventRow: Any = namedtuple("_EventRow", tuple(E.columns.keys()))  # type: ignore[misc]  # the table knows the names
_MADE = _EventRow._fields[1:]


class Looked(NamedTuple):
    """A run, locked, as a send finds it."""

    run: Row
    steps: Sequence[OpenStep | Row]  # its open waits and questions
    follows: bool  # an event of this name is still to be handed over


class Handed(NamedTuple):
    """A new event that goes to a wait which is open already."""

    run: Row
    event: Any
    value: str


def send(
    tx: Tx,
    scope: Scope,
    run: str,
    event: str,
    value: str,
    *,
    by_id: bool = False,
    idempotency_key: str | None = None,
    is_error: bool = False,
    sender: str | None = None,
    channel: str | None = None,
    sensitive: bool = False,
    max_bytes: int | None = None,
    misfit: Misfit | None = None,
    known: bool = True,
    patient: bool = True,
    looked: Looked | None = None,
    together: list[Handed] | None = None,
) -> EventView:
    """Sends the event named `event` (or, `by_id`, made by `create_event`) and wakes a wait for it, in one transaction.

    `value` is JSON text; of an error event the message as a JSON string, or an object with `message` and `data`.
    `known` False: this process cannot tell whether the value fits, so the run's worker hands it to the wait.
    Raises NotFound (run, id), InvalidInput (not declared, too long a name), NeedsDecision (an ask), LimitExceeded, and
    Conflict: the run takes no events any more, the id is answered, or the key was used for another value; and, if not
    `patient`, RunBusy: somebody holds the run's row. `looked`: what the caller has looked up already. `together`: the
    caller hands over what is put there.
    """
    check_name(event, "event")
    row, steps, follows = looked or _look(tx, scope, run, event, patient)
    digest = hashlib.sha256(f"{event}\0{by_id:d}{is_error:d}\0{value}".encode()).hexdigest()
    if idempotency_key is not None:
        check_name(idempotency_key, "idempotency key")
        earlier = _by_key(tx, row, idempotency_key)
        if earlier is not None:
            if earlier.digest != digest:
                raise Conflict(
                    f"the idempotency key {idempotency_key!r} was used in run {run!r} for another event or value",
                    run=run,
                    event=event,
                    key=idempotency_key,
                )
            return event_view(tx, earlier, run)
    before, row = row, record_due(tx, row)
    if row is not before:  # waits have just expired
        steps = tx.conn.execute(_OPEN_STEPS, {"run_id": row.id}).all()
    _check_open(row, event)
    most = max_bytes or definition_by_id(tx, row.definition_id).settings.get("max_value_bytes") or MAX_VALUE_BYTES
    if len(value) * 4 > most and (size := len(value.encode())) > most:
        raise LimitExceeded(f"the event is {size} bytes, the limit is {most}", run=run, event=event, limit=most)
    sent: dict[str, Any] = {
        "state": "buffered",
        "value": payloads.put(tx, row.id, value),
        "is_error": is_error,
        "sender": sender or (scope.person.actor if scope.person is not None else None),
        "channel": channel,
        "idempotency_key": idempotency_key,
        "digest": digest,
        "sent_at": tx.now,
        "sensitive": sensitive,
    }
    if by_id:
        stored = _fill(tx, row, event, value, sent, misfit)
    else:
        _check_declared(tx, row, event, [step for step in steps if step.kind == StepKind.ASK])
        # one that is overdue all the same waits for an event that nobody could judge yet
        overdue = row.wake_at is not None and row.wake_at <= tx.now
        wait = _wait_for(steps, event) if known and not (follows or overdue) else None
        if wait is not None and (misfit is None or is_error or misfit(event, value) is None):
            new = _made(tx, row, event, {**sent, "state": "consumed", "consumed_by": wait})
            handed = Handed(row, new, value)
            if together is not None:
                together.append(handed)
            else:
                hand_over(tx, [handed])
            return event_view(tx, new, run)
        stored = _insert(tx, row, event, sent).id
    if known:
        match_event(tx, row, misfit=misfit)
    elif open_waits(tx, row.id):
        tx.conn.execute(sa.update(R).where(R.c.id == row.id).values(ready=0))
        tx.notify("ready")
    tx.notify("run", row.id)
    return event_view(tx, tx.conn.execute(_BY_ID, {"event": stored}).one(), run)


def hand_over(tx: Tx, events: Sequence[Handed]) -> None:
    """Writes new events of locked runs and wakes their waits: the last that the transaction does."""
    ended = [Ended(run, event.consumed_by, *_outcome(event, text)[:3]) for run, event, text in events]
    with tx.dialect.pipelined_to_end(tx):
        tx.dialect.insert_rows(tx, E, _MADE, [handed.event[1:] for handed in events])
        record_together(tx, ended)


class RunBusy(Exception):  # it is no error: another time, another way
    """Somebody holds the run's row, or there is none."""


def _look(tx: Tx, scope: Scope, run: str, event: str, patient: bool) -> Looked:
    # no run has such an id, and PostgreSQL would not even look
    tenant_id = scope.tenant_id if scope.tenant_id and "\0" not in run else find_run(tx, scope, run).tenant_id
    found, buffered = look_up(
        tx, tenant_id, [run], patient=patient, also=[(_BUFFERED_BY_ID, (tenant_id, run, event))]
    )  # fmt: skip
    if run not in found:
        if not patient:
            raise RunBusy
        raise NotFound(f"there is no run {run!r}", run=run)
    return Looked(*found[run], bool(buffered[0].rows))


def _wait_for(steps: Sequence[OpenStep | Row], event: str) -> int | None:
    """The open wait that an event of this name goes to: the one that was asked for first."""
    for step in steps:
        if step.kind == StepKind.EVENT and event in json.loads(step.options or "{}").get("names", ()):
            return int(step.no)
    return None


def create_event(
    tx: Tx, scope: Scope, run: str, name: str, *, event_id: str | None = None, channel: str | None = None
) -> EventView:
    """Makes an event that only its id reaches: for a link or a webhook. It is sent with `by_id`. Raises as `send`."""
    row = find_locked(tx, scope, run)
    check_name(name, "event")
    _check_open(row, name)
    _check_declared(tx, row, name, _open_asks(tx, row.id))
    if event_id is not None:
        check_name(event_id, "event id")
        taken = sa.select(E.c.id).where(E.c.tenant_id == row.tenant_id, E.c.public_id == event_id)
        if tx.conn.execute(taken).first() is not None:
            raise Conflict(f"there is an event with the id {event_id!r} already", run=run, event=event_id)
    stored = _insert(tx, row, name, {"by_id": True, "state": "created", "channel": channel}, event_id)
    tx.notify("run", row.id)
    return event_view(tx, stored, run)


def match_event(tx: Tx, run: Row, *, misfit: Misfit | None = None) -> Row:
    """Hands what is buffered to the open waits of the locked run, in the order in which they were asked for."""
    for step_no, detail, due_at in _open_waits(tx, run.id):
        taken = _take(tx, run.id, step_no, detail, misfit, due_at if due_at is not None and due_at <= tx.now else None)
        if taken is not None:
            run = record_outcome(tx, run, step_no, taken.kind, taken.value, taken.error, at=taken.at) or run
    return run


def judge(tx: Tx, run_id: int, worker_id: int, *, misfit: Misfit) -> None:
    """Hands what senders could not judge to the waits of the run, before the timers that fell due since then.

    For the run's worker. If there is nothing to hand over, its timers are no longer held up by it.
    """
    run = lock_run(tx, run_id)
    if run is None or run.state == RunState.FINAL or match_event(tx, run, misfit=misfit) is not run:
        return
    due = run.worker_id is None and run.wake_at is not None and run.wake_at <= tx.now  # is claimed for that
    if run.worker_id == worker_id or due:
        tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(ready=None))


def open_waits(tx: Tx, run_id: int) -> list[tuple[int, EventDetail]]:
    """The waits of a run that have no event yet, in the order in which they were asked for."""
    return [(no, detail) for no, detail, _ in _open_waits(tx, run_id)]


def _open_waits(tx: Tx, run_id: int) -> list[tuple[int, EventDetail, datetime | None]]:
    waits = tx.conn.execute(_OPEN_WAITS, {"run_id": run_id}).all()
    found = [(wait.no, json.loads(wait.options), wait.due_at) for wait in waits]
    return [(no, EventDetail(tuple(told.get("names", ())), told.get("event_id")), due) for no, told, due in found]


def runs_with_buffered(tx: Tx, waits: Sequence[tuple[int, str]]) -> set[int]:
    """Of these waits, given as run and event name, the runs that an event of the name is kept for."""
    found: set[int] = set()
    for start in range(0, len(waits), MAX_BATCH):
        part = padded(waits[start : start + MAX_BATCH])
        (answer,) = tx.dialect.run_all(tx, (_buffered_of(len(part)), [value for wait in part for value in wait]))
        found.update(row[0] for row in answer.rows)
    return found


@lru_cache(maxsize=32)
def _buffered_of(width: int) -> str:
    pairs = ", ".join(["(CAST(? AS bigint), CAST(? AS text))"] * width)
    return (
        f"SELECT v.column1 FROM (VALUES {pairs}) AS v WHERE EXISTS (SELECT 1 FROM signoff_event e"
        " WHERE e.run_id = v.column1 AND e.name = v.column2 AND e.state = 'buffered' AND NOT e.by_id)"
    )


def take_buffered(
    tx: Tx, run_id: int, step_no: int, detail: EventDetail, *, misfit: Misfit | None = None
) -> Taken | None:
    """What a wait that is just being asked for gets at once; None: it waits.

    Takes the earliest sent event of its names that fits, and sets aside those that do not. A wait for an id that is
    unknown in this run, consumed, or awaited already, fails at once.
    """
    if detail.event_id is not None:
        problem = _id_problem(tx, run_id, step_no, detail.event_id)
        if problem is not None:
            code, message = problem
            error = ErrorInfo("EventError", message, {"code": code, "id": detail.event_id})
            return Taken(OutcomeKind.FAILURE, None, error)
    return _take(tx, run_id, step_no, detail, misfit)


def _take(
    tx: Tx, run_id: int, step_no: int, detail: EventDetail, misfit: Misfit | None, before: datetime | None = None
) -> Taken | None:
    earliest, given = _BUFFERED_NAMES, {"run_id": run_id, "names": list(detail.names)}
    if len(detail.names) == 1:
        earliest, given = _BUFFERED_NAME, {"run_id": run_id, "name": detail.names[0]}
    if detail.event_id is not None:
        earliest, given = _BUFFERED_ID, {"run_id": run_id, "event_id": detail.event_id}
    if before is not None:
        earliest = earliest.where(E.c.sent_at < before)
    while True:
        event = tx.conn.execute(earliest, given).one_or_none()
        if event is None:
            return None
        text = payloads.get(tx, event.value)
        problem = misfit(event.name, text) if misfit is not None and not event.is_error else None
        if problem is None:
            tx.conn.execute(_CONSUME, {"b_id": event.id, "step_no": step_no})
            return _outcome(event, text)
        tx.conn.execute(sa.update(E).where(E.c.id == event.id).values(state="set_aside", problem=json.dumps(problem)))


def _outcome(event: Row, text: str) -> Taken:
    if event.is_error:
        raw = json.loads(text)
        told = raw if isinstance(raw, dict) else {"message": raw if isinstance(raw, str) else text}
        data = {"event": event.name, "id": event.public_id, "data": told.get("data")}
        message = str(told.get("message") or "the sender reported an error")
        return Taken(OutcomeKind.FAILURE, None, ErrorInfo("EventError", message, data), event.sent_at)
    head = {
        "name": event.name,
        "id": event.public_id,
        "sender": event.sender,
        "channel": event.channel,
        "sent_at": event.sent_at.isoformat(),
    }
    # the payload is spliced in as it is: text keeps every value exactly
    return Taken(OutcomeKind.SUCCESS, f'{{"value": {text}, {json.dumps(head)[1:]}', None, event.sent_at)


def _id_problem(tx: Tx, run_id: int, step_no: int, event_id: str) -> tuple[str, str] | None:
    event = tx.conn.execute(
        sa.select(E.c.state).where(E.c.run_id == run_id, E.c.public_id == event_id, E.c.by_id)
    ).one_or_none()
    if event is None:
        return "unknown", f"this run has no event with the id {event_id!r}"
    if event.state in ("consumed", "set_aside"):
        return "consumed", f"the event {event_id!r} was handed to an earlier wait"
    others = tx.conn.execute(
        sa.select(S.c.options).where(
            S.c.run_id == run_id,
            S.c.no < step_no,
            S.c.kind == StepKind.EVENT.value,
            S.c.outcome_no.is_(None),
            S.c.retired_in.is_(None),
        )
    ).scalars()
    if any(json.loads(options).get("event_id") == event_id for options in others):
        return "awaited", f"the event {event_id!r} is awaited already"
    return None


def _by_key(tx: Tx, run: Row, key: str) -> Row | None:
    return tx.conn.execute(sa.select(E).where(E.c.run_id == run.id, E.c.idempotency_key == key)).one_or_none()


def _check_open(run: Row, event: str) -> None:
    state = None
    if run.state == RunState.FINAL:
        state = run.result_kind
    elif run.requested == Requested.CANCEL or run.ending is not None:
        state = status_of(run).value
    if state is not None:
        message = f"run {run.public_id!r} is {state} and takes no events any more"
        raise Conflict(message, run=run.public_id, event=event, state=state)


def _check_declared(tx: Tx, run: Row, name: str, open_asks: Sequence[OpenStep | Row]) -> None:
    definition = definition_by_id(tx, run.definition_id)
    if definition.events is not None and name not in definition.events:
        declared = ", ".join(sorted(definition.events)) or "none"
        raise InvalidInput(
            f"workflow {definition.name!r} declares no event {name!r}; declared: {declared}",
            run=run.public_id,
            event=name,
            workflow=definition.name,
        )
    for ask in open_asks:
        if name in (ask.name, json.loads(ask.options or "{}").get("ask")):
            raise _needs_decision(run, name)


def _open_asks(tx: Tx, run_id: int) -> Sequence[Row]:
    return tx.conn.execute(_OPEN_ASKS, {"run_id": run_id}).all()


def _needs_decision(run: Row, event: str) -> NeedsDecision:
    return NeedsDecision(
        f"{event!r} is a question to people: only a decision answers it, not an event", run=run.public_id, event=event
    )


def _made(tx: Tx, run: Row, name: str, values: dict[str, Any]) -> Any:
    """The row of a new event, without the number that the database gives it."""
    ids = {"tenant_id": run.tenant_id, "public_id": new_public_id(tx.now), "run_id": run.id, "name": name}
    blank: dict[str, Any] = dict.fromkeys(_EventRow._fields)
    return _EventRow(**{**blank, "by_id": False, "created_at": tx.now, **ids, **values})


def _insert(tx: Tx, run: Row, name: str, values: dict[str, Any], event_id: str | None = None) -> Row:
    row = {
        "tenant_id": run.tenant_id,
        "public_id": event_id or new_public_id(tx.now),
        "run_id": run.id,
        "name": name,
        "created_at": tx.now,
    }
    return tx.conn.execute(_NEW, {**row, **values}).one()


def _fill(tx: Tx, run: Row, event_id: str, text: str, values: dict[str, Any], misfit: Misfit | None) -> int:
    """Sends to an id. Nobody else can answer it meanwhile: the run is locked."""
    event = tx.conn.execute(
        sa.select(E).where(E.c.run_id == run.id, E.c.public_id == event_id, E.c.by_id)
    ).one_or_none()
    if event is None:
        asked = sa.select(APPROVAL.c.id).where(APPROVAL.c.run_id == run.id, APPROVAL.c.public_id == event_id)
        if tx.conn.execute(asked).first() is not None:
            raise _needs_decision(run, event_id)
        message = f"run {run.public_id!r} has no event with the id {event_id!r}"
        raise NotFound(message, run=run.public_id, event=event_id)
    if event.state != "created":
        raise Conflict(
            f"the event {event_id!r} of run {run.public_id!r} is answered already",
            run=run.public_id,
            event=event_id,
            state=event.state,
        )
    problem = misfit(event.name, text) if misfit is not None and not values["is_error"] else None
    if problem is not None:
        raise InvalidInput(problem["message"], run=run.public_id, event=event_id)
    values["channel"] = values["channel"] or event.channel
    tx.conn.execute(sa.update(E).where(E.c.id == event.id).values(**values))
    return int(event.id)
