"""What a handler cannot do: it is told, and the run is blocked with the line rather than failed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import linecache
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from signoff.replay.loop import Interrupted
from signoff.replay.messages import Outcome
from signoff.replay.step import Step
from signoff.workflow import errors
from signoff.workflow.kinds import OutcomeKind
from tests.replay.journal import CREATED, Journal
from tests.replay.test_step import handled, price


def helper(call: Callable[[], Any]) -> Any:
    return call()


def files() -> None:
    open(__file__).close()


def sockets() -> None:
    socket.socket().close()


def processes() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize("call", [files, sockets, processes])
def test_files_sockets_and_processes_are_refused_even_if_the_handler_swallows_the_error(
    call: Callable[[], Any],
) -> None:
    @handled
    async def handler(step: Step) -> str:
        await step.sleep(1)
        try:
            helper(call)
        except Exception:  # noqa: BLE001 - what an author's careless code does
            return "swallowed"
        return "done"

    journal = Journal(handler, check=False)
    helper(call)  # outside of a handler all is as ever
    with pytest.raises(errors.Stuck, match="do it in an action") as caught:
        journal.settle(0)
    assert "test_guards.py" in caught.value.line
    assert f"in {call.__name__}" in caught.value.line
    journal.live.close()
    helper(call)


def test_imports_time_zones_and_tracebacks_pass() -> None:
    def lazy() -> list[str]:
        for name in ("colorsys", "this_module_does_not_exist"):
            sys.modules.pop(name, None)
            try:
                importlib.import_module(name)
            except ImportError:
                linecache.clearcache()
                return [traceback.format_exc()]
        return []

    @handled
    async def handler(step: Step) -> str:
        await step.sleep(1)
        # a zone of its own: others hold theirs, and two of one name are not equal where the clock goes back
        ZoneInfo.clear_cache(only_keys=["Europe/Busingen"])
        zone = helper(lambda: ZoneInfo("Europe/Busingen"))
        (text,) = helper(lazy)
        assert "importlib.import_module(name)" in text
        return str(step.now().astimezone(zone).tzname())

    journal = Journal(handler)
    journal.settle(0)
    assert journal.result == "CET"


@pytest.mark.parametrize(
    "call",
    [
        lambda: asyncio.to_thread(int),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
    ],
)
def test_what_a_deterministic_loop_cannot_do_is_named(call: Callable[[], Any]) -> None:
    @handled
    async def handler(step: Step) -> None:
        await helper(call)

    with pytest.raises(errors.Stuck, match=r"action|step\.do") as caught:
        Journal(handler)
    assert "test_guards.py" in caught.value.line


@pytest.mark.parametrize("through", ["directly", "in a task", "after a step"])
def test_awaiting_what_is_no_step_is_stuck_at_once_with_the_line(through: str) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    @handled
    async def handler(step: Step) -> None:
        if through == "after a step":
            await step.sleep(1)
        if through == "in a task":
            await asyncio.gather(never())
        await never()

    with pytest.raises(errors.Stuck, match="no step") as caught:
        Journal(handler, check=False).settle(0)
    assert "test_guards.py:" in caught.value.line
    expected = "handler" if through == "in a task" else "never"
    assert caught.value.line.endswith(expected)


@pytest.mark.parametrize("how", ["swallowing", "yielding"])
def test_a_handler_that_computes_for_ever_is_interrupted_with_the_line(how: str) -> None:
    begun = threading.Event()

    def spin() -> None:
        begun.set()
        while how == "swallowing":
            try:
                sum(range(10))
            except Exception:  # noqa: BLE001 - an author's loop that swallows everything
                continue

    @handled
    async def handler(step: Step) -> None:
        await step.sleep(1)
        helper(spin)
        while True:
            await asyncio.sleep(0)

    journal = Journal(handler, check=False)
    caught: list[BaseException] = []

    def drive() -> None:
        try:
            journal.settle(0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            caught.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    assert begun.wait(10)
    for _ in range(100):  # one may hit where exceptions are ignored (a destructor): the watchdog sends it again too
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert isinstance(caught[0], errors.Stuck)
    assert "test_guards.py" in caught[0].line
    assert caught[0].line.endswith("spin" if how == "swallowing" else "handler")


def test_an_interruption_of_another_kind_comes_out_of_the_drive() -> None:
    class Overrun(BaseException):
        pass

    def overrun() -> None:
        raise Overrun

    @handled
    async def handler(step: Step) -> None:
        async def branch() -> None:
            await step.sleep(1)
            helper(overrun)

        await asyncio.gather(branch())

    journal = Journal(handler, check=False)
    with pytest.raises(Overrun):
        journal.settle(0)


def test_sys_exit_in_a_handler_fails_its_run_only() -> None:
    @handled
    async def handler(step: Step) -> None:
        helper(sys.exit)

    journal = Journal(handler)
    assert journal.finish is not None
    assert journal.finish.error is not None
    assert journal.finish.error.type == "SystemExit"


def test_a_stored_value_that_does_not_fit_any_more_is_undecodable() -> None:
    @handled
    async def handler(step: Step) -> str:
        try:
            return str(await step.run_action(price, "a"))
        except Exception:  # noqa: BLE001 - it must not come to the handler
            return "swallowed"

    journal = Journal(handler, check=False)
    with pytest.raises(errors.Undecodable, match="'price'") as caught:
        journal.settle(0, {"not": "a decimal"})
    assert caught.value.step_no == 0

    @handled
    async def typed(step: Step, size: int) -> None: ...

    with pytest.raises(errors.Undecodable):
        Journal(typed, {"size": "large"})


def test_closing_a_program_unwinds_its_handler_now_and_asks_for_nothing() -> None:
    seen: list[str] = []
    note = seen.append

    @handled
    async def handler(step: Step) -> None:
        async def branch() -> None:
            try:
                await step.sleep(1)
            finally:
                note("branch")
                await asyncio.sleep(3)

        try:
            async with asyncio.TaskGroup() as tasks:
                _ = tasks.create_task(branch())
                await step.run_action(price, "a")
        finally:
            note("handler")
            while True:
                try:
                    await step.run_action(price, "clean up")
                except Exception:  # noqa: BLE001 - it tries for ever
                    note("again")
                    continue

    journal = Journal(handler, check=False)
    journal.live.close()
    assert sorted(seen) == ["branch", "handler"]
    assert len(journal.rows) == 2
    gc.collect()
    assert sorted(seen) == ["branch", "handler"]


async def test_a_handler_that_is_unwound_inside_of_another_loop_does_not_see_its_task() -> None:
    seen: list[object] = []
    note = seen.append

    @handled
    async def handler(step: Step) -> None:
        try:
            await step.sleep(1)
        finally:
            note(asyncio.current_task())

    task = asyncio.current_task()
    Journal(handler, check=False).live.close()
    assert seen == [None]
    assert asyncio.current_task() is task


def test_an_abandoned_async_generator_is_cleaned_up_in_its_handler() -> None:
    @handled
    async def handler(step: Step) -> list[str]:
        found: list[str] = []

        async def numbers() -> Any:
            try:
                yield await step.run_action(price, "a")
                yield 2
            finally:
                await step.run_action(price, "clean")
                found.append("cleaned")

        async for number in numbers():
            found.append(str(number))
            break
        await step.sleep(1)
        return found

    journal = Journal(handler)
    journal.settle(0, "1")
    assert sorted(new.ask.name for new in journal.asked) == ["price", "sleep"]
    clean, sleep = (next(new.no for new in journal.asked if new.ask.name == name) for name in ("price", "sleep"))
    journal.settle(clean, "1")
    journal.settle(sleep)
    assert journal.result == ["1", "cleaned"]


async def test_a_program_is_driven_inside_of_another_loop_without_disturbing_it() -> None:
    @handled
    async def handler(step: Step) -> str:
        async with asyncio.timeout(5):
            return str(await asyncio.create_task(step.run_action(price, "a")))

    outer = asyncio.get_running_loop()
    task = asyncio.current_task()
    journal = Journal(handler)
    assert asyncio.get_running_loop() is outer
    assert asyncio.current_task() is task
    await asyncio.sleep(0)
    journal.settle(next(no for no in journal.open if journal.rows[no].name == "price"), "1")
    assert journal.result == "1"


def test_a_callback_that_raises_is_logged_in_the_run() -> None:
    @handled
    async def handler(step: Step) -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await step.sleep(2)

    journal = Journal(handler)
    journal.settle(0)
    journal.evict()
    assert ["ZeroDivisionError" in line.message for line in journal.logs] == [True]


def test_outcomes_come_in_order_and_a_closed_replayer_forgets() -> None:
    @handled
    async def handler(step: Step) -> None:
        await asyncio.gather(step.sleep(1), step.sleep(2))

    journal = Journal(handler)
    journal.settle(1)
    with pytest.raises(ValueError, match="outcome 1"):
        journal.live.feed(0, Outcome(1, CREATED, 1, None, OutcomeKind.SUCCESS))
    journal.live.close()
    assert journal.open == []


def test_a_program_that_came_to_its_end_is_free_without_the_garbage_collector() -> None:
    kept: list[Any] = []

    @handled
    async def handler(step: Step) -> None:
        kept.append(asyncio.get_running_loop())  # signoff: allow
        await asyncio.create_task(step.sleep(1))

    journal = Journal(handler, check=False)
    journal.settle(0)
    assert journal.finish is not None
    program = weakref.ref(journal.live._program)
    gc.disable()
    try:
        journal.live.close()
        journal.live.close()  # once more does nothing
        del journal
        assert program() is None
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="the program is closed"):  # what the handler left somewhere
        kept[0].time()


def test_programs_side_by_side_do_not_slow_each_other_down() -> None:
    """asyncio keeps the tasks of a process in one set: those with the same hash would be looked through one by one."""

    @handled
    async def handler(step: Step) -> None:
        await asyncio.create_task(step.sleep(1))

    kept = getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", None)
    if not isinstance(kept, weakref.WeakSet):
        pytest.skip("this Python keeps its tasks in a list")
    before = set(kept.data)
    journals = [Journal(handler, check=False) for _ in range(40)]
    hashes = [hash(task) for task in kept.data - before]
    for journal in journals:
        journal.live.close()
    assert len(hashes) == len(set(hashes)) >= 80


def test_a_clean_up_that_ends_the_process_ends_only_itself() -> None:
    left: list[str] = []

    @handled
    async def handler(step: Step) -> None:
        try:
            await step.sleep(1)
        finally:
            left.append("clean-up")  # signoff: allow
            sys.exit(3)

    journal = Journal(handler, check=False)
    journal.live.close()
    assert left == ["clean-up"]
    assert journal.live._program.loop.closed
