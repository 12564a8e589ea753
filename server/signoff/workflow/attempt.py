"""The attempt that runs now, for the function that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from signoff.workflow.errors import InvalidInput, SignoffError

Level = Literal["debug", "info", "warning", "error"]
_LEVELS = ("debug", "info", "warning", "error")


class NoAttempt(SignoffError):
    """`attempt.current()` outside of a step function."""

    code = "no_attempt"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a step's function. Its methods may be called from any thread.

    number: 1 for the first. idempotency_key: stable across attempts and crashes, new after a restart retired the step.
    """

    number: int
    idempotency_key: str
    run_id: str
    step_no: int
    step: str = ""
    deadline: datetime | None = None
    on_log: Callable[[str, str, dict[str, Any] | None], None] = field(
        default=lambda level, message, data: None, repr=False
    )
    on_progress: Callable[[float, str], None] = field(default=lambda fraction, text: None, repr=False)

    def log(self, message: str, *, level: Level = "info", **data: Any) -> None:
        """A line in the run's log; `data` is plain JSON."""
        if level not in _LEVELS:
            raise InvalidInput(f"level= takes one of {', '.join(_LEVELS)}, not {level!r}")
        self.on_log(level, str(message), data or None)

    def progress(self, fraction: float, text: str = "") -> None:
        """How far the attempt is, 0 to 1, with a short text; shown live."""
        if not 0 <= fraction <= 1:  # false for NaN too
            raise InvalidInput(f"progress takes a fraction from 0 to 1, not {fraction!r}")
        self.on_progress(float(fraction), str(text))


_current: ContextVar[Attempt | None] = ContextVar("signoff_attempt", default=None)


def current() -> Attempt:
    """The attempt that the calling step function runs in; NoAttempt outside of one."""
    attempt = _current.get()
    if attempt is None:
        raise NoAttempt("attempt.current() is for step functions while they run")
    return attempt


def find() -> Attempt | None:
    return _current.get()


@contextmanager
def attempting(attempt: Attempt) -> Iterator[Attempt]:
    """Makes it the current one. A thread sees it that is started with this context (asyncio.to_thread does)."""
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)
