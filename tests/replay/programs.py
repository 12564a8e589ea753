"""Random workflows: trees of steps, and one handler that walks any of them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from signoff.replay.messages import Host, Program, RunInfo
from signoff.replay.program import CoroutineProgram
from signoff.replay.step import Step
from signoff.workflow.definitions import Workflow, action, event, workflow
from signoff.workflow.errors import RunCanceled, SignoffError, StepFailed
from signoff.workflow.registry import Registry
from tests.replay.journal import CREATED

registry = Registry()


@action("work", registry=registry)
def work(what: Any) -> Any:
    return what


@workflow("child", registry=registry)
async def child(step: Step, what: Any) -> Any:
    return what


signal = event("signal", Any, registry=registry)


@dataclass(frozen=True)
class Node:
    kind: str
    parts: tuple[Node, ...] = ()
    name: str = ""
    args: int = 0
    number: int = field(default=0, compare=False)

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.parts:
            yield from part.walk()

    def change(self, change: Callable[[Node], Node]) -> Node:
        return change(replace(self, parts=tuple(part.change(change) for part in self.parts)))


LEAVES = ("step", "sleep", "event", "child", "draw", "timer", "marker", "log", "error")
leaves = st.builds(Node, st.sampled_from(LEAVES), name=st.sampled_from("abc"), args=st.integers(0, 3))
COMPOSED = ("seq", "gather", "gather_all", "group", "race", "timeout", "try", "finally", "shield", "completed", "queue")


def _compose(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.sampled_from(COMPOSED), st.lists(inner, min_size=1, max_size=4).map(tuple))


nodes = st.recursive(leaves, _compose, max_leaves=14)


async def visit(step: Step, node: Node, trace: list[Any]) -> Any:
    """Do what a node says; `trace` notes what happened, in the order in which it did."""
    parts = node.parts
    match node.kind:
        case "step":
            seen = 0 if node.number else len(trace)  # numbered ones, of the edits, do not depend on each other
            value = await step.run_action(work.options(name=node.name), [node.args, seen])
        case "sleep":
            value = await step.sleep(node.args)
        case "event":
            value = await step.await_event(signal, timeout=node.args or None, default="late")
        case "child":
            value = await step.run_workflow(child, node.args)
        case "draw":
            value = await step.run_action(work.options(name="draw"), [step.random.random(), str(step.uuid())])
        case "timer":
            value = await asyncio.sleep(node.args, "slept")
        case "marker":
            value = step.changed(node.name)
        case "log":
            value = step.log(node.name, at=step.now().isoformat())
        case "error":
            raise ValueError(node.name)
        case "seq":
            value = [await visit(step, part, trace) for part in parts]
        case "gather":
            value = await asyncio.gather(*(visit(step, part, trace) for part in parts))
        case "gather_all":
            found = await asyncio.gather(*(visit(step, part, trace) for part in parts), return_exceptions=True)
            value = [repr(item) for item in found]
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(visit(step, part, trace)) for part in parts]
            value = [task.result() for task in tasks]
        case "race":
            tasks = [asyncio.create_task(visit(step, part, trace)) for part in parts]
            done, pending = await step.wait(tasks)
            for task in pending:
                task.cancel()
            value = await done[0]
        case "timeout":
            try:
                async with asyncio.timeout(7):
                    value = [await visit(step, part, trace) for part in parts]
            except TimeoutError:
                value = "timed out"
        case "try":
            try:
                value = await visit(step, parts[0], trace)
            except (SignoffError, ValueError, ExceptionGroup) as error:
                trace.append(type(error).__name__)
                value = [await visit(step, part, trace) for part in parts[1:]]
        case "finally":
            try:
                value = await visit(step, parts[0], trace)
            finally:
                for part in parts[1:]:
                    await visit(step, part, trace)
        case "shield":
            value = [await asyncio.shield(visit(step, part, trace)) for part in parts]
        case "completed":
            value = []
            async for future in step.as_completed([visit(step, part, trace) for part in parts]):
                value.append(await future)
        case "queue":
            queue: asyncio.Queue[Any] = asyncio.Queue(1)

            async def put() -> None:
                for part in parts:
                    await queue.put(await visit(step, part, trace))

            putter = asyncio.create_task(put())
            try:
                async with asyncio.timeout(50):
                    value = [await queue.get() for _ in parts]
            finally:
                putter.cancel()
        case _:
            raise AssertionError(node.kind)
    trace.append([node.kind, node.name, value])
    return value


@workflow("random", registry=registry)
async def _walk(step: Step) -> Any: ...


def _expected(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_expected(inner) for inner in error.exceptions)
    return isinstance(error, ValueError | TimeoutError | StepFailed | RunCanceled)


def workflow_of(root: Node) -> Workflow[[], Any]:
    async def handler(step: Step) -> Any:
        trace: list[Any] = []
        try:
            await visit(step, root, trace)
        except Exception as error:
            if not _expected(error):
                raise
            trace.append(repr(error))
        return trace

    made = copy.copy(_walk)  # without reading this source anew for each
    made.fn = handler
    return made


def program_of(root: Node) -> Callable[[Host], Program]:
    made = workflow_of(root)
    info = RunInfo("run-1", "random", 1, "default", CREATED)
    return lambda host: CoroutineProgram(made, info, host, lambda generation: f"seed {generation}")
