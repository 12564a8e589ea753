"""How an approval stands: what was decided of it, what its rule still needs, and who can give it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from signoff.approvals.eligibility import Authority, Find, Question, who_may_answer
from signoff.approvals.rules import Progress, Vote, progress
from signoff.people.users import U, find_person, people
from signoff.store.scope import Person
from signoff.store.tables import Decision
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused

D = Decision.__table__


@dataclass(frozen=True, slots=True)
class Standing:
    """An approval with its decisions, those that lapsed left out."""

    question: Question
    decisions: Sequence[Any]  # rows, with `name` beside them
    progress: Progress

    @property
    def voted(self) -> frozenset[str]:
        """Who has decided."""
        return frozenset(row.person for row in self.decisions)

    @property
    def used(self) -> frozenset[str]:
        """Whose right to decide is used up, by themselves or on their behalf."""
        return self.voted | {row.on_behalf_of for row in self.decisions if row.on_behalf_of is not None}

    def seat(self, person: Person, find: Find) -> Authority | None:
        """By what right the person could decide now, and for which parts of the rule; None when they could not."""
        if person.email in self.voted:
            return None
        for authority in self.question.authorities(person, find):
            parts = authority.parts & self.progress.open_parts
            if parts and authority.owner not in self.used:
                return Authority(authority.owner, parts, authority.on_behalf_of)
        return None


def standing_of(tx: Tx, approval: Any) -> Standing:
    """Of an approval's row. One query."""
    return stands(approval, decisions_of(tx, approval.id))


def stands(approval: Any, decisions: Sequence[Any]) -> Standing:
    """Of an approval's row and the rows of its decisions that count, oldest first."""
    question = Question.of(approval)
    return Standing(question, decisions, progress(question.rule, list(map(vote_of, decisions)), question.whom))


def require_asked(standing: Standing, person: Person, find: Find, approval: Any) -> None:
    """Raise Refused unless the question is put to the person, whatever was decided: not_eligible, excluded,
    own_request. Their role is the business of whoever asks.
    """
    question, context = standing.question, {"approval": approval.public_id}
    if not question.authorities(person, find):
        if person.email in question.held:
            message = f"Your place went to {who_may_answer(question.held[person.email])}"
            raise Refused("not_eligible", message, **context)
        message = f"This question is put to {who_may_answer(question.asked)}, and you are not among them"
        raise Refused("not_eligible", message, **context)
    if question.is_excluded(person):
        message = f"This question is kept from {who_may_answer(question.exclude)}, and you are among them"
        raise Refused("excluded", message, **context)
    if question.is_own_request(person):
        raise Refused("own_request", "You asked for this run, so somebody else must decide", **context)


def require_seat(standing: Standing, person: Person, find: Find, approval: Any) -> Authority:
    """By what right the person decides now.

    Raises Refused: voted, and not_eligible when their turn is over or has not come.
    """
    context = {"approval": approval.public_id}
    mine = next((row for row in standing.decisions if row.person == person.actor), None)
    if mine is not None:
        message = f"You decided at {mine.at:%Y-%m-%d %H:%M} UTC; {standing.progress.text} have decided"
        raise Refused("voted", message, **context)
    authority = standing.seat(person, find)
    if authority is None:
        raise Refused("not_eligible", f"This question waits for {standing.progress.waits_for} now", **context)
    return authority


def decisions_of(tx: Tx, approval_id: int) -> list[Any]:
    """The decisions of an approval that count, oldest first, each with the person's `name` as it is now."""
    query = (
        sa.select(D, U.c.name)
        .outerjoin(U, U.c.email == D.c.person)
        .where(D.c.approval_id == approval_id, D.c.lapsed_at.is_(None))
        .order_by(D.c.id)
    )
    return list(tx.conn.execute(query))


def vote_of(row: Any) -> Vote:
    """A decision's row as the rule sees it."""
    parts = frozenset([0]) if row.parts is None else frozenset(json.loads(row.parts))
    return Vote(parts, row.rejects)


def finder(tx: Tx, tenant_id: int) -> Find:
    """Looks active members up by address, each once."""
    return functools.cache(lambda email: find_person(tx, tenant_id, email=email))


def waits_for(standing: Standing, person: Person, find: Find) -> bool:
    """Whether the question waits for this person as it stands now."""
    return standing.question.may(person, find) and standing.seat(person, find) is not None


def candidates(tx: Tx, approval: Any, standing: Standing | None = None) -> list[Person]:
    """The members who could decide an open approval now, by name."""
    stands = standing_of(tx, approval) if standing is None else standing
    members = people(tx, approval.tenant_id)
    find = {person.email: person for person in members}.get
    return [person for person in members if waits_for(stands, person, find)]
