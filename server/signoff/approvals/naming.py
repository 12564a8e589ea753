"""Which open questions name a group, for whoever is about to delete it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import sqlalchemy as sa

from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.approvals.stuck import CAUSES, Judge
from signoff.people.canonical import canonical
from signoff.people.permissions import require
from signoff.people.users import people
from signoff.store.scope import Scope
from signoff.store.tx import Tx

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Named:
    """Open questions that name a group, and what becomes of them without it."""

    asked: int  # are put to it, or would be by an escalation
    excluding: int  # keep its members from answering
    stuck: int  # nobody could answer any more, whom somebody can answer now
    some: tuple[tuple[str, str], ...]  # id and title of the first of them all


def questions_naming(tx: Tx, scope: Scope, group: str) -> Named:
    """As things stand now: a question that is asked a moment later is not among them."""
    require(scope, "people.manage")
    mark = canonical({"group": group})
    places = [A.c[name] for name in ("to", "rule", "changes", "escalate_to", "exclude")]
    where = (
        A.c.tenant_id == scope.tenant_id,
        A.c.state == "open",
        sa.or_(*(place.contains(mark, autoescape=True) for place in places)),
    )
    columns = {name: A.c[name] for name in ("id", "public_id", "title", "stuck", "escalate_to", *CAUSES)}
    # SQL finds them in any case of letters; names differ by it
    rows = [
        row
        for row in tx.conn.execute(sa.select(*columns.values()).where(*where).order_by(A.c.id))
        if any(mark in (getattr(row, place.name) or "") for place in places)
    ]
    votes = sa.select(D).join(A, A.c.id == D.c.approval_id).where(*where, D.c.lapsed_at.is_(None))
    ordered = tx.conn.execute(votes.order_by(D.c.approval_id, D.c.id))
    voted = {key: list(found) for key, found in groupby(ordered, lambda row: row.approval_id)}
    judge = Judge(replace(one, groups=one.groups - {group}) for one in people(tx, scope.tenant_id))
    asks = [row for row in rows if any(mark in text for text in _asking(row))]
    return Named(
        asked=len(asks),
        excluding=sum(mark in (row.exclude or "") for row in rows),
        stuck=sum(row.stuck is None and judge.verdict(row, voted.get(row.id, ())) is not None for row in rows),
        some=tuple((row.public_id, row.title) for row in rows[:SHOWN]),
    )


def _asking(row: sa.Row[tuple[object, ...]]) -> Iterator[str]:
    for name in ("to", "rule", "changes", "escalate_to"):
        yield getattr(row, name) or ""
