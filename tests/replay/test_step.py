"""What the methods of Step promise, one by one; those that wait for events and people: test_step_waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from signoff.replay.messages import ChildDetail, SleepDetail
from signoff.replay.step import Step, StepMisuse
from signoff.workflow import errors
from signoff.workflow.definitions import action, ask, event, mutation, query, workflow
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, StepKind
from signoff.workflow.options import Retention
from signoff.workflow.registry import Registry
from signoff.workflow.retry import Retry
from tests.replay.journal import CREATED, Journal, registry, shown


@action("price", retry=Retry(max_attempts=3), registry=registry)
def price(item: str, factor: Decimal = Decimal(1)) -> Decimal: ...


@query("read", registry=registry)
async def read(session: Any, key: str) -> dict[str, int]: ...


@mutation("write", registry=registry)
async def write(session: Any, key: str) -> None: ...


class Answer(BaseModel):
    approved: bool
    note: str = ""


paid = event("paid", Decimal, registry=registry)
ship = ask("ship", Answer, registry=registry)


@workflow("part", registry=registry)
async def part(step: Step, size: int) -> date: ...


def handled(handler: Callable[..., Any]) -> Any:
    """A workflow of a handler, unknown to every registry."""
    return workflow(handler.__name__, registry=Registry())(handler)


def first(journal: Journal) -> Any:
    (new,) = journal.asked
    return new.ask


def test_a_step_function_is_asked_for_and_its_decoded_result_is_handed_over() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        cost = await step.run_action(price, "pen", factor=Decimal("1.10"))
        rows = await step.run_query(read, "k")
        await step.run_mutation(write, key="k")
        return [repr(cost), repr(rows)]

    journal = Journal(handler)
    asked = first(journal)
    assert (asked.kind, asked.name, asked.fn) == (StepKind.ACTION, "price", price)
    assert json.loads(asked.args) == {"item": "pen", "factor": "1.10"}
    assert asked.options.retry == Retry(max_attempts=3)
    journal.settle(0, "2.20")
    assert first(journal).kind is StepKind.QUERY
    assert first(journal).options is None
    journal.settle(1, {"a": 1})
    journal.settle(2)
    assert journal.result == ["Decimal('2.20')", "{'a': 1}"]


def test_wrong_arguments_raise_at_the_call_and_ask_for_nothing() -> None:
    @handled
    async def handler(step: Step) -> str:
        for bad in (
            lambda: step.run_action(price, 7),
            lambda: step.run_action(price),
            lambda: step.run_query(price, "a"),
        ):
            with pytest.raises(errors.InvalidInput):
                bad()
        return "ok"

    assert Journal(handler).result == "ok"


def test_options_of_the_call_win_over_with_options_over_the_function() -> None:
    @handled
    async def handler(step: Step) -> None:
        hasty = step.with_options(timeout=5, pool="slow").with_options(timeout=4)
        _ = hasty.run_action(price, "a")
        _ = hasty.run_action(price.options(timeout=timedelta(seconds=3), name="named"), "a")
        _ = step.run_action(price.options(retry=False), "a")
        _ = step.with_options(retry=True).run_query(read, "a")
        await step.sleep(1)

    asked = [new.ask for new in Journal(handler).asked]
    assert [(item.options.timeout, item.options.pool) for item in asked[:2]] == [(4.0, "slow"), (3.0, "slow")]
    assert [item.name for item in asked[:2]] == ["price", "named"]
    assert asked[2].options is None or asked[2].options.retry is None
    assert asked[3].options is None  # queries are repeated by the engine itself


def test_equal_names_are_numbered() -> None:
    @handled
    async def handler(step: Step) -> None:
        await asyncio.gather(*(step.run_action(price, item) for item in "abc"), step.sleep(1), step.sleep(2))

    assert [(new.ask.name, new.ask.ordinal, new.ask.index) for new in Journal(handler).asked] == [
        ("price", 0, 0), ("price", 1, 1), ("price", 2, 2), ("sleep", 0, 3), ("sleep", 1, 4),
    ]  # fmt: skip


def test_a_failed_step_raises_what_its_function_raised_and_names_itself_when_it_ends_the_run() -> None:
    @handled
    async def handler(step: Step) -> None:
        with pytest.raises(errors.StepFailed) as caught:
            await step.run_action(price, "a")
        error = caught.value
        assert (error.type, error.message, error.data, error.step, error.step_no) == ("Oops", "no", [1], "price", 0)
        with pytest.raises(errors.StepLost):
            await step.run_action(price, "b")
        try:
            async with asyncio.TaskGroup() as tasks:
                _ = tasks.create_task(step.run_action(price, "c"))
        except ExceptionGroup as failures:
            raise RuntimeError("wrapped") from failures

    journal = Journal(handler)
    journal.fail(0, type="Oops", data=[1])
    journal.fail(1, type="StepLost")
    journal.evict()
    journal.fail(2)
    assert journal.finish is not None
    assert journal.finish.kind is ResultKind.FAILED
    assert journal.finish.error is not None
    assert (journal.finish.error.type, journal.finish.error.message) == ("RuntimeError", "wrapped")
    assert journal.finish.error.step_no == 2
    assert "in handler" in (journal.finish.error.traceback or "")


def test_do_runs_a_closure() -> None:
    @handled
    async def handler(step: Step) -> int:
        base = 2

        def add() -> int:
            return base + 1

        return await step.do("add", add, timeout=3) + await step.do("more", lambda: base)

    journal = Journal(handler)
    asked = first(journal)
    assert (asked.kind, asked.name, asked.args, asked.fn.fn(), asked.options.timeout) == (
        StepKind.ACTION,
        "add",
        None,
        3,
        3.0,
    )
    journal.settle(0, 3)
    journal.settle(1, 4)
    assert journal.result == 7


def test_a_result_that_does_not_fit_ends_the_run_failed() -> None:
    @handled
    async def handler(step: Step) -> int:
        return "seven"  # type: ignore[return-value]  # on purpose

    finish = Journal(handler).finish
    assert finish is not None
    assert finish.error is not None
    assert finish.error.type == "InvalidResult"
    assert "invalid result" in finish.error.message
    assert finish.error.data["fields"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ((OutcomeKind.SUCCESS, "2026-05-01", None), "datetime.date(2026, 5, 1)"),
        (
            (
                OutcomeKind.FAILURE,
                None,
                ErrorInfo("RunFailed", "", {"run": "r2", "error": {"type": "Bad", "message": "m"}}),
            ),
            "r2 Bad m",
        ),
        ((OutcomeKind.CANCELED, None, ErrorInfo("RunCanceled", "", {"run": "r2"})), "canceled r2"),
        ((OutcomeKind.FAILURE, None, ErrorInfo("Conflict", "taken")), "taken"),
    ],
)
def test_a_child_run_ends_as_its_run_ended(outcome: tuple[OutcomeKind, Any, Any], expected: str) -> None:
    @handled
    async def handler(step: Step) -> str:
        try:
            return repr(await step.run_workflow(part, 3))
        except errors.RunFailed as error:
            return f"{error.run} {error.error.type} {error.error.message}"
        except errors.RunCanceled as error:
            return f"canceled {error.run}"
        except errors.Conflict as error:
            return str(error)

    journal = Journal(handler)
    kind, value, error = outcome
    journal.settle(0, value, kind, error)
    assert journal.result == expected


def test_start_options_of_a_child_travel_as_plain_json() -> None:
    @handled
    async def handler(step: Step) -> str:
        given = part.options(run_id="mine", version=3, labels={"a": "b"}, retention=Retention(failed=60), run_after=5)
        with pytest.raises(errors.InvalidInput, match="requester"):
            step.run_workflow(part.options(requester="x"), 1)
        with pytest.raises(errors.InvalidInput):
            step.run_workflow(part, "many")  # type: ignore[arg-type]  # on purpose
        _ = step.run_workflow(given, 2)
        return await step.start_workflow(part, 1)

    journal = Journal(handler)
    details = [new.ask.detail for new in journal.asked]
    assert details[0] == ChildDetail(
        "part", 3, False, {"run_id": "mine", "labels": {"a": "b"}, "retention": {"failed": 60.0}, "run_after": 5.0}
    )
    assert details[1] == ChildDetail("part", None, True, {})
    journal.settle(1, "r9")
    assert journal.result == "r9"
    assert journal.rows[0].outcome_kind is OutcomeKind.CANCELED  # left open at the end (R10)


def test_time_is_that_of_the_last_outcome() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        times = [step.now(), step.now()]
        await step.sleep(timedelta(minutes=1))
        times += [step.now(), step.now()]
        await step.sleep_until(step.now() - timedelta(days=1), name="nap")
        return [moment.isoformat() for moment in [*times, step.now()]]

    journal = Journal(handler)
    assert first(journal).detail == SleepDetail(seconds=60.0)
    journal.settle(0)
    assert first(journal).detail == SleepDetail(until=journal.now - timedelta(days=1))
    assert first(journal).name == "nap"
    journal.now -= timedelta(hours=1)  # a clock that went back
    journal.settle(1)
    one, two, three, four, five = (datetime.fromisoformat(text) for text in journal.result)
    assert one == two == CREATED
    assert three == four == five == CREATED + timedelta(seconds=1)


BAD_TIMES = [float("nan"), float("inf"), timedelta(days=40_000), "soon", True]


@pytest.mark.parametrize("bad", BAD_TIMES)
def test_times_that_make_no_sense_raise_at_the_call(bad: Any) -> None:
    @handled
    async def handler(step: Step) -> str:
        for call in (
            lambda: step.sleep(bad),
            lambda: step.await_event(paid, timeout=bad),
            lambda: step.first_event(paid, timeout=bad),
            lambda: step.ask(ship, title="?", due=bad),
            lambda: step.ask(ship, title="?", timeout=bad),
            lambda: step.await_event(paid, timeout=-1),
            lambda: step.sleep_until(datetime(2026, 1, 1)),  # noqa: DTZ001 - naive on purpose
            lambda: step.sleep_until(CREATED + timedelta(days=40_000)),
        ):
            with pytest.raises(errors.InvalidInput):
                call()
        assert await step.sleep(-3) is None
        return "ok"

    journal = Journal(handler)
    assert first(journal).detail == SleepDetail(seconds=0.0)
    journal.settle(0)
    assert journal.result == "ok"


def test_random_draws_go_on_across_replays_and_change_with_the_round() -> None:
    @handled
    async def handler(step: Step) -> list[Any]:
        found: list[Any] = [step.random.random(), str(step.uuid())]
        source = step.random
        for _ in range(3):
            await step.run_action(price, "a")
            found += [source.random(), str(step.uuid())]
        return found

    def run(restart: bool) -> list[Any]:
        with Journal(handler) as journal:
            journal.settle(0, "1")
            journal.evict()
            journal.settle(1, "1")
            if restart:
                journal.restart(1)  # keeps the first outcome
                journal.settle(journal.open[0], "1")
            journal.settle(journal.open[0], "1")
            found: list[Any] = journal.result
            return found

    plain, again, restarted = run(False), run(False), run(True)
    assert plain == again
    assert len(set(plain)) == len(plain)
    assert restarted[:4] == plain[:4]  # drawn after kept outcomes
    assert not set(restarted[4:]) & set(plain)


def test_logs_are_written_once() -> None:
    @handled
    async def handler(step: Step) -> None:
        step.log("begin", item=Decimal("1.5"))
        await step.sleep(1)
        step.log("end", level="warning")
        with pytest.raises(errors.InvalidInput):
            step.log("x", level="loud")

    journal = Journal(handler)
    journal.evict()
    journal.settle(0)
    assert [(line.level, line.message, line.data) for line in journal.logs] == [
        ("info", "begin", {"item": "1.5"}), ("warning", "end", None),
    ]  # fmt: skip


def test_changed_is_true_for_runs_that_come_to_it_later_and_false_for_those_that_passed() -> None:
    new_code = False

    @handled
    async def handler(step: Step) -> list[Any]:
        found: list[Any] = []
        for _ in range(3):
            await step.sleep(1)
            if new_code:
                found.append(step.changed("fix"))
        await step.sleep(1)
        return found

    passed = Journal(handler, check=False)
    passed.settle(0)
    passed.settle(1)
    started = Journal(handler, check=False)
    new_code = True
    passed.live.close()
    passed.live = passed.replays(check=True)
    passed.commit(passed.live.catch_up())
    for _ in range(2):
        passed.settle(passed.open[0])
    assert passed.result == [False, False, False]  # for ever the same in one run
    assert StepKind.MARKER not in {row.kind for row in passed.rows.values()}
    started.evict()
    started.settle(0)
    assert [row.name for row in started.rows.values() if row.kind is StepKind.MARKER] == ["fix"]
    for _ in range(3):
        started.evict()
        started.settle(started.open[0])
    assert started.result == [True, True, True]


def test_run_information() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        return [step.run.id, step.run.workflow, step.run.labels["team"], step.run.created_at.isoformat()]

    assert Journal(handler).result == ["run-1", "handler", "a", CREATED.isoformat()]


def test_the_generation_that_a_handler_sees_is_that_of_what_happened_last() -> None:
    @handled
    async def handler(step: Step) -> list[int]:
        seen = [step.run.generation]
        for _ in range(2):
            await step.run_action(price, "a")
            seen.append(step.run.generation)
        return seen

    journal = Journal(handler)
    journal.settle(0, "1")
    journal.restart(1)
    journal.evict()
    journal.settle(journal.open[0], "1")
    assert journal.result == [1, 1, 2]


def test_wait_and_as_completed_are_ordered() -> None:
    @handled
    async def handler(step: Step) -> list[Any]:
        calls = [step.run_action(price, item) for item in "abcd"]
        done, pending = await step.wait(calls)
        assert done == [calls[2]]
        assert pending == [calls[0], calls[1], calls[3]]
        found = [float(await future) async for future in step.as_completed(pending)]
        done, pending = await step.wait(calls, return_when=asyncio.ALL_COMPLETED)
        assert (done, pending) == (calls, [])
        with pytest.raises(errors.InvalidInput):
            await step.wait([])
        raw, _ = await asyncio.wait(calls)
        assert raw == set(calls)
        return found

    journal = Journal(handler)
    for no in (2, 3, 0, 1):
        journal.settle(no, str(no))
    assert journal.result == [3.0, 0.0, 1.0]


# Where a Step is valid (D7) ------------------------------------------------------------------------------------------


def test_a_step_is_refused_outside_of_its_handler() -> None:
    kept: list[Step] = []

    @handled
    async def lends(step: Step) -> str:
        kept.append(step)  # signoff: allow
        await step.sleep(1)
        return "done"

    @handled
    async def borrows(step: Step) -> str:
        with pytest.raises(StepMisuse, match="another run"):
            kept[0].sleep(1)
        return "ok"

    lender = Journal(lends, check=False)
    with pytest.raises(StepMisuse, match="step's function"):
        kept[0].sleep(1)  # as a step's function would
    assert Journal(borrows, check=False).result == "ok"
    lender.settle(0)
    with pytest.raises(StepMisuse, match="has ended"):
        kept[0].now()
    assert shown(lender.asked) == []


def test_a_task_canceled_before_it_begins_cancels_its_step() -> None:
    @handled
    async def handler(step: Step) -> str:
        task = asyncio.create_task(step.run_action(price, "a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        inner = step.run_action(price, "b")
        outer = asyncio.shield(inner)
        outer.cancel()
        return str(await inner)

    journal = Journal(handler)
    assert journal.open == [1]
    assert journal.rows[0].by_handler
    journal.settle(1, "1")
    assert journal.result == "1"


def test_tasks_left_behind_do_nothing_after_the_end() -> None:
    @handled
    async def handler(step: Step) -> str:
        async def background() -> None:
            while True:
                await asyncio.sleep(0)
                await step.sleep(1)

        task = asyncio.create_task(background())
        await step.run_action(price, "a")
        return "done" if not task.done() else "it ended"

    journal = Journal(handler)
    journal.settle(0, "1")
    assert journal.result == "done"
    assert journal.rows[1].outcome_kind is OutcomeKind.CANCELED


def test_too_large_arguments_are_refused_at_the_call() -> None:
    @workflow("small", max_value_bytes=100, registry=Registry())
    async def handler(step: Step) -> str:
        with pytest.raises(errors.LimitExceeded, match="'price'"):
            step.run_action(price, "x" * 100)
        return "x" * int((await step.run_action(price, "a")) * 1)

    journal = Journal(handler)
    journal.settle(0, "200")
    assert journal.finish is not None
    assert journal.finish.error is not None
    assert journal.finish.error.type == "LimitExceeded"
