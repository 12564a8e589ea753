"""Typed errors. Each has a machine-readable `code`, an HTTP `status`, and the names of what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from signoff.workflow.kinds import ErrorInfo


class SignoffError(Exception):
    """Base of all errors of Signoff.

    Keyword context (`run=`, `step=`, `event=`, `workflow=`, ...) says what the error is about: it is kept in
    `context`, readable as an attribute, and part of the problem document.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str = "", **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = {key: value for key, value in context.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no real attribute. `__dict__`, because unpickling asks before __init__ ran.
        context = self.__dict__.get("context", {})
        if name in context:
            return context[name]
        if name in _CONTEXT_NAMES:
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return self.message or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is rebuilt from its args, which are not what the constructors here take.
        return _rebuild, (type(self), self.args, self.__dict__)

    def to_problem(self) -> dict[str, Any]:
        """A problem document (RFC 9457): type, title, status, detail, and the context as members."""
        members = {key: value for key, value in self.context.items() if _is_plain(value)}
        return {
            "type": self.code,
            "title": self.code.replace("_", " ").capitalize(),
            "status": self.status,
            "detail": str(self),
            **members,
        }


def _rebuild(cls: type[SignoffError], args: tuple[Any, ...], state: dict[str, Any]) -> SignoffError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


# Context that callers may look for on any error, set or not.
_CONTEXT_NAMES = frozenset(
    {"run", "step", "step_no", "event", "ask", "workflow", "version", "approval", "state", "key"}
)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | list | dict)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One refused field. `loc` leads to it from the outside in, `input` is what was given (None if not shown)."""

    loc: tuple[str | int, ...]
    message: str
    input: Any = None

    def __str__(self) -> str:
        path = ".".join(str(part) for part in self.loc)
        return f"{path}: {self.message}" if path else self.message

    def to_json(self) -> dict[str, Any]:
        raw: dict[str, Any] = {"loc": list(self.loc), "message": self.message}
        if isinstance(self.input, str | int | float | bool):
            raw["input"] = self.input
        return raw


class InvalidInput(SignoffError):
    """Args, a payload, an answer or options do not fit; nothing was stored. `fields` lists each field."""

    code = "invalid_input"
    status = 422

    def __init__(self, message: str = "", fields: Iterable[FieldError] = (), **context: Any) -> None:
        self.fields = list(fields)
        super().__init__(message or "invalid input", **context)

    def __str__(self) -> str:
        if not self.fields:
            return self.message
        return f"{self.message}: " + "; ".join(str(field) for field in self.fields)

    def to_problem(self) -> dict[str, Any]:
        return {**super().to_problem(), "errors": [field.to_json() for field in self.fields]}


class Conflict(SignoffError):
    """What is asked for contradicts what is stored or the state of the run."""

    code = "conflict"
    status = 409


class NotFound(SignoffError):
    """Unknown, or not visible for who asks; the two are not told apart."""

    code = "not_found"
    status = 404


class LimitExceeded(SignoffError):
    """A size, count, rate or queue limit; the message names it with the sizes."""

    code = "limit_exceeded"
    status = 429


class NeedsDecision(SignoffError):
    """Nothing but a person's decision can answer this."""

    code = "needs_decision"
    status = 409


class Refused(SignoffError):
    """A person may not do this. `reason` says why by a fixed word.

    For example not_eligible, excluded, own_request, not_member, wrong_tenant, deadline, revision, already_decided,
    voted, claim, closed, form.
    """

    code = "refused"
    status = 403
    _STATUS: ClassVar[dict[str, int]] = {
        "revision": 409,
        "already_decided": 409,
        "voted": 409,
        "claim": 409,
        "closed": 409,
        "deadline": 409,
        "form": 422,
    }

    def __init__(self, reason: str, message: str = "", fields: Iterable[FieldError] = (), **context: Any) -> None:
        self.reason = reason
        self.recorded = False  # whether the audit log has it: each refusal is there once, wherever it is met
        self.fields = list(fields)
        super().__init__(message or f"refused: {reason.replace('_', ' ')}", **context)

    def to_problem(self) -> dict[str, Any]:
        problem = {**super().to_problem(), "reason": self.reason, "status": self._STATUS.get(self.reason, self.status)}
        if self.fields:
            problem["errors"] = [field.to_json() for field in self.fields]
        return problem


# What a handler catches ---------------------------------------------------------------------------------------------


class StepFailed(SignoffError):
    """A step's function failed for good. `type`, `message`, `data`, `traceback` are those of the remote exception."""

    code = "step_failed"

    def __init__(
        self, error: ErrorInfo, *, step: str | None = None, step_no: int | None = None, **context: Any
    ) -> None:
        self.error = error
        super().__init__(error.message, step=step, step_no=step_no, **context)

    @property
    def type(self) -> str:
        return self.error.type

    @property
    def data(self) -> Any:
        return self.error.data

    @property
    def traceback(self) -> str | None:
        return self.error.traceback

    def __str__(self) -> str:
        where = f"step {self.context['step']!r} failed: " if "step" in self.context else ""
        return f"{where}{self.error.type}: {self.error.message}"


class StepLost(StepFailed):
    """The worker that ran an `at_most_once` step was lost: nobody knows whether the step took effect."""

    code = "step_lost"


class EventTimeout(SignoffError, TimeoutError):
    """The deadline of an event wait or of a question came first."""

    code = "event_timeout"
    status = 504


class EventError(SignoffError):
    """The sender reported a failure instead of a value; `data` is the JSON it gave."""

    code = "event_error"

    def __init__(self, message: str = "", *, data: Any = None, event: str | None = None, **context: Any) -> None:
        self.data = data
        super().__init__(message, event=event, **context)


class RunFailed(SignoffError):
    """The run (of a child, or one whose result was asked for) failed; `error` says how."""

    code = "run_failed"

    def __init__(self, error: ErrorInfo, *, run: str | None = None, **context: Any) -> None:
        self.error = error
        super().__init__(error.message, run=run, **context)

    def __str__(self) -> str:
        return f"run {self.context.get('run', '')} failed: {self.error.type}: {self.error.message}"


class RunCanceled(SignoffError):
    code = "run_canceled"
    status = 409

    def __init__(self, message: str = "", *, run: str | None = None, **context: Any) -> None:
        super().__init__(message or f"run {run or ''} was canceled", run=run, **context)


class RunBlocked(SignoffError):
    """The run cannot go on with the code that is there; `blocked` holds the recorded and the expected side."""

    code = "run_blocked"
    status = 409

    def __init__(
        self, message: str = "", *, run: str | None = None, blocked: dict[str, Any] | None = None, **context: Any
    ) -> None:
        self.blocked = blocked
        super().__init__(message or f"run {run or ''} is blocked", run=run, **context)


# What a step's function raises to steer its retries ---------------------------------------------------------


class NonRetryable(SignoffError):
    """Raised in a step's function: the step fails at once, whatever its retry policy."""

    code = "non_retryable"

    def __init__(self, message: str = "", *, data: Any = None) -> None:
        self.data = data
        super().__init__(message)


class RetryAfter(SignoffError):
    """Raised in a step's function: the next attempt comes after exactly `delay` (seconds or a timedelta)."""

    code = "retry_after"

    def __init__(self, delay: float | timedelta, message: str = "", *, data: Any = None) -> None:
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= self.delay < float("inf"):
            raise ValueError(f"RetryAfter takes a delay of 0 seconds or more, not {self.delay}")
        self.data = data
        super().__init__(message or f"try again after {self.delay:g} s")


# At import ---------------------------------------------------------------------------------------------------------


class RegistrationError(SignoffError):
    """A definition that cannot be: the message names both places where there are two."""

    code = "registration"


class NondeterministicCode(RegistrationError):
    """A handler would differ on replay; `findings` has line and replacement of each place."""

    code = "nondeterministic_code"

    def __init__(self, message: str, findings: Sequence[Any] = (), **context: Any) -> None:
        self.findings = list(findings)
        super().__init__(message, **context)


# What blocks a run: never shown to a handler ----------------------------------------------------------------


class BlockedError(SignoffError):
    """Replay cannot go on. `recorded` and `expected` are shown side by side, `step_no` is the journal's number."""

    code = "blocked"
    status = 409

    def __init__(
        self,
        message: str,
        *,
        recorded: dict[str, Any] | str | None = None,
        expected: dict[str, Any] | str | None = None,
        step_no: int | None = None,
        **context: Any,
    ) -> None:
        self.recorded = recorded
        self.expected = expected
        super().__init__(message, step_no=step_no, **context)

    def to_reason(self) -> dict[str, Any]:
        """The JSON that is stored as the run's blocked_reason."""
        reason = {
            "code": self.code,
            "message": str(self),
            "recorded": self.recorded,
            "expected": self.expected,
            **{key: value for key, value in self.context.items() if _is_plain(value)},
        }
        return {key: value for key, value in reason.items() if value is not None}


class Mismatch(BlockedError):
    """The handler asks for something else than what the journal has."""

    code = "mismatch"


class Stuck(BlockedError):
    """The handler awaits what can never come, or computes without end."""

    code = "stuck"


class Undecodable(BlockedError):
    """A stored value does not fit today's annotation; `fields` lists where."""

    code = "undecodable"

    def __init__(self, message: str, fields: Iterable[FieldError] = (), **context: Any) -> None:
        self.fields = list(fields)
        super().__init__(message, **context)

    def __str__(self) -> str:
        if not self.fields:
            return self.message
        return f"{self.message}: " + "; ".join(str(field) for field in self.fields)
