"""People who answer in a test: one, or several at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from signoff.approvals.decide import Receipt
from signoff.people.users import M, U
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from signoff.runtime.handles import Run


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody answers in a race. `as_user`: the address, or its part before the @."""

    as_user: str
    answer: Any = None
    option: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Race:
    """What came of answers that were given at once, each in the order in which they were named."""

    receipts: list[Receipt] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)

    @property
    def winner(self) -> str:
        """The address of the one whose answer was taken; ValueError when that is not exactly one."""
        if len(self.receipts) != 1:
            raise ValueError(f"{len(self.receipts)} answers were taken")
        return self.receipts[0].person

    @property
    def reasons(self) -> list[str]:
        return [refusal.reason for refusal in self.refusals]


async def race(run: Run[Any], ask: str, answers: list[tuple[str, Answer]]) -> Race:
    """Every answer at the same moment, each under an address; anything but a refusal is raised."""
    told = await asyncio.gather(
        *(
            run.decide(ask, given.answer, by=email, option=given.option, comment=given.comment)
            for email, given in answers
        ),
        return_exceptions=True,
    )
    result = Race()
    for one in told:
        match one:
            case Receipt():
                result.receipts.append(one)
            case Refused():
                result.refusals.append(one)
            case _:
                raise one
    return result


def find_address(tx: Tx, tenant_id: int, name: str) -> str:
    """The address that a test means by its part before the @. An address stands for itself, with or without account."""
    if "@" in name:
        return name
    members = sa.select(U.c.email).join(M, M.c.user_id == U.c.id).where(M.c.tenant_id == tenant_id)
    found = [email for email in tx.conn.execute(members).scalars() if email.partition("@")[0] == name.lower()]
    if len(found) != 1:
        raise InvalidInput(
            f"{len(found)} people here are called {name!r}: {', '.join(sorted(found)) or 'add_person()'}"
        )
    return str(found[0])
