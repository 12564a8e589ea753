"""Order fulfilment: a person decides, programs do the rest.

`orders/place` writes an order down and starts its fulfilment. `orders/fulfill` reserves the money and checks for fraud
at the same time, asks Finance, waits a while in case the customer calls, and hands over to the child run `orders/ship`.
If shipping fails for good, the money is released.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import Compensation, NonRetryable, Retry, Step, action, ask, attempt, group, mutation, query, workflow
from signoff.demo.agent import make_amends
from signoff.demo.expenses import pay_expense
from signoff.demo.posts import publish_post
from signoff.demo.shop import Address, Order, OrderRow, OrderState
from signoff.demo.suppliers import register_supplier

GRACE = timedelta(seconds=8)
# A town that no carrier serves: orders to it fail for good, which shows a failed run with its compensation.
UNREACHABLE = "Atlantis"
# A town whose label printer is always broken: its orders show a step that backs off.
BROKEN_PRINTER = "Jamtown"


class ShipAnswer(BaseModel):
    approved: bool = Field(title="Ship this order?")
    speed: Literal["standard", "express"] = Field(default="standard", title="Delivery")
    note: str = Field(default="", title="Note for the warehouse", max_length=200)


class Risk(BaseModel):
    score: int
    reason: str


ship_order = ask("orders/ship-it", ShipAnswer)


@query(name="orders/get")
async def get_order(session: AsyncSession, order_id: str) -> Order:
    row = await session.get(OrderRow, order_id)
    if row is None:
        raise NonRetryable(f"there is no order {order_id}")
    return row.to_order()


@mutation(name="orders/set-state")
async def set_state(session: AsyncSession, order_id: str, state: OrderState, tracking: str | None = None) -> None:
    row = await session.get_one(OrderRow, order_id)
    row.state, row.tracking = state, tracking
    session.add(row)


@mutation(name="orders/insert")
async def insert_order(session: AsyncSession, order: Order) -> None:
    session.add(OrderRow.of(order))


@action(name="payments/release", retry=Retry())
async def release_money(compensation: Compensation) -> str:
    await asyncio.sleep(0.5)
    return f"released after: {compensation.cause}"


@action(name="payments/reserve", compensate=release_money)
async def reserve_money(order_id: str, amount: str) -> str:
    await asyncio.sleep(0.8)
    return f"reserved {amount} for {order_id}"


@action(name="fraud/check")
async def check_fraud(order: Order) -> Risk:
    current = attempt.current()
    for done, what in enumerate(("address", "card", "history"), start=1):
        await asyncio.sleep(0.6)
        current.progress(done / 3, f"{what} looked up")
    score = min(95, int(order.total) // 20 + 5)
    return Risk(score=score, reason="a large order" if score > 30 else "nothing unusual")


@action(name="shipping/create-label", retry=Retry(max_attempts=None, initial=1.5), timeout=30)
async def create_label(order: Order, speed: str) -> str:
    """The label service of the example, which fails now and then."""
    await asyncio.sleep(0.7)
    if order.address.city == UNREACHABLE:
        raise NonRetryable(f"no carrier delivers to {order.address.city}")
    if order.address.city == BROKEN_PRINTER:
        raise ConnectionError("the label printer does not answer")
    if attempt.current().number < 3 and random.random() < 0.5:
        raise ConnectionError("the label service is busy")
    return f"{speed[:3].upper()}-{order.id.upper()}"


@action(name="shipping/hand-over")
async def hand_over(label: str) -> str:
    current = attempt.current()
    for percent in range(20, 101, 20):
        await asyncio.sleep(0.5)
        current.progress(percent / 100, f"parcel {label}: {percent} %")
    return label


@workflow("orders/ship")
async def ship_parcel(step: Step, order: Order, speed: str) -> str:
    """Prints a label, as often as it takes, and hands the parcel over."""
    label = await step.run_action(create_label, order, speed)
    return await step.run_action(hand_over, label)


@workflow("orders/fulfill")
async def fulfill_order(step: Step, order_id: str, grace: timedelta = GRACE) -> Literal["fulfilled", "rejected"]:
    """Checks an order, asks Finance, and ships it; a no rejects it."""
    order = await step.run_query(get_order, order_id)
    _, risk = await asyncio.gather(
        step.run_action(reserve_money, order_id, str(order.total)),
        step.run_action(check_fraud, order),
    )
    answer = await step.ask(
        ship_order,
        title=f"Ship order {order_id} to {order.address.city}?",
        body=f"The fraud check says: **{risk.reason}** (risk {risk.score} of 100).\n\n"
        "If you say no, the order is rejected and the customer is told.",
        facts={
            "item": order.item,
            "total": f"{order.total:,.2f} EUR",
            "customer": order.address.name,
            "risk": risk.score,
        },
        to=group("finance"),
        due=timedelta(hours=4),
        timeout=timedelta(days=7),
        default=ShipAnswer(approved=False),
    )
    if not answer.approved:
        await step.run_mutation(set_state, order_id, OrderState.REJECTED)
        return "rejected"
    await step.sleep(grace)
    tracking = await step.run_workflow(ship_parcel.options(labels={"order": order_id}), order, answer.speed)
    await step.run_mutation(set_state, order_id, OrderState.SHIPPED, tracking)
    return "fulfilled"


@workflow("orders/place")
async def place_order(
    step: Step, item: str = "Desk lamp", total: Decimal = Decimal("49.90"), name: str = "Mira", city: str = "Bergen"
) -> str:
    """Writes a new order down and starts its fulfilment."""
    order_id = f"o-{step.random.randrange(2000, 10_000)}"
    order = Order(id=order_id, item=item, total=total, address=Address(name=name, street="Market Square 1", city=city))
    await step.run_mutation(insert_order, order)
    return await step.start_workflow(fulfill_order.options(labels={"order": order_id}), order_id)


ALL = (place_order, fulfill_order, ship_parcel, pay_expense, publish_post, register_supplier, make_amends)
