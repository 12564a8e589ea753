"""Workflows whose questions have options, rules and deadlines, for tests of the inbox and the page of a question."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Literal

from pydantic import BaseModel, Field

from signoff import Step, all_of, ask, group, n_of, option, user, workflow


class Publish(BaseModel):
    kind: Literal["publish"] = "publish"


class Changes(BaseModel):
    kind: Literal["changes"] = "changes"
    what: str = Field(title="What should change")


class Archive(BaseModel):
    kind: Literal["archive"] = "archive"


class Visit(BaseModel):
    approved: bool
    day: date
    note: str = ""


review = ask("desk/review", Publish | Changes | Archive)
pay = ask("desk/pay", bool)
plain = ask("desk/plain", bool)
visit = ask("desk/visit", Visit)


@workflow("desk/publish")
async def publish(step: Step, title: str) -> str:
    answer = await step.ask(
        review,
        title=f"Publish “{title}”?",
        facts={"words": 1200, "score": 87.125},
        to=group("finance"),
        options=[
            option("publish", "Publish now", value=Publish(), consequence="Goes live at once."),
            option("changes", "Ask for changes", form=Changes, consequence="Goes back to the author."),
            option("archive", "Reject", value=Archive(), rejects=True, consequence="The draft is archived."),
        ],
        due=timedelta(days=2),
        timeout=timedelta(days=4),
        default=Archive(),
        extend=timedelta(days=1),
        escalate_to=user("omar@example.org"),
    )
    return answer.kind


@workflow("desk/expense")
async def expense(step: Step, amount: str) -> int:
    answers = await step.ask(
        pay,
        title=f"Pay {amount} EUR?",
        facts={"amount": amount},
        rule=all_of(n_of(2, group("finance")), user("omar@example.org")),
        options=[
            option("pay", "Pay it", value=True, consequence=f"Pays {amount} EUR on Friday."),
            option("deny", "Do not pay", value=False, rejects=True),
        ],
        not_requester=True,
    )
    return len(answers)


@workflow("desk/many")
async def many(step: Step, questions: int) -> int:
    """Asks them all at once."""
    asked = [step.ask(plain, title=f"Is {no} right?", to=group("finance")) for no in range(questions)]
    return sum(await asyncio.gather(*asked))


@workflow("desk/question")
async def question(step: Step, title: str, team: str = "finance", due: float | None = None) -> bool:
    """A gate that needs no field."""
    answer: bool = await step.ask(
        plain, title=title, to=group(team), due=None if due is None else timedelta(seconds=due),
        options=[option("yes", "Approve", value=True), option("no", "Reject", value=False, rejects=True, reason=False)],
    )  # fmt: skip
    return answer


@workflow("desk/visit")
async def visits(step: Step) -> Visit:
    return await step.ask(visit, title="When?", to=group("finance"))


WORKFLOWS = [many, publish, expense, question, visits]
