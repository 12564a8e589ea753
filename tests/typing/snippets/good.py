"""Calls that a type checker accepts."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, assert_type

from pydantic import BaseModel
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import (
    Compensation,
    Decided,
    Engine,
    Retention,
    Retry,
    Step,
    action,
    all_of,
    any_of,
    ask,
    attempt,
    event,
    group,
    mutation,
    n_of,
    option,
    query,
    role,
    user,
    workflow,
)
from signoff.workflow.definitions import Ask, Call, Event, Mutation, Query, Workflow


class ShipAnswer(BaseModel):
    approved: bool
    note: str = ""


class Payment(BaseModel):
    amount: Decimal


class Order(BaseModel):
    id: str
    total: Decimal


ship_order = ask("typing/ship", ShipAnswer)
payment = event("typing/payment", Payment)
anything = event("typing/anything")
assert_type(ship_order, Ask[ShipAnswer])
assert_type(payment, Event[Payment])
assert_type(anything, Event[Any])


@action(name="typing/refund")
async def refund(step: Compensation) -> None:
    attempt.current().log("refunded", level="info", step=step.outcome)


@action(name="typing/create-label", retry=Retry(max_attempts=5), timeout=timedelta(seconds=5))
async def create_label(order_id: str, weight: float = 1.0, *, express: bool = False) -> list[str]:
    attempt.current().progress(0.5, "half")
    return [order_id]


@action("typing/sync", compensate=refund, at_most_once=True)
def convert(amount: Decimal) -> Decimal:
    return amount


@query(name="typing/get-order")
async def get_order(session: AsyncSession, order_id: str) -> Order:
    return Order(id=order_id, total=Decimal(1))


@mutation(name="typing/mark")
async def mark(session: AsyncSession, order_id: str, done: bool = True) -> int:
    return 1


@workflow("typing/child")
async def child(step: Step, depth: int) -> dict[str, int]:
    return {"depth": depth}


@workflow(
    "typing/fulfill",
    version=2,
    retry=True,
    rate=(5, 60),
    events=[payment],
    retention=Retention(completed=timedelta(days=1)),
)
async def fulfill(step: Step, order_id: str, *, gift: bool = False) -> Literal["fulfilled", "rejected"]:
    order = await step.run_query(get_order, order_id)
    assert_type(order, Order)
    answer = await step.ask(
        ship_order,
        title=f"Ship {order_id}?",
        facts={"total": order.total},
        to=[group("finance"), role("operator"), user("ana@example.org")],
        due=timedelta(days=2),
        timeout=timedelta(days=7),
        default=ShipAnswer(approved=False),
    )
    assert_type(answer, ShipAnswer)
    paid = await step.await_event(payment, timeout=timedelta(hours=1))
    assert_type(paid, Payment)
    labels = await step.run_action(
        create_label.options(timeout=30, retry=False, compensate=refund), order_id, express=True
    )
    assert_type(labels, list[str])
    amount = await step.run_action(convert.options(pool="bank", pool_key=order_id), order.total)
    assert_type(amount, Decimal)
    count = await step.run_mutation(mark.options(inline=True), order_id, done=False)
    assert_type(count, int)
    tree = await step.run_workflow(child.options(run_after=5), 3)
    assert_type(tree, dict[str, int])
    text = await step.do("text", lambda: "x")
    assert_type(text, str)
    await step.sleep(timedelta(minutes=1))
    step.log("done", order=order_id)
    return "fulfilled"


assert_type(get_order.call("o"), Call[Order])
assert_type(fulfill.options(run_id="r").call("o", gift=True), Call[Literal["fulfilled", "rejected"]])
check_query: Query[[str], Order] = get_order.options(inline=True)
check_mutation: Mutation[..., int] = mark.options(timeout=5, compensate=refund, on_error="continue")
check_workflow: Workflow[[int], dict[str, int]] = child.options(
    idempotency_key="k",
    run_at=datetime(2030, 1, 1, tzinfo=UTC),
    priority=3,
    labels={"team": "a"},
    version=1,
    retention=Retention(failed=60),
    tenant="default",
    requester="ana@example.org",
    on_complete=mark,
    on_complete_context={"a": 1},
)


class Publish(BaseModel):
    at: datetime


class Rework(BaseModel):
    what: str


review: Ask[Publish | Rework] = ask("typing/review", Publish | Rework)


def all_approve(decisions: list[Decided[ShipAnswer]]) -> bool:
    return all(decision.answer.approved for decision in decisions)


@workflow("typing/approvals")
async def approvals(step: Step, people: int) -> None:
    answer = await step.ask(ship_order, title="?", rule=any_of(group("finance")), not_requester=True, claim="required")
    assert_type(answer, ShipAnswer)
    answers = await step.ask(ship_order, title="?", rule=n_of(2, group("finance")), exclude=group("interns"))
    assert_type(answers, list[Decided[ShipAnswer]])
    assert_type(answers[0].answer, ShipAnswer)
    parts = await step.ask(
        ship_order,
        title="?",
        rule=all_of(n_of(2, group("finance"), veto=False), user("ciso@example.org"), staged=True),
        remind=[timedelta(days=1), 3600],
        due=7200,
        escalate_to=role("admin"),
        timeout=timedelta(days=7),
        extend=timedelta(days=1),
        default=ShipAnswer(approved=False),
    )
    assert_type(parts, list[Decided[ShipAnswer]])
    combined = await step.ask(ship_order, title="?", rule=n_of(people), combine=all_approve)
    assert_type(combined, bool)
    either = await step.ask(ship_order, title="?", rule=n_of(people))
    assert_type(either, ShipAnswer | list[Decided[ShipAnswer]])
    outcome = await step.ask(
        review,
        title="?",
        options=[
            option("publish", form=Publish, style="primary"),
            option("rework", form=Rework, rejects=True),
            option("later", value=Publish(at=datetime(2030, 1, 1, tzinfo=UTC)), consequence="Nobody sees it yet."),
        ],
    )
    assert_type(outcome, Publish | Rework)


async def main() -> None:
    async with Engine("sqlite://") as engine:
        run = await engine.start(fulfill.options(idempotency_key="o-1"), order_id="o-1")
        await run.decide(ship_order, ShipAnswer(approved=True), by="ana@example.org")
        await run.decide(ship_order, ShipAnswer(approved=False), by="ana@example.org", option="no", comment="late")
        await run.decide(review, by="ana@example.org", option="later")
        await run.send(payment, Payment(amount=Decimal(12)))
        assert_type(await run.result(timeout=10), Literal["fulfilled", "rejected"])
        await engine.start_many([fulfill.call("a"), child.call(2)])
