"""Restarts through the engine (X1, X3): where they begin, what they keep, and what they do again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signoff import (
    Compensation,
    Conflict,
    EventError,
    InvalidInput,
    NotFound,
    Registry,
    RunFailed,
    Step,
    StepFailed,
    action,
    event,
    group,
    workflow,
)
from signoff import ask as make_ask
from signoff.engine import views
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker

WAIT = 15


class Counted:
    """A workflow `sum` of counted steps, one of which can be broken."""

    def __init__(self, registry: Registry) -> None:
        self.calls: list[int] = []
        self.broken: set[int] = set()

        @action(name="add", registry=registry)
        async def add(n: int) -> int:
            self.calls.append(n)
            if n in self.broken:
                raise ValueError(f"{n} is broken")
            return n

        @workflow("sum", registry=registry)
        async def total(step: Step, count: int, pause: bool = False) -> int:
            result = 0
            for n in range(count):
                result += await step.run_action(add, n)
                if pause:
                    await step.sleep(60)
            return result

        self.add, self.total = add, total


def live(steps: list[Any]) -> list[tuple[int, str, str]]:
    return [(step.no, step.name, step.state) for step in steps if step.retired_in is None]


async def test_a_failed_run_goes_on_where_it_failed(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    kit.broken = {2}
    await t.open()
    run = await t.start(kit.total, 4)
    with pytest.raises(RunFailed):
        await t.result(run)
    kit.broken = set()
    assert await run.restart(reason="mended", actor="ana@example.org") == 2
    assert await t.result(run) == 6
    assert kit.calls == [0, 1, 2, 2, 3]
    view = await run.status()
    assert (view.generation, view.error) == (2, None)


async def test_rounds_stay_visible(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    kit.broken = {1}
    await t.open()
    run = await t.start(kit.total, 2)
    await t.settle()
    kit.broken = set()
    await run.restart(reason="mended", actor="ana@example.org")
    await t.result(run)
    steps = [(step.no, step.generation, step.retired_in, step.state) for step in await run.steps()]
    assert steps == [(0, 1, None, "success"), (1, 1, 2, "failure"), (2, 2, None, "success")]
    (opened,) = await t.store.read(views.rounds_view, t.scope(), run.id)
    assert (opened.generation, opened.reason, opened.actor) == (2, "mended", "ana@example.org")
    assert opened.former is not None
    assert (opened.former["result_kind"], opened.former["error"]["step_no"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("where", "again"),
    [
        (2, [2, 3]), (0, [0, 1, 2, 3]), ("add", [3]), (("add", 1), [1, 2, 3]), (("add", 0), [0, 1, 2, 3]),
    ],
)  # fmt: skip
async def test_from_a_step_by_number_name_and_ordinal(
    t: TestEngine, registry: Registry, where: Any, again: list[int]
) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 4)
    await t.result(run)
    kit.calls.clear()
    await run.restart(from_step=where)
    assert await t.result(run) == 6
    assert kit.calls == again


@pytest.mark.parametrize("where", [4, 99, -1, "other", ("add", 4), ("add", -1), ("other", 0), True, ("add", "x"), ()])
async def test_a_place_that_is_not_there_is_refused_and_changes_nothing(
    t: TestEngine, registry: Registry, where: Any
) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 4)
    await t.result(run)
    before = await run.status()
    for refused in (run.restart, run.fork):
        with pytest.raises(InvalidInput):
            await refused(from_step=where)
    with pytest.raises(Conflict, match="has failed"):
        await run.restart(from_failed=True)
    assert await run.status() == before


async def test_only_a_run_that_is_over_blocked_or_paused_is_restarted(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 2, pause=True)
    await t.settle()
    with pytest.raises(Conflict) as refused:
        await run.restart()
    assert (refused.value.run, refused.value.state) == (run.id, "sleeping")
    await run.pause()
    await run.restart(from_step=0)
    await t.advance(600)
    assert await t.result(run) == 1
    assert kit.calls == [0, 0, 1]


async def test_from_failed_retires_all_that_came_after(t: TestEngine, registry: Registry) -> None:
    calls = []
    broken = True

    @action(name="act", registry=registry)
    async def act(name: str) -> str:
        calls.append(name)
        if broken and name == "bad":
            raise ValueError("bad")
        return name

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        seen = [await step.run_action(act, "first")]
        try:
            seen.append(await step.run_action(act, "bad"))
        except StepFailed:
            seen.append("caught")
        seen.append(await step.run_action(act, "last"))
        return seen

    await t.open()
    run = await t.start(w)
    assert await t.result(run) == ["first", "caught", "last"]
    broken = False
    calls.clear()
    await run.restart(from_failed=True)
    assert await t.result(run) == ["first", "bad", "last"]
    assert calls == ["bad", "last"]


async def test_parallel_siblings_of_the_failed_step_are_kept(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    kit.broken = {1}

    @workflow("fan", registry=registry)
    async def fan(step: Step) -> int:
        parts = await asyncio.gather(*(step.run_action(kit.add, n) for n in range(4)), return_exceptions=True)
        for part in parts:
            if isinstance(part, BaseException):
                raise part
        after = await step.run_action(kit.add, 10)
        return sum(part for part in parts if isinstance(part, int)) + after

    await t.open()
    run = await t.start(fan)
    with pytest.raises(RunFailed):
        await t.result(run)
    assert sorted(kit.calls) == [0, 1, 2, 3]
    kit.broken, kit.calls = set(), []
    await run.restart()
    assert await t.result(run) == 16
    assert kit.calls == [1, 10]


async def test_a_canceled_run_goes_on_as_if_it_had_not_been(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    number = event("number", int, registry=registry)
    cleaned = []

    @action(name="clean", registry=registry)
    async def clean() -> None:
        cleaned.append(1)

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[int]:
        first = await step.run_action(kit.add, 1)
        try:
            return [first, *(await asyncio.gather(step.await_event(number), step.await_event(number)))]
        except asyncio.CancelledError:
            await step.run_action(clean)
            raise

    await t.open()
    run = await t.start(w)
    await t.settle()
    await run.send(number, 5)
    await t.settle()
    await run.cancel()
    await t.wait_for_status(run, "canceled")
    assert cleaned == [1]
    await run.restart()
    await t.wait_for_status(run, "waiting")
    await run.send(number, 6)
    assert await t.result(run) == [1, 5, 6]
    assert (kit.calls, cleaned) == ([1], [1])


async def test_a_sleep_that_a_cancel_ended_is_slept_again(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 1, pause=True)
    await t.advance(30)
    await run.cancel()
    await t.wait_for_status(run, "canceled")
    await run.restart()
    await t.advance(59)
    assert (await run.status()).status == "sleeping"
    await t.advance(1)
    assert await t.result(run) == 0
    assert kit.calls == [0]


async def test_restarts_hold_across_an_engine_restart_and_can_be_repeated(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 3, pause=True)
    await t.advance(600)
    await t.result(run)
    for generation in (2, 3, 4):
        kit.calls.clear()
        assert await run.restart(from_step=("add", 1)) == generation
        await t.settle()
        await t.restart()
        await t.advance(600)
        assert await t.result(run) == 3
        assert kit.calls == [1, 2]
    assert [name for _, name, _ in live(await run.steps())] == ["add", "sleep"] * 3


async def test_retiring_ends_children_and_attempts_first(t: TestEngine, registry: Registry) -> None:
    began, ended = [], asyncio.Event()

    @action(name="long", registry=registry)
    async def long() -> int:
        began.append(1)
        if len(began) == 1:
            try:
                await asyncio.sleep(WAIT)
            finally:
                ended.set()
        return 1

    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.sleep(3600)

    @workflow("w", registry=registry)
    async def w(step: Step) -> None:
        await asyncio.gather(step.run_action(long), step.run_workflow(child))

    await t.open()
    run = await t.start(w)
    async with asyncio.timeout(WAIT):
        while len((await t.runs(workflow="child")).items) < 1 or not began:
            await asyncio.sleep(0.01)
    await run.pause()
    assert (await run.status()).status == "pausing"
    with pytest.raises(Conflict):
        await run.restart(from_step=0)
    await t.restart()
    await t.settle()
    assert ended.is_set()
    await run.restart(from_step=0)
    await t.settle()
    assert [item.status for item in (await t.runs(workflow="child")).items] == ["sleeping", "canceled"]
    assert len(began) == 2
    await t.advance(3600)
    await t.result(run)


async def test_events_go_back_to_their_place_in_the_queue(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("takes", registry=registry)
    async def takes(step: Step, count: int) -> list[int]:
        return [await step.await_event(number) for _ in range(count)]

    await t.open()
    run = await t.start(takes.options(run_after=60), 3)
    for n in range(5):  # two are never taken
        await run.send(number, n)
    await t.advance(60)
    assert await t.result(run) == [0, 1, 2]
    await run.restart(from_step=1)
    assert await t.result(run) == [0, 1, 2]
    taken = [(item.value, item.state) for item in await run.events()]
    assert taken == [("0", "consumed"), ("1", "consumed"), ("2", "consumed"), ("3", "buffered"), ("4", "buffered")]


async def test_events_can_be_dropped_with_the_restart(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("takes", registry=registry)
    async def takes(step: Step) -> list[int]:
        return [await step.await_event(number) for _ in range(2)]

    await t.open()
    run = await t.start(takes.options(run_after=60))
    for n in range(3):
        await run.send(number, n)
    await t.advance(60)
    assert await t.result(run) == [0, 1]
    await run.restart(from_step=1, events="drop")
    await t.wait_for_status(run, "waiting")
    await run.send(number, 7)
    assert await t.result(run) == [0, 7]
    assert [item.state for item in await run.events()] == ["consumed", "set_aside", "set_aside", "consumed"]


@pytest.mark.parametrize("events", ["keep", "drop"])
async def test_waits_by_id_reopen(t: TestEngine, registry: Registry, events: Any) -> None:
    link = event("link", str, registry=registry)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> str:
        try:
            return await step.await_event(link, id="one")
        except EventError as error:
            return str(error)

    await t.open()
    run = await t.start(waits.options(run_after=60))
    await run.create_event(link, id="one")
    await t.advance(60)
    await run.send(link, "first", id="one")
    assert await t.result(run) == "first"
    await run.restart(from_step=0, events=events)
    if events == "drop":
        await t.wait_for_status(run, "waiting")
        await run.send(link, "second", id="one")
        assert await t.result(run) == "second"
    else:
        assert await t.result(run) == "first"


async def test_a_question_is_asked_again_after_the_cut(t: TestEngine, registry: Registry) -> None:
    question = make_ask("question", bool, registry=registry)

    @workflow("asks", registry=registry)
    async def asks(step: Step) -> bool:
        await step.sleep(1)
        return await step.ask(question, title="May I?", to=group("finance"))

    await t.open()
    await t.add_person("ana@example.org", groups=["finance"])
    run = await t.start(asks)
    await t.advance(1)
    await run.cancel()
    await t.wait_for_status(run, "canceled")
    await run.restart()
    await t.wait_for_status(run, "waiting")
    await t.approve(run, True, as_user="ana@example.org")
    assert await t.result(run) is True


async def test_the_version_stays_unless_another_is_given(t: TestEngine, registry: Registry) -> None:
    @workflow("w", version=1, registry=registry)
    async def one(step: Step) -> str:
        await step.sleep(1)
        return "one"

    await t.open()
    run = await t.start(one)
    await t.advance(1)
    assert await t.result(run) == "one"

    @workflow("w", version=2, registry=registry)
    async def two(step: Step) -> str:
        await step.sleep(1)
        return "two"

    assert t.worker is not None
    await t.worker.refresh_definitions()
    await run.restart(from_step=0)
    await t.advance(1)
    assert (await t.result(run), (await run.status()).version) == ("one", 1)
    await run.restart(from_step="sleep", version=2)
    await t.advance(1)
    assert (await t.result(run), (await run.status()).version) == ("two", 2)
    with pytest.raises(NotFound):
        await run.restart(version=3)


async def test_a_restart_after_undoing_does_again_what_needed_the_undone_beside_others(
    open_engine: EngineMaker, registry: Registry
) -> None:
    broken = [True]
    second = asyncio.Event()

    @action(name="undo", registry=registry)
    async def undo(compensation: Compensation) -> None:
        return None

    @action(name="reserve", compensate=undo, registry=registry)
    async def reserve() -> str:
        asyncio.get_running_loop().call_later(0.05, second.set)
        return "reserved"

    @action(name="check", registry=registry)
    async def check() -> str:
        await second.wait()  # its outcome comes last, and what follows is asked for after it
        return "checked"

    @action(name="end", retry=False, registry=registry)
    async def end() -> str:
        if broken:
            raise ValueError("broken")
        return "done"

    @workflow("w", registry=registry)
    async def w(step: Step) -> str:
        await asyncio.gather(step.run_action(reserve), step.run_action(check))
        await step.run_action(check)
        return await step.run_action(end)

    engine = await open_engine(registry)
    run = await engine.start(w)
    with pytest.raises(RunFailed):
        await run.result(timeout=WAIT)
    broken.clear()
    await run.restart()
    assert await run.result(timeout=WAIT) == "done"
