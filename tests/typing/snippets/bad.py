"""Calls that a type checker refuses, each on the line that says with which error."""
# ruff: noqa: F841

from datetime import timedelta
from decimal import Decimal

from pydantic import BaseModel
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import (
    Compensation,
    Engine,
    Retry,
    Step,
    action,
    all_of,
    any_of,
    ask,
    event,
    group,
    mutation,
    n_of,
    option,
    query,
    role,
    workflow,
)


class Answer(BaseModel):
    approved: bool


class Payment(BaseModel):
    amount: Decimal


question = ask("typing/question", Answer)
paid = event("typing/paid", Payment)


@action(name="typing/send", retry=Retry())
async def send(to: str, count: int = 1) -> list[str]:
    return [to] * count


@action(name="typing/plain")
def plain(amount: Decimal) -> int:
    return 1


@query(name="typing/read")
async def read(session: AsyncSession, key: str) -> str:
    return key


@mutation(name="typing/write")
async def write(session: AsyncSession, key: str) -> None: ...


@query(name="typing/sync")  # E: arg-type
def sync_query(session: AsyncSession, key: str) -> str:
    return key


@mutation(name="typing/wrong-session")  # E: arg-type
async def wrong_session(session: str, key: str) -> str:
    return key


@workflow("typing/no-step")  # E: arg-type
async def no_step(order: str) -> str:
    return order


@workflow("typing/sync-handler")  # E: arg-type
def sync_handler(step: Step, order: str) -> str:
    return order


@workflow("typing/version", version="1")  # E: arg-type
async def wrong_version(step: Step) -> None: ...


@workflow("typing/child")
async def child(step: Step, depth: int) -> int:
    return depth


@workflow("typing/parent")
async def parent(step: Step, order: str, *, gift: bool = False) -> str:
    await step.run_action(send)  # E: call-arg
    await step.run_action(send, 5)  # E: arg-type
    await step.run_action(send, "a", "b")  # E: arg-type
    await step.run_action(send, "a", 1, 2)  # E: call-arg
    await step.run_action(send, to="a", cont=2)  # E: call-arg
    await step.run_action(send, "a", timeout=5)  # E: call-arg
    await step.run_action(read, "a")  # E: arg-type
    await step.run_query(write, "a")  # E: arg-type
    await step.run_mutation(write, 5)  # E: arg-type
    await step.run_query(read)  # E: call-arg
    await step.run_workflow(child, "deep")  # E: arg-type
    number: int = await step.run_action(send, "a")  # E: arg-type
    text: str = await step.run_action(plain, Decimal(1))  # E: arg-type
    nothing: str = await step.run_mutation(write, "a")  # E: arg-type
    deep: str = await step.run_workflow(child, 3)  # E: arg-type
    await step.ask(question)  # E: call-overload
    await step.ask(question, title="?", default=5)  # E: misc
    await step.ask(question, title="?", to="finance")  # E: arg-type
    await step.ask(paid, title="?")  # E: call-overload
    await step.ask(question, title="?", rule=group("finance"))  # E: call-overload
    await step.ask(question, title="?", options=["wait", "go"])  # E: list-item
    await step.ask(question, title="?", claim="never")  # E: call-overload
    one: Answer = await step.ask(question, title="?", rule=n_of(2))  # E: assignment
    other: Answer = await step.ask(question, title="?", rule=all_of(group("a"), group("b")))  # E: assignment
    combined: Answer = await step.ask(question, title="?", rule=n_of(2), combine=len)  # E: arg-type
    answer: Payment = await step.ask(question, title="?")  # E: arg-type
    payment: Answer = await step.await_event(paid)  # E: arg-type
    await step.await_event(question)  # E: call-overload
    await step.sleep("soon")  # E: arg-type
    step.sleep(1)  # E: unused-awaitable
    return 5  # E: return-value


any_of("finance")  # E: arg-type
n_of(group("finance"), 2)  # E: call-overload
all_of(any_of(), "finance")  # E: arg-type
option("ship", style="loud")  # E: arg-type
option("ship", rejects="yes")  # E: arg-type
send.options(timout=5)  # E: call-arg
send.options(timeout="5")  # E: arg-type
send.options(retry=3)  # E: arg-type
send.options(inline=True)  # E: call-arg
send.options(compensate=plain)  # E: arg-type
send.options(compensate=read)  # E: arg-type
send.options(on_error="explode")  # E: arg-type
read.options(retry=Retry())  # E: call-arg
read.options(at_most_once=True)  # E: call-arg
write.options(retry=True)  # E: call-arg
write.options(at_most_once=True)  # E: call-arg
parent.options(timeout=5)  # E: call-arg
parent.options(priority="high")  # E: arg-type
parent.options(labels={"a": 1})  # E: dict-item
parent.options(on_complete=send)  # E: arg-type
parent.options(retention=timedelta(days=1))  # E: arg-type
parent.call()  # E: call-arg
parent.call("a", gift="yes")  # E: arg-type
send("a")  # E: operator
role("boss")  # E: arg-type
group(5)  # E: arg-type
Retry(max_attempts="5")  # E: arg-type
Compensation(args={}, outcome="maybe")  # E: arg-type


async def main() -> None:
    async with Engine("sqlite://") as engine:
        await engine.start(parent)  # E: call-arg
        await engine.start(parent, 5)  # E: arg-type
        await engine.start(parent, "a", priority=5)  # E: call-arg
        await engine.start(send, "a")  # E: arg-type
        run = await engine.start(parent, "a")
        number: int = await run.result()  # E: assignment
        await run.decide(question, Payment(amount=Decimal(1)), by="ana@example.org")  # E: misc
        await run.decide(question, by="ana@example.org")  # E: call-overload
