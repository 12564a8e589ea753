"""Queries, mutations and actions: the functions that steps run."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from signoff.workflow.amounts import Seconds
from signoff.workflow.codec import MISSING, Codec, read_signature
from signoff.workflow.errors import InvalidInput, RegistrationError
from signoff.workflow.kinds import StepKind
from signoff.workflow.names import check_name
from signoff.workflow.options import EMPTY, StepOptions
from signoff.workflow.places import Place, closure_names, place_of
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.retry import Retry

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from signoff.workflow.definitions import Workflow

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
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
    takes_turn: ClassVar[bool] = False  # no advance of the run is under way while it executes

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
    def sensitive(self) -> bool:
        """Whether args and result are shown to nobody, as its options say or because there are secrets in them."""
        return self.defaults.merge(self.given).sensitive or self.codec.has_secrets

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
    if not callable(fn):
        raise InvalidInput(f"step.do({name!r}) takes a function, not {type(fn).__name__}")
    return Action(name, fn, _closure_codec(fn), place_of(fn))


def _closure_codec(fn: Callable[..., Any]) -> Codec:
    # A closure is made anew on every pass of the handler, its code is not. By identity, because codes of two files may
    # be equal; the code is kept with its codec, so that its id is not given to another one.
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return _UNTYPED
    known = _closure_codecs.get(id(code))
    if known is None:
        known = _closure_codecs[id(code)] = (code, Codec.for_closure(fn, namespace=closure_names(fn)))
    return known[1]


_UNTYPED = Codec([], MISSING, "the step's function")
_closure_codecs: dict[int, tuple[CodeType, Codec]] = {}


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
        require_coroutine(fn, where, "the function")
        require_first(fn, where, "session")
    made = cls(name, fn, make_codec(fn, cls.first, where), place, defaults)
    (default_registry if registry is None else registry).add_function(made)
    return made


def make_codec(fn: Callable[..., Any], first: int, where: str) -> Codec:
    try:
        return Codec.for_callable(fn, first=first, namespace=closure_names(fn))
    except RegistrationError as error:
        raise RegistrationError(f"{where}: {error}") from error


def require_coroutine(fn: Callable[..., Any], where: str, what: str) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationError(f"{where}: {what} must be an `async def`")


def require_first(fn: Callable[..., Any], where: str, word: str) -> None:
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
