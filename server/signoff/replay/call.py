"""What a step's call returns: awaitable, and a coroutine for create_task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from signoff.replay.messages import Outcome
from signoff.workflow import errors
from signoff.workflow.codec import decode, dump, parse
from signoff.workflow.errors import Undecodable
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, StepKind

if TYPE_CHECKING:
    from signoff.replay.program import CoroutineProgram
    from signoff.workflow.events import Event

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Envelope(Generic[T]):
    """An event with all that is known of it."""

    value: T
    name: str
    id: str
    sender: str | None
    channel: str | None
    sent_at: datetime


if TYPE_CHECKING:

    class _Awaitable(asyncio.Future[R], Coroutine[Any, Any, R]):
        """For create_task, which takes nothing but coroutines: our loop's takes a StepCall too."""

        def send(self, value: Any, /) -> Any: ...
        def throw(self, *error: Any) -> Any: ...
else:

    class _Awaitable(asyncio.Future, Generic[R]):
        __slots__ = ()


class StepCall(_Awaitable[R]):
    """The result of a step to come. The step has begun already, awaited or not.

    A future, so that gather, wait, shield and wait_for use it as it is; create_task takes it as well. Canceling it (as
    asyncio does for branches that nobody needs any more) cancels the step.
    """

    __slots__ = ("cancels_run", "combine", "decode", "index", "kind", "name", "on_timeout", "program")

    def __init__(
        self, program: CoroutineProgram, index: int, kind: StepKind, name: str, decode: Callable[[str | None], R]
    ) -> None:
        self.index = index  # first: the hash
        super().__init__(loop=program.loop)
        self.program = program
        self.kind = kind
        self.name = name
        self.decode = decode
        # When the deadline came first: a value, or the end of the run, or else EventTimeout
        self.on_timeout: Callable[[], R] | None = None
        self.cancels_run = False
        # Author's code that makes the value of what was recorded
        self.combine: Callable[[Any], R] | None = None

    def __hash__(self) -> int:
        return self.index  # sets of calls have the same order on every replay

    def cancel(self, msg: Any | None = None) -> bool:
        canceled = super().cancel(msg)
        if canceled:
            self.program.call_cancelled(self.index)
        return canceled

    def settle(self, outcome: Outcome) -> None:
        """Take the recorded outcome; Undecodable if today's annotation refuses it."""
        kind = outcome.kind
        if kind is OutcomeKind.SUCCESS:
            try:
                value = self.decode(outcome.value)
            except errors.Undecodable as error:
                raise errors.Undecodable(
                    f"the recorded result of step {self.name!r} does not fit: {error.message}",
                    error.fields,
                    recorded=_short(outcome.value),
                    step=self.name,
                    step_no=outcome.step_no,
                ) from error
            self._have(value)
        elif kind is OutcomeKind.TIMEOUT:
            if self.on_timeout is not None:
                self._have(self.on_timeout())
            elif self.cancels_run:
                super().cancel(f"{self.kind} {self.name!r}: the deadline came first")
                self.program.request_cancel()
            else:
                self.set_exception(
                    errors.EventTimeout(
                        f"{self.kind} {self.name!r}: the deadline came first", step=self.name, step_no=outcome.step_no
                    )
                )
        elif kind is OutcomeKind.CANCELED:
            if self.kind is StepKind.CHILD:
                run = _data(outcome.error).get("run")
                self.set_exception(errors.RunCanceled(run=run, step=self.name, step_no=outcome.step_no))
            else:
                super().cancel("the step was canceled")
        else:
            self.set_exception(self._error(outcome))

    def _have(self, value: Any) -> None:
        if self.combine is None:
            self.set_result(value)
        else:  # where the handler runs, guarded and watched as it is
            self.program.call_soon(self._combine, self.combine, value)

    def _combine(self, combine: Callable[[Any], R], value: Any) -> None:
        if self.done():
            return
        try:
            combined = combine(value)
        except Exception as error:  # noqa: BLE001 - the author's; the handler gets it where it awaits the step
            # No future takes a StopIteration.
            self.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        else:
            self.set_result(combined)

    def _error(self, outcome: Outcome) -> BaseException:
        error = outcome.error or ErrorInfo("Error", "no details were recorded")
        where: dict[str, Any] = {"step": self.name, "step_no": outcome.step_no}
        if self.kind is StepKind.CHILD and error.type == "RunFailed":
            data = _data(error)
            cause = ErrorInfo.from_json(data["error"]) if isinstance(data.get("error"), dict) else error
            return errors.RunFailed(cause, run=data.get("run"), **where)
        if self.kind in (StepKind.EVENT, StepKind.ASK) and error.type == "EventError":
            return errors.EventError(error.message, data=error.data, event=self.name, **where)
        if self.kind in _ENGINE_KINDS and error.type in _ENGINE_ERRORS:
            fields = [_field(raw) for raw in _data(error).get("errors", ())]
            kind = _ENGINE_ERRORS[error.type]
            return kind(error.message, fields, **where) if kind is errors.InvalidInput else kind(error.message, **where)
        kind = errors.StepLost if error.type == "StepLost" else errors.StepFailed
        return kind(error, **where)

    def close(self) -> None:
        """What create_task does with a coroutine that it cannot take."""
        self.cancel()


class Awaiting(Coroutine[Any, Any, Any]):
    """The coroutine of a task that waits for a step. It holds the future that `send` gives it.

    A class and not an `async def`, because a task that is canceled before it begins must cancel its step.
    """

    __slots__ = ("_call",)

    def __init__(self, call: StepCall[Any]) -> None:
        self._call = call

    def __await__(self) -> Any:
        return self._call.__await__()

    def send(self, value: Any, /) -> Any:
        call = self._call
        if call.done():
            raise StopIteration(call.result())
        call._asyncio_future_blocking = True
        return call

    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> NoReturn:
        self._call.cancel()
        raise kind if value is None else value

    def close(self) -> None:
        return


# What the engine refuses by itself, with no function of the author's at work.
_ENGINE_KINDS = frozenset({StepKind.CHILD, StepKind.EVENT, StepKind.ASK, StepKind.SLEEP})
_ENGINE_ERRORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (errors.Conflict, errors.InvalidInput, errors.LimitExceeded, errors.NeedsDecision, errors.NotFound)
}


def _data(error: ErrorInfo | None) -> dict[str, Any]:
    return error.data if error is not None and isinstance(error.data, dict) else {}


def _field(raw: dict[str, Any]) -> errors.FieldError:
    return errors.FieldError(tuple(raw.get("loc", ())), raw.get("message", ""), raw.get("input"))


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 500 else text[:500] + "…"


class EventDecoder:
    """Reads the recorded envelope of an event."""

    __slots__ = ("_envelope", "_events", "_pairs")

    def __init__(self, events: tuple[Event[Any], ...], envelope: bool, pairs: bool = False) -> None:
        self._events = events
        self._envelope = envelope
        self._pairs = pairs

    def __call__(self, text: str | None) -> Any:
        raw = parse(text or "null")
        if not isinstance(raw, dict):
            raise Undecodable("an event was recorded without its envelope")
        events = self._events
        event = events[0] if len(events) == 1 else next((item for item in events if item.name == raw["name"]), None)
        if event is None and events:
            raise Undecodable(f"event {raw['name']!r} is not one of those awaited")
        recorded = raw.get("value")
        value = decode(dump(recorded)) if event is None else event.codec.decode_raw(recorded)
        if self._pairs:
            return event, value
        if not self._envelope:
            return value
        sent_at = datetime.fromisoformat(raw["sent_at"])
        return Envelope(value, raw["name"], raw["id"], raw.get("sender"), raw.get("channel"), sent_at)
