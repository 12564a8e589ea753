"""The journal against the program: cancels, durable timers, rounds, compensations, the second replay."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from signoff.replay.check import Diverged
from signoff.replay.compensation import Compensate, CompensationProgram
from signoff.replay.messages import JournalEntry, Outcome, SleepDetail
from signoff.replay.replayer import Replayer
from signoff.replay.step import Step
from signoff.workflow.definitions import action
from signoff.workflow.errors import Mismatch
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, StepKind
from signoff.workflow.retry import Retry
from tests.replay.journal import CREATED, Journal, registry
from tests.replay.test_step import handled, paid, price, write


@action("lenient", registry=registry)
def lenient(item: str, more: int = 0) -> None: ...


def test_asyncio_timers_are_durable_sleeps_and_canceled_when_not_needed() -> None:
    @handled
    async def handler(step: Step) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(60):
            found.append(await step.await_event(paid))
        try:
            await asyncio.wait_for(step.await_event(paid), 30)
        except TimeoutError:
            found.append("late")
        found.append(await asyncio.sleep(3, "slept"))
        await asyncio.sleep(0)
        return [str(item) for item in found]

    journal = Journal(handler)
    assert [
        (new.ask.kind, new.ask.name, new.ask.detail) for new in journal.asked if new.ask.kind is StepKind.SLEEP
    ] == [(StepKind.SLEEP, "timeout", SleepDetail(seconds=60.0))]
    by_name = {new.ask.name: new.no for new in journal.asked}
    journal.event(by_name["paid"], "paid", "1")
    assert journal.rows[by_name["timeout"]].by_handler
    by_name = {new.ask.name: new.no for new in journal.asked}
    assert journal.live.open[by_name["timeout"]].ask.detail == SleepDetail(seconds=30.0)
    journal.settle(by_name["timeout"])
    assert journal.rows[by_name["paid"]].by_handler
    journal.evict()
    journal.settle(journal.open[0])
    assert journal.result == ["1", "late", "slept"]


@pytest.mark.parametrize("winner", [0, 1, 2])
def test_a_race_is_won_by_what_happened_first_on_every_replay(winner: int) -> None:
    @handled
    async def handler(step: Step) -> str:
        tasks = [asyncio.create_task(step.run_action(price, item)) for item in "abc"]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:  # signoff: allow
            task.cancel()
        await step.sleep(1)
        (only,) = done  # signoff: allow
        return f"{only.result()}"

    journal = Journal(handler)
    journal.settle(winner, str(winner))
    journal.evict()
    assert sorted(no for no, row in journal.rows.items() if row.by_handler) == sorted({0, 1, 2} - {winner})
    journal.settle(journal.open[0])
    assert journal.result == str(winner)


def test_a_cancel_lets_the_handler_clean_up_and_ends_the_run_canceled() -> None:
    @handled
    async def handler(step: Step) -> None:
        try:
            await step.sleep(100)
        except asyncio.CancelledError:
            await step.run_action(price, "clean up")
            raise

    journal = Journal(handler)
    journal.cancel()
    assert [new.ask.name for new in journal.asked] == ["price"]
    assert journal.rows[0].by_handler
    journal.evict()
    journal.cancel()  # once is enough: this one does not interrupt the cleaning up
    journal.settle(journal.open[0], "1")
    assert journal.finish is not None
    assert journal.finish.kind is ResultKind.CANCELED


def test_the_number_of_a_cancel_request_is_not_given_to_a_step() -> None:
    @handled
    async def handler(step: Step) -> None:
        try:
            await step.sleep(100)
        finally:
            await step.run_action(price, "clean up")

    for number in (None, 1):
        replayer = Journal(handler).live
        cancel = Outcome(1, CREATED, 1, None, OutcomeKind.SUCCESS, step_no=number)
        assert [new.no for new in replayer.feed(None, cancel).asks] == [2]


def test_a_cancel_that_the_handler_catches_is_over() -> None:
    @handled
    async def handler(step: Step) -> str:
        try:
            await step.sleep(100)
        except asyncio.CancelledError:
            return "went on"
        return "slept"

    journal = Journal(handler)
    journal.cancel()
    assert journal.result == "went on"


def test_a_restart_asks_again_in_the_place_of_what_it_retired() -> None:
    """The new number is higher than that of a later step of the same name, and all replays know whose place it is."""

    @handled
    async def handler(step: Step) -> list[str]:
        found = await asyncio.gather(*(step.run_action(price, item) for item in "abc"))
        return [str(item) for item in [*found, await step.run_action(price, "d")]]

    journal = Journal(handler)
    journal.settle(0, "10")
    journal.settle(2, "12")
    journal.fail(1)
    assert journal.finish is not None
    assert journal.finish.kind is ResultKind.FAILED
    for round_no in range(1, 4):  # also a round that failed in the same place
        failed = max(journal.rows) if round_no > 1 else 1
        journal.retire({failed})
        (again,) = journal.asked
        assert (again.ask.args, again.asked_after) == ('{"item":"b"}', 0)
        journal.evict()
        if round_no < 3:
            journal.fail(again.no)
    journal.settle(journal.open[0], "11")
    journal.evict()
    journal.settle(journal.open[0], "13")
    assert journal.result == ["10", "11", "12", "13"]


def test_rounds_that_follow_each_other_before_the_first_one_ran() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        return [str(item) for item in await asyncio.gather(*(step.run_action(price, item) for item in "abc"))]

    journal = Journal(handler)
    journal.settle(0, "10")
    journal.settle(2, "12")
    journal.fail(1)
    journal.live.close()
    journal.rows[1] = _retired(journal.rows[1], 2)  # by a round that nobody drove before the next one began
    journal.generation, journal.driven_no = 3, -1
    journal.live = journal.replays(check=True)
    journal.commit(journal.live.catch_up())
    assert [new.ask.args for new in journal.asked] == ['{"item":"b"}']
    journal.evict()
    journal.settle(journal.open[0], "11")
    assert journal.result == ["10", "11", "12"]


def _retired(row: JournalEntry, generation: int) -> JournalEntry:
    return replace(row, retired_in=generation)


def test_a_new_optional_parameter_blocks_nothing_and_a_new_order_of_keywords_neither() -> None:
    @handled
    async def handler(step: Step) -> None:
        await step.run_action(lenient, item="a", more=1)
        await step.run_action(lenient, "b")

    journal = Journal(handler, check=False)
    journal.rows[0] = JournalEntry(0, StepKind.ACTION, "lenient", '{"more": 1, "item": "a"}', 1, 0, CREATED)
    journal.evict()
    journal.rows[0] = JournalEntry(0, StepKind.ACTION, "lenient", '{"item":"a"}', 1, 0, CREATED)
    with pytest.raises(Mismatch, match="other arguments") as caught:
        journal.evict()
    assert caught.value.to_reason()["recorded"]["args"] == '{"item":"a"}'
    assert caught.value.to_reason()["expected"]["args"] == '{"item":"a","more":1}'


def test_unstable_args_are_not_compared() -> None:
    count = itertools.count()

    @handled
    async def handler(step: Step) -> None:
        await step.run_action(price.options(unstable_args=True), f"item {next(count)}")

    journal = Journal(handler)
    again = journal.replays()
    assert again.catch_up().asks == []
    assert again.open[0].ask.args != journal.live.open[0].ask.args
    journal.settle(0, "1")
    assert journal.finish is not None


def test_a_handler_that_is_not_deterministic_is_found_by_the_second_replay() -> None:
    count = itertools.count()

    @handled
    async def handler(step: Step) -> None:
        await step.sleep(1)
        await step.run_action(price, f"item {next(count)}")

    journal = Journal(handler)
    with pytest.raises(Diverged) as caught:
        journal.settle(0)
    assert caught.value.step_no == 1


def test_a_marker_is_remembered_wherever_it_is_asked_for_and_may_go_when_nobody_asks() -> None:
    code = "first"

    @handled
    async def handler(step: Step) -> list[bool]:
        found = [step.changed("early")] if code == "moved" else []
        await step.sleep(1)
        if code == "first":
            found.append(step.changed("early"))
        await step.sleep(1)
        return found

    journal = Journal(handler, check=False)
    journal.settle(0)
    code = "removed"
    journal.evict()
    code = "moved"
    journal.evict()
    journal.settle(journal.open[0])
    assert journal.result == [True]


@pytest.mark.parametrize("what", ["ends early", "cancels", "does not cancel", "orphan"])
def test_other_edits_of_the_past(what: str) -> None:
    edited = False

    @handled
    async def handler(step: Step) -> None:
        calls = [step.run_action(price, item) for item in "ab"]
        await calls[0]
        if what == "ends early" and edited:
            return
        if what == "cancels" and edited:
            calls[1].cancel()
        if what == "does not cancel" and not edited:
            calls[1].cancel()
        await step.sleep(1)

    journal = Journal(handler, check=False)
    journal.settle(0, "1")
    edited = True
    if what == "orphan":
        journal.rows[1] = _retired(journal.rows[1], 2)
        journal.rows[7] = JournalEntry(7, StepKind.ACTION, "price", None, 1, 6, CREATED)
        journal.record(7, OutcomeKind.SUCCESS, "1")
    with pytest.raises(Mismatch) as caught:
        journal.evict()
    assert caught.value.step_no == {"ends early": 2, "cancels": 1, "does not cancel": 1, "orphan": None}[what]


def test_an_outcome_recorded_while_the_handler_canceled_its_step_is_not_handed_over() -> None:
    @handled
    async def handler(step: Step) -> str:
        calls = [step.run_action(price, item) for item in "ab"]
        await calls[0]
        calls[1].cancel()
        await step.sleep(1)
        return "done"

    journal = Journal(handler, check=False)
    journal.record(0, OutcomeKind.SUCCESS, "1")  # its advance is dropped, because meanwhile ...
    journal.record(1, OutcomeKind.SUCCESS, "2")
    journal.live.close()
    journal.live = journal.replays(check=True)
    drive = journal.commit(journal.live.catch_up())
    assert (drive.cancels, drive.driven_no) == ([], 2)
    assert [(new.ask.name, new.asked_after) for new in drive.asks] == [("sleep", 1)]
    journal.evict()
    journal.settle(journal.open[0])
    assert journal.result == "done"


def test_feeding_into_one_drive_gathers_what_several_outcomes_bring() -> None:
    @handled
    async def handler(step: Step) -> None:
        async def branch(item: str) -> None:
            await step.run_action(price, item)
            step.log(item)
            await step.sleep(1)

        await asyncio.gather(branch("a"), branch("b"))

    journal = Journal(handler)
    first, second = journal.record(0, OutcomeKind.SUCCESS, "1"), journal.record(1, OutcomeKind.SUCCESS, "2")
    drive = journal.live.feed(0, first)
    assert journal.live.feed(1, second, drive) is drive
    journal.commit(drive)
    assert [(new.no, new.asked_after) for new in drive.asks] == [(2, 1), (3, 2)]
    assert [line.message for line in drive.logs] == ["a", "b"]
    journal.evict()


def _compensation(journal_rows: list[JournalEntry], driven_no: int) -> Replayer:
    plan = [
        Compensate(price, '{"item":"b"}', "price", "continue"),
        Compensate(write, '{"key":"a"}', "write"),
        Compensate(price, '{"item":"a"}', "price"),
    ]
    return Replayer(
        lambda host: CompensationProgram(plan),
        None,
        journal_rows,
        driven_no=driven_no,
        next_no=4 + len(journal_rows),
        generation=1,
        start_no=9,
        check=True,
    )


def test_compensations_are_steps_one_at_a_time_and_survive_a_crash() -> None:
    rows: list[JournalEntry] = []
    outcome_no, driven_no, asked = 9, -1, []
    for outcome in (OutcomeKind.FAILURE, OutcomeKind.SUCCESS, OutcomeKind.SUCCESS):
        drive = _compensation(rows, driven_no).catch_up()  # each time as after a crash
        (new,) = drive.asks
        asked.append((new.no, new.asked_after, new.ask.name, new.ask.ordinal, new.ask.args))
        driven_no, outcome_no = drive.driven_no, outcome_no + 1
        rows.append(
            JournalEntry(
                new.no, new.ask.kind, new.ask.name, new.ask.args, 1, new.asked_after, CREATED, outcome_no=outcome_no,
                outcome_kind=outcome, ended_at=CREATED + timedelta(seconds=outcome_no),
            )
        )  # fmt: skip
    assert asked == [
        (4, 9, "price", 0, '{"item":"b"}'), (5, 10, "write", 0, '{"key":"a"}'), (6, 11, "price", 1, '{"item":"a"}'),
    ]  # fmt: skip
    finish = _compensation(rows, driven_no).catch_up().finish
    assert finish is not None
    assert finish.kind is ResultKind.COMPLETED


def test_a_failed_compensation_that_says_stop_stops_the_rest_and_retries_are_on() -> None:
    replayer = Replayer(
        lambda host: CompensationProgram([Compensate(lenient, None, "one"), Compensate(write, None, "two")]),
        None, [], driven_no=-1, next_no=0, generation=1,
    )  # fmt: skip
    (new,) = replayer.catch_up().asks
    assert new.ask.options is not None
    assert new.ask.options.retry == Retry()
    ignored = replayer.feed(None, Outcome(1, CREATED, 1, None, OutcomeKind.SUCCESS))
    assert (ignored.asks, ignored.finish) == ([], None)
    error = ErrorInfo("Oops", "no")
    finish = replayer.feed(new.no, Outcome(2, CREATED, 1, None, OutcomeKind.FAILURE, None, error)).finish
    assert finish is not None
    assert (finish.kind, finish.error) == (ResultKind.FAILED, error)


def test_feeding_costs_the_same_however_long_the_journal_is() -> None:
    """Counted, not timed: the lines that Python runs in the replay package for one outcome (R11)."""

    @handled
    async def handler(step: Step) -> None:
        while True:
            await step.run_action(price, "a")

    journal = Journal(handler, check=False)

    def lines_of_one_feed() -> int:
        count = 0

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal count
            if "/signoff/" not in frame.f_code.co_filename:
                return None
            count += event == "line"
            return trace

        former = sys.gettrace()
        sys.settrace(trace)
        try:
            journal.settle(journal.open[0], "1")
        finally:
            sys.settrace(former)
        return count

    for _ in range(3):
        journal.settle(journal.open[0], "1")
    early = lines_of_one_feed()
    for _ in range(500):
        journal.settle(journal.open[0], "1")
    assert lines_of_one_feed() == early
