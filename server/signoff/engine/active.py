"""A run that this worker holds: its program, its open steps and what was not written yet."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from signoff.engine.advance import Fence, Record
from signoff.engine.journal import Loaded
from signoff.engine.outcomes import Row
from signoff.replay.messages import AskStep, JournalEntry
from signoff.replay.replayer import Replayer
from signoff.store.promise import Promise
from signoff.workflow.amounts import size_of
from signoff.workflow.kinds import FUNCTION_KINDS, ErrorInfo, OutcomeKind, RunState, StepKind


@dataclass(slots=True)
class OpenStep:
    """A step without an outcome. `ask` is there once the program was replayed (its function may be a closure)."""

    no: int
    kind: StepKind
    name: str
    asked_at: datetime
    due_at: datetime | None = None
    attempts: int = 0
    lost: int = 0
    started: bool = False
    placed: bool = False  # holds a slot of its pool
    options: dict[str, Any] = field(default_factory=dict)  # as recorded
    ask: AskStep | None = None
    generation: int = 1
    orphaned: bool = False  # a child that a canceled handler let go of: its end is awaited all the same
    ended: bool = False  # its outcome waits to be written

    def executable(self, now: datetime) -> bool:
        return self.kind in FUNCTION_KINDS and (self.due_at is None or self.due_at <= now)


@dataclass(slots=True)
class Compensable:
    """A step that has a compensation, and how it went."""

    no: int
    fn: str
    args: str | None
    on_error: str | None
    sensitive: bool
    started: bool
    outcome: OutcomeKind | None = None
    value: str | None = None


def known_outcome(kind: OutcomeKind | None, error: ErrorInfo | None) -> OutcomeKind | None:
    """None: nobody knows what came of it, because it has not ended or its worker was lost."""
    return None if error is not None and error.type == "StepLost" else kind


class ActiveRun:
    """Changed by the loop thread and, while `busy`, by the driver thread; never by both at once."""

    __slots__ = (
        "adopted",
        "alone",
        "args",
        "asked",
        "blocked",
        "busy",
        "cancel_actor",
        "cancel_compensate",
        "cancel_reason",
        "child_steps",
        "closing",
        "code_hash",
        "compensables",
        "created_at",
        "definition_id",
        "driven_no",
        "ending",
        "entries",
        "epoch",
        "forced",
        "generation",
        "grace_at",
        "id",
        "in_flight",
        "info_parent",
        "info_tenant",
        "journal_bytes",
        "load_again",
        "next_no",
        "open",
        "options",
        "outcome_at",
        "outcome_no",
        "parent_id",
        "parent_no",
        "pending",
        "program_made",
        "promise",
        "public_id",
        "replayer",
        "requested",
        "row",
        "seeds",
        "stale",
        "started_at",
        "state",
        "tasks",
        "turn_waiters",
        "unblocked",
        "used_pool",
        "wake_at",
    )  # fmt: skip

    def __init__(self, loaded: Loaded) -> None:
        self.busy = False  # an advance of it is being driven or committed
        self.forced = True  # write an advance even if nothing was fed
        self.stale = False  # something from outside happened to it
        self.load_again = False  # what is in memory was not written and must go
        self.closing = False
        self.adopted: int | None = None  # the worker that takes the run with its next advance; until then nobody has it
        self.alone: asyncio.Event | None = None  # set when the advance with an author's code that is under way is done
        self.pending: deque[Record] = deque()
        self.in_flight: list[Record] = []  # taken from `pending`, in an advance that is not committed yet
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.promise: Promise | None = None  # what was handed over is still being committed
        self.turn_waiters: deque[asyncio.Future[None]] = deque()
        self.replayer: Replayer | None = None
        self.program_made: Callable[[], Replayer] | None = None
        self.code_hash: str = ""
        self.take(loaded)

    def take(self, loaded: Loaded) -> None:
        """Start from what the store holds, forgetting what this object thought."""
        row = loaded.row
        self.adopted = self.promise = None
        self.take_row(row)
        self.id: int = row.id
        self.public_id: str = row.public_id
        self.definition_id: int = row.definition_id
        self.created_at: datetime = row.created_at
        self.parent_id: int | None = row.parent_id
        self.parent_no: int | None = row.parent_no
        self.options: dict[str, Any] = json.loads(row.options) if row.options else {}
        self.args = loaded.args
        self.seeds = loaded.seeds
        self.info_tenant, self.info_parent = loaded.tenant, loaded.parent
        self.entries: list[JournalEntry] | None = loaded.entries
        kept = [entry for entry in loaded.entries if entry.retired_in is None]
        self.journal_bytes = sum(size_of(entry.args) + size_of(entry.value) for entry in kept)
        self.asked = len(kept)  # steps of this round
        self.grace_at: datetime | None = None
        self.cancel_reason: str | None = None
        self.cancel_actor: str | None = None
        self.cancel_compensate = False
        self.open: dict[int, OpenStep] = {}
        self.compensables: dict[int, Compensable] = {}
        self.used_pool = False
        for entry in loaded.entries:
            if entry.retired_in is not None:
                continue
            options = json.loads(entry.options) if entry.options else {}
            if entry.kind is StepKind.CANCEL:
                self.take_cancel(entry)
            elif entry.outcome_no is None and entry.kind is not StepKind.MARKER:
                state = loaded.states[entry.no]
                self.open[entry.no] = OpenStep(
                    entry.no,
                    entry.kind,
                    entry.name,
                    entry.asked_at,
                    entry.due_at,
                    attempts=state.attempts,
                    lost=state.lost,
                    started=state.started,
                    options=options,
                    generation=entry.generation,
                    orphaned=entry.by_handler,
                )
            if options.get("pool"):
                self.used_pool = True
            if options.get("compensate"):
                started = loaded.states[entry.no].started
                self.compensables[entry.no] = Compensable(
                    entry.no, options["compensate"], entry.args, options.get("on_error"), "sensitive" in options,
                    started, known_outcome(entry.outcome_kind, entry.error), entry.value,
                )  # fmt: skip

    def take_row(self, row: Row) -> None:
        self.row = row
        self.state: str = row.state
        self.requested: str = row.requested
        self.epoch: int = row.epoch
        self.generation: int = row.generation
        self.outcome_no: int = row.outcome_no
        self.outcome_at: datetime | None = row.outcome_at
        self.driven_no: int = row.driven_no
        self.next_no: int = row.next_no
        self.started_at: datetime | None = row.started_at
        self.blocked: str | None = row.blocked_reason
        self.ending: dict[str, Any] | None = json.loads(row.ending) if row.ending else None
        self.wake_at: datetime | None = row.wake_at

    def take_cancel(self, entry: JournalEntry) -> None:
        wanted = json.loads(entry.value) if entry.value else {}
        self.grace_at = entry.due_at
        self.cancel_reason = wanted.get("reason")
        self.cancel_actor = wanted.get("actor")
        self.cancel_compensate = bool(wanted.get("compensate"))

    def knows(self, row: Row) -> bool:
        """Whether all that the row says, read a while ago, is in memory already."""
        return (
            (row.epoch, row.generation, row.requested) == (self.epoch, self.generation, self.requested)
            and row.outcome_no <= self.outcome_no
            and (row.blocked_reason is None) == (self.blocked is None)
        )

    def fence(self) -> Fence:
        blocked = self.blocked is not None
        return Fence(self.epoch, self.generation, self.outcome_no, self.requested, blocked, self.adopted)

    @property
    def drains(self) -> bool:
        """Outcomes are recorded but not handed over."""
        return self.requested == "pause" or self.blocked is not None or self.waits_for_children

    @property
    def waits_for_children(self) -> bool:
        return self.ending is not None and self.ending.get("phase") == "children"

    def due_records(self, now: datetime) -> list[Record]:
        """Timers of open steps that are due, in order of their due times."""
        due = [
            step
            for step in self.open.values()
            if step.due_at is not None and step.due_at <= now and step.kind not in FUNCTION_KINDS
        ]
        due.sort(key=lambda step: (step.due_at, step.no))
        return [
            Record(
                step.no, OutcomeKind.SUCCESS if step.kind is StepKind.SLEEP else OutcomeKind.TIMEOUT, step.due_at or now
            )
            for step in due
        ]

    def next_due(self) -> datetime | None:
        """The next moment at which the run needs a worker, if nothing else happens."""
        moments = [step.due_at for step in self.open.values() if step.due_at is not None and step.no not in self.tasks]
        if self.grace_at is not None and self.requested == "cancel" and self.ending is None:
            moments.append(self.grace_at)
        return min(moments, default=None)

    @property
    def is_final(self) -> bool:
        return self.state == RunState.FINAL
