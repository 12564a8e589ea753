"""The world outside: `python -m tests.crash.feeder URL FOLDER SEED` starts orders, sends events, answers questions.

It is killed as well, and starts again: what it was told is durable stands in files before it goes on, and everything
it does can be done again under the same idempotency key. It ends when the file `stop` is there and no run is open.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from signoff import Conflict, Engine, NotFound, Refused
from signoff.store.errors import StoreError
from signoff.store.tx import Tx
from tests.crash.flows import PAYMENTS, Answer, allow, append, complete, hint, kind_of, order, paid

T = TypeVar("T")
MAX_OPEN = 15  # orders under way at once
PEOPLE = ("ana@example.org", "ben@example.org")
PATIENCE = 90.0  # seconds for which the database may be away
OVER = (Conflict, NotFound, Refused)  # the run is over, or somebody else was first


class Feeder:
    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.folder = folder
        self.accepted = str(folder / "accepted")
        self.receipts = str(folder / "receipts")
        self.tending: dict[str, asyncio.Task[None]] = {}
        self.answering: set[asyncio.Task[None]] = set()
        self.answered: set[str] = set()

    async def run(self) -> None:
        known = read_lines(self.accepted)
        number = 1 + max((int(line["number"]) for line in known), default=-1)
        numbers = {line["run"]: int(line["number"]) for line in known}
        for run_id in await self.open_orders():
            if run_id in numbers:
                self.tend(run_id, numbers[run_id])
        stop = self.folder / "stop"
        while not stop.exists():
            if len(await self.open_orders()) < MAX_OPEN:
                number = await self.start(number)
            await self.round()
        while self.tending or self.answering or await self.open_orders():
            await self.round()

    async def open_orders(self) -> list[str]:
        return await self.surely(partial(self.engine.store.read, _open_orders))

    async def round(self) -> None:
        for run_id, approval in await self.surely(partial(self.engine.store.read, _open_approvals)):
            if approval not in self.answered:
                self.answered.add(approval)
                task = asyncio.create_task(self.answer(run_id))
                self.answering.add(task)
        for task in [task for task in self.answering if task.done()]:
            self.answering.discard(task)
            task.result()
        for run_id in [run_id for run_id, task in self.tending.items() if task.done()]:
            self.tending.pop(run_id).result()
        await asyncio.sleep(0.05)

    async def start(self, number: int) -> int:
        """Start one order, or three in one transaction; returns the next number."""
        many = 3 if self.random.random() < 0.3 else 1
        calls = [
            order.options(idempotency_key=f"order {one}", on_complete=complete, on_complete_context=one).call(
                one, kind_of(one)
            )
            for one in range(number, number + many)
        ]
        for at, run in enumerate(await self.surely(lambda: self.engine.start_many(calls))):
            assert not hasattr(run, "error"), run
            append(self.accepted, {"number": number + at, "run": run.id, "kind": kind_of(number + at)})
            self.tend(run.id, number + at)
        return number + many

    def tend(self, run_id: str, number: int) -> None:
        self.tending[run_id] = asyncio.create_task(self.see_through(run_id, number))

    async def see_through(self, run_id: str, number: int) -> None:
        """Events in order; a cancel somewhere in between for those that are to be canceled."""
        run, kind = self.engine.run(run_id), kind_of(number)
        cancel_after = self.random.randrange(PAYMENTS + 2) if kind in ("canceled", "undone") else None
        messages: list[tuple[Any, Any]] = [(hint, f"hint {number}"), *((paid, amount) for amount in range(PAYMENTS))]
        try:
            for at, (event, value) in enumerate(messages):
                await asyncio.sleep(self.random.uniform(0, 0.4))
                if at == cancel_after:
                    break
                sent = await self.surely(partial(run.send, event, value, idempotency_key=f"{event.name} {value}"))
                append(self.receipts, {"event": sent.id, "run": run_id})
            if cancel_after is not None:
                await self.surely(lambda: run.cancel(reason="the test says so", compensate=kind == "undone"))
        except OVER as error:
            if cancel_after is None:
                raise AssertionError(f"order {number}, run {run_id}: refused though nobody canceled it") from error

    async def answer(self, run_id: str) -> None:
        """One person answers, or two at once with different answers."""
        people = PEOPLE if self.random.random() < 0.4 else PEOPLE[:1]
        await asyncio.gather(*(self.answer_as(run_id, person) for person in people))

    async def answer_as(self, run_id: str, person: str) -> None:
        run = self.engine.run(run_id)
        try:
            receipt = await self.surely(
                lambda: run.decide(allow, Answer(yes=True, note=f"{person} at {time.time()}"), by=person)
            )
        except OVER:
            return
        append(
            self.receipts,
            {"decision": receipt.decision_id, "run": run_id, "approval": receipt.approval, "person": person},
        )

    async def surely(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Again while the database is away."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return await attempt()
            except StoreError as error:
                if time.monotonic() > until:
                    raise
                print(f"again: {type(error).__name__}: {error}", flush=True)
                await asyncio.sleep(0.2)


def _open_orders(tx: Tx) -> list[str]:
    query = "SELECT public_id FROM signoff_run WHERE state <> 'final' AND parent_id IS NULL"
    return list(tx.conn.execute(sa.text(query)).scalars())


def _open_approvals(tx: Tx) -> list[Any]:
    query = (
        "SELECT r.public_id, a.public_id FROM signoff_approval a JOIN signoff_run r ON r.id = a.run_id"
        " WHERE a.state = 'open'"
    )
    return list(tx.conn.execute(sa.text(query)))


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """Lines of a file of `append`; a last one that a kill cut off was never acknowledged."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


async def main(url: str, folder: Path, seed: int) -> None:
    async with Engine(url, worker=False) as engine:
        print("feeding", flush=True)
        await Feeder(engine, folder, seed).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
