"""Answers of an earlier round (X2): kept where the same question is asked again, unless a restart asks it anew.

A restart or fork notes with its round which answers stand behind its cut. A question of the new round takes the first
of them that was given to exactly the same (equal content hash), each once. Votes of some where others were still to
decide are kept like answers of all. What is asked again all the same, or was changed, tells what was answered before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from signoff.approvals import ledger, stuck
from signoff.approvals.notes import N, note
from signoff.approvals.standing import D, decisions_of
from signoff.people.chain import LEDGER
from signoff.store.tables import Approval, Round
from signoff.store.tx import Tx

A = Approval.__table__
ROUND = Round.__table__

_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Former:
    """The question of an earlier round. `kept`: its answer holds for the new one; `same`: it was the same question."""

    row: Any
    kept: bool
    same: bool

    @property
    def complete(self) -> bool:
        """Whether nobody else had to decide."""
        return bool(self.row.state == "decided")


def behind(tx: Tx, run: Any, step_nos: Collection[int]) -> list[tuple[int, int]]:
    """The questions of these steps that were answered, if only by some; then those of earlier rounds that nothing took
    the place of since. Pairs of row id and step number.
    """
    voted = sa.exists().where(D.c.approval_id == A.c.id, D.c.lapsed_at.is_(None))
    answered = sa.and_(A.c.run_id == run.id, A.c.state != "expired", voted)
    given = tx.conn.execute(sa.select(A.c.id, A.c.step_no).where(answered).order_by(A.c.step_no))
    found = [(row.id, row.step_no) for row in given if row.step_no in step_nos]
    left = [number for number in _of_round(tx, run)["keep"] if number not in _taken(tx, run.id)]
    known = {number for number, _ in found}
    return found + [(row.id, row.step_no) for row in _rows(tx, [number for number in left if number not in known])]


def find(tx: Tx, run: Any, new: Any) -> Former | None:
    """What an earlier round has of a question that is just being asked; `new` has the columns of its row."""
    answers = _of_round(tx, run)
    if not answers["keep"] and not answers["again"]:
        return None
    taken = _taken(tx, run.id)
    for row in _rows(tx, [number for number in answers["keep"] if number not in taken], new["content_hash"]):
        return Former(row, kept=True, same=True)
    told = _told(tx, run.id)
    others = [number for number in (*answers["again"], *answers["keep"]) if number not in taken | told]
    alike = [row for row in _rows(tx, others) if row.ask == new["ask"]]
    alike.sort(key=lambda row: row.content_hash != new["content_hash"])
    return Former(alike[0], kept=False, same=alike[0].content_hash == new["content_hash"]) if alike else None


def columns(former: Former, at: Any) -> dict[str, Any]:
    """What the new row has of the old one, if its answers are kept."""
    old = former.row
    if not former.kept:
        return {}
    if not former.complete:
        return {"kept_from": old.id}
    return {
        "state": "decided", "answer": old.answer, "decided_by": old.decided_by, "closed_at": at,
        "closed_reason": "decided", "kept_from": old.id, "stuck": None, "next_at": None,
    }  # fmt: skip


def record(tx: Tx, run: Any, row: Any, former: Former) -> None:
    """After the new row was written: its decisions and ledger rows, which refer to the old ones, and its thread."""
    old = former.row
    data = {"approval": old.public_id, "same": former.same}
    if not former.kept:
        note(tx, row, "again", data=data)
        return
    numbers = []
    for decision in decisions_of(tx, old.id):
        content = json.loads(
            tx.conn.execute(sa.select(LEDGER.c.content).where(LEDGER.c.id == decision.ledger_id)).scalar_one()
        )
        content |= {"kept": decision.ledger_id, "decided_at": decision.at.isoformat()}
        ledger_id = ledger.append(
            tx,
            tenant_id=row.tenant_id,
            kind="kept",
            run=run.public_id,
            approval=row.public_id,
            content=content,
            actor=decision.person,
            via=decision.via,
        )
        own = ("id", "approval_id", "ledger_id")
        copied = {item.name: getattr(decision, item.name) for item in D.columns if item.name not in own}
        tx.conn.execute(sa.insert(D).values(**copied, approval_id=row.id, ledger_id=ledger_id))
        numbers.append(decision.ledger_id)
    note(tx, row, "kept", data={**data, "ledger": numbers})
    if not former.complete:
        stuck.refresh(tx, row)


def formers_of(tx: Tx, tenant_id: int, which: sa.ColumnElement[bool]) -> dict[int, Former]:
    """What the threads of approvals (those that `which` says of their table) tell of an earlier round, by row id."""
    told = sa.select(N.c.approval_id, N.c.kind, N.c.data).join(A, A.c.id == N.c.approval_id)
    entries: dict[int, Any] = {}
    for entry in tx.conn.execute(told.where(which, N.c.kind.in_(("kept", "again"))).order_by(N.c.id)):
        entries.setdefault(entry.approval_id, (entry.kind, json.loads(entry.data)))
    named = sorted({data["approval"] for _, data in entries.values()})
    rows: dict[str, Any] = {}
    for at in range(0, len(named), _BATCH):
        found = sa.select(A).where(A.c.public_id.in_(named[at : at + _BATCH]), A.c.tenant_id == tenant_id)
        rows |= {row.public_id: row for row in tx.conn.execute(found)}
    return {
        approval_id: Former(rows[data["approval"]], kept=kind == "kept", same=data["same"])
        for approval_id, (kind, data) in entries.items()
        if data["approval"] in rows
    }


def _of_round(tx: Tx, run: Any) -> dict[str, list[int]]:
    if run.generation == 1:
        return {"keep": [], "again": []}
    query = sa.select(ROUND.c.answers).where(ROUND.c.run_id == run.id, ROUND.c.generation == run.generation)
    text = tx.conn.execute(query).scalar()
    return {"keep": [], "again": []} if text is None else json.loads(text)


def _taken(tx: Tx, run_id: int) -> set[int]:
    """The questions whose answers a later one of this run has taken over."""
    query = sa.select(A.c.kept_from).where(A.c.run_id == run_id, A.c.kept_from.is_not(None))
    return set(tx.conn.execute(query).scalars())


def _told(tx: Tx, run_id: int) -> set[int]:
    """The questions that later ones of this run tell of."""
    old = A.alias()
    query = sa.select(N.c.data, A.c.tenant_id).join(A, A.c.id == N.c.approval_id)
    entries = tx.conn.execute(query.where(A.c.run_id == run_id, N.c.kind == "again")).all()
    if not entries:
        return set()
    named = [json.loads(entry.data)["approval"] for entry in entries]
    found = sa.select(old.c.id).where(old.c.tenant_id == entries[0].tenant_id, old.c.public_id.in_(named))
    return set(tx.conn.execute(found).scalars())


def _rows(tx: Tx, numbers: list[int], shown: str | None = None) -> Iterator[Any]:
    """These questions, in the order of their ids in the list; `shown`: only those with this content hash."""
    for at in range(0, len(numbers), _BATCH):
        some = numbers[at : at + _BATCH]
        query = sa.select(A).where(A.c.id.in_(some))
        if shown is not None:
            query = query.where(A.c.content_hash == shown)
        rows = {row.id: row for row in tx.conn.execute(query)}
        yield from (rows[number] for number in some if number in rows)
