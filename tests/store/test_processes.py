"""Real processes on one database."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from signoff.store import Store
from signoff.store.liveness import open_liveness
from tests.store.support import Ear, add, names, tokens_of

COUNT = """
import asyncio, sys
from signoff.store import Store
from tests.store.support import raise_tokens

async def main():
    async with await Store.open(sys.argv[1]) as store:
        for _ in range(40):
            await store.write(raise_tokens, "counter")
            async with store.session() as session:
                await session.run(raise_tokens, "counter")

asyncio.run(main())
"""

WORK = """
import asyncio, sys
from signoff.store import Store
from signoff.store.liveness import open_liveness
from tests.store.support import add

async def main():
    store = await Store.open(sys.argv[1])
    worker = await open_liveness(store).start()
    for number in range(100000):
        await store.write(add, f"p{number:06}")
        print(worker, f"p{number:06}", flush=True)

asyncio.run(main())
"""


async def start(code: str, url: str) -> asyncio.subprocess.Process:
    root = Path(__file__).parents[2]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, url, cwd=root, stdout=asyncio.subprocess.PIPE, limit=2**20
    )


async def test_processes_lose_no_update_of_each_other(store: Store) -> None:
    await store.write(add, "counter")
    processes = [await start(COUNT, store.url) for _ in range(2)]
    assert [await process.wait() for process in processes] == [0, 0]
    assert await store.read(tokens_of, "counter") == 160


async def test_what_was_acknowledged_survives_kill_9_and_the_worker_is_found_lost(store: Store) -> None:
    ear = Ear(store)
    process = await start(WORK, store.url)
    assert process.stdout is not None
    acknowledged = [await process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    acknowledged += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    lines = [line.decode().split() for line in acknowledged if line.endswith(b"\n")]
    kept = await store.read(names)
    assert [name for _, name in lines] == kept[: len(lines)]
    assert len(kept) - len(lines) <= 1
    await ear.until(lambda all_: len(all_) > 0)
    life = open_liveness(store)
    await life.start()
    assert life.lost() == [int(lines[0][0])]
    await life.stop()
