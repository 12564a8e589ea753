"""Running a run again: what a restart retires, and forks that begin with what another run did.

Nothing is deleted. Retired rows stay in the journal with the generation that retired them; the handler is replayed over
the rest and asks for what is missing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import sqlalchemy as sa

from signoff.engine import control, limits
from signoff.engine.definitions import definition_by_id, resolve_definition
from signoff.engine.lookup import find_locked, find_run
from signoff.engine.outcomes import R, Row, S
from signoff.engine.programs import seed_of
from signoff.engine.questions import close_questions, former_answers
from signoff.engine.starting import Started, StartSpec, start
from signoff.engine.status import Status, status_of
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tables import Event, Round
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput
from signoff.workflow.kinds import OutcomeKind, RunState, StepKind

E = Event.__table__
ROUND = Round.__table__

# A step by its number in the journal, by its name (its last use), or by name and ordinal (from 0).
StepRef = int | str | tuple[str, int]

# Which answers behind the cut are asked for again: all, none, or those of these steps.
AskAgain = bool | Sequence[int]

_BOOKKEEPING = (StepKind.MARKER, StepKind.CANCEL)


class Entry(Protocol):
    """What of a live journal row decides whether it is retired."""

    no: Any
    kind: Any
    asked_after: Any
    outcome_no: Any
    outcome_kind: Any
    by_handler: Any


@dataclass(frozen=True, slots=True)
class Cut:
    """`driven_no`: up to which outcome the handler must do again exactly what it did."""

    retired: frozenset[int]
    driven_no: int


def cut(entries: Iterable[Entry], first: Iterable[int], driven_no: int, *, ended: bool) -> Cut:
    """What goes when the steps `first` go: all that happened because of them, and what has no outcome of its own.

    Because of an outcome: what was asked in the drain after it. Because of a cancel request: all that was asked from
    there on. A step that the handler canceled after an outcome that is gone is asked again, like one that was open or
    that something else canceled. `ended`: the handler ended in the drain after outcome `driven_no`, which it may not
    repeat.
    """
    live = list(entries)
    retired = set(first) | {entry.no for entry in live if _is_unfinished(entry)}
    while True:
        gone = [entry for entry in live if entry.no in retired and entry.outcome_no is not None]
        numbers = {entry.outcome_no for entry in gone}
        canceled = min((entry.outcome_no for entry in gone if entry.kind == StepKind.CANCEL), default=None)
        lowest = min(numbers, default=None)
        more = {
            entry.no
            for entry in live
            if entry.no not in retired
            and (
                entry.asked_after in numbers
                or (canceled is not None and entry.asked_after >= canceled)
                or (lowest is not None and entry.by_handler and entry.outcome_no > lowest)
            )
        }
        if not more:
            break
        retired |= more
    gone = [entry for entry in live if entry.no in retired]
    places = [entry.outcome_no if entry.kind == StepKind.CANCEL else entry.asked_after for entry in gone]
    if ended:
        places.append(driven_no)
    return Cut(frozenset(retired), max(-1, min([driven_no, *(place - 1 for place in places)])))


def _is_unfinished(entry: Entry) -> bool:
    if entry.kind == StepKind.MARKER:
        return False
    return entry.outcome_no is None or (entry.outcome_kind == OutcomeKind.CANCELED and not entry.by_handler)


def restart(
    tx: Tx,
    scope: Scope,
    run: str,
    *,
    from_step: StepRef | None = None,
    from_failed: bool = False,
    version: int | None = None,
    events: Literal["keep", "drop"] = "keep",
    ask_again: AskAgain = False,
    reason: str | None = None,
    actor: str | None = None,
) -> int:
    """Runs a final, blocked or paused run again and returns its new generation.

    Without `from_step` it keeps all but the step whose error ended the run, what a cancel ended, and what was undone.
    What people answered is kept where the same question is asked again, but for the steps in `ask_again` (True: all).
    Raises Conflict in any other state, InvalidInput for a step that cannot be restarted from, NotFound, LimitExceeded.
    """
    row = find_locked(tx, scope, run)
    status = status_of(row)
    ended = row.state == RunState.FINAL
    if not ended and status not in (Status.BLOCKED, Status.PAUSED):
        message = f"run {run!r} is {status}; only a run that is over, blocked or paused can be restarted"
        raise Conflict(message, run=run, state=status.value)
    if events not in ("keep", "drop"):
        raise InvalidInput(f"events= takes 'keep' or 'drop', not {events!r}", run=run)
    journal = _Journal.load(tx, row)
    plan = journal.plan(row, from_step, from_failed)
    definition = definition_by_id(tx, row.definition_id)
    if version is not None:
        definition = resolve_definition(tx, definition.name, version)
    generation = row.generation + 1
    answers = _answers(tx, row, plan.retired, ask_again)
    _retire(tx, row, [step for step in journal.live if step.no in plan.retired], generation, events)
    former = {
        "status": status.value,
        "result_kind": row.result_kind,
        "value": row.value,
        "error": json.loads(payloads.get(tx, row.error)) if row.error is not None else None,
        "ended_at": row.ended_at.isoformat() if row.ended_at is not None else None,
    }
    _open_round(tx, row.id, generation, row.outcome_no, actor or _actor(scope), reason, former, answers)
    again: dict[str, Any] = {"ready": 0, "wake_at": None}
    if ended:
        (admission,) = limits.admit_new(tx, row.tenant_id, definition, [None])
        if not isinstance(admission, limits.Admission):
            raise admission
        again = {
            "state": RunState.QUEUED.value,
            "admitted": admission.admitted,
            "ready": 0 if admission.ready is not None else None,
            "wake_at": admission.wake_at,
            # a child that runs again by itself wakes nobody
            "parent_no": None,
        }
    tx.conn.execute(
        sa.update(R)
        .where(R.c.id == row.id)
        .values(
            **again,
            definition_id=definition.id,
            generation=generation,
            driven_no=plan.driven_no,
            requested="none",
            activity=None,
            blocked_reason=None,
            blocked_hash=None,
            result_kind=None,
            ended_at=None,
            value=None,
            error=None,
            ending=None,
            worker_id=None,
            epoch=R.c.epoch + 1,
            journal_bytes=journal.bytes_without(plan.retired),
            touch_no=R.c.touch_no + 1,
        )
    )
    tx.notify("run", row.id)
    tx.notify("ready")
    return int(generation)


@dataclass(frozen=True, slots=True)
class Prospect:
    """`retired`: the steps that a restart would retire. `starts`: those that it can begin from. `answers`: those whose
    answers by people are kept where the same is asked again.
    """

    retired: frozenset[int]
    starts: frozenset[int]
    answers: tuple[int, ...] = ()


def prospect(tx: Tx, scope: Scope, run: str, from_step: StepRef | None = None) -> Prospect:
    """What `restart` would do now, to be told before it is done. Raises InvalidInput and NotFound as it does."""
    row = find_run(tx, scope, run)
    journal = _Journal.load(tx, row)
    starts = {step.no for step in journal.live if step.kind not in _BOOKKEEPING} - journal.compensations
    retired = journal.plan(row, from_step, False).retired
    answers = tuple(step_no for _, step_no in former_answers(tx, row, retired))
    return Prospect(retired, frozenset(starts), answers)


def fork(
    tx: Tx,
    scope: Scope,
    run: str,
    *,
    from_step: StepRef | None = None,
    args: str | None = None,
    run_id: str | None = None,
    version: int | None = None,
    ask_again: AskAgain = False,
    reason: str | None = None,
    actor: str | None = None,
) -> Started:
    """Starts a new run that begins with what `run` did before the cut, with other `args` (JSON text) if given.

    Answers behind the cut are kept as `restart` keeps them.

    The run itself may be in any state and stays as it is. Steps without an outcome are not taken over, and when it
    fails the new run undoes only what it did itself. Its `created_at` is that of the run, because its handler has seen
    that time. Raises as `restart` and `start`.
    """
    row = find_locked(tx, scope, run)
    journal = _Journal.load(tx, row)
    plan = journal.plan(row, from_step, False)
    answers = _answers(tx, row, plan.retired, ask_again)
    options = json.loads(row.options) if row.options else {}
    definition = definition_by_id(tx, row.definition_id)
    stored = payloads.get(tx, row.args) if row.args is not None else None
    started = start(
        tx,
        scope,
        StartSpec(
            workflow=definition.name,
            version=version if version is not None else definition.version,
            args=args if args is not None else stored,
            run_id=run_id,
            priority=row.priority,
            labels=json.loads(row.labels) if row.labels else {},
            requester=row.requester or actor,  # its handler has seen that name, and four eyes still mean that person
            options={**options, "forked_from": row.public_id, "forked_at": tx.now.isoformat()},
            tenant_id=row.tenant_id,
        ),
    )
    if started.existing:
        return started
    kept = [step for step in journal.live if step.no not in plan.retired]
    _copy_steps(tx, kept, started.run_id)
    outcomes = [step for step in kept if step.outcome_no is not None]
    number = max((step.outcome_no for step in outcomes), default=0)
    seeds = _copy_rounds(tx, row, started.run_id)
    _open_round(tx, started.run_id, seeds + 1, number, actor or _actor(scope), reason, None, answers)
    tx.conn.execute(
        sa.update(R)
        .where(R.c.id == started.run_id)
        .values(
            generation=seeds + 1,
            created_at=row.created_at,
            outcome_no=number,
            outcome_at=max((step.ended_at for step in outcomes), default=None),
            driven_no=min(plan.driven_no, number) if kept else -1,
            next_no=max((step.no for step in kept), default=-1) + 1,
            journal_bytes=journal.bytes_without(plan.retired),
        )
    )
    return started


@dataclass(slots=True)
class _Journal:
    """The live rows of a run; `compensations`: the numbers of those that undid others at the end."""

    run: str
    live: Sequence[Row]
    compensations: frozenset[int]

    @classmethod
    def load(cls, tx: Tx, row: Row) -> _Journal:
        steps = tx.conn.execute(
            sa.select(S).where(S.c.run_id == row.id, S.c.retired_in.is_(None)).order_by(S.c.no)
        ).all()
        ending = json.loads(row.ending) if row.ending else None
        first = ending["from_no"] if ending is not None else None
        return cls(row.public_id, steps, frozenset(s.no for s in steps if first is not None and s.no >= first))

    def plan(self, row: Row, from_step: StepRef | None, from_failed: bool) -> Cut:
        if from_step is not None and from_failed:
            raise InvalidInput("give from_step= or from_failed=True, not both", run=self.run)
        own = [step for step in self.live if step.no not in self.compensations]
        first = {step.no for step in own if step.kind == StepKind.CANCEL}
        if self.compensations:  # what was undone must be done again
            undone = [step for step in own if step.started and step.options and '"compensate"' in step.options]
            first |= {step.no for step in undone}
            # what was asked later may have needed them too, although another outcome came last (gather)
            since = min((step.outcome_no for step in undone if step.outcome_no is not None), default=None)
            first |= {step.no for step in own if since is not None and step.asked_after >= since}
        failed = self._failed(row, own)
        if from_failed and failed is None:
            bad = (OutcomeKind.FAILURE, OutcomeKind.TIMEOUT)
            failed = max((step.no for step in own if step.outcome_kind in bad), default=None)
            if failed is None:
                raise Conflict(f"no step of run {self.run!r} has failed", run=self.run)
        start = failed if from_failed else None if from_step is None else self._find(from_step, own)
        if start is not None:
            first |= {step.no for step in own if step.no >= start}
        elif failed is not None:
            first.add(failed)
        plan = cut(own, first, row.driven_no, ended=row.state == RunState.FINAL)
        return Cut(plan.retired | self.compensations, plan.driven_no)

    def _failed(self, row: Row, own: Sequence[Row]) -> int | None:
        """The step whose error ended the run."""
        if row.error is None or row.error.startswith("@"):
            return None
        number = json.loads(row.error).get("step_no")
        return number if any(step.no == number for step in own) else None

    def _find(self, ref: Any, own: Sequence[Row]) -> int:
        steps = [step for step in own if step.kind not in _BOOKKEEPING]
        if isinstance(ref, int) and not isinstance(ref, bool):
            found = [step.no for step in steps if step.no == ref]
        elif isinstance(ref, str):
            found = [step.no for step in steps if step.name == ref][-1:]
        else:
            name, ordinal = ref if isinstance(ref, tuple | list) and len(ref) == 2 else (None, -1)
            named = [step.no for step in steps if step.name == name]
            found = named[ordinal : ordinal + 1] if isinstance(ordinal, int) and ordinal >= 0 else []
        if not found:
            problem = f"run {self.run!r} has no step {ref!r} that it could go on from"
            raise InvalidInput(problem, [FieldError(("from_step",), "no such step in this round")], run=self.run)
        return int(found[0])

    def bytes_without(self, retired: frozenset[int]) -> int:
        kept = (step for step in self.live if step.no not in retired)
        return sum(len(step.args or "") + len(step.value or "") for step in kept)


def _retire(tx: Tx, row: Row, steps: Sequence[Row], generation: int, events: str) -> None:
    nos = [step.no for step in steps]
    waiting = [step for step in steps if step.outcome_no is None]
    close_questions(tx, row.id, [step.no for step in waiting if step.kind == StepKind.ASK], "retired", tx.now)
    retire = sa.update(S).where(S.c.run_id == row.id, S.c.no == sa.bindparam("step_no")).values(retired_in=generation)
    if nos:
        tx.conn.execute(retire, [{"step_no": no} for no in nos])
    # only now, so that their ends are no outcomes of this run
    for child_id in sorted(step.child_id for step in steps if step.child_id is not None):
        control.cancel_child(tx, child_id, reason="the step that started it was retired")
    back = {"state": "buffered", "consumed_by": None}
    for at in range(0, len(nos), 1_000):
        consumed = sa.and_(E.c.run_id == row.id, E.c.consumed_by.in_(nos[at : at + 1_000]))
        tx.conn.execute(sa.update(E).where(consumed, E.c.state == "consumed").values(**back))
    if events == "drop":
        dropped = {"state": "set_aside", "problem": json.dumps({"message": "dropped by a restart"})}
        buffered = sa.and_(E.c.run_id == row.id, E.c.state == "buffered")
        tx.conn.execute(sa.update(E).where(buffered, ~E.c.by_id).values(**dropped))
        # an id stays known to those who have it: it can be answered anew
        asked = {"state": "created", "value": None, "is_error": False, "sent_at": None, "sender": None, "digest": None}
        tx.conn.execute(sa.update(E).where(buffered, E.c.by_id).values(**asked, idempotency_key=None))


def _answers(tx: Tx, row: Row, retired: frozenset[int], ask_again: AskAgain) -> dict[str, list[int]] | None:
    """What the new round does with the answers behind the cut, by the ids of their questions."""
    found = former_answers(tx, row, retired)
    nos = {step_no for _, step_no in found}
    again = nos if ask_again is True else set() if ask_again is False else set(ask_again)
    if not again <= nos:
        problem = f"run {row.public_id!r} has no answers behind the cut at {sorted(again - nos)}"
        raise InvalidInput(problem, [FieldError(("ask_again",), "no answer that would be kept")], run=row.public_id)
    if not found:
        return None
    return {
        "keep": [number for number, step_no in found if step_no not in again],
        "again": [number for number, step_no in found if step_no in again],
    }


def _open_round(
    tx: Tx,
    run_id: int,
    generation: int,
    number: int,
    actor: str | None,
    reason: str | None,
    former: Any,
    answers: dict[str, list[int]] | None,
) -> None:
    tx.conn.execute(
        sa.insert(ROUND).values(
            run_id=run_id,
            generation=generation,
            seed=secrets.token_hex(16),
            from_outcome_no=number,
            started_at=tx.now,
            actor=actor,
            reason=reason,
            former=json.dumps(former) if former is not None else None,
            answers=json.dumps(answers) if answers is not None else None,
        )
    )


def _copy_rounds(tx: Tx, row: Row, run_id: int) -> int:
    """The seeds that the copied outcomes were drawn with; returns the last generation copied."""
    rounds = tx.conn.execute(sa.select(ROUND).where(ROUND.c.run_id == row.id).order_by(ROUND.c.generation)).all()
    seeds = {item.generation: item.seed for item in rounds}
    known = {item.generation: item for item in rounds}
    copies = []
    for generation in range(1, row.generation + 1):
        item = known.get(generation)
        copies.append(
            {
                "run_id": run_id,
                "generation": generation,
                "seed": seed_of(row.public_id, seeds, generation),
                "from_outcome_no": item.from_outcome_no if item is not None else 0,
                "started_at": item.started_at if item is not None else row.created_at,
                "actor": item.actor if item is not None else None,
                "reason": item.reason if item is not None else None,
            }
        )
    tx.conn.execute(sa.insert(ROUND), copies)
    return int(row.generation)


def _copy_steps(tx: Tx, steps: Sequence[Row], run_id: int) -> None:
    copies = []
    large = [text for step in steps for text in (step.args, step.value) if text is not None and text.startswith("@")]
    texts = dict(zip(large, payloads.get_many(tx, large), strict=True))
    for step in steps:
        options = json.loads(step.options) if step.options else {}
        options.pop("compensate", None)  # the other run did it, and undoes it if need be
        copy: dict[str, Any] = {**step._mapping, "run_id": run_id, "options": json.dumps(options) if options else None}
        for name in ("args", "value"):
            text = copy[name]
            if text is not None and text in texts:
                copy[name] = payloads.put(tx, run_id, texts[text])
        copies.append(copy)
    if copies:
        tx.conn.execute(sa.insert(S), copies)


def _actor(scope: Scope) -> str | None:
    return scope.person.actor if scope.person is not None else None
