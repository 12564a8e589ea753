"""What a handler does about a question that it has asked: change what is shown, and read what people wrote.

Both are steps. What they do lies above this floor: whoever keeps questions registers it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from signoff.replay.asking import facts_of, text_of
from signoff.workflow.errors import InvalidInput
from signoff.workflow.functions import Mutation, Query, StepFunction, make_codec
from signoff.workflow.kinds import StepKind
from signoff.workflow.places import place_of

if TYPE_CHECKING:
    from signoff.replay.call import StepCall
    from signoff.replay.program import CoroutineProgram


@dataclass(frozen=True, slots=True)
class Comment:
    """What somebody wrote about a question."""

    person: str  # e-mail address, or token:<name>
    name: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """Which question: of the run's steps of that name the one with this ordinal."""

    tenant: str
    run: str
    name: str
    ordinal: int


class Keeper(Protocol):
    async def update(self, session: Any, asked: Asked, changes: Mapping[str, Any]) -> bool:
        """In the transaction of a mutation: show something else. False: the question is over."""
        ...

    async def comments(self, session: Any, asked: Asked) -> list[Comment]:
        """On the snapshot of a query, oldest first."""
        ...


_keeper: Keeper | None = None


def register(keeper: Keeper) -> None:
    """Called once, when the approvals floor is imported."""
    global _keeper
    _keeper = keeper


def kept_by() -> Keeper:
    if _keeper is None:
        raise RuntimeError("nobody keeps questions: import signoff.approvals")
    return _keeper


async def _update(
    session: Any,
    question: str,
    ordinal: int,
    title: str | None = None,
    body: str | None = None,
    facts: dict[str, Any] | None = None,
) -> bool:
    raise NotImplementedError  # the signature: what runs is made for each run


async def _read(session: Any, question: str, ordinal: int) -> list[Comment]:
    raise NotImplementedError  # as above


_UPDATE = make_codec(_update, 1, "step.update_ask()")
_READ = make_codec(_read, 1, "step.comments()")


class Update(Mutation[Any, bool]):
    """It locks the run's row before its outcome is recorded, so no advance of the run may be under way meanwhile."""

    takes_turn: ClassVar[bool] = True


def update(
    program: CoroutineProgram, call: StepCall[Any], title: Any, body: Any, facts: Mapping[str, Any] | None
) -> tuple[StepFunction[Any, Any], dict[str, Any]]:
    """The function of `step.update_ask` and its arguments; InvalidInput."""
    asked = _asked(program, call)
    changes: dict[str, Any] = {}
    if title is not None:
        changes["title"] = text_of(call.name, "title", title)
    if body is not None:
        changes["body"] = text_of(call.name, "body", body)
    if facts is not None:
        changes["facts"] = facts_of(facts)
    if not changes:
        raise InvalidInput(f"update_ask() of {call.name!r} takes title=, body= or facts=")

    async def run(session: Any, question: str, ordinal: int, **given: Any) -> bool:
        return await kept_by().update(session, asked, given)

    return Update("update_ask", run, _UPDATE, place_of(_update)), _args(asked) | changes


def comments(program: CoroutineProgram, call: StepCall[Any]) -> tuple[StepFunction[Any, Any], dict[str, Any]]:
    """The function of `step.comments` and its arguments; InvalidInput."""
    asked = _asked(program, call)

    async def run(session: Any, question: str, ordinal: int) -> list[Comment]:
        return await kept_by().comments(session, asked)

    return Query("comments", run, _READ, place_of(_read)), _args(asked)


def _asked(program: CoroutineProgram, call: StepCall[Any]) -> Asked:
    ordinal = program.questions.get(call.index) if getattr(call, "program", None) is program else None
    if ordinal is None or call.kind is not StepKind.ASK:
        raise InvalidInput(f"this takes what step.ask() of the same run gave, not {call!r}")
    return Asked(program.info.tenant, program.info.id, call.name, ordinal)


def _args(asked: Asked) -> dict[str, Any]:
    return {"question": asked.name, "ordinal": asked.ordinal}
