"""Orders and other things to decide, in different states, made once for each database."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

import sqlalchemy as sa

from signoff import Refused
from signoff.demo.agent import make_amends
from signoff.demo.expenses import pay_expense
from signoff.demo.people import ANA, BEN, OMAR, SAM, DemoPerson
from signoff.demo.posts import publish_post
from signoff.demo.shop import Address, Order, OrderRow, create_tables
from signoff.demo.suppliers import register_supplier
from signoff.demo.workflows import BROKEN_PRINTER, GRACE, UNREACHABLE, ShipAnswer, fulfill_order
from signoff.runtime.engine import Engine
from signoff.runtime.handles import Run
from signoff.runtime.subscription import RunChanged
from signoff.store.tx import Tx
from signoff.workflow.definitions import Workflow


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody decides before the newcomer comes: an answer, or the option that stands for one."""

    by: DemoPerson
    answer: Any = None
    option: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """An order, and what people do with it before the newcomer comes."""

    order: Order
    then: Literal["wait", "approve", "reject", "cancel"]
    grace: timedelta = GRACE


@dataclass(frozen=True, slots=True)
class Question:
    """Another run that asks people something, and who answered already. `key` is what people know it by."""

    key: str
    workflow: Workflow[..., Any]
    args: tuple[Any, ...]
    requester: str
    answers: tuple[Answer, ...] = ()


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


QUESTIONS = (
    Question("e-1", pay_expense, ("two security keys", Decimal("96.00")), OMAR.email, (
        Answer(ANA, option="pay"), Answer(SAM, option="pay", comment="One for the safe."), Answer(BEN, option="pay"),
    )),
    Question("e-2", pay_expense, ("a golden stapler", Decimal("310.00")), OMAR.email, (
        Answer(SAM, option="pay"), Answer(BEN, option="deny", comment="The old one still staples."),
    )),
    Question("e-3", pay_expense, ("a new firewall", Decimal("1890.00")), OMAR.email, (Answer(SAM, option="pay"),)),
    Question("e-4", pay_expense, ("a penetration test", Decimal("4800.00")), OMAR.email),
    Question("p-1", publish_post, ("spring catalogue",), "marketing@example.org"),
    Question("s-1", register_supplier, ("Woodworks",), "purchasing@example.org"),
    Question("a-1", make_amends, (), "agent@example.org"),
)  # fmt: skip


async def seed(engine: Engine) -> None:
    """Make the orders, start all runs, and do what people did. Again: does nothing but what was not done yet."""
    await engine.store.write(_insert_orders)
    async with asyncio.TaskGroup() as group:
        for item in sorted(SEEDS, key=lambda item: item.then == "wait"):  # those to answer are the newest
            run = await engine.start(_start_of(item), item.order.id, item.grace)
            if item.then != "wait":
                group.create_task(_act(item, run))
        for question in QUESTIONS:
            options = question.workflow.options(
                idempotency_key=f"demo/{question.key}", labels={"key": question.key}, requester=question.requester
            )
            run = await engine.start(options, *question.args)
            if question.answers:
                group.create_task(_answer(run, question.answers))


def _start_of(item: Seed) -> Workflow[[str, timedelta], Literal["fulfilled", "rejected"]]:
    return fulfill_order.options(
        idempotency_key=f"demo/{item.order.id}", labels={"key": item.order.id}, requester="shop@example.org"
    )


def _insert_orders(tx: Tx) -> None:
    create_tables(tx.conn)
    table = OrderRow.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes
    known = set(tx.conn.execute(sa.select(table.c.id)).scalars())
    new = [OrderRow.of(item.order).model_dump() for item in SEEDS if item.order.id not in known]
    if new:
        tx.conn.execute(sa.insert(table), new)


async def _act(item: Seed, run: Run[Any]) -> None:
    if item.then == "cancel":
        if await _asks(run):
            await run.cancel(reason="The customer called: not needed any more", actor=OMAR.email)
        return
    answer = ShipAnswer(approved=item.then == "approve", note="" if item.then == "approve" else "Out of stock")
    await _answer(run, (Answer(ANA, answer),))


async def _answer(run: Run[Any], answers: tuple[Answer, ...]) -> None:
    for given in answers:
        if not await _asks(run):
            return
        (approval,) = await run.approvals()
        with contextlib.suppress(Refused):  # somebody was faster, or they answered before
            await run.decide(
                approval.ask, given.answer, by=given.by.email, option=given.option, comment=given.comment
            )  # fmt: skip


async def _asks(run: Run[Any]) -> bool:
    """Wait until the run asks; False when it is past that, or somebody restarted it: then the question is theirs."""
    if (await run.status()).generation > 1:
        return False
    async for change in run.subscribe():
        if isinstance(change, RunChanged):
            approvals = await run.approvals()
            if approvals:
                return any(approval.state == "open" for approval in approvals)
    return False
