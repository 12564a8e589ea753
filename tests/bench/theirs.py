"""The DBOS side: `python -m tests.bench.theirs MODE URL SIZE [PORT]` does one work and prints its figures as JSON.

DBOS is set up as its users would for the same promises: SQLite in WAL with synchronous=FULL, PostgreSQL as it is. Where
it polls, it polls as often as it can be told to; sequences are plain functions, which it runs faster than coroutines.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, SetWorkflowID

from signoff.runtime.process import settle_process
from tests.bench.numbers import latencies, memory_mb

CHUNK = 500  # starts and sends that are made at once
marks: dict[str, float] = {}
reached = asyncio.Event()


@DBOS.step()
def trivial(number: int) -> int:
    return number


@DBOS.workflow()
def sequence(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += trivial(number)
    return total


@DBOS.step()
async def pause(number: int) -> int:
    await asyncio.sleep(0.02)
    return number


@DBOS.workflow()
async def slow(steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await pause(number)
    return total


@DBOS.step()
async def mark(name: str) -> None:
    marks[name] = time.perf_counter()
    reached.set()


@DBOS.workflow()
async def marked() -> None:
    await mark("first")
    await DBOS.recv_async("go", timeout_seconds=600)
    await mark("event")


@DBOS.workflow()
async def parked() -> Any:
    return await DBOS.recv_async("go", timeout_seconds=3600)


def launch(url: str, *, eager: bool = False) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "log_level": "ERROR",
        "enable_otlp": False,
        "run_admin_server": False,  # type: ignore[typeddict-unknown-key]  # of older releases; ignored by newer ones
        "system_database_url": url,
        "executor_id": "bench",
        "application_version": "bench",
    }
    if eager:
        config["notification_listener_polling_interval_sec"] = 0.001
    if url.startswith("sqlite"):
        config["system_database_engine"] = sqlite_engine(url)
    DBOS(config=config)
    DBOS.launch()


def sqlite_engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "foreign_keys=ON", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def run_sequence(size: int) -> dict[str, float]:
    sequence(5)
    began = time.perf_counter()
    sequence(size)
    return {"rate": size / (time.perf_counter() - began)}


def run_many(size: int) -> dict[str, float]:
    sequence(5)
    began = time.perf_counter()
    for handle in [DBOS.start_workflow(sequence, 5) for _ in range(size)]:
        handle.get_result(polling_interval_sec=0.01)
    return {"rate": size / (time.perf_counter() - began)}


async def run_latency(size: int) -> dict[str, float]:
    first, after_event = [], []
    for number in range(size + 5):
        reached.clear()
        began = time.perf_counter()
        handle = await DBOS.start_workflow_async(marked)
        await reached.wait()
        first_took = marks["first"] - began
        await asyncio.sleep(0.05)  # until it waits
        reached.clear()
        began = time.perf_counter()
        await DBOS.send_async(handle.workflow_id, number, "go")
        await reached.wait()
        if number >= 5:
            first.append(first_took)
            after_event.append(marks["event"] - began)
        await handle.get_result(polling_interval_sec=0.01)
    return latencies(first, after_event)


async def run_park(size: int) -> dict[str, float]:
    await asyncio.to_thread(sequence, 5)
    memory = memory_mb()
    began = time.perf_counter()
    handles = []
    for at in range(0, size, CHUNK):
        some = range(at, min(size, at + CHUNK))
        handles += await asyncio.gather(*(start_with_id(f"parked-{number}") for number in some))
    took = time.perf_counter() - began
    held = memory_mb()
    began = time.perf_counter()
    for at in range(0, size, CHUNK):
        await asyncio.gather(*(DBOS.send_async(one.workflow_id, 1, "go") for one in handles[at : at + CHUNK]))
    await asyncio.gather(*(one.get_result(polling_interval_sec=0.5) for one in handles))
    return {"park": took, "resume": time.perf_counter() - began, "memory": held, "grown": held - memory}


async def start_with_id(name: str) -> Any:
    with SetWorkflowID(name):
        return await DBOS.start_workflow_async(parked)


async def run_crash(size: int) -> None:
    await asyncio.gather(*(DBOS.start_workflow_async(slow, 10) for _ in range(size)))
    print("started", flush=True)
    await asyncio.Event().wait()


async def run_resume() -> None:
    print("ready", flush=True)
    await asyncio.Event().wait()


async def run_http(port: int) -> None:
    """A door of the same kind as Signoff's: one POST starts one run."""
    import uvicorn
    from litestar import Litestar, post

    @post("/runs", sync_to_thread=True)
    def start() -> dict[str, str]:
        return {"id": DBOS.start_workflow(sequence, 5).workflow_id}

    server = uvicorn.Server(uvicorn.Config(Litestar([start]), port=port, log_level="error", access_log=False))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await serving


async def main(mode: str, url: str, size: int, port: int) -> None:
    launch(url, eager=mode in ("latency", "park"))
    figures: dict[str, float] = {}
    if mode == "sequence":
        figures = await asyncio.to_thread(run_sequence, size)
    elif mode in ("many", "bytes"):
        figures = await asyncio.to_thread(run_many, size)
    elif mode == "latency":
        figures = await run_latency(size)
    elif mode == "park":
        figures = await run_park(size)
    elif mode == "crash":
        await run_crash(size)
    elif mode == "resume":
        await run_resume()
    elif mode == "http":
        await run_http(port)
    print(json.dumps(figures), flush=True)
    os._exit(0)  # what is measured is measured; its threads need not be waited for


if __name__ == "__main__":
    settle_process()
    given = sys.argv[1:] + ["0"] * 2
    asyncio.run(main(given[0], given[1], int(given[2]), int(given[3])))
