"""The closed sets of words that the journal, the store and the replay engine share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class StepKind(StrEnum):
    """What a journal row is. The last two are bookkeeping rows and never executed."""

    QUERY = "query"
    MUTATION = "mutation"
    ACTION = "action"
    CHILD = "child"
    SLEEP = "sleep"
    EVENT = "event"
    ASK = "ask"
    MARKER = "marker"  # step.changed(): true for runs that pass it for the first time
    CANCEL = "cancel"  # a cancel request, an outcome that no step asked for


FUNCTION_KINDS = frozenset({StepKind.QUERY, StepKind.MUTATION, StepKind.ACTION})


class OutcomeKind(StrEnum):
    """How a step ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"  # an event or ask whose deadline came first
    CANCELED = "canceled"


class RunState(StrEnum):
    QUEUED = "queued"
    ACTIVE = "active"
    FINAL = "final"


class Requested(StrEnum):
    NONE = "none"
    PAUSE = "pause"
    CANCEL = "cancel"


class ResultKind(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class Activity(StrEnum):
    """What an active run does, written with every advance; one part of the shown status."""

    RUNNING = "running"
    WAITING = "waiting"
    SLEEPING = "sleeping"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception as the journal keeps it."""

    type: str
    message: str
    data: Any = None  # JSON of the exception's `.data`
    traceback: str | None = None
    step_no: int | None = None  # the step whose failure this is, when it ended a run

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ErrorInfo:
        return cls(**{key: raw.get(key) for key in ("type", "message", "data", "traceback", "step_no")})  # type: ignore[arg-type]  # as to_json wrote it
