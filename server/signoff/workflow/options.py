"""Options of a step and of a start: plain frozen values. An option that is None (or False) is not given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from signoff.workflow.amounts import MAX_WHOLE, Seconds, as_seconds, as_whole
from signoff.workflow.errors import InvalidInput
from signoff.workflow.names import check_name
from signoff.workflow.retry import DEFAULT_RETRY, NO_RETRY, Retry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from signoff.workflow.definitions import Mutation, StepFunction

# Options that the journal keeps, as plain JSON.
_RECORDED = (
    "timeout", "schedule_to_close", "run_after", "pool", "pool_key", "on_error", "sensitive", "at_most_once", "inline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of one step. All times are seconds, but `run_at`, an aware datetime.

    `retry=True` takes the next default down, `False` turns retries off. `on_error` belongs to `compensate`: whether a
    compensation that fails stops the rest. `unstable_args` is not compared, so it is not recorded.
    """

    name: str | None = None
    retry: Retry | bool | None = None
    timeout: float | None = None
    schedule_to_close: float | None = None
    run_at: datetime | None = None
    run_after: float | None = None
    pool: str | None = None
    pool_key: str | None = None
    compensate: StepFunction[Any, Any] | None = None
    on_error: Literal["stop", "continue"] | None = None
    unstable_args: bool = False
    sensitive: bool = False
    at_most_once: bool = False
    inline: bool = False

    @classmethod
    def make(
        cls,
        *,
        timeout: Seconds | None = None,
        schedule_to_close: Seconds | None = None,
        run_after: Seconds | None = None,
        **rest: Any,
    ) -> StepOptions:
        """Check and build; times may be timedeltas. InvalidInput for what makes no sense."""
        options = cls(
            timeout=None if timeout is None else as_seconds(timeout, "timeout="),
            schedule_to_close=None
            if schedule_to_close is None
            else as_seconds(schedule_to_close, "schedule_to_close="),
            # "after -5 seconds" is now, like every moment that is past
            run_after=None if run_after is None else as_seconds(run_after, "run_after=", minimum=float("-inf")),
            **rest,
        )
        if options.name is not None:
            check_name(options.name, "step")
        if options.pool is not None:
            check_name(options.pool, "pool")
        if options.pool_key is not None:
            check_name(options.pool_key, "pool key")
        if options.retry is not None and not isinstance(options.retry, Retry | bool):
            raise InvalidInput(f"retry= takes Retry(...), True or False, not {type(options.retry).__name__}")
        if options.on_error not in (None, "stop", "continue"):
            raise InvalidInput(f"on_error= takes 'stop' or 'continue', not {options.on_error!r}")
        check_delay(options.run_at, options.run_after)
        return options

    def merge(self, over: StepOptions | None) -> StepOptions:
        """`over` wins where it gives something."""
        if over is None or over is self or over == EMPTY:
            return self
        if self == EMPTY:
            return over
        given = {name: value for name, value in _items(over) if value is not None and value is not False}
        if over.retry is False:
            given["retry"] = False
        # Two ways to say when: the later one replaces both.
        if "run_at" in given:
            given.setdefault("run_after", None)
        elif "run_after" in given:
            given["run_at"] = None
        return replace(self, **given)

    def to_record(self) -> dict[str, Any] | None:
        """What the journal keeps: only what is given, retry by its numbers, compensate by name. None: nothing."""
        if self == EMPTY:
            return None
        values = {name: getattr(self, name) for name in _RECORDED}
        record = {name: value for name, value in values.items() if value is not None and value is not False}
        if self.retry is not None:
            record["retry"] = self.retry if isinstance(self.retry, bool) else self.retry.to_record()
        if self.run_at is not None:
            record["run_at"] = self.run_at.isoformat()
        if self.compensate is not None:
            record["compensate"] = self.compensate.name
        return record or None

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None, live: StepOptions | None = None) -> StepOptions:
        """Recorded numbers win; functions and types are taken from `live`."""
        live = EMPTY if live is None else live
        if not record:
            return replace(EMPTY, name=live.name, compensate=live.compensate, unstable_args=live.unstable_args)
        retry = record.get("retry")
        if isinstance(retry, dict):
            retry = Retry.from_record(retry, live.retry if isinstance(live.retry, Retry) else None)
        run_at = record.get("run_at")
        return cls(
            name=live.name,
            retry=retry,
            run_at=None if run_at is None else datetime.fromisoformat(run_at),
            compensate=live.compensate,
            unstable_args=live.unstable_args,
            **{name: record[name] for name in _RECORDED if name in record},
        )

    @staticmethod
    def resolve(
        call: StepOptions | None = None,
        with_options: StepOptions | None = None,
        fn: StepOptions | None = None,
        workflow: StepOptions | None = None,
        engine: StepOptions | None = None,
    ) -> StepOptions:
        """All levels in one (F5): call > with_options > function > workflow > engine > built-in.

        In the result `retry` is a Retry, or None for no retries: `True` on a level takes the next default below it,
        at the end the built-in `Retry()`; `False` is none; given nowhere is none.
        """
        levels = [level for level in (call, with_options, fn, workflow, engine) if level is not None and level != EMPTY]
        if not levels:
            return EMPTY
        merged = levels[-1]
        for level in reversed(levels[:-1]):
            merged = merged.merge(level)
        retry = _resolve_retry(levels)
        return merged if merged.retry is retry else replace(merged, retry=retry)


EMPTY = StepOptions()
_FIELDS = tuple(item.name for item in fields(StepOptions))


def _items(options: StepOptions) -> list[tuple[str, Any]]:
    return [(name, getattr(options, name)) for name in _FIELDS]


def _resolve_retry(levels: list[StepOptions]) -> Retry | None:
    asked = False
    for level in levels:
        if isinstance(level.retry, Retry):
            return None if level.retry == NO_RETRY else level.retry
        if level.retry is False:
            # Turned off here. Asked for with True above, what is below this level still counts.
            if not asked:
                return None
        elif level.retry is True:
            asked = True
    return DEFAULT_RETRY if asked else None


def check_delay(run_at: Any, run_after: float | None) -> None:
    if run_at is not None and run_after is not None:
        raise InvalidInput("give run_at= or run_after=, not both")
    if run_at is not None and (not isinstance(run_at, datetime) or run_at.tzinfo is None):
        raise InvalidInput("run_at= takes a datetime with a time zone")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long final runs are kept, in seconds (timedelta accepted), by outcome; None keeps them."""

    completed: float | timedelta | None = None
    failed: float | timedelta | None = None
    canceled: float | timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("completed", "failed", "canceled"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_seconds(value, f"Retention({name}=)"))

    def to_json(self) -> dict[str, float]:
        return {
            name: value
            for name in ("completed", "failed", "canceled")
            if (value := cast(float | None, getattr(self, name))) is not None
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, float]) -> Retention:
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start. `run_after` in seconds; `on_complete_context` is checked when the run is started."""

    idempotency_key: str | None = None
    run_id: str | None = None
    run_at: datetime | None = None
    run_after: float | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None
    retention: Retention | None = None
    tenant: str | None = None
    requester: str | None = None
    on_complete: Mutation[Any, Any] | None = None
    on_complete_context: Any = None
    session: AsyncSession | None = None

    @classmethod
    def make(cls, *, run_after: Seconds | None = None, **rest: Any) -> StartOptions:
        delay = None if run_after is None else as_seconds(run_after, "run_after=", minimum=float("-inf"))
        options = cls(run_after=delay, **rest)
        check_delay(options.run_at, options.run_after)
        for what in ("idempotency_key", "run_id", "tenant", "requester"):
            value = getattr(options, what)
            if value is not None:
                check_name(value, what)
        if not isinstance(options.labels, Mapping):
            raise InvalidInput(f"labels= takes a dict of strings, not {type(options.labels).__name__}")
        if options.retention is not None and not isinstance(options.retention, Retention):
            raise InvalidInput(f"retention= takes Retention(...), not {type(options.retention).__name__}")
        for key, value in options.labels.items():
            check_name(key, "label")
            check_name(value, f"value of label {key!r}")
        as_whole(options.priority, "priority=", minimum=-MAX_WHOLE)
        if options.version is not None:
            as_whole(options.version, "version=")
        return options

    def with_given(self, given: Mapping[str, Any]) -> StartOptions:
        """These options with `given` on top, checked."""
        merged = {name: getattr(self, name) for name in _START_FIELDS}
        if "run_at" in given:
            merged["run_after"] = None
        elif "run_after" in given:
            merged["run_at"] = None
        return StartOptions.make(**{**merged, **given})


_START_FIELDS = tuple(item.name for item in fields(StartOptions))
