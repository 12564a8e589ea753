"""Signoff's side of the works, as a user would write it; `signoff serve tests.bench.flows` runs them as well."""

from __future__ import annotations

import asyncio
import time

from signoff import Step, action, event, workflow

go = event("bench/go", int)
marks: dict[str, float] = {}
reached = asyncio.Event()


@action(name="bench/trivial")
async def trivial(number: int) -> int:
    return number


@workflow("bench/sequence")
async def sequence(step: Step, steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await step.run_action(trivial, number)
    return total


@action(name="bench/pause")
async def pause(number: int) -> int:
    await asyncio.sleep(0.02)
    return number


@workflow("bench/slow")
async def slow(step: Step, steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await step.run_action(pause, number)
    return total


@action(name="bench/mark")
async def mark(name: str) -> None:
    marks[name] = time.perf_counter()
    reached.set()


@workflow("bench/marked")
async def marked(step: Step) -> None:
    await step.run_action(mark, "first")
    await step.await_event(go)
    await step.run_action(mark, "event")


@workflow("bench/parked")
async def parked(step: Step) -> int:
    return await step.await_event(go)
