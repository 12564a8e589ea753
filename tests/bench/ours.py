"""Signoff's side: `python -m tests.bench.ours MODE URL SIZE` does one work and prints its figures as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

import sqlalchemy as sa

from signoff import Engine
from signoff.runtime.process import settle_process
from signoff.store.tables import Run as RunRow
from signoff.store.tables import Step as StepRow
from signoff.store.tx import Tx
from tests.bench.flows import go, marked, marks, parked, reached, sequence, slow
from tests.bench.numbers import latencies, memory_mb

CHUNK = 500  # starts and sends that are made at once


async def run_sequence(engine: Engine, size: int) -> dict[str, float]:
    await (await engine.start(sequence, 5)).result()
    began = time.perf_counter()
    await (await engine.start(sequence, size)).result()
    return {"rate": size / (time.perf_counter() - began)}


async def run_many(engine: Engine, size: int) -> dict[str, float]:
    await (await engine.start(sequence, 5)).result()
    began = time.perf_counter()

    async def one() -> None:
        await (await engine.start(sequence, 5)).result()

    await asyncio.gather(*(one() for _ in range(size)))
    return {"rate": size / (time.perf_counter() - began)}


async def run_latency(engine: Engine, size: int) -> dict[str, float]:
    first, after_event = [], []
    for number in range(size + 5):
        reached.clear()
        began = time.perf_counter()
        run = await engine.start(marked)
        await reached.wait()
        first_took = marks["first"] - began
        await asyncio.sleep(0.05)  # until it waits
        reached.clear()
        began = time.perf_counter()
        await run.send(go, number)
        await reached.wait()
        if number >= 5:  # the first few warm up
            first.append(first_took)
            after_event.append(marks["event"] - began)
        await run.result()
    return latencies(first, after_event)


async def run_park(engine: Engine, size: int) -> dict[str, float]:
    await (await engine.start(sequence, 5)).result()
    memory = memory_mb()
    began = time.perf_counter()
    runs = []
    for at in range(0, size, CHUNK):
        runs += await asyncio.gather(*(engine.start(parked) for _ in range(at, min(size, at + CHUNK))))
    while await engine.store.read(_waiting) < size:
        await asyncio.sleep(0.02)
    took = time.perf_counter() - began
    held = memory_mb()
    began = time.perf_counter()
    for at in range(0, size, CHUNK):
        await asyncio.gather(*(run.send(go, 1) for run in runs[at : at + CHUNK]))
    while await engine.store.read(_open):
        await asyncio.sleep(0.02)
    return {"park": took, "resume": time.perf_counter() - began, "memory": held, "grown": held - memory}


def _waiting(tx: Tx) -> int:
    """Runs whose wait is durable and that no worker holds any more."""
    query = sa.text(
        f"SELECT count(*) FROM {StepRow.__tablename__} s JOIN {RunRow.__tablename__} r ON r.id = s.run_id"
        " WHERE s.kind = 'event' AND s.outcome_no IS NULL AND r.ready IS NULL"
    )
    return int(tx.conn.execute(query).scalar_one())


def _open(tx: Tx) -> int:
    query = sa.text(f"SELECT count(*) FROM {RunRow.__tablename__} WHERE state <> 'final'")
    return int(tx.conn.execute(query).scalar_one())


async def run_crash(engine: Engine, size: int) -> dict[str, float]:
    await asyncio.gather(*(engine.start(slow, 10) for _ in range(size)))
    print("started", flush=True)
    await asyncio.Event().wait()
    return {}


async def run_resume(engine: Engine, size: int) -> dict[str, float]:
    print("ready", flush=True)
    await asyncio.Event().wait()
    return {}


WORKS: dict[str, Callable[[Engine, int], Awaitable[dict[str, float]]]] = {
    "sequence": run_sequence,
    "many": run_many,
    "bytes": run_many,
    "latency": run_latency,
    "park": run_park,
    "crash": run_crash,
    "resume": run_resume,
}


async def main(mode: str, url: str, size: int) -> None:
    async with Engine(url, migrate=True) as engine:
        print(json.dumps(await WORKS[mode](engine, size)), flush=True)
        os._exit(0)  # measured; how long a close takes is no part of it


if __name__ == "__main__":
    settle_process()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
