"""A workflow's handler as a program: recorded outcomes in, commands out."""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, cast

from signoff.replay import guard
from signoff.replay.call import StepCall
from signoff.replay.loop import CLOSED, Interrupted, Loop, Task, Timer
from signoff.replay.messages import (
    AskStep,
    CancelStep,
    Command,
    Detail,
    Finish,
    Host,
    Log,
    Outcome,
    RunInfo,
    SleepDetail,
)
from signoff.replay.step import Step
from signoff.workflow import errors
from signoff.workflow.amounts import size_of
from signoff.workflow.failures import error_info
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, StepKind
from signoff.workflow.options import EMPTY, StepOptions

if TYPE_CHECKING:
    from signoff.workflow.codec import Codec
    from signoff.workflow.definitions import Workflow
    from signoff.workflow.functions import StepFunction

MAX_VALUE_BYTES = 16 * 2**20
TIMER_NAME = "timeout"


class CoroutineProgram:
    """One pass of one handler. All calls come from one thread at a time; nothing runs between them.

    seeds: the random seed of a generation. defaults: the engine's step options. max_value_bytes: of a step's args.
    `start` and `feed` raise BlockedError (Stuck, Undecodable), after which only `close` may follow.
    """

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        info: RunInfo,
        host: Host,
        seeds: Callable[[int], str],
        defaults: StepOptions | None = None,
        *,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.workflow = workflow
        self._info = replace(info, labels=dict(info.labels), generation=1)
        self.host = host
        self.defaults = defaults
        self.max_value_bytes = workflow.settings.max_value_bytes or max_value_bytes
        self.now: datetime = info.created_at
        self._created_at = info.created_at
        self.loop = Loop(self)  # type: ignore[abstract]  # what it refuses is set on the class by name
        self.ended = False
        # By id(codec): the codec, which is one for all copies of a definition, and what its calls without options have.
        self._plain_options: dict[int, tuple[Codec, StepOptions | None]] = {}
        self._seeds = seeds
        self._generation = 1
        self._random: random.Random | None = None
        self._commands: list[Command] = []
        self._pending: dict[int, StepCall[Any] | Timer] = {}
        self._asked = 0
        self._ordinals: dict[str, int] = {}
        self.questions: dict[int, int] = {}  # the ordinals of ask steps, by index
        self._markers: dict[str, bool] = {}
        self._context = contextvars.Context()
        self._context.run(guard.driven.set, self)
        self._root: Task | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._cancel_requested = False
        self._blocked: errors.BlockedError | None = None

    # Program

    def start(self, args: str | None) -> Sequence[Command]:
        guard.install()
        positional, named = self.workflow.codec.decode_call(args)
        step = Step(self)
        handler = self._context.run(self.workflow.fn, step, *positional, **named)
        self._root = self.loop.create_task(self._main(handler), name="handler", context=self._context)
        return self._drive()

    def feed(self, outcome: Outcome) -> Sequence[Command]:
        if outcome.at > self.now:
            self.now = outcome.at
        if outcome.generation > self._generation:
            self._generation = outcome.generation
            if self._random is not None:
                self._random.seed(self._seeds(self._generation))
        if outcome.index is None:
            self.request_cancel()
        else:
            call = self._pending.pop(outcome.index)
            if not isinstance(call, Timer):
                call.settle(outcome)
            elif outcome.kind is OutcomeKind.SUCCESS:
                self.loop.fire(call)
        return self._drive()

    def close(self) -> None:
        """Lets go of what holds it in turn: that would leave each run that is over to the garbage collector."""
        self.ended = True
        self._context.run(self.loop.close)
        self._context.run(guard.driven.set, None)
        self._pending.clear()
        self._root = None
        self.host = self.loop.host = CLOSED

    # What Step and the loop call while the handler is driven

    def ask(
        self,
        kind: StepKind,
        name: str,
        decode: Callable[[str | None], Any],
        args: str | None = None,
        options: StepOptions | None = None,
        detail: Detail = None,
        fn: Any = None,
        normalize: Callable[[str | None], str | None] | None = None,
    ) -> StepCall[Any]:
        if (size := size_of(args)) > self.max_value_bytes:
            raise errors.LimitExceeded(
                f"the arguments of step {name!r} have {size} bytes, the limit is {self.max_value_bytes}", step=name
            )
        index = self._asked
        self._asked = index + 1
        ordinal = self._ordinals.get(name, 0)
        self._ordinals[name] = ordinal + 1
        if kind is StepKind.ASK:
            self.questions[index] = ordinal
        unstable = options is not None and options.unstable_args
        self._commands.append(AskStep(index, kind, name, ordinal, args, options, detail, fn, normalize, unstable))
        call: StepCall[Any] = StepCall(self, index, kind, name, decode)
        self._pending[index] = call
        return call

    def call_cancelled(self, index: int) -> None:
        if self._pending.pop(index, None) is not None and not self.ended:
            self._commands.append(CancelStep(index))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call the author's code where the handler runs."""
        self.loop.call_soon(callback, *args, context=self._context)

    def log(self, level: str, message: str, data: Mapping[str, Any] | None) -> None:
        self._commands.append(Log(level, message, dict(data) if data else None))

    def changed(self, marker: str) -> bool:
        answer = self._markers.get(marker)
        if answer is None:
            answer = self._markers[marker] = self.host.changed(marker, self._commands)
            if answer:
                index, self._asked = self._asked, self._asked + 1
                self._commands.append(AskStep(index, StepKind.MARKER, marker, 0))
        return answer

    @property
    def info(self) -> RunInfo:
        """`generation` is that of the last outcome handed over: what is kept after a restart sees what it saw."""
        if self._info.generation != self._generation:
            self._info = replace(self._info, generation=self._generation)
        return self._info

    @property
    def random(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self._seeds(self._generation))
        return self._random

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def options_for(
        self, target: StepFunction[Any, Any] | Workflow[Any, Any], kind: StepKind, over: StepOptions | None
    ) -> StepOptions | None:
        """The options of one call from all levels; None when there are none. `over`: those of its Step."""
        codec = target.codec
        function: StepFunction[Any, Any] | None = None if kind is StepKind.CHILD else cast("Any", target)
        call = None if function is None else function.given
        plain = call is None and over is None
        if plain:
            known = self._plain_options.get(id(codec))
            if known is not None:
                return known[1]
        levels: tuple[StepOptions | None, ...] = ()
        if function is not None:
            levels = (function.defaults, self.workflow.settings.defaults, self.defaults)
        resolved: StepOptions | None = StepOptions.resolve(call, over, *levels)
        if resolved is not None and resolved.retry is not None and kind is not StepKind.ACTION:
            resolved = replace(resolved, retry=None)  # the engine repeats queries and mutations by itself (F1)
        secret = codec.has_secrets
        if function is None and resolved is not None:  # the rest is for functions; a delay goes into the child's start
            resolved = StepOptions(
                name=resolved.name, unstable_args=resolved.unstable_args, sensitive=resolved.sensitive
            )
            secret = secret or cast("Workflow[Any, Any]", target).sensitive
        if secret:
            resolved = replace(resolved or EMPTY, sensitive=True)
        if resolved == EMPTY:
            resolved = None
        if plain:
            self._plain_options[id(codec)] = (codec, resolved)
        return resolved

    def request_cancel(self) -> None:
        if not self._cancel_requested and self._root is not None:
            self._cancel_requested = True
            self._root.cancel()

    def loop_time(self) -> float:
        return (self.now - self._created_at).total_seconds()

    def timer_started(self, timer: Timer, seconds: float) -> None:
        index = self._asked
        self._asked = index + 1
        ordinal = self._ordinals.get(TIMER_NAME, 0)
        self._ordinals[TIMER_NAME] = ordinal + 1
        self._commands.append(AskStep(index, StepKind.SLEEP, TIMER_NAME, ordinal, detail=SleepDetail(seconds=seconds)))
        timer.index = index
        self._pending[index] = timer

    def timer_cancelled(self, timer: Timer) -> None:
        self.call_cancelled(timer.index)

    def callback_failed(self, message: str, error: BaseException) -> None:
        self.log("error", f"{message}: {type(error).__name__}: {error}", None)

    def impossible(self, message: str) -> NoReturn:
        """What the handler did cannot be replayed: it is told, and the run is blocked even if it does not listen."""
        stuck = errors.Stuck(message, workflow=self.workflow.name, line=guard.calling_line())
        if self._blocked is None:
            self._blocked = stuck
        raise stuck

    # Driving

    async def _main(self, handler: Coroutine[Any, Any, Any]) -> None:
        try:
            self._value = await handler
        except BaseException as error:
            if self.loop.closed or isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise  # interrupted, or being unwound: nothing may hold on to the frames
            self._error = error
        self.ended = True
        self.loop.clear()

    def _drive(self) -> Sequence[Command]:
        try:
            self.loop.drive()
        except Interrupted as interrupted:
            raise errors.Stuck(
                "the handler computed for too long without awaiting a step",
                workflow=self.workflow.name,
                line=guard.traceback_line(interrupted.__traceback__) or self._suspended_line(),
            ) from interrupted
        if self._blocked is not None:
            raise self._blocked
        if self._error is not None and not isinstance(self._error, _ENDINGS):
            raise self._error  # nothing that a handler does: somebody stops the thread
        if self.ended:
            self._commands.append(self._finish())
        elif not self._pending:
            raise errors.Stuck(
                "the handler awaits something that is no step and no timer, and nothing can wake it up",
                workflow=self.workflow.name,
                line=self._suspended_line(),
            )
        commands, self._commands = self._commands, []
        return commands

    def _suspended_line(self) -> str | None:
        return None if self._root is None else guard.suspended_line(self._root.get_coro())

    def _finish(self) -> Finish:
        error = self._error
        if error is None:
            try:
                value = self.workflow.codec.encode_result(self._value)
            except errors.InvalidInput as invalid:
                fields = [field.to_json() for field in invalid.fields]
                return Finish(ResultKind.FAILED, error=ErrorInfo("InvalidResult", str(invalid), {"fields": fields}))
            if (size := size_of(value)) > self.max_value_bytes:
                message = f"the run's result has {size} bytes, the limit is {self.max_value_bytes}"
                return Finish(ResultKind.FAILED, error=ErrorInfo("LimitExceeded", message))
            return Finish(ResultKind.COMPLETED, value)
        if self._cancel_requested and isinstance(error, asyncio.CancelledError):
            return Finish(ResultKind.CANCELED)
        failed = _failed_step(error)
        info = error_info(error, step_no=None if failed is None else failed.step_no)
        return Finish(ResultKind.FAILED, error=info)


# How a handler may end a run that fails or is canceled.
_ENDINGS = (Exception, asyncio.CancelledError, SystemExit, BaseExceptionGroup)


def _failed_step(error: BaseException | None) -> Any:
    """The error of a step that an exception is, carries, or was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, errors.SignoffError) and error.step_no is not None:
            return error
        if isinstance(error, BaseExceptionGroup):
            return next((found for inner in error.exceptions if (found := _failed_step(inner)) is not None), None)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None
