"""Orders in different states, made once for each database."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

import sqlalchemy as sa

from signoff import Refused, Workflow
from signoff.demo.people import ANA, OMAR
from signoff.demo.shop import Address, Order, OrderRow, create_tables
from signoff.demo.workflows import BROKEN_PRINTER, GRACE, UNREACHABLE, ShipAnswer, fulfill_order, ship_order
from signoff.runtime.engine import Engine
from signoff.runtime.handles import Run
from signoff.runtime.subscription import RunChanged
from signoff.store.tx import Tx


@dataclass(frozen=True, slots=True)
class Seed:
    """An order, and what people do with it before the newcomer comes."""

    order: Order
    then: Literal["wait", "approve", "reject", "cancel"]
    grace: timedelta = GRACE


NOW = timedelta(0)


def _order(number: int, item: str, total: str, name: str, city: str) -> Order:
    address = Address(name=name, street=f"Harbour Street {number % 90}", city=city)
    return Order(id=f"o-{number}", item=item, total=Decimal(total), address=address)


SEEDS = (
    Seed(_order(1001, "Espresso machine", "389.00", "Lena", "Lisbon"), "wait"),
    Seed(_order(1002, "Standing desk", "1249.00", "Jonas", "Graz"), "wait"),
    Seed(_order(1003, "Reading lamp", "59.90", "Amara", "Dublin"), "wait"),
    Seed(_order(1004, "Bookshelf", "219.00", "Piet", "Utrecht"), "approve", NOW),  # completes
    Seed(_order(1005, "Garden table", "640.00", "Sofia", "Turin"), "approve", timedelta(days=3)),  # sleeps
    Seed(
        _order(1006, "Diving bell", "1999.00", "Nemo", UNREACHABLE), "approve", NOW
    ),  # fails, and the money is released
    Seed(_order(1007, "Jam jars", "24.00", "Ruth", BROKEN_PRINTER), "approve", NOW),  # its label backs off
    Seed(_order(1008, "Tuba", "899.00", "Otto", "Bremen"), "reject"),
    Seed(_order(1009, "Ice skates", "120.00", "Elin", "Oslo"), "cancel"),
)


async def seed(engine: Engine) -> None:
    """Make the orders, start their runs, and do what people did. Again: does nothing but what was not done yet."""
    await engine.store.write(_insert_orders)
    async with asyncio.TaskGroup() as group:
        for item in sorted(SEEDS, key=lambda item: item.then == "wait"):  # those to answer are the newest
            run = await engine.start(_start_of(item), item.order.id, item.grace)
            if item.then != "wait":
                group.create_task(_act(item, run))


def _start_of(item: Seed) -> Workflow[[str, timedelta], Literal["fulfilled", "rejected"]]:
    return fulfill_order.options(
        idempotency_key=f"demo/{item.order.id}", labels={"order": item.order.id}, requester="shop@example.org"
    )


def _insert_orders(tx: Tx) -> None:
    create_tables(tx.conn)
    table = OrderRow.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes
    known = set(tx.conn.execute(sa.select(table.c.id)).scalars())
    new = [OrderRow.of(item.order).model_dump() for item in SEEDS if item.order.id not in known]
    if new:
        tx.conn.execute(sa.insert(table), new)


async def _act(item: Seed, run: Run[Any]) -> None:
    if (await run.status()).generation > 1 or not await _asks(run):
        return  # somebody restarted it: the question is theirs
    if item.then == "cancel":
        await run.cancel(reason="The customer called: not needed any more", actor=OMAR.email)
        return
    answer = ShipAnswer(approved=item.then == "approve", note="" if item.then == "approve" else "Out of stock")
    with contextlib.suppress(Refused):  # somebody was faster
        await run.decide(ship_order, answer, by=ANA.email)


async def _asks(run: Run[Any]) -> bool:
    """Wait until the run asks; False when it is past that."""
    async for change in run.subscribe():
        if isinstance(change, RunChanged):
            approvals = await run.approvals()
            if approvals:
                return any(approval.state == "open" for approval in approvals)
    return False
