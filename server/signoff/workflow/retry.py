"""When a failed attempt is tried again. A retry decision is a value, so that it can be tested by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from signoff.workflow.amounts import MAX_SECONDS, as_whole
from signoff.workflow.amounts import Seconds as Seconds
from signoff.workflow.amounts import as_seconds as as_seconds
from signoff.workflow.errors import InvalidInput, NonRetryable, RetryAfter

DELAY_FUNCTION_LIMIT = 5.0  # seconds that a `delay=` function may compute


@dataclass(frozen=True)
class Retry:
    """A retry policy.

    max_attempts: attempts in all, the first included; None never ends.
    initial, cap: seconds or timedelta. The wait after attempt n is min(cap, initial * base ** (n - 1)), or
      min(cap, initial * n) when `linear`, times a factor drawn from [0.5, 1.5) when `jitter`.
    delay: a function (attempt, error) -> seconds | timedelta that gives the exact wait instead.
    retry_on: only these exception types are tried again. give_up_on: these never are.
    """

    max_attempts: int | None = 5
    initial: Seconds = 0.5
    base: float = 2.0
    cap: Seconds = 3600.0
    jitter: bool = True
    linear: bool = False
    delay: Callable[[int, BaseException], Seconds] | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            as_whole(self.max_attempts, "Retry(max_attempts=)")
        object.__setattr__(self, "initial", as_seconds(self.initial, "Retry(initial=)"))
        object.__setattr__(self, "cap", as_seconds(self.cap, "Retry(cap=)"))
        object.__setattr__(self, "base", as_seconds(self.base, "Retry(base=)", minimum=1.0))
        for field in ("retry_on", "give_up_on"):
            types = getattr(self, field)
            types = (types,) if isinstance(types, type) else tuple(types)
            if not all(isinstance(item, type) and issubclass(item, BaseException) for item in types):
                raise InvalidInput(f"Retry({field}=) takes exception types")
            object.__setattr__(self, field, types)

    def to_record(self) -> dict[str, Any]:
        """The numbers, for the journal; functions and types are not stored."""
        numbers = ("max_attempts", "initial", "base", "cap", "jitter", "linear")
        return {name: getattr(self, name) for name in numbers}

    @classmethod
    def from_record(cls, record: dict[str, Any], live: Retry | None = None) -> Retry:
        """Recorded numbers win; `delay`, `retry_on` and `give_up_on` come from the live code."""
        if live is None:
            return cls(**record)
        return cls(**record, delay=live.delay, retry_on=live.retry_on, give_up_on=live.give_up_on)


MAX_DELAY = MAX_SECONDS
NO_RETRY = Retry(max_attempts=1)
DEFAULT_RETRY = Retry()

Reason = Literal[
    "retry", "retry_after", "off", "non_retryable", "give_up_on", "not_retry_on", "attempts", "time", "bad_delay"
]


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """`delay` in seconds until the next attempt, or None: the step fails. `note` explains a refused `delay=`."""

    delay: float | None
    reason: Reason
    note: str | None = None


def backoff(policy: Retry, attempt: int, rng: Random) -> float:
    """Seconds to wait after `attempt` (the first is 1) by the policy's numbers."""
    initial, cap = float(policy.initial), float(policy.cap)  # type: ignore[arg-type]  # made seconds at construction
    try:
        raw = initial * attempt if policy.linear else initial * float(policy.base) ** (attempt - 1)
    except OverflowError:
        raw = cap
    wait = min(cap, raw)
    return wait * (0.5 + rng.random()) if policy.jitter else wait


def decide_retry(
    policy: Retry | None,
    attempt: int,
    error: BaseException,
    elapsed: float,
    rng: Random,
    schedule_to_close: float | None = None,
) -> RetryDecision:
    """Whether and when to try again after `attempt` (the first is 1) failed with `error`.

    `policy` None: no retry. `elapsed`: seconds since the step was asked for; a wait that would end at or after
    `schedule_to_close` seconds is not begun.
    """
    if isinstance(error, NonRetryable):
        return RetryDecision(None, "non_retryable")
    if policy is None:
        return RetryDecision(None, "off")
    if policy.give_up_on and isinstance(error, policy.give_up_on):
        return RetryDecision(None, "give_up_on")
    if policy.retry_on and not isinstance(error, (*policy.retry_on, RetryAfter)):
        return RetryDecision(None, "not_retry_on")
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return RetryDecision(None, "attempts")
    reason: Reason = "retry"
    if isinstance(error, RetryAfter):
        wait, reason = min(error.delay, MAX_SECONDS), "retry_after"
    elif policy.delay is not None:
        asked, problem = _ask_delay(policy.delay, attempt, error)
        if asked is None:
            return RetryDecision(None, "bad_delay", problem)
        wait = asked
    else:
        wait = backoff(policy, attempt, rng)
    if schedule_to_close is not None and elapsed + wait >= schedule_to_close:
        return RetryDecision(None, "time")
    return RetryDecision(wait, reason)


def _ask_delay(
    delay: Callable[[int, BaseException], Seconds], attempt: int, error: BaseException
) -> tuple[float | None, str | None]:
    begun = time.monotonic()
    try:
        wait = as_seconds(delay(attempt, error), "Retry(delay=)")
    except Exception as problem:  # noqa: BLE001  # the author's function: whatever it raises ends the step, with what it said
        return None, f"{type(problem).__name__}: {problem}"
    if time.monotonic() - begun > DELAY_FUNCTION_LIMIT:
        return None, f"Retry(delay=) took longer than {DELAY_FUNCTION_LIMIT:g} s"
    return wait, None
