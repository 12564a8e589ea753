"""Questions that nobody can answer as things stand: seen when they are asked, and whenever something changes that.

`nobody`: no active member may decide it now. `only_requester`: only whoever asked for the run could, and they must not.
`too_few`: some may, but not as many as the rule asks for. Tokens and people without an account are not counted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import sqlalchemy as sa

from signoff.approvals.eligibility import Question
from signoff.approvals.rules import Vote, progress
from signoff.approvals.standing import Standing, decisions_of, stands, vote_of
from signoff.engine.outcomes import Row
from signoff.people.users import GM, G, M, U, people
from signoff.store.scope import ROLES, Person
from signoff.store.tables import Approval
from signoff.store.tx import Tx
from signoff.workflow.rules import places
from signoff.workflow.selectors import Group, Role, Selector, User

A = Approval.__table__

# What a verdict depends on, beside the decisions: columns of an approval.
CAUSES = ("to", "rule", "exclude", "not_requester", "requester", "changes", "frozen")


def at_creation(tx: Tx, row: Any) -> str | None:
    """Of a question that is just being asked; `row` has its columns."""
    if row.frozen is None:
        # The common case costs one look, however many people there are.
        look = _look(row.to, row.rule, row.exclude, row.not_requester and row.requester is not None)
        given = {"tenant": row.tenant_id, "requester": (row.requester or "").lower()}
        if look is not None and len(tx.conn.execute(look.query, given).all()) == look.need:
            return None
    return verdict(stands(row, ()), people(tx, row.tenant_id))


def refresh(tx: Tx, row: Row) -> None:
    """Of one open question, after something about it changed."""
    found = verdict(stands(row, decisions_of(tx, row.id)), people(tx, row.tenant_id))
    if found != row.stuck:
        tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(stuck=found))
        tx.notify("approvals", row.tenant_id)


class Judge:
    """Says of many questions whether these people can answer them. Whom a question could mean is found out once for
    all that are put alike, whoever asked for them.
    """

    def __init__(self, members: Iterable[Person]) -> None:
        self._members = {person.email: person for person in members}
        self._able: dict[tuple[Any, ...], list[Person]] = {}

    def verdict(self, row: Any, decisions: Sequence[Any]) -> str | None:
        """Of a row with the columns `CAUSES`, and its decisions that count."""
        way = tuple(getattr(row, name) for name in CAUSES if name not in ("not_requester", "requester"))
        standing = stands(row, decisions)
        if way not in self._able:
            question = Question.of(row)
            question.not_requester = False
            self._able[way] = [one for one in self._members.values() if question.may(one, self._members.get)]
        return _verdict(standing, self._members, self._able[way])


def verdict(standing: Standing, members: Sequence[Person]) -> str | None:
    """Why a question cannot be answered by these people, None when it can. Pure."""
    return _verdict(standing, {person.email: person for person in members}, members)


def _verdict(standing: Standing, members: Mapping[str, Person], perhaps: Iterable[Person]) -> str | None:
    """`perhaps`: nobody else may decide. They are asked only until there are enough."""
    question, seated = standing.question, False
    votes = [vote_of(row) for row in standing.decisions]
    enough = standing.progress.need
    for person in perhaps:
        if not question.may(person, members.get):
            continue
        seated = seated or standing.seat(person, members.get) is not None
        free = [one for one in question.authorities(person, members.get) if one.owner not in standing.used]
        if person.email not in standing.voted and free:
            votes.append(Vote(free[0].parts))
        if seated and len(votes) >= enough:
            if progress(question.rule, votes).done:
                return None
            enough = 2 * len(votes)  # they may all be of one part: not counted anew for each
    if not seated:
        return "only_requester" if _requester_could(question, members) else "nobody"
    return None if progress(question.rule, votes).done else "too_few"


def _requester_could(question: Question, members: Mapping[str, Person]) -> bool:
    requester = members.get((question.requester or "").lower())
    if requester is None or not question.is_own_request(requester) or question.is_excluded(requester):
        return False
    return requester.role_at_least("approver") and bool(question.authorities(requester, members.get))


class _Look(NamedTuple):
    """Selects members who may decide, as many as are needed. Parameters: `tenant`, `requester`."""

    query: sa.Select[Any]
    need: int


@lru_cache(maxsize=512)
def _look(to: str, rule: str | None, exclude: str | None, not_requester: bool) -> _Look | None:
    """For a question whose deciders are all alike; None for others.

    Kept, because building a statement costs more than running it, and many questions are put to the same.
    """
    columns = {"to": to, "rule": rule, "exclude": exclude, "not_requester": False, "requester": None}
    question = Question.of(SimpleNamespace(**columns, frozen=None, changes=None))
    if len(question.parts) > 1:
        return None
    tenant: sa.BindParameter[int] = sa.bindparam("tenant")
    approvers = M.c.role.in_(ROLES[ROLES.index("approver") :])
    query = sa.select(U.c.id).join(M, M.c.user_id == U.c.id).where(M.c.tenant_id == tenant, U.c.active, approvers)
    for those in (question.to, *question.parts):
        if those:
            query = query.where(_means(tenant, those))
    if question.exclude:
        query = query.where(~_means(tenant, question.exclude))
    if not_requester:
        query = query.where(U.c.email != sa.bindparam("requester"))
    need = 1 if question.rule is None else places(question.rule)
    return _Look(query.limit(need), need)


def _means(tenant: sa.BindParameter[int], those: Iterable[Selector]) -> sa.ColumnElement[bool]:
    """Whether one of the selectors means a user's row."""
    given = list(those)
    emails = [item.email.lower() for item in given if isinstance(item, User)]
    groups = [item.name for item in given if isinstance(item, Group)]
    roles = [role for item in given if isinstance(item, Role) for role in ROLES[ROLES.index(item.name) :]]
    meant: list[sa.ColumnElement[bool]] = []
    if emails:
        meant.append(U.c.email.in_(emails))
    if roles:
        meant.append(M.c.role.in_(sorted(set(roles))))
    if groups:
        inside = sa.select(GM.c.user_id).join(G, G.c.id == GM.c.group_id)
        meant.append(U.c.id.in_(inside.where(G.c.tenant_id == tenant, G.c.name.in_(groups))))
    return sa.or_(*meant)
