"""The workflows whose books are checked: every kind of step, with a trace of each that outlives any crash.

Mutations write to `crash_ledger` in Signoff's database, without a key that would refuse what must not happen twice.
Actions append to a file what they begin and end, with their idempotency key. `kind` says how a run ends: `plain`
completes, `fails` raises at its end and is compensated, `canceled` and `undone` are canceled from outside.

Each order has a review: two of a panel decide a question that changes meanwhile, with reminders and an escalation; and
one person a question with a deadline, which can be moved.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time

import sqlalchemy as sa
from pydantic import BaseModel
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff import (
    Compensation,
    NonRetryable,
    Retry,
    Step,
    action,
    ask,
    attempt,
    event,
    group,
    mutation,
    n_of,
    query,
    workflow,
)

PAYMENTS = 3
SHARDS = 3
CHANGES = 2  # of the panel's question
REMINDERS = (0.2, 0.5, 0.9)  # seconds after it was asked
ESCALATES_AFTER = 0.6  # seconds
DEADLINE = 0.8  # seconds for the verdict
NOBODY = "nobody"  # the verdict when the deadline came first
TRACE = "SIGNOFF_CRASH_TRACE"
TABLES = (
    "CREATE TABLE crash_ledger (number INTEGER NOT NULL, entry TEXT NOT NULL, value TEXT NOT NULL)",
    "CREATE TABLE crash_total (shard INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
    *(f"INSERT INTO crash_total VALUES ({shard}, 0)" for shard in range(SHARDS)),
)


class Answer(BaseModel):
    yes: bool
    note: str


hint = event("crash/hint", str)
paid = event("crash/paid", int)
allow = ask("crash/allow", Answer)
panel = ask("crash/panel", Answer)
verdict = ask("crash/verdict", Answer)


def append(path: str, line: dict[str, object]) -> None:
    """One line, in one write: once this returns it outlives the process, which is what dies here, not the machine."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def trace(what: str) -> None:
    now = attempt.current()
    append(
        os.environ[TRACE],
        {"what": what, "key": now.idempotency_key, "run": now.run_id, "step": now.step_no, "name": now.step,
         "number": now.number, "pid": os.getpid(), "at": time.time()},
    )  # fmt: skip


async def write_entry(session: AsyncSession, number: int, entry: str, value: str) -> None:
    """A line in the ledger, and a shared row that others change as well."""
    line = {"number": number, "entry": entry, "value": value}
    await session.execute(sa.text("INSERT INTO crash_ledger VALUES (:number, :entry, :value)"), line)
    await session.execute(
        sa.text("UPDATE crash_total SET amount = amount + 1 WHERE shard = :shard"), {"shard": number % SHARDS}
    )


@mutation(name="crash/undo")
async def undo(session: AsyncSession, compensation: Compensation) -> None:
    await write_entry(session, compensation.args["number"], f"undo {compensation.args['entry']}", compensation.outcome)


@mutation(name="crash/enter")
async def enter(session: AsyncSession, number: int, entry: str, value: str = "") -> str:
    await write_entry(session, number, entry, value)
    await asyncio.sleep(random.uniform(0, 0.005))
    return value


@mutation(name="crash/complete")
async def complete(session: AsyncSession, run_id: str, kind: str, value: object, context: int) -> None:
    await write_entry(session, context, "complete", kind)


@query(name="crash/count")
async def count(session: AsyncSession, number: int) -> int:
    found = await session.execute(
        sa.text("SELECT count(*) FROM crash_ledger WHERE number = :number"), {"number": number}
    )
    return int(found.scalar_one())


@action(name="crash/touch")
async def touch(number: int, side: str) -> str:
    trace("begin")
    await asyncio.sleep(random.uniform(0, 0.06))
    trace("end")
    return f"{number} {side}"


@action(name="crash/flaky", retry=Retry(initial=0.02, cap=0.1, max_attempts=6))
def flaky(number: int) -> int:
    trace("begin")
    time.sleep(random.uniform(0, 0.02))
    if attempt.current().number <= number % 3:
        raise ConnectionError("not yet")
    trace("end")
    return attempt.current().number


@workflow("crash/child")
async def child(step: Step, number: int) -> int:
    await step.run_mutation(enter, number, "child opened")
    await step.run_action(touch, number, "child")
    await step.sleep(0.05)
    return number * 2


@workflow("crash/review")
async def review(step: Step, number: int) -> int:
    asked = step.ask(
        panel, title=f"Review order {number}?", facts={"price": 0}, rule=n_of(2, group("panel")), remind=REMINDERS,
        escalate_to=group("chiefs"), escalate_after=ESCALATES_AFTER,
    )  # fmt: skip
    judged = step.ask(
        verdict, title=f"And order {number}?", to=group("panel"), remind=[DEADLINE / 2], timeout=DEADLINE, extend=1,
        default=Answer(yes=False, note=NOBODY),
    )  # fmt: skip
    changed = 0
    for price in range(1, CHANGES + 1):
        await step.sleep(step.random.uniform(0.05, 0.4))
        changed += await step.update_ask(asked, title=f"Review order {number} for {price}?", facts={"price": price})
    notes = [decided.answer.note for decided in await asked]
    word = (await judged).note
    read = [comment.text for comment in await step.comments(asked)]
    await step.run_mutation(enter, number, "panel", json.dumps(notes))
    await step.run_mutation(enter, number, "verdict", word)
    await step.run_mutation(enter, number, "comments", json.dumps(read))
    return changed


@workflow("crash/order", events=[hint, paid])
async def order(step: Step, number: int, kind: str) -> int:
    await step.run_mutation(enter.options(compensate=undo), number, "opened")
    await asyncio.gather(*(step.run_action(touch, number, side) for side in ("left", "right", "middle")))
    word = await step.await_event(hint, timeout=0.3, default=None)
    late = word is None
    if word is None:
        word = await step.await_event(hint)
    await step.run_mutation(enter, number, "hint", word)
    _, pending = await step.wait(
        [step.run_action(touch, number, side) for side in ("fast", "slow")], return_when=asyncio.FIRST_COMPLETED
    )
    for loser in pending:
        loser.cancel()
    for turn in range(PAYMENTS):
        amount = await step.await_event(paid)
        await step.run_mutation(enter.options(inline=turn == 1), number, f"paid {turn}", str(amount))
    await step.sleep(step.random.uniform(0, 0.3))
    await step.run_action(flaky, number)
    async with asyncio.TaskGroup() as tasks:
        doubled = tasks.create_task(step.run_workflow(child, number))
        tasks.create_task(step.run_workflow(review, number))
        answer = tasks.create_task(step.ask(allow, title=f"Allow order {number}?", facts={"late": late}))
    await step.run_mutation(enter, number, "answer", answer.result().note)
    await step.run_mutation(enter, number, "child", str(doubled.result()))
    if kind == "fails":
        raise NonRetryable("spoiled")
    seen = await step.run_query(count, number)
    await step.run_mutation(enter, number, "closed", str(seen))
    return seen


PLAIN_ENTRIES = {
    "opened", "hint", *(f"paid {turn}" for turn in range(PAYMENTS)), "answer", "child opened", "child", "closed",
    "panel", "verdict", "comments",
}  # fmt: skip


def kind_of(number: int) -> str:
    """How the run of an order ends; the same whenever its start is tried again."""
    return {3: "fails", 6: "canceled", 8: "undone"}.get(number % 10, "plain")


def is_patient(number: int) -> bool:
    """Whether the panel lets every reminder and the escalation come before it decides."""
    return number % 3 == 0
