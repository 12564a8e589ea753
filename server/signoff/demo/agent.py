"""An agent that asks before it acts: it proposes, a person says yes, no, or what to do instead, and only then it does.

A real one would call a model in `think`. The loop around it is all that it takes: what was decided is durable, what was
done is done once, and it waits for people as long as they need.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field

from signoff import Retry, Step, action, ask, group, option, workflow


class Proposal(BaseModel):
    deed: str
    amount: Decimal
    reason: str


class Go(BaseModel):
    verdict: Literal["go"] = "go"


class Instead(BaseModel):
    verdict: Literal["instead"] = "instead"
    amount: Decimal = Field(title="Give them", ge=0, le=100, decimal_places=2, json_schema_extra={"unit": "EUR"})
    wish: str = Field(default="", title="What it should heed from now on")


class Skip(BaseModel):
    verdict: Literal["skip"] = "skip"


class Stop(BaseModel):
    verdict: Literal["stop"] = "stop"


may_i = ask("agent/may-i", Go | Instead | Skip | Stop)
_LATE = (("Lena", 3), ("Jonas", 1), ("Amara", 6))  # customers, and how many days their parcels were late


@action(name="agent/think", retry=Retry())
async def think(goal: str, so_far: list[str], heed: list[str]) -> Proposal | None:
    """What it would do next towards the goal; None when nothing is left. The example's model is a few lines."""
    await asyncio.sleep(0.4)
    if len(so_far) == len(_LATE):
        return None
    name, days = _LATE[len(so_far)]
    reason = f"The parcel was {days} days late" + (f"; heeding “{heed[-1]}”" if heed else "")
    return Proposal(deed=f"Give {name} a voucher", amount=Decimal(5 * days), reason=reason)


@action(name="agent/act", retry=Retry())
async def act(deed: str, amount: Decimal) -> str:
    await asyncio.sleep(0.3)
    return f"{deed}: {amount:.2f} EUR"


@workflow("agent/make-amends")
async def make_amends(step: Step, goal: str = "Make it up to customers whose parcels were late") -> list[str]:
    """Proposes one deed after the other and does none without a yes. What people comment, it heeds."""
    so_far: list[str] = []
    heed: list[str] = []
    while (proposal := await step.run_action(think, goal, so_far, heed)) is not None:
        asked = step.ask(
            may_i,
            title=f"May the agent do this: {proposal.deed} over {proposal.amount:.2f} EUR?",
            body=f"{proposal.reason}.\n\nIts goal: {goal}.",
            facts={"amount": f"{proposal.amount:.2f} EUR", "done so far": len(so_far)},
            to=group("finance"),
            options=[
                option("go", "Do it", value=Go(), style="primary",
                       consequence=f"{proposal.deed} over {proposal.amount:.2f} EUR, at once."),
                option("instead", "Another amount", form=Instead, consequence="Does it with your amount."),
                option("skip", "Leave this one out", value=Skip(), consequence="It goes on to the next one."),
                option("stop", "Stop the agent", value=Stop(), rejects=True, style="danger",
                       consequence="It does nothing more."),
            ],
        )  # fmt: skip
        verdict = await asked
        heed += [comment.text for comment in await step.comments(asked)]
        match verdict:
            case Go():
                so_far.append(await step.run_action(act, proposal.deed, proposal.amount))
            case Instead():
                heed += [verdict.wish] if verdict.wish else []
                so_far.append(await step.run_action(act, proposal.deed, verdict.amount))
            case Skip():
                so_far.append(f"left out: {proposal.deed}")
            case Stop():
                break
    return so_far
