"""F5, R7, S4, D6: options."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.workflow.definitions import Compensation, action, mutation, query, workflow
from signoff.workflow.errors import InvalidInput
from signoff.workflow.options import EMPTY, Retention, StartOptions, StepOptions
from signoff.workflow.registry import Registry
from signoff.workflow.retry import DEFAULT_RETRY, Retry

registry = Registry()


@action(name="undo", registry=registry)
async def undo(step: Compensation) -> None: ...


@action(name="send", retry=Retry(max_attempts=3), timeout=10, registry=registry)
async def send(to: str) -> str:
    return to


@query(name="read", registry=registry)
async def read(session: Any, key: str) -> str:
    return key


@mutation(name="done", registry=registry)
async def done(session: Any, run: str) -> None: ...


@workflow("options", registry=registry)
async def handler(step: Any, order: str) -> str:
    return order


names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=256)
seconds = st.none() | st.floats(0, 1e8)
step_options = st.builds(
    StepOptions.make,
    name=st.none() | names,
    retry=st.none() | st.booleans() | st.builds(Retry, max_attempts=st.integers(1, 9)),
    timeout=seconds,
    schedule_to_close=seconds,
    run_after=seconds,
    pool=st.none() | names,
    pool_key=st.none() | names,
    compensate=st.sampled_from([None, undo]),
    on_error=st.sampled_from([None, "stop", "continue"]),
    unstable_args=st.booleans(),
    sensitive=st.booleans(),
    at_most_once=st.booleans(),
) | st.builds(StepOptions.make, run_at=st.datetimes(timezones=st.just(UTC)), inline=st.booleans())


@given(step_options)
def test_options_survive_the_journal(options: StepOptions) -> None:
    record = options.to_record()
    assert record is None or json.loads(json.dumps(record)) == record
    assert StepOptions.from_record(record, options) == options


@given(step_options, step_options)
def test_recorded_numbers_win_over_live_ones(recorded: StepOptions, live: StepOptions) -> None:
    back = StepOptions.from_record(recorded.to_record(), live)
    assert (back.timeout, back.pool, back.run_after, back.run_at) == (
        recorded.timeout, recorded.pool, recorded.run_after, recorded.run_at,
    )  # fmt: skip
    assert back.compensate is live.compensate


@given(step_options, step_options)
def test_later_options_win_where_they_say_something(first: StepOptions, later: StepOptions) -> None:
    merged = first.merge(later)
    assert merged.timeout == (first.timeout if later.timeout is None else later.timeout)
    assert merged.retry == (first.retry if later.retry is None else later.retry)
    assert merged.sensitive == (first.sensitive or later.sensitive)
    assert merged.run_at is None or merged.run_after is None
    assert first.merge(None) == first
    assert EMPTY.merge(later) == later


def test_nothing_given_is_not_recorded() -> None:
    assert EMPTY.to_record() is None
    assert StepOptions.make(unstable_args=True).to_record() is None
    assert StepOptions.make(timeout=timedelta(minutes=1)).to_record() == {"timeout": 60.0}
    assert StepOptions.make(compensate=undo).to_record() == {"compensate": "undo"}


def test_levels_resolve_from_the_call_down_to_the_built_in() -> None:
    fn = Retry(max_attempts=3)
    flow = Retry(max_attempts=7)
    make = StepOptions.make

    def resolved(*levels: Retry | bool | None) -> Retry | bool | None:
        return StepOptions.resolve(*[None if level is None else make(retry=level) for level in levels]).retry

    assert resolved() is None
    assert resolved(None, None, fn, flow) == fn
    assert resolved(True, None, fn, flow) == fn
    assert resolved(True, None, None, flow) == flow
    assert resolved(True) == DEFAULT_RETRY
    assert resolved(None, None, True) == DEFAULT_RETRY
    assert resolved(None, None, True, None, flow) == flow
    assert resolved(False, None, fn, flow) is None
    assert resolved(None, None, False, flow) is None
    assert resolved(True, None, False, flow) == flow
    assert resolved(None, False, fn) is None
    assert resolved(None, fn, False) == fn
    options = StepOptions.resolve(make(timeout=1), make(pool="a"), make(timeout=2, pool="b"), make(schedule_to_close=9))
    assert (options.timeout, options.pool, options.schedule_to_close) == (1, "a", 9)


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout": -1},
        {"timeout": math.nan},
        {"timeout": "1"},
        {"schedule_to_close": math.inf},
        {"run_after": math.nan},
        {"run_at": datetime(2024, 1, 1)},  # noqa: DTZ001  # naive on purpose
        {"run_at": datetime(2024, 1, 1, tzinfo=UTC), "run_after": 5},
        {"retry": 5},
        {"name": ""},
        {"name": "a" * 257},
        {"name": "a\nb"},
        {"pool": "\x00"},
        {"pool_key": ""},
        {"on_error": "explode"},
        {"compensate": "undo"},
        {"compensate": read},
    ],
)
def test_bad_options_are_refused_where_they_are_given(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        send.options(**bad)


def test_inline_refuses_a_delay() -> None:
    assert read.options(inline=True).given == StepOptions(inline=True)
    with pytest.raises(InvalidInput, match="inline"):
        read.options(inline=True, run_after=5)
    with pytest.raises(InvalidInput, match="inline"):
        done.options(run_at=datetime(2024, 1, 1, tzinfo=UTC)).options(inline=True)


def test_options_of_options_add_up_and_change_no_original() -> None:
    first = send.options(timeout=5, name="first")
    second = first.options(timeout=6)
    assert send.given is None
    assert (first.step_name, second.step_name, send.step_name) == ("first", "first", "send")
    assert first.given is not None
    assert second.given is not None
    assert (first.given.timeout, second.given.timeout) == (5, 6)
    assert send.defaults.retry == Retry(max_attempts=3)


def test_start_options_add_up() -> None:
    started = handler.options(priority=2, run_after=timedelta(minutes=1)).options(
        run_at=datetime(2030, 1, 1, tzinfo=UTC)
    )
    assert started.given is not None
    assert (started.given.priority, started.given.run_after) == (2, None)
    assert handler.given is None
    call = handler.options(run_id="r-1").call("o-1")
    assert call.encode() == '{"order":"o-1"}'
    assert call.target.given == StartOptions(run_id="r-1")


@pytest.mark.parametrize(
    "bad",
    [
        {"run_at": datetime(2024, 1, 1, tzinfo=UTC), "run_after": 5},
        {"run_at": datetime(2024, 1, 1)},  # noqa: DTZ001  # naive on purpose
        {"priority": 1.5},
        {"priority": 2**31},
        {"version": 0},
        {"version": "1"},
        {"run_id": ""},
        {"idempotency_key": "a\x07"},
        {"labels": {"": "x"}},
        {"labels": {"a": 5}},
        {"labels": ["a"]},
        {"retention": 5},
        {"on_complete": undo},
    ],
)
def test_bad_start_options_are_refused_where_they_are_given(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        handler.options(**bad)


def test_the_context_of_on_complete_is_kept_as_given() -> None:
    given = handler.options(on_complete=done, on_complete_context={"a": 1}).given
    assert given is not None
    assert (given.on_complete, given.on_complete_context) == (done, {"a": 1})


def test_retention_in_seconds() -> None:
    retention = Retention(completed=timedelta(days=1), failed=60)
    assert retention.to_json() == {"completed": 86400.0, "failed": 60.0}
    assert Retention.from_json(retention.to_json()) == retention
    with pytest.raises(InvalidInput):
        Retention(failed=-1)
