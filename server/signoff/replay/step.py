"""`Step`: what a handler is given. Every method that returns a StepCall begins a step, awaited or not."""

from __future__ import annotations

import asyncio
import random
import uuid
from asyncio import events as asyncio_events
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from signoff.replay import asked, asking
from signoff.replay.asked import Comment
from signoff.replay.asking import AskOptions, Claim, Members, OnTimeout
from signoff.replay.call import Envelope, EventDecoder, StepCall
from signoff.replay.messages import AskDetail, ChildDetail, EventDetail, RunInfo, SleepDetail
from signoff.replay.plain import as_plain
from signoff.workflow.amounts import MAX_SECONDS, Seconds, as_seconds
from signoff.workflow.choices import Option
from signoff.workflow.codec import decode, dump
from signoff.workflow.errors import InvalidInput, SignoffError
from signoff.workflow.functions import closure_action
from signoff.workflow.kinds import StepKind
from signoff.workflow.names import MAX_NAME, check_name
from signoff.workflow.options import StartOptions, StepOptions
from signoff.workflow.retry import Retry
from signoff.workflow.rules import AllOf, AnyOf, Decided, NOf, Rule, all_of, any_of, several
from signoff.workflow.selectors import Selector

if TYPE_CHECKING:
    from signoff.replay.program import CoroutineProgram
    from signoff.workflow.definitions import Action, Ask, Event, Mutation, Query, StepFunction, Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
C = TypeVar("C")


class StepMisuse(SignoffError, RuntimeError):
    """A Step used where it is not valid: in a step's function, after its handler ended, or in another run."""

    code = "step_misuse"


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class Step:
    """The durable boundary of a run's handler. Valid only in that handler, while it runs."""

    __slots__ = ("_options", "_program")

    def __init__(self, program: CoroutineProgram, options: StepOptions | None = None) -> None:
        self._program = program
        self._options = options

    def _enter(self) -> CoroutineProgram:
        program = self._program
        if program.ended or asyncio_events._get_running_loop() is not program.loop:
            _refuse(program)
        return program

    # Functions

    def run_query(self, fn: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """Read in one read-only snapshot. InvalidInput if the arguments do not fit."""
        return self._run(StepKind.QUERY, fn, args, kwargs)

    def run_mutation(self, fn: Mutation[P, R], *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """Write to the author's tables, exactly once."""
        return self._run(StepKind.MUTATION, fn, args, kwargs)

    def run_action(self, fn: Action[P, R], *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """Do side effects; again if the worker is lost, and as `retry` says."""
        return self._run(StepKind.ACTION, fn, args, kwargs)

    @overload
    def do(self, name: str, fn: Callable[[], Awaitable[R]], **options: Any) -> StepCall[R]: ...
    @overload
    def do(self, name: str, fn: Callable[[], R], **options: Any) -> StepCall[R]: ...
    def do(self, name: str, fn: Callable[[], Any], **options: Any) -> StepCall[Any]:
        """Run a closure as an action. Options are those of actions: retry, timeout, pool, at_most_once, ..."""
        action = closure_action(name, fn)
        if options:
            action = action.options(**options)
        return self._run(StepKind.ACTION, action, (), {})

    def _run(self, kind: StepKind, fn: StepFunction[Any, Any], args: Any, kwargs: Any) -> StepCall[Any]:
        program = self._enter()
        if getattr(fn, "kind", None) is not kind:
            raise InvalidInput(f"run_{kind} takes what @{kind} made, not {fn!r}")
        codec = fn.codec
        options = program.options_for(fn, kind, self._options)
        name = fn.name if options is None or options.name is None else options.name
        return program.ask(
            kind, name, codec.decode_result, codec.encode_call(args, kwargs), options, None, fn, codec.normalize
        )

    # Child runs

    def run_workflow(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """Run another workflow and wait for its result. RunFailed, RunCanceled as it ends."""
        return self._child(workflow, args, kwargs, False, workflow.codec.decode_result)

    def start_workflow(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> StepCall[str]:
        """Start another workflow detached: neither waited for nor canceled along. The result is its run id."""
        return self._child(workflow, args, kwargs, True, _decode_plain)

    def _child(
        self, workflow: Workflow[Any, Any], args: Any, kwargs: Any, detached: bool, decode: Any
    ) -> StepCall[Any]:
        program = self._enter()
        detail = ChildDetail(
            workflow.name,
            None if workflow.given is None else workflow.given.version,
            detached,
            _start(workflow, self._options),
        )
        options = program.options_for(workflow, StepKind.CHILD, self._options)
        name = workflow.name if options is None or options.name is None else options.name
        codec = workflow.codec
        return program.ask(
            StepKind.CHILD, name, decode, codec.encode_call(args, kwargs), options, detail, None, codec.normalize
        )

    # Time

    def sleep(self, duration: Seconds, *, name: str = "sleep") -> StepCall[None]:
        """Sleep for seconds or a timedelta; negative is no sleep. InvalidInput: NaN, infinite, over 100 years."""
        seconds = max(0.0, as_seconds(duration, "sleep()", minimum=float("-inf")))
        return self._sleep(name, SleepDetail(seconds=seconds))

    def sleep_until(self, moment: datetime, *, name: str = "sleep") -> StepCall[None]:
        """Sleep until an aware moment; a past one is now. InvalidInput: naive, or over 100 years ahead."""
        program = self._enter()
        if moment.utcoffset() is None:
            raise InvalidInput("sleep_until() takes a datetime with a time zone")
        if (moment - program.now).total_seconds() > MAX_SECONDS:
            raise InvalidInput(f"sleep_until() takes a moment of the next 100 years, not {moment.isoformat()}")
        return self._sleep(name, SleepDetail(until=moment))

    def _sleep(self, name: str, detail: SleepDetail) -> StepCall[None]:
        return self._enter().ask(StepKind.SLEEP, check_name(name, "step"), _decode_nothing, detail=detail)

    def now(self) -> datetime:
        """The time (UTC) of the last outcome handed over; the same on every replay."""
        return self._enter().now

    # Events

    @overload
    def await_event(
        self, event: Event[T], *, id: str | None = None, timeout: Seconds | None = None, name: str | None = None
    ) -> StepCall[T]: ...
    @overload
    def await_event(
        self,
        event: Event[T],
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        default: D,
        name: str | None = None,
    ) -> StepCall[T | D]: ...
    @overload
    def await_event(
        self,
        event: Event[T],
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        envelope: Literal[True],
        name: str | None = None,
    ) -> StepCall[Envelope[T]]: ...
    @overload
    def await_event(
        self,
        event: Event[T],
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        default: D,
        envelope: Literal[True],
        name: str | None = None,
    ) -> StepCall[Envelope[T] | D]: ...
    @overload
    def await_event(
        self,
        *,
        id: str,
        timeout: Seconds | None = None,
        default: Any = ...,
        envelope: bool = ...,
        name: str | None = None,
    ) -> StepCall[Any]: ...
    def await_event(
        self,
        event: Event[Any] | None = None,
        *,
        id: str | None = None,
        timeout: Seconds | None = None,
        default: Any = MISSING,
        envelope: bool = False,
        name: str | None = None,
    ) -> StepCall[Any]:
        """Wait for the next event of a name, or for the one that `create_event` made with this id.

        timeout: seconds or timedelta, then `default` if given, else EventTimeout. EventError if the sender reports one.
        """
        program = self._enter()
        if id is not None:
            check_name(id, "event id")
        elif event is None:
            raise InvalidInput("await_event() takes an event, or id=")
        if event is not None:
            _check_event(event)
        decode_one = EventDecoder(() if event is None else (event,), envelope)
        detail = EventDetail(() if id is not None or event is None else (event.name,), id, _timeout(timeout))
        args = None if id is None else dump({"id": id})
        shown = check_name(name, "step") if name is not None else "event" if event is None else event.name
        call = program.ask(StepKind.EVENT, shown, decode_one, args, _sensitive(event), detail)
        if default is not MISSING:
            call.on_timeout = lambda: default
        return call

    def first_event(self, *events: Event[Any], timeout: Seconds | None = None) -> StepCall[tuple[Event[Any], Any]]:
        """Wait for the first event of several names: (event, value). The others keep what comes later."""
        program = self._enter()
        names = tuple(_check_event(event).name for event in events)
        if not names:
            raise InvalidInput("first_event() takes at least one event")
        if len(set(names)) < len(names):
            raise InvalidInput(f"first_event() was given one event twice: {', '.join(names)}")
        detail = EventDetail(names, None, _timeout(timeout))
        sensitive = next((found for event in events if (found := _sensitive(event)) is not None), None)
        return program.ask(
            StepKind.EVENT,
            " | ".join(names)[:MAX_NAME],
            EventDecoder(events, False, pairs=True),
            None,
            sensitive,
            detail,
        )

    # Questions

    @overload
    def ask(
        self,
        ask: Ask[T],
        *,
        title: str,
        rule: AnyOf | None = None,
        default: T = ...,
        combine: None = None,
        **more: Unpack[AskOptions],
    ) -> StepCall[T]: ...
    @overload
    def ask(
        self,
        ask: Ask[T],
        *,
        title: str,
        rule: NOf | AllOf,
        default: T = ...,
        combine: None = None,
        **more: Unpack[AskOptions],
    ) -> StepCall[list[Decided[T]]]: ...
    @overload
    def ask(
        self,
        ask: Ask[T],
        *,
        title: str,
        rule: Rule | None = None,
        default: T = ...,
        combine: Callable[[list[Decided[T]]], C],
        **more: Unpack[AskOptions],
    ) -> StepCall[C]: ...
    def ask(
        self,
        ask: Ask[Any],
        *,
        title: str,
        body: str = "",
        facts: Mapping[str, Any] | None = None,
        to: Selector | Iterable[Selector] | None = None,
        exclude: Selector | Iterable[Selector] | None = None,
        not_requester: bool = False,
        rule: Rule | None = None,
        options: Iterable[Option] | None = None,
        due: Seconds | None = None,
        remind: Iterable[Seconds] = (),
        escalate_to: Selector | Iterable[Selector] | None = None,
        escalate_after: Seconds | None = None,
        timeout: Seconds | None = None,
        default: Any = MISSING,
        on_timeout: OnTimeout = "raise",
        claim: Claim = "optional",
        extend: Seconds | None = None,
        members: Members = "live",
        combine: Callable[[list[Decided[Any]]], Any] | None = None,
        sensitive: bool | None = None,
        name: str | None = None,
    ) -> StepCall[Any]:
        """Put a question to people. The value is the answer; of several deciders, a list of `Decided`.

        body: markdown. facts: shown beside it.

        to: who may answer; None is everyone who may approve. exclude: who may not. not_requester: nor whoever asked
        for the run. members: whether groups and roles count as they are (`live`) or as they were (`as_asked`).

        rule: `any_of(...)` (the default: one answer), `n_of(...)`, `all_of(...)`. options: the outcomes to choose from.
        combine: makes the value of the list of decisions; pure, it runs in the handler. claim: whether somebody may
        take the question, must before they decide (`required`), or cannot.

        Durations are seconds or a timedelta, counted from asking. due: until it is overdue, which ends nothing. remind:
        reminders. escalate_to: who else may answer after `escalate_after` (by default at `due`). timeout: until it
        ends: with `default`, else EventTimeout, or `on_timeout="cancel_run"`. extend: by how much one click moves it.

        InvalidInput for what does not fit.
        """
        program = self._enter()
        if getattr(ask, "word", None) != "ask":
            raise InvalidInput(f"ask() takes what ask(name, type) made, not {ask!r}")
        if combine is not None and not callable(combine):
            raise InvalidInput(f"combine= takes a function of the list of decisions, not {combine!r}")
        seconds = _timeout(timeout)
        # A type with secrets in it hides these alone from the record; what is sensitive hides the whole answer.
        hidden = ask.sensitive if sensitive is None else sensitive
        question = asking.shown(ask, title, body, facts)
        question |= asking.who(to, exclude, not_requester, members, rule, options, claim, ask.codec)
        question |= asking.when(
            due, remind, escalate_to, escalate_after, seconds, on_timeout, default is not MISSING, extend
        )
        question |= {"schema": ask.codec.json_schema(), "sensitive": hidden}
        if combine is not None and not several(rule):
            # A list of one, so that it is called with a list whatever the rule
            rule = all_of(any_of() if rule is None else rule)
            question["rule"] = rule.to_json()
        text = None if default is MISSING else ask.codec.encode(default)
        if text is not None:
            question["default"] = text
        step_options = StepOptions(sensitive=True) if hidden or ask.codec.has_secret else None
        detail = AskDetail(ask.name, question, seconds)
        step_name = ask.name if name is None else check_name(name, "step")
        decisions = asking.DecisionsDecoder(ask.codec) if several(rule) else None
        decode_answer = cast("Callable[[str | None], Any]", ask.codec.decode) if decisions is None else decisions
        call = program.ask(StepKind.ASK, step_name, decode_answer, None, step_options, detail)
        call.combine = combine
        if text is not None:
            call.on_timeout = (
                (lambda: ask.codec.decode(text))
                if decisions is None
                else (lambda: decisions.by_default(text, program.now))
            )
        elif on_timeout == "cancel_run":
            call.cancels_run = True
        return call

    def update_ask(
        self,
        call: StepCall[Any],
        *,
        title: str | None = None,
        body: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> StepCall[bool]:
        """Show something else to those who are asked by `call`, what `step.ask` gave. `facts` replaces all of them.

        Claims and partial votes lapse, and those who voted see what changed. True once it is shown; False if the
        question is over already. InvalidInput for what does not fit.
        """
        program = self._enter()
        fn, args = asked.update(program, call, title, body, facts)
        return self._run(StepKind.MUTATION, fn, (), args)

    def comments(self, call: StepCall[Any]) -> StepCall[list[Comment]]:
        """What people wrote about the question that `call` asks, oldest first."""
        program = self._enter()
        fn, args = asked.comments(program, call)
        return self._run(StepKind.QUERY, fn, (), args)

    # Several at once, in an order that is the same on every replay

    async def wait(
        self,
        awaitables: Iterable[Awaitable[T]],
        *,
        timeout: Seconds | None = None,
        return_when: str = asyncio.FIRST_COMPLETED,
    ) -> tuple[list[asyncio.Future[T]], list[asyncio.Future[T]]]:
        """As asyncio.wait, but done and pending are lists, in the order given. Coroutines become tasks."""
        self._enter()
        futures = [asyncio.ensure_future(item) for item in awaitables]
        if not futures:
            raise InvalidInput("wait() takes at least one awaitable")
        done, _ = await asyncio.wait(futures, timeout=_timeout(timeout), return_when=return_when)
        return [item for item in futures if item in done], [item for item in futures if item not in done]

    async def as_completed(self, awaitables: Iterable[Awaitable[T]]) -> AsyncIterator[asyncio.Future[T]]:
        """Futures as they get done, in that order; `await` each for its value or error."""
        self._enter()
        queue: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
        futures = [asyncio.ensure_future(item) for item in awaitables]
        for future in futures:
            future.add_done_callback(queue.put_nowait)
        for _ in futures:
            yield await queue.get()

    # The rest

    @property
    def run(self) -> RunInfo:
        """What the handler may know of its run. `generation` counts restarts, as of the last outcome handed over."""
        return self._program.info

    @property
    def random(self) -> random.Random:
        """Seeded by the run: the same draws on every replay, others in every run."""
        return self._enter().random

    def uuid(self) -> uuid.UUID:
        return self._enter().uuid()

    def log(self, message: str, *, level: str = "info", **data: Any) -> None:
        """A line in the run's log, written once."""
        program = self._enter()
        if level not in ("debug", "info", "warning", "error", "critical"):
            raise InvalidInput(f"level= takes debug, info, warning, error or critical, not {level!r}")
        program.log(level, str(message), cast("dict[str, Any]", as_plain(data, "log()")) if data else None)

    def changed(self, marker: str) -> bool:
        """Whether the run passes this point with the changed code: false for runs that passed it before the change."""
        return self._enter().changed(check_name(marker, "marker"))

    def with_options(
        self,
        *,
        retry: Retry | bool | None = None,
        timeout: Seconds | None = None,
        schedule_to_close: Seconds | None = None,
        run_at: datetime | None = None,
        run_after: Seconds | None = None,
        pool: str | None = None,
        pool_key: str | None = None,
        unstable_args: bool | None = None,
        sensitive: bool | None = None,
        at_most_once: bool | None = None,
    ) -> Step:
        """A Step whose calls have these options; those of a call itself win."""
        given: dict[str, Any] = {
            "retry": retry, "timeout": timeout, "schedule_to_close": schedule_to_close, "run_at": run_at,
            "run_after": run_after, "pool": pool, "pool_key": pool_key, "unstable_args": unstable_args,
            "sensitive": sensitive, "at_most_once": at_most_once,
        }  # fmt: skip
        made = StepOptions.make(**{key: value for key, value in given.items() if value is not None})
        return Step(self._program, made if self._options is None else self._options.merge(made))

    def __reduce__(self) -> NoReturn:
        raise StepMisuse("a Step cannot leave its handler: pass values to steps, not the Step")


def _refuse(program: CoroutineProgram) -> NoReturn:
    if program.loop.closed and asyncio_events._get_running_loop() is program.loop:
        # Unwinding a handler that is dropped: as if every await were the one that is unwound.
        raise GeneratorExit("the program is closed")
    if program.ended:
        raise StepMisuse("this Step's handler has ended", run=program.info.id)
    raise StepMisuse(
        "a Step is valid only in the handler of its own run: not in a step's function, a thread, or another run",
        run=program.info.id,
    )


def _decode_nothing(text: str | None) -> None:
    return None


def _decode_plain(text: str | None) -> Any:
    return None if text is None else decode(text)


def _check_event(event: Event[Any]) -> Event[Any]:
    if getattr(event, "word", None) != "event":
        raise InvalidInput(f"an event wait takes what event(name, type) made, not {event!r}")
    return event


def _sensitive(event: Event[Any] | None) -> StepOptions | None:
    secret = event is not None and (event.sensitive or event.codec.has_secret)
    return StepOptions(sensitive=True) if secret else None


def _timeout(timeout: Seconds | None) -> float | None:
    return None if timeout is None else as_seconds(timeout, "timeout=")


def _start(workflow: Workflow[Any, Any], over: StepOptions | None) -> dict[str, Any]:
    """The start options of a child as plain JSON; `over`: those of its Step, of which the delay counts."""
    given = workflow.given
    if over is not None and (over.run_at is not None or over.run_after is not None):
        given = StartOptions(run_at=over.run_at, run_after=over.run_after) if given is None else given
        if given.run_at is None and given.run_after is None:
            given = replace(given, run_at=over.run_at, run_after=over.run_after)
    if given is None:
        return {}
    refused = [what for what in ("tenant", "requester", "session") if getattr(given, what) is not None]
    if refused:
        raise InvalidInput(f"a child run has its parent's {', '.join(refused)}")
    start: dict[str, Any] = {
        "run_id": given.run_id,
        "idempotency_key": given.idempotency_key,
        "labels": dict(given.labels) or None,
        "priority": given.priority or None,
        "retention": None if given.retention is None else given.retention.to_json(),
        "run_at": None if given.run_at is None else given.run_at.isoformat(),
        "run_after": given.run_after,
    }
    if given.on_complete is not None:
        start["on_complete"] = {
            "name": given.on_complete.name,
            "context": as_plain(given.on_complete_context, "on_complete_context="),
        }
    return {key: value for key, value in start.items() if value is not None}
