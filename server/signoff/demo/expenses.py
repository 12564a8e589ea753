"""An expense: two of Finance and one of Security decide, and nobody decides what they asked for themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal

from signoff import Decided, Retry, Step, action, all_of, any_of, ask, group, n_of, option, workflow

pay = ask("expenses/pay", bool)


@action(name="expenses/transfer", retry=Retry())
async def transfer(what: str, amount: Decimal) -> str:
    await asyncio.sleep(0.4)
    return f"{amount:.2f} EUR paid for {what}"


def all_said_yes(decisions: list[Decided[bool]]) -> bool:
    return all(decision.answer for decision in decisions)


@workflow("expenses/pay")
async def pay_expense(step: Step, what: str = "a second monitor", amount: Decimal = Decimal("240.00")) -> str:
    """Pays, once two of Finance and one of Security said yes. One no ends it."""
    agreed = await step.ask(
        pay,
        title=f"Pay {amount:,.2f} EUR for {what}?",
        facts={"for": what, "amount": f"{amount:,.2f} EUR", "cost centre": "4711"},
        rule=all_of(n_of(2, group("finance")), any_of(group("security"))),
        not_requester=True,
        options=[
            option("pay", "Pay it", value=True, style="primary", consequence=f"Pays {amount:,.2f} EUR once all agree."),
            option("deny", "Do not pay", value=False, rejects=True, consequence="Ends it here, whoever agreed before."),
        ],
        combine=all_said_yes,
        due=timedelta(days=2),
        remind=[timedelta(days=1)],
        extend=timedelta(days=1),
    )
    return await step.run_action(transfer, what, amount) if agreed else "not paid"
