"""What a program and its driver say to each other.

A program is fed one outcome at a time and answers with commands. Nothing here knows of a database:
`args` and `value` are JSON text as the journal keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, StepKind
from signoff.workflow.options import StepOptions


@dataclass(frozen=True, slots=True)
class SleepDetail:
    """Exactly one is set. Seconds count from the moment the step became durable."""

    seconds: float | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventDetail:
    """A wait for the first of `names`, or for the event `event_id` (then `names` is empty)."""

    names: tuple[str, ...] = ()
    event_id: str | None = None
    timeout: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class AskDetail:
    """A question to people. The engine passes `question` (plain JSON) on to the approvals floor, unread."""

    ask: str
    question: dict[str, Any]
    timeout: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class ChildDetail:
    workflow: str
    version: int | None = None
    detached: bool = False
    # plain JSON: run_id, idempotency_key, labels, priority, retention, run_at (ISO), run_after (seconds),
    # on_complete {name, context}
    start: dict[str, Any] = field(default_factory=dict)


Detail = SleepDetail | EventDetail | AskDetail | ChildDetail | None


# The three that each replayed step makes are not frozen: a frozen dataclass takes three times as long to build.
@dataclass(slots=True)
class AskStep:
    """Ask for a step. `index` counts a program's asks from 0; `ordinal` counts those of one name from 0."""

    index: int
    kind: StepKind
    name: str
    ordinal: int
    args: str | None = None  # JSON object text by parameter name, as the call gave them; None = no arguments
    options: StepOptions | None = None  # None = all defaults
    detail: Detail = None
    fn: Any = None  # the definition (or closure definition) to execute, for query, mutation, action
    normalize: Callable[[str | None], str | None] | None = None  # args, decoded and encoded with today's annotations
    unstable_args: bool = False


@dataclass(frozen=True, slots=True)
class CancelStep:
    """The program lost interest in a step that it asked for."""

    index: int


@dataclass(frozen=True, slots=True)
class Log:
    level: str
    message: str
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The program ended. `value` is JSON text (completed only)."""

    kind: ResultKind
    value: str | None = None
    error: ErrorInfo | None = None


Command = AskStep | CancelStep | Log | Finish


@dataclass(slots=True)
class Outcome:
    """One outcome as handed to a program. `index` is None for a cancel request."""

    no: int
    at: datetime
    generation: int
    index: int | None
    kind: OutcomeKind
    value: str | None = None
    error: ErrorInfo | None = None
    step_no: int | None = None  # the step's number in the journal, for error messages


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a handler may know of its run (`step.run`)."""

    id: str
    workflow: str
    version: int
    tenant: str
    created_at: datetime
    requester: str | None = None
    parent: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    generation: int = 1


class Host(Protocol):
    """What a program may ask of its driver while it runs, answered at once."""

    def changed(self, marker: str, commands: Sequence[Command] = ()) -> bool:
        """Whether the run passes (or passed) the marker for the first time; see R8.

        `commands` are those of this drive so far. If the answer is true, an AskStep of kind MARKER must follow.
        """
        ...


class Program(Protocol):
    """A deterministic machine: same args and same outcomes give the same commands."""

    def start(self, args: str | None) -> Sequence[Command]: ...

    def feed(self, outcome: Outcome) -> Sequence[Command]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One live or retired row of the journal, as the store gives it to replay."""

    no: int
    kind: StepKind
    name: str
    args: str | None
    generation: int
    asked_after: int
    asked_at: datetime
    retired_in: int | None = None
    options: str | None = None  # JSON text of the recorded StepOptions
    due_at: datetime | None = None
    outcome_no: int | None = None
    outcome_kind: OutcomeKind | None = None
    ended_at: datetime | None = None
    value: str | None = None
    error: ErrorInfo | None = None
    by_handler: bool = False  # canceled by the handler itself: not handed over again


@dataclass(slots=True)
class NewStep:
    """A step to be written. `asked_after` is the outcome after whose hand-over it was asked, 0 at the start."""

    no: int
    asked_after: int
    ask: AskStep


@dataclass(slots=True)
class Drive:
    """What a piece of driving brought that is not in the journal yet."""

    asks: list[NewStep] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)  # journal numbers, steps recorded or in `asks`
    logs: list[Log] = field(default_factory=list)
    finish: Finish | None = None
    driven_no: int = 0
