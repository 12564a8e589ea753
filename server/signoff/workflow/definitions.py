"""What authors define: workflows here, step functions in `functions`, events and asks in `events`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from signoff.workflow import codehash, source_check
from signoff.workflow.amounts import Seconds, as_seconds, as_whole
from signoff.workflow.codec import Codec, ValueCodec
from signoff.workflow.errors import InvalidInput
from signoff.workflow.events import Ask, Event, ask, event
from signoff.workflow.functions import (
    Action,
    Call,
    Compensation,
    Mutation,
    Query,
    StepFunction,
    action,
    closure_action,
    make_codec,
    mutation,
    query,
    require_coroutine,
    require_first,
)
from signoff.workflow.names import check_name
from signoff.workflow.options import EMPTY, Retention, StartOptions, StepOptions
from signoff.workflow.places import Place, place_of
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.retry import Retry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession as CoreSession
    from sqlmodel.ext.asyncio.session import AsyncSession

    from signoff.replay.step import Step

__all__ = [
    "Action", "Ask", "Call", "Compensation", "Event", "Mutation", "Query", "StepFunction", "Workflow",
    "WorkflowSettings", "action", "ask", "closure_action", "event", "mutation", "query", "workflow",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


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
        """Whether args and result of its runs are shown to nobody: it says so, or there are secrets in them."""
        return self.settings.sensitive or self.codec.has_secrets

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
        require_coroutine(fn, where, "the handler")
        require_first(fn, where, "step")
        codec = make_codec(fn, 1, where)
        warnings = source_check.check_handler(fn, name)
        made: Workflow[P, R] = Workflow(name, version, fn, codec, place, settings, warnings)
        (default_registry if registry is None else registry).add_workflow(made)
        return made

    return decorate


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
