"""F4: a retry decision is a value."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.workflow.errors import InvalidInput, NonRetryable, RetryAfter
from signoff.workflow.retry import MAX_DELAY, Retry, backoff, decide_retry

policies = st.builds(
    Retry,
    max_attempts=st.none() | st.integers(1, 1000),
    initial=st.floats(0, 1e6),
    base=st.floats(1, 100),
    cap=st.floats(0, 1e7),
    jitter=st.booleans(),
    linear=st.booleans(),
)
attempts = st.integers(1, 100_000)


class Refused(Exception): ...


class BadlyRefused(Refused): ...


def test_the_defaults_are_those_of_the_promise() -> None:
    policy = Retry()
    assert (policy.max_attempts, policy.initial, policy.base, policy.cap, policy.jitter) == (5, 0.5, 2.0, 3600.0, True)
    plain = Retry(jitter=False, max_attempts=None)
    assert [backoff(plain, attempt, Random(0)) for attempt in (1, 2, 3, 4, 20)] == [0.5, 1, 2, 4, 3600]
    linear = Retry(jitter=False, linear=True, initial=2, cap=timedelta(seconds=5))
    assert [backoff(linear, attempt, Random(0)) for attempt in (1, 2, 3)] == [2, 4, 5]


@given(policies, attempts, st.integers())
def test_a_wait_is_within_jitter_of_its_formula(policy: Retry, attempt: int, seed: int) -> None:
    wait = backoff(policy, attempt, Random(seed))
    exact = backoff(Retry(**{**policy.to_record(), "jitter": False}), attempt, Random(seed))
    assert 0 <= exact <= float(policy.cap)  # type: ignore[arg-type]  # seconds since construction
    assert 0.5 * exact <= wait <= 1.5 * exact
    if not policy.jitter:
        assert wait == exact


@given(policies, attempts)
def test_waits_without_jitter_never_shrink(policy: Retry, attempt: int) -> None:
    plain = Retry(**{**policy.to_record(), "jitter": False})
    assert backoff(plain, attempt + 1, Random(0)) >= backoff(plain, attempt, Random(0))


@given(policies, attempts, st.floats(0, 1e9), st.integers())
def test_attempts_end_exactly_at_the_limit(policy: Retry, attempt: int, elapsed: float, seed: int) -> None:
    decision = decide_retry(policy, attempt, ValueError(), elapsed, Random(seed))
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        assert (decision.delay, decision.reason) == (None, "attempts")
    else:
        assert decision.delay is not None
        assert decision.reason == "retry"


@given(policies, attempts, st.floats(0, 1e9), st.floats(0, 1e9), st.integers())
def test_no_wait_ends_after_schedule_to_close(
    policy: Retry, attempt: int, elapsed: float, limit: float, seed: int
) -> None:
    decision = decide_retry(policy, attempt, ValueError(), elapsed, Random(seed), schedule_to_close=limit)
    assert decision.delay is None or elapsed + decision.delay < limit


@given(policies, attempts, st.integers())
def test_the_same_draw_gives_the_same_decision(policy: Retry, attempt: int, seed: int) -> None:
    first, second = (decide_retry(policy, attempt, ValueError(), 0, Random(seed)) for _ in range(2))
    assert first == second


@given(policies, st.floats(0, 1e6))
def test_retry_after_sets_the_next_wait(policy: Retry, delay: float) -> None:
    decision = decide_retry(policy, 1, RetryAfter(delay), 0, Random(0))
    if policy.max_attempts == 1:
        assert decision.reason == "attempts"
    else:
        assert (decision.delay, decision.reason) == (delay, "retry_after")


@given(policies)
def test_non_retryable_ends_at_once(policy: Retry) -> None:
    assert decide_retry(policy, 1, NonRetryable("no"), 0, Random(0)).reason == "non_retryable"


def test_without_a_policy_nothing_is_tried_again() -> None:
    assert decide_retry(None, 1, ValueError(), 0, Random(0)).reason == "off"
    assert decide_retry(None, 1, RetryAfter(1), 0, Random(0)).delay is None


def test_exception_types_decide() -> None:
    only = Retry(retry_on=(Refused,), give_up_on=(BadlyRefused,))
    reasons = [decide_retry(only, 1, error, 0, Random(0)).reason for error in (Refused(), BadlyRefused(), ValueError())]
    assert reasons == ["retry", "give_up_on", "not_retry_on"]
    assert Retry(retry_on=Refused).retry_on == (Refused,)  # type: ignore[arg-type]  # forgiven: one type without a tuple
    assert decide_retry(only, 1, RetryAfter(3), 0, Random(0)).delay == 3


def test_a_delay_function_gives_the_exact_wait() -> None:
    seen: list[tuple[int, BaseException]] = []
    error = ValueError("x")

    def delay(attempt: int, raised: BaseException) -> timedelta:
        seen.append((attempt, raised))
        return timedelta(seconds=attempt * 10)

    assert decide_retry(Retry(delay=delay), 3, error, 0, Random(0)).delay == 30
    assert seen == [(3, error)]
    assert decide_retry(Retry(delay=lambda attempt, error: 0), 1, error, 0, Random(0)).delay == 0


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "soon", None, 1e300, 10**400, timedelta(seconds=-1), True])
def test_a_senseless_delay_ends_the_step(value: Any) -> None:
    decision = decide_retry(Retry(delay=lambda attempt, error: value), 1, ValueError(), 0, Random(0))
    assert (decision.delay, decision.reason) == (None, "bad_delay")
    assert decision.note


def test_a_delay_function_that_raises_ends_the_step() -> None:
    decision = decide_retry(Retry(delay=lambda attempt, error: 1 / 0), 1, ValueError(), 0, Random(0))
    assert (decision.delay, decision.reason) == (None, "bad_delay")
    assert "ZeroDivisionError" in (decision.note or "")


def test_a_delay_function_that_computes_too_long_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(attempt: int, error: BaseException) -> float:
        now[0] += 5.1
        return 1

    assert decide_retry(Retry(delay=slow), 1, ValueError(), 0, Random(0)).reason == "bad_delay"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"initial": -1},
        {"initial": math.nan},
        {"cap": math.inf},
        {"base": 0.5},
        {"base": math.nan},
        {"retry_on": ("ValueError",)},
        {"give_up_on": (int,)},
    ],
)
def test_senseless_policies_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Retry(**bad)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_retry_after_takes_a_real_delay(bad: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        RetryAfter(bad)
    assert RetryAfter(timedelta(minutes=1)).delay == 60
    assert decide_retry(Retry(), 1, RetryAfter(1e300), 0, Random(0)).delay == MAX_DELAY


@given(policies)
def test_numbers_survive_the_journal_and_the_rest_is_live(policy: Retry) -> None:
    assert Retry.from_record(policy.to_record()) == policy
    live = Retry(max_attempts=2, retry_on=(Refused,), delay=lambda attempt, error: 1)
    back = Retry.from_record(policy.to_record(), live)
    assert back.max_attempts == policy.max_attempts
    assert (back.retry_on, back.delay) == (live.retry_on, live.delay)
