"""What authors define: workflows, step functions, events and asks."""

from __future__ import annotations

import copy
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from signoff.workflow import codehash, source_check
from signoff.workflow.amounts import Seconds, as_seconds, as_whole
from signoff.workflow.codec import MISSING, Codec, ValueCodec, read_signature, value_codec
from signoff.workflow.errors import InvalidInput, RegistrationError
from signoff.workflow.kinds import StepKind
from signoff.workflow.names import check_name
from signoff.workflow.options import EMPTY, Retention, StartOptions, StepOptions
from signoff.workflow.registry import Place, Registry, default_registry
from signoff.workflow.retry import Retry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession as CoreSession
    from sqlmodel.ext.asyncio.session import AsyncSession

    from signoff.replay.step import Step

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A", bound="StepFunction[Any, Any]")

OnError = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A start or step that is not made yet: a definition with args that fit it."""

    target: Workflow[Any, R_co] | StepFunction[Any, R_co]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def encode(self) -> str | None:
        """The args as the journal keeps them; InvalidInput."""
        return self.target.codec.encode_call(self.args, self.kwargs)


@dataclass(frozen=True, slots=True)
class Compensation:
    """What a compensation is given of the step that it undoes.

    `args` by parameter name and `result` are plain JSON; `result` is None unless the outcome was a success.
    `outcome`: success, failure, canceled, or unknown. `cause`: why the run is compensated (failed or canceled,
    and the message).
    """

    args: dict[str, Any]
    outcome: Literal["success", "failure", "canceled", "unknown"]
    result: Any = None
    cause: str = ""


class StepFunction(Generic[P, R]):
    """A function that a step runs. Not to be called itself: `fn` is the author's function."""

    kind: ClassVar[StepKind]
    first: ClassVar[int] = 0  # leading parameters that Signoff gives

    def __init__(
        self, name: str, fn: Callable[..., Any], codec: Codec, place: Place, defaults: StepOptions = EMPTY
    ) -> None:
        self.name = name
        self.fn = fn
        self.codec = codec
        self.place = place
        self.defaults = defaults  # given in the decorator
        self.given: StepOptions | None = None  # given by `.options(...)`

    @functools.cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    @property
    def step_name(self) -> str:
        given = self.given
        return self.name if given is None or given.name is None else given.name

    @property
    def sensitive_args(self) -> bool:
        return self.codec.has_secret_args

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return Call(self, args, kwargs)

    def _with(self, **options: Any) -> Self:
        made = StepOptions.make(**{name: value for name, value in options.items() if value is not None})
        clone = copy.copy(self)
        given = clone.given = made if self.given is None else self.given.merge(made)
        if given.inline and (given.run_at is not None or given.run_after is not None):
            raise InvalidInput("inline= runs at once: it does not go with run_at= or run_after=")
        return clone

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"


class Query(StepFunction[P, R]):
    """Reads in one read-only snapshot."""

    kind = StepKind.QUERY
    first = 1

    def options(
        self,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        schedule_to_close: Seconds | None = None,
        run_at: datetime | None = None,
        run_after: Seconds | None = None,
        pool: str | None = None,
        pool_key: str | None = None,
        unstable_args: bool | None = None,
        sensitive: bool | None = None,
        inline: bool | None = None,
    ) -> Query[P, R]:
        return self._with(
            name=name, timeout=timeout, schedule_to_close=schedule_to_close, run_at=run_at, run_after=run_after,
            pool=pool, pool_key=pool_key, unstable_args=unstable_args, sensitive=sensitive, inline=inline,
        )  # fmt: skip


class Mutation(StepFunction[P, R]):
    """Writes to the author's tables in the transaction that records its outcome."""

    kind = StepKind.MUTATION
    first = 1

    def options(
        self,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        schedule_to_close: Seconds | None = None,
        run_at: datetime | None = None,
        run_after: Seconds | None = None,
        pool: str | None = None,
        pool_key: str | None = None,
        compensate: Action[[Compensation], Any] | Mutation[[Compensation], Any] | None = None,
        on_error: OnError | None = None,
        unstable_args: bool | None = None,
        sensitive: bool | None = None,
        inline: bool | None = None,
    ) -> Mutation[P, R]:
        return self._with(
            name=name, timeout=timeout, schedule_to_close=schedule_to_close, run_at=run_at, run_after=run_after,
            pool=pool, pool_key=pool_key, compensate=_check_compensate(compensate), on_error=on_error,
            unstable_args=unstable_args, sensitive=sensitive, inline=inline,
        )  # fmt: skip


class Action(StepFunction[P, R]):
    """Has side effects; runs again when its worker is lost."""

    kind = StepKind.ACTION

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | bool | None = None,
        timeout: Seconds | None = None,
        schedule_to_close: Seconds | None = None,
        run_at: datetime | None = None,
        run_after: Seconds | None = None,
        pool: str | None = None,
        pool_key: str | None = None,
        compensate: Action[[Compensation], Any] | Mutation[[Compensation], Any] | None = None,
        on_error: OnError | None = None,
        unstable_args: bool | None = None,
        sensitive: bool | None = None,
        at_most_once: bool | None = None,
    ) -> Action[P, R]:
        return self._with(
            name=name, retry=retry, timeout=timeout, schedule_to_close=schedule_to_close, run_at=run_at,
            run_after=run_after, pool=pool, pool_key=pool_key, compensate=_check_compensate(compensate),
            on_error=on_error, unstable_args=unstable_args, sensitive=sensitive, at_most_once=at_most_once,
        )  # fmt: skip


def closure_action(name: str, fn: Callable[[], R | Awaitable[R]]) -> Action[[], R]:
    """An action of `step.do(name, fn)`: known to no registry, without args."""
    check_name(name, "step")
    return Action(name, fn, _closure_codec(fn), place_of(fn))


def _closure_codec(fn: Callable[..., Any]) -> Codec:
    # A closure is made anew on every pass of the handler, its code is not; annotations are the code's own.
    code = getattr(fn, "__code__", None)
    if code is None or getattr(fn, "__annotations__", None) == {}:
        return _UNTYPED_CODEC if _takes_nothing(fn) else Codec.for_callable(fn)
    cached = _closure_codecs.get(code)
    if cached is None:
        cached = _closure_codecs[code] = Codec.for_callable(fn, namespace=_closure_names(fn))
    return cached


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or (code.co_argcount == 0 and code.co_kwonlyargcount == 0)


_UNTYPED_CODEC = Codec([], MISSING, "the step's function")
_closure_codecs: dict[Any, Codec] = {}


class Workflow(Generic[P, R]):
    """A named, versioned handler. Immutable; `options` returns another one with start options."""

    def __init__(
        self,
        name: str,
        version: int,
        fn: Callable[..., Coroutine[Any, Any, R]],
        codec: Codec,
        place: Place,
        settings: WorkflowSettings,
        warnings: Sequence[source_check.Finding] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.fn = fn
        self.codec = codec
        self.place = place
        self.settings = settings
        self.warnings = tuple(warnings)
        self.given: StartOptions | None = None

    @functools.cached_property
    def code_hash(self) -> str:
        """Of the handler's source; another hash is other code that may go on with a blocked run."""
        return codehash.code_hash(self.fn)

    @property
    def result(self) -> ValueCodec:
        return self.codec.result

    @property
    def sensitive(self) -> bool:
        return self.settings.sensitive or self.codec.has_secret_args

    def options(
        self,
        *,
        idempotency_key: str | None = None,
        run_id: str | None = None,
        run_at: datetime | None = None,
        run_after: Seconds | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        version: int | None = None,
        retention: Retention | None = None,
        tenant: str | None = None,
        requester: str | None = None,
        on_complete: Mutation[..., Any] | None = None,
        on_complete_context: Any = None,
        session: AsyncSession | CoreSession | None = None,
    ) -> Workflow[P, R]:
        """The same workflow with start options; what is given here wins over what was given before."""
        given = {
            "idempotency_key": idempotency_key, "run_id": run_id, "run_at": run_at, "run_after": run_after,
            "priority": priority, "labels": labels, "version": version, "retention": retention, "tenant": tenant,
            "requester": requester, "on_complete": on_complete, "on_complete_context": on_complete_context,
            "session": session,
        }  # fmt: skip
        _check_on_complete(on_complete)
        clone = copy.copy(self)
        clone.given = (self.given or StartOptions()).with_given(
            {key: value for key, value in given.items() if value is not None}
        )
        return clone

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A typed start, for `engine.start_many`."""
        return Call(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version}>"


@dataclass(frozen=True, slots=True)
class WorkflowSettings:
    """What `@workflow(...)` was given. Times in seconds, sizes in bytes; None: the engine's setting."""

    defaults: StepOptions = EMPTY  # retry, timeout and pool of its steps
    max_concurrent: int | None = None
    rate: tuple[int, float] | None = None  # starts per seconds
    max_queued: int | None = None
    events: tuple[Event[Any], ...] | None = None  # None: any name may be sent
    retention: Retention | None = None
    on_complete: Mutation[..., Any] | None = None
    sensitive: bool = False
    max_steps: int | None = None
    max_value_bytes: int | None = None
    max_journal_bytes: int | None = None

    def declares(self, event: str) -> bool:
        """Whether an event of this name may be sent to a run."""
        return self.events is None or any(item.name == event for item in self.events)

    def to_json(self) -> dict[str, Any]:
        """What other processes must know, for the definition's row."""
        raw: dict[str, Any] = {
            "max_concurrent": self.max_concurrent,
            "rate": None if self.rate is None else list(self.rate),
            "max_queued": self.max_queued,
            "events": None if self.events is None else sorted(item.name for item in self.events),
            "retention": None if self.retention is None else self.retention.to_json(),
            "on_complete": None if self.on_complete is None else self.on_complete.name,
            "sensitive": self.sensitive or None,
            "max_steps": self.max_steps,
            "max_value_bytes": self.max_value_bytes,
            "max_journal_bytes": self.max_journal_bytes,
        }
        return {key: value for key, value in raw.items() if value is not None}


@dataclass(frozen=True)
class Event(Generic[T]):
    """A named, typed message that programs send."""

    name: str
    type: Any = Any
    sensitive: bool = False
    place: Place = field(default=Place("", 0, ""), compare=False, repr=False)
    word: ClassVar[Literal["event", "ask"]] = "event"

    @functools.cached_property
    def codec(self) -> ValueCodec:
        return value_codec(self.type)


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A named, typed question that people answer."""

    name: str
    type: Any = Any
    sensitive: bool = False
    place: Place = field(default=Place("", 0, ""), compare=False, repr=False)
    word: ClassVar[Literal["event", "ask"]] = "ask"

    @functools.cached_property
    def codec(self) -> ValueCodec:
        return value_codec(self.type)


@overload
def event(name: str, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]: ...
@overload
def event(name: str, type: type[T], *, sensitive: bool = False, registry: Registry | None = None) -> Event[T]: ...
@overload
def event(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]: ...
def event(name: str, type: Any = Any, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]:
    """Declare an event. `type` is what its payload is validated against, `Any` plain JSON."""
    made: Event[Any] = Event(check_name(name, "event"), type, sensitive, _caller_place())
    _register_message(made, registry)
    return made


@overload
def ask(name: str, type: type[T], *, sensitive: bool = False, registry: Registry | None = None) -> Ask[T]: ...
@overload
def ask(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Ask[Any]: ...
def ask(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Ask[Any]:
    """Declare a question. `type` is what an answer is validated against; the form is made from it."""
    made: Ask[Any] = Ask(check_name(name, "ask"), type, sensitive, _caller_place())
    _register_message(made, registry)
    return made


def _register_message(made: Event[Any] | Ask[Any], registry: Registry | None) -> None:
    try:
        _ = made.codec
    except RegistrationError as error:
        raise RegistrationError(
            f"{made.word} {made.name!r} at {made.place}: its type cannot be serialised: {error}"
        ) from error
    (default_registry if registry is None else registry).add_message(made)


def workflow(
    name: str,
    version: int = 1,
    *,
    retry: Retry | bool | None = None,
    timeout: Seconds | None = None,
    pool: str | None = None,
    max_concurrent: int | None = None,
    rate: tuple[int, Seconds] | None = None,
    max_queued: int | None = None,
    events: Sequence[Event[Any]] | None = None,
    retention: Retention | None = None,
    on_complete: Mutation[..., Any] | None = None,
    sensitive: bool = False,
    max_steps: int | None = None,
    max_value_bytes: int | None = None,
    max_journal_bytes: int | None = None,
    registry: Registry | None = None,
) -> Callable[[Callable[Concatenate[Step, P], Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Define a workflow: `async def handler(step, ...args)`.

    retry, timeout (seconds) and pool are defaults of its steps. rate: (starts, seconds). events: the only events that
    may be sent to its runs. Sizes in bytes. RegistrationError for what cannot be, NondeterministicCode for what would
    differ on replay.
    """
    check_name(name, "workflow")
    as_whole(version, f"version of workflow {name!r}:")
    for what, number, least in (
        ("max_concurrent", max_concurrent, 1),
        ("max_queued", max_queued, 0),
        ("max_steps", max_steps, 1),
        ("max_value_bytes", max_value_bytes, 1),
        ("max_journal_bytes", max_journal_bytes, 1),
    ):
        if number is not None:
            as_whole(number, f"{what}= of workflow {name!r}", minimum=least, maximum=2**53)
    _check_on_complete(on_complete)
    settings = WorkflowSettings(
        defaults=StepOptions.make(retry=retry, timeout=timeout, pool=pool),
        max_concurrent=max_concurrent,
        rate=None if rate is None else _check_rate(name, rate),
        max_queued=max_queued,
        events=None if events is None else tuple(events),
        retention=retention,
        on_complete=on_complete,
        sensitive=sensitive,
        max_steps=max_steps,
        max_value_bytes=max_value_bytes,
        max_journal_bytes=max_journal_bytes,
    )

    def decorate(fn: Callable[Concatenate[Step, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        place = place_of(fn)
        where = f"workflow {name!r} at {place}"
        _require_coroutine(fn, where, "the handler")
        _require_first(fn, where, "step")
        codec = _make_codec(fn, 1, where)
        warnings = source_check.check_handler(fn, name)
        made: Workflow[P, R] = Workflow(name, version, fn, codec, place, settings, warnings)
        (default_registry if registry is None else registry).add_workflow(made)
        return made

    return decorate


def query(
    name: str | None = None,
    *,
    timeout: Seconds | None = None,
    schedule_to_close: Seconds | None = None,
    pool: str | None = None,
    sensitive: bool = False,
    registry: Registry | None = None,
) -> Callable[[Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]], Query[P, R]]:
    """Define a query: `async def read(session, ...args)`, in one read-only snapshot."""
    defaults = StepOptions.make(timeout=timeout, schedule_to_close=schedule_to_close, pool=pool, sensitive=sensitive)

    def decorate(fn: Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]) -> Query[P, R]:
        return cast("Query[P, R]", _define(Query, name, fn, defaults, registry))

    return decorate


def mutation(
    name: str | None = None,
    *,
    timeout: Seconds | None = None,
    schedule_to_close: Seconds | None = None,
    pool: str | None = None,
    compensate: Action[[Compensation], Any] | Mutation[[Compensation], Any] | None = None,
    on_error: OnError | None = None,
    sensitive: bool = False,
    registry: Registry | None = None,
) -> Callable[[Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]], Mutation[P, R]]:
    """Define a mutation: `async def write(session, ...args)`; its writes and its outcome commit together."""
    defaults = StepOptions.make(
        timeout=timeout, schedule_to_close=schedule_to_close, pool=pool, compensate=_check_compensate(compensate),
        on_error=on_error, sensitive=sensitive,
    )  # fmt: skip

    def decorate(fn: Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]) -> Mutation[P, R]:
        return cast("Mutation[P, R]", _define(Mutation, name, fn, defaults, registry))

    return decorate


class ActionDecorator:
    """Two signatures, so that the result of a coroutine function is what it returns when awaited."""

    def __init__(self, name: str | None, defaults: StepOptions, registry: Registry | None) -> None:
        self._name, self._defaults, self._registry = name, defaults, registry

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Action[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Action[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Action[Any, Any]:
        return _define(Action, self._name, fn, self._defaults, self._registry)


def action(
    name: str | None = None,
    *,
    retry: Retry | bool | None = None,
    timeout: Seconds | None = None,
    schedule_to_close: Seconds | None = None,
    pool: str | None = None,
    compensate: Action[[Compensation], Any] | Mutation[[Compensation], Any] | None = None,
    on_error: OnError | None = None,
    sensitive: bool = False,
    at_most_once: bool = False,
    registry: Registry | None = None,
) -> ActionDecorator:
    """Define an action: a sync function (run in a thread) or an `async def`."""
    defaults = StepOptions.make(
        retry=retry, timeout=timeout, schedule_to_close=schedule_to_close, pool=pool,
        compensate=_check_compensate(compensate), on_error=on_error, sensitive=sensitive, at_most_once=at_most_once,
    )  # fmt: skip
    return ActionDecorator(name, defaults, registry)


def _define(
    cls: type[A], name: str | None, fn: Callable[..., Any], defaults: StepOptions, registry: Registry | None
) -> A:
    if name is not None and not isinstance(name, str):
        raise RegistrationError(f"write @{cls.kind}() with parentheses, and the name as a string")
    name = check_name(fn.__name__ if name is None else name, str(cls.kind))
    place = place_of(fn)
    where = f"{cls.kind} {name!r} at {place}"
    if cls.first:
        _require_coroutine(fn, where, "the function")
        _require_first(fn, where, "session")
    made = cls(name, fn, _make_codec(fn, cls.first, where), place, defaults)
    (default_registry if registry is None else registry).add_function(made)
    return made


def _make_codec(fn: Callable[..., Any], first: int, where: str) -> Codec:
    try:
        return Codec.for_callable(fn, first=first, namespace=_closure_names(fn))
    except RegistrationError as error:
        raise RegistrationError(f"{where}: {error}") from error


def _closure_names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Names that annotations may use besides the module's: those of the functions around."""
    frame = sys._getframe(1)
    names: dict[str, Any] = {}
    own = os.path.dirname(__file__)
    code_file = getattr(getattr(fn, "__code__", None), "co_filename", None)
    walk: Any = frame
    while walk is not None:
        if walk.f_code.co_filename == code_file and walk.f_locals is not walk.f_globals:
            names = {**walk.f_locals, **names}
        elif not walk.f_code.co_filename.startswith(own) and names:
            break
        walk = walk.f_back
    try:
        names |= inspect.getclosurevars(fn).nonlocals
    except (TypeError, ValueError):
        return names
    return names


def _require_coroutine(fn: Callable[..., Any], where: str, what: str) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationError(f"{where}: {what} must be an `async def`")


def _require_first(fn: Callable[..., Any], where: str, word: str) -> None:
    parameters = list(read_signature(fn).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise RegistrationError(f"{where}: its first parameter must be the {word}")


def _check_compensate(compensate: StepFunction[Any, Any] | None) -> StepFunction[Any, Any] | None:
    if compensate is not None and not isinstance(compensate, Action | Mutation):
        raise InvalidInput(f"compensate= takes an action or a mutation, not {compensate!r}")
    return compensate


def _check_on_complete(on_complete: StepFunction[..., Any] | None) -> None:
    if on_complete is not None and not isinstance(on_complete, Mutation):
        raise InvalidInput(f"on_complete= takes a mutation, not {on_complete!r}")


def _check_rate(name: str, rate: tuple[int, Seconds]) -> tuple[int, float]:
    try:
        count, seconds = rate
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"rate= of workflow {name!r} takes (starts, seconds), not {rate!r}") from error
    what = f"rate= of workflow {name!r}"
    return as_whole(count, what), as_seconds(seconds, what, minimum=0.001)


def place_of(fn: Callable[..., Any]) -> Place:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    qualname = getattr(fn, "__qualname__", repr(fn))
    return Place("?", 0, qualname) if code is None else Place(code.co_filename, code.co_firstlineno, qualname)


def _caller_place() -> Place:
    """Where `event(...)` or `ask(...)` stands: the first frame outside of this module."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return Place("?", 0, "")
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    # The name that it is assigned to: the same file and name again is a reload.
    target = line.split("=", 1)[0].split(":", 1)[0].strip()
    qualname = target if target.isidentifier() else ""
    return Place(frame.f_code.co_filename, frame.f_lineno, qualname)
