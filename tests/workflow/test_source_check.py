"""D5: what would differ on replay is refused when the handler is defined, naming line and replacement."""

# ruff: noqa: DTZ003, DTZ005, DTZ011, LOG015, PERF402, SIM105, SIM115  # the handlers below are to be found wanting

from __future__ import annotations

import asyncio
import datetime as dates
import inspect
import logging
import math
import os
import random
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from time import monotonic as ticks
from typing import Any

import pytest

from signoff.workflow.definitions import workflow
from signoff.workflow.errors import NondeterministicCode
from signoff.workflow.registry import Registry
from signoff.workflow.source_check import Finding, SourceCheckWarning, check_handler, read_handler

log = logging.getLogger("orders")
shared_random = random.Random(5)
CACHE: dict[str, int] = {}
SEEN: list[str] = []
count = 0


class Settings:
    limit = 5


async def refused(step: Any, order: str, path: Path, loop: Any) -> None:
    """Each marked line must be found, with this replacement; no other line."""
    global count
    from time import perf_counter as counter

    import requests  # type: ignore[import-untyped]

    time.time()  # step.now()
    ticks()  # step.now()
    counter()  # step.now()
    datetime.now()  # step.now()
    dates.datetime.utcnow()  # step.now()
    date.today()  # step.now()
    clock = datetime.now  # step.now()
    time.sleep(1)  # step.sleep
    random.random()  # step.random
    random.choice([1, 2])  # step.random
    random.Random()  # step.random
    shared_random.random()  # step.random
    os.urandom(3)  # step.random
    uuid.uuid4()  # step.uuid()
    uuid.uuid1()  # step.uuid()
    os.environ["HOME"]  # argument
    os.getenv("HOME")  # argument
    os.getcwd()  # argument
    open("x")  # run_action
    path.read_text()  # run_action
    os.remove("x")  # run_action
    os.path.exists("x")  # run_action
    requests.get("https://example.org")  # run_action
    subprocess.run(["true"])  # run_action
    await asyncio.create_subprocess_exec("true")  # run_action
    await asyncio.open_connection("example.org", 80)  # run_action
    threading.Thread(target=len)  # gather
    threading.Lock()  # gather
    await asyncio.to_thread(len, "x")  # gather
    loop.run_in_executor(None, len)  # gather
    print("x")  # step.log
    logging.info("x")  # step.log
    log.warning("x")  # step.log
    count += 1  # local variable
    CACHE[order] = 1  # local variable
    CACHE["x"] += 1  # local variable
    del CACHE["x"]  # local variable
    CACHE.setdefault(order, 1)  # local variable
    SEEN.append(order)  # local variable
    Settings.limit = 3  # local variable
    [time.time() for _ in range(3)]  # step.now()
    [int(item) for item in order if time.time()]  # step.now()

    def inner(moment: float = 0) -> float:
        return moment + time.time()  # step.now()

    later = lambda: random.random()  # noqa: E731  # step.random
    inner()
    later()
    clock()
    if order:
        with step:
            try:
                match order:
                    case "x":
                        time.time()  # step.now()
            except subprocess.CalledProcessError:
                time.time()  # step.now()


async def accepted(step: Any, order: str, time: Any, *, items: list[str] | None = None) -> float:
    """Nothing here is found."""
    found: dict[str, int] = {}
    seen = []
    random = step.random
    seen.append(random.random())
    found["x"] = len(CACHE) + Settings.limit
    found.update(x=1)
    started: datetime = step.now()
    when = datetime(2024, 1, 1, tzinfo=dates.UTC) + dates.timedelta(days=1)
    name = os.path.join("a", os.path.basename("b/c"))
    draws = __import__("math").sqrt(4) + math.pi
    fixed = uuid.uuid5(uuid.NAMESPACE_DNS, order)
    time.time()
    raw = time.time()  # signoff: allow
    read = open(  # signoff: allow
        "x"
    )
    path = Path("a") / "b"
    await asyncio.sleep(1)
    await asyncio.gather(step.sleep(1), step.sleep(2))
    async with asyncio.timeout(5):
        await step.sleep(1)
    try:
        await step.sleep(1)
    except (OSError, subprocess.TimeoutExpired):
        pass
    isinstance(order, threading.Thread | random.Random)
    for item in sorted({1, 2, 3}):
        seen.append(item)
    step.log("done", level=logging.INFO, when=when, name=name, fixed=fixed, raw=raw, read=read, path=path)
    return draws + started.timestamp()


async def closures(step: Any, order: str) -> None:
    total = 0
    results: list[int] = []
    state = Settings()

    def assigns() -> None:
        nonlocal total
        total += 1

    def fills() -> int:
        results.append(1)
        state.limit = 7
        own: list[int] = []
        own.append(time.time_ns())
        print(os.environ["HOME"])
        return len(own)

    async def fine() -> float:
        value = time.time()
        return value + random.random()

    await step.do("assigns", assigns)
    await step.with_options(timeout=5).do("fills", fn=fills)
    await step.do("fine", fine)
    await step.do("lambda", lambda: time.time())
    await step.do("function", time.time)
    await step.do("changes", lambda: results.append(2))


async def races(step: Any) -> list[Any]:
    tasks = [asyncio.ensure_future(step.sleep(seconds)) for seconds in (1, 2)]
    done, pending = await asyncio.wait(tasks)
    for task in pending:  # found
        task.cancel()
    values = [task.result() for task in done]  # found
    first = next(iter(done))  # found
    one = done.pop()  # found
    (only,) = done  # found
    several = [*done]  # found
    for task in (await asyncio.wait(tasks))[0]:  # found
        task.result()
    waiting = (await asyncio.wait(tasks))[1]
    listed = list(waiting)  # found
    if done and len(pending) == 1 and tasks[0] in done:
        return sorted(done, key=str)
    ordered, rest = await step.wait(tasks)
    for task in ordered:
        task.result()
    return [values, first, one, only, several, listed, rest]


def helper(value: int) -> float:
    return deeper(value)


def deeper(value: int) -> float:
    helper(value)
    return value * random.random()


class Tools:
    @staticmethod
    def stamp() -> float:
        return time.time()


async def calls(step: Any) -> float:
    return helper(1) + Tools.stamp()


def found_in(handler: Callable[..., Any], level: str = "error") -> list[Finding]:
    return [item for item in read_handler(handler) if item.level == level]


def marked_lines(handler: Callable[..., Any], mark: str = "  # ") -> dict[int, str]:
    lines, first = inspect.getsourcelines(handler)
    return {first + offset: line.rpartition("# ")[2].strip() for offset, line in enumerate(lines) if mark in line}


def test_each_forbidden_thing_is_found_on_its_line_with_its_replacement() -> None:
    expected = {no: text for no, text in marked_lines(refused).items() if not text.startswith("type: ignore")}
    found = {item.line: item for item in found_in(refused)}
    assert sorted(found) == sorted(expected)
    for line, replacement in expected.items():
        wanted = {"gather": "asyncio.gather", "argument": "argument", "local variable": "local variable"}
        assert wanted.get(replacement, replacement) in found[line].replacement, found[line]
        assert found[line].file == __file__


def test_ordinary_code_shadowed_names_and_allowed_lines_pass() -> None:
    assert [str(item) for item in found_in(accepted)] == []


def test_closures_of_do_may_do_anything_but_assign_what_they_captured() -> None:
    whats = [(item.what, item.replacement) for item in found_in(closures)]
    assert [what for what, _ in sorted(whats)] == [
        "a step.do function assigns into the captured state",
        "a step.do function assigns the captured total",
        "a step.do function changes the captured results",
        "a step.do function changes the captured results",
    ]
    assert all("return the value" in replacement for _, replacement in whats)


def test_raw_sets_of_asyncio_wait_are_not_iterated() -> None:
    found = found_in(races)
    assert sorted(item.line for item in found) == sorted(marked_lines(races, "# found"))
    assert all("step.wait" in item.replacement for item in found)


def test_functions_that_the_handler_calls_give_warnings() -> None:
    assert found_in(calls) == []
    warned = found_in(calls, "warning")
    assert {item.what for item in warned} == {"random.random()", "time.time()"}
    with pytest.warns(SourceCheckWarning) as issued:
        workflow("calls", registry=Registry())(calls)
    assert any("random.random(): use step.random" in str(item.message) for item in issued)
    assert {item.filename for item in issued} == {__file__}


def test_a_refused_handler_is_not_registered_and_all_is_listed_at_once() -> None:
    registry = Registry()
    with pytest.raises(NondeterministicCode) as caught:

        @workflow("clock", registry=registry)
        async def clock(step: Any) -> None:
            time.time()
            print("x")

    message = str(caught.value)
    assert "workflow 'clock' would not replay" in message
    assert "time.time(): use step.now()" in message
    assert "print(): use step.log(...)" in message
    assert "# signoff: allow" in message
    first = caught.value.findings[0]
    assert f"{__file__}:{first.line}" in message
    assert registry.workflows() == []


def test_without_source_there_is_a_warning() -> None:
    scope: dict[str, Any] = {}
    exec("async def handler(step):\n    return 1", scope)
    with pytest.warns(SourceCheckWarning, match="no source"):
        findings = check_handler(scope["handler"], "typed in")
    assert [item.level for item in findings] == ["warning"]


def test_sets_and_hashes_that_differ_between_processes_give_warnings() -> None:
    async def handler(step: Any, word: str) -> int:
        for item in {"a", "b"}:
            step.log(item)
        return hash(word)

    whats = " ".join(item.what for item in found_in(handler, "warning"))
    assert "iterates over a set" in whats
    assert "hash()" in whats
    assert found_in(handler) == []


def test_names_of_the_function_around_count_too() -> None:
    stamp = time.time
    state: dict[str, int] = {}
    total = 0

    async def handler(step: Any) -> None:
        nonlocal total
        stamp()
        state["x"] = 1
        total = 2

    whats = [item.what for item in found_in(handler)]
    assert sorted(whats) == ["stamp()", "writes the global state", "writes the global total"]
