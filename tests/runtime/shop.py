"""Definitions that the tests of the runtime share, in a registry of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import NonRetryable, Registry, Retry, Step, action, ask, attempt, event, mutation, query, workflow

registry = Registry()


class Answer(BaseModel):
    approved: bool
    note: str = ""


class Payment(BaseModel):
    amount: int


ship = ask("shop/ship", Answer, registry=registry)
payment = event("shop/payment", Payment, registry=registry)


@action(name="shop/double", registry=registry)
async def double(number: int) -> int:
    return number * 2


@action(name="shop/flaky", retry=Retry(max_attempts=3, initial=60, jitter=False), registry=registry)
async def flaky(number: int) -> int:
    if attempt.current().number < 3:
        raise ConnectionError("busy")
    return number


@action(name="shop/broken", registry=registry)
async def broken() -> None:
    raise NonRetryable("out of order", data={"part": 7})


@action(name="shop/progress", registry=registry)
async def progressing() -> str:
    current = attempt.current()
    current.progress(0.5, "half")
    current.log("halfway", part=1)
    return "done"


@mutation(name="shop/note", registry=registry)
async def note(session: AsyncSession, what: str) -> int:
    await session.exec(text("INSERT INTO shop_note (what) VALUES (:what)").bindparams(what=what))  # type: ignore[call-overload]  # plain SQL
    return len(what)


@mutation(name="shop/tell", registry=registry)
async def tell(session: AsyncSession, run_id: str, kind: str, value: Any, context: dict[str, str]) -> None:
    what = f"{run_id} {kind} {value} {context['for']}"
    await session.exec(text("INSERT INTO shop_note (what) VALUES (:what)").bindparams(what=what))  # type: ignore[call-overload]  # plain SQL


@query(name="shop/count", registry=registry)
async def count(session: AsyncSession) -> int:
    result: Any = await session.exec(text("SELECT count(*) FROM shop_note"))  # type: ignore[call-overload]  # plain SQL
    return int(result.scalar_one())


@workflow("shop/double", registry=registry)
async def double_it(step: Step, number: int) -> int:
    return await step.run_action(double, number)


@workflow("shop/break", registry=registry)
async def break_it(step: Step) -> None:
    await step.run_action(broken)


@workflow("shop/sleep", registry=registry)
async def sleep_for(step: Step, duration: timedelta) -> str:
    await step.sleep(duration)
    return "awake"


@workflow("shop/wait", events=[payment], registry=registry)
async def wait_for_payment(step: Step) -> int:
    paid = await step.await_event(payment)
    return paid.amount


@workflow("shop/wait-twice", registry=registry)
async def wait_twice(step: Step) -> int:
    return (await step.await_event(payment)).amount + (await step.await_event(payment)).amount


@workflow("shop/ask", registry=registry)
async def ask_to_ship(step: Step) -> bool:
    answer = await step.ask(ship, title="Ship it?", timeout=timedelta(days=1), default=Answer(approved=False))
    return answer.approved


@workflow("shop/flaky", registry=registry)
async def try_often(step: Step, number: int) -> int:
    return await step.run_action(flaky, number)


@workflow("shop/progress", registry=registry)
async def show_progress(step: Step) -> str:
    step.log("began")
    return await step.run_action(progressing)


@workflow("shop/twice", registry=registry)
async def twice(step: Step, number: int) -> int:
    first = await step.run_action(double, number)
    return await step.run_action(double, first)
