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
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from signoff import Ask, Conflict, Engine, InvalidInput, NotFound, Refused
from signoff.approvals import changes, claims, thread
from signoff.approvals.doors import through
from signoff.people.users import find_person
from signoff.store.errors import StoreError
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from tests.crash.flows import (
    DEADLINE,
    PAYMENTS,
    Answer,
    allow,
    append,
    complete,
    hint,
    is_patient,
    kind_of,
    order,
    paid,
    panel,
    verdict,
)

T = TypeVar("T")
MAX_OPEN = 15  # orders under way at once
OUTSIDE = ("ana@example.org", "ben@example.org")  # no account is needed where a question is put to nobody in particular
PANEL = ("cho@example.org", "dan@example.org", "eve@example.org")
CHIEF = "fay@example.org"  # an operator
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
        for run_id, approval, ask in await self.surely(partial(self.engine.store.read, _open_approvals)):
            if approval not in self.answered:
                self.answered.add(approval)
                self.answering.add(asyncio.create_task(self.attend(run_id, approval, ask)))
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
        cancel_after = self.random.randrange(PAYMENTS + 4) if kind in ("canceled", "undone") else None
        messages: list[tuple[Any, Any]] = [(hint, f"hint {number}"), *((paid, amount) for amount in range(PAYMENTS))]
        try:
            for at, (event, value) in enumerate(messages):
                await asyncio.sleep(self.random.uniform(0, 0.4))
                if at == cancel_after:
                    break
                sent = await self.surely(partial(run.send, event, value, idempotency_key=f"{event.name} {value}"))
                append(self.receipts, {"event": sent.id, "run": run_id})
            if cancel_after is not None:
                if cancel_after >= len(messages):
                    await asyncio.sleep(self.random.uniform(0, 2.5))  # while people are asked
                await self.surely(lambda: run.cancel(reason="the test says so", compensate=kind == "undone"))
        except OVER as error:
            if cancel_after is None:
                raise AssertionError(f"order {number}, run {run_id}: refused though nobody canceled it") from error

    async def attend(self, run_id: str, approval: str, ask: str) -> None:
        match ask:
            case allow.name:
                await self.answer(run_id, allow, OUTSIDE)
            case verdict.name:
                await self.judge(run_id, approval)
            case _:
                await self.sit(run_id, approval)

    async def answer(self, run_id: str, ask: Ask[Answer], people: Sequence[str]) -> None:
        """One person answers, or two at once with different answers."""
        many = 2 if self.random.random() < 0.4 else 1
        await asyncio.gather(*(self.answer_as(run_id, ask, person) for person in self.random.sample(people, many)))

    async def answer_as(self, run_id: str, ask: Ask[Answer], person: str) -> None:
        run = self.engine.run(run_id)
        try:
            receipt = await self.surely(
                lambda: run.decide(ask, Answer(yes=True, note=f"{person} at {time.time()}"), by=person)
            )
        except OVER:
            return
        line = {"decision": receipt.decision_id, "run": run_id, "approval": receipt.approval, "person": person}
        append(self.receipts, line | {"complete": receipt.complete})

    async def judge(self, run_id: str, approval: str) -> None:
        """About when the deadline comes, which somebody may have moved."""
        await asyncio.sleep(self.random.uniform(0, DEADLINE * 1.2))
        if self.random.random() < 0.3:
            await self.act(self.random.choice(PANEL), "extend", changes.extend, approval)
            await asyncio.sleep(self.random.uniform(0, 1.2))
        await self.answer(run_id, verdict, PANEL)

    async def sit(self, run_id: str, approval: str) -> None:
        """The panel at work, until its question is over: two may act at once, and what they do may be refused."""
        while (found := await self.surely(partial(self.engine.store.read, _panel, approval))) is not None:
            number, waits = found
            decides = not (is_patient(number) and waits)
            many = 2 if self.random.random() < 0.3 else 1
            await asyncio.gather(*(self.sit_as(run_id, approval, decides) for _ in range(many)))
            await asyncio.sleep(self.random.uniform(0.02, 0.3))

    async def sit_as(self, run_id: str, approval: str, decides: bool) -> None:
        person, what = self.random.choice([*PANEL, CHIEF]), self.random.random()
        if what < 0.2:
            await self.act(person, "claim", claims.claim, approval, take_over=person == CHIEF)
        elif what < 0.3:
            await self.act(person, "release", claims.release, approval)
        elif what < 0.45:
            text = f"{person} at {time.time()}"
            if await self.act(person, "comment", thread.comment, approval, text):
                append(self.receipts, {"comment": text, "approval": approval, "run": run_id})
        elif what < 0.5:
            await self.act(person, "escalate", changes.escalate, approval, reason="It takes long")
        elif decides:
            await self.answer_as(run_id, panel, person)

    async def act(self, person: str, action: str, deed: Any, approval: str, *args: Any, **given: Any) -> bool:
        """Whether it was done."""
        tenant = self.engine.scope().tenant_id
        who = await self.surely(partial(self.engine.store.read, find_person, tenant, email=person))
        scope, given = Scope(tenant, who), {"via": "api", **given}
        try:
            await self.surely(
                lambda: through(self.engine.store, f"approval.{action}", deed, scope, approval, *args, **given)
            )
        except (*OVER, InvalidInput):
            return False
        return True

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
        "SELECT r.public_id, a.public_id, a.ask FROM signoff_approval a JOIN signoff_run r ON r.id = a.run_id"
        " WHERE a.state = 'open'"
    )
    return list(tx.conn.execute(sa.text(query)))


def _panel(tx: Tx, approval: str) -> tuple[int, bool] | None:
    """The order that a panel's open question is about, and whether a reminder or the escalation is still to come."""
    query = "SELECT title, next_at FROM signoff_approval WHERE public_id = :approval AND state = 'open'"
    row = tx.conn.execute(sa.text(query), {"approval": approval}).first()
    return None if row is None else (int(row.title.strip("?").split()[2]), row.next_at is not None)


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
