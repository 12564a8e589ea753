"""What a run does about its own questions: showing something else, and reading the thread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa

from signoff.approvals import ledger, stuck
from signoff.approvals.notes import N, note
from signoff.approvals.questions import A, question_hash
from signoff.approvals.standing import D, decisions_of
from signoff.engine.lookup import OF_TENANT
from signoff.engine.outcomes import R, Row, S, lock_run
from signoff.people.canonical import storable
from signoff.people.users import U
from signoff.replay.asked import Asked, Comment
from signoff.replay.messages import JournalEntry
from signoff.replay.slots import slots_by_drain
from signoff.store.tables import Tenant
from signoff.store.tx import Tx

T = Tenant.__table__


class Keeper:
    """What `step.update_ask` and `step.comments` run."""

    async def update(self, session: Any, asked: Asked, changes: Mapping[str, Any]) -> bool:
        return bool(await session.run(update_ask, asked, changes))

    async def comments(self, session: Any, asked: Asked) -> list[Comment]:
        return cast("list[Comment]", await session.run_sync(lambda inner: comments(inner.connection(), asked)))


def update_ask(tx: Tx, asked: Asked, changes: Mapping[str, Any]) -> bool:
    """Show another title, body or facts. Open claims and partial votes lapse; the thread keeps what was shown before.

    False when the question is over. What is the same already changes nothing.
    """
    run_id = _run_id(tx.conn, asked)
    run = None if run_id is None else lock_run(tx, run_id)
    row = None if run is None else _approval(tx.conn, run.id, asked)
    if run is None or row is None:
        return False
    row = tx.conn.execute(tx.dialect.lock(sa.select(A).where(A.c.id == row.id))).one()
    if row.state != "open" or (row.timeout_at is not None and row.timeout_at <= tx.now):
        return False
    shown = {"title": row.title, "body": row.body or "", "facts": json.loads(row.facts)}
    now = shown | {name: storable(value) if isinstance(value, str) else value for name, value in changes.items()}
    options, rule = (None if text is None else json.loads(text) for text in (row.options, row.rule))
    body = now["body"] or None
    content_hash = question_hash(row.ask, now["title"], body, now["facts"], json.loads(row.schema), options, rule)
    if content_hash == row.content_hash:
        return True
    voted = _lapse(tx, run, row)
    data = {"revision": row.revision, "changed": [name for name in shown if shown[name] != now[name]], "voted": voted}
    data |= {name: shown[name] for name in data["changed"]}
    if row.claimed_by is not None:
        data["claimed_by"] = row.claimed_by
    values = {"title": now["title"], "body": body, "facts": json.dumps(now["facts"]), "content_hash": content_hash}
    values |= {"revision": row.revision + 1, "claimed_by": None, "claimed_at": None}
    changed = tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(**values).returning(A)).one()
    note(tx, changed, "change", data=data)
    stuck.refresh(tx, changed)
    return True


def comments(conn: sa.Connection, asked: Asked) -> list[Comment]:
    """The comments of a question, oldest first."""
    run_id = _run_id(conn, asked)
    row = None if run_id is None else _approval(conn, run_id, asked)
    if row is None:
        return []
    query = sa.select(N.c.actor, U.c.name, N.c.at, N.c.text).outerjoin(U, U.c.email == N.c.actor)
    query = query.where(N.c.approval_id == row.id, N.c.kind == "comment").order_by(N.c.id)
    return [Comment(one.actor or "", one.name or one.actor or "", one.at, one.text) for one in conn.execute(query)]


def _lapse(tx: Tx, run: Row, row: Row) -> list[str]:
    """What was decided of the former question does not count any more; the addresses of those who decided."""
    voted = []
    for decision in decisions_of(tx, row.id):
        tx.conn.execute(sa.update(D).where(D.c.id == decision.id).values(lapsed_at=tx.now))
        content = {"ask": row.ask, "title": row.title, "shown": row.content_hash, "revision": row.revision}
        content["lapsed"] = decision.ledger_id
        ledger.append(
            tx,
            tenant_id=row.tenant_id,
            kind="lapsed",
            run=run.public_id,
            approval=row.public_id,
            content=content,
            actor=decision.person,
        )
        voted.append(decision.person)
    return voted


def _run_id(conn: sa.Connection, asked: Asked) -> int | None:
    query = sa.select(R.c.id).join(T, T.c.id == OF_TENANT)
    return conn.execute(query.where(R.c.public_id == asked.run, T.c.name == asked.tenant)).scalar()


def _approval(conn: sa.Connection, run_id: int, asked: Asked) -> Row | None:
    """The question of a step by name and ordinal, as replay counts them."""
    steps = conn.execute(sa.select(S).where(S.c.run_id == run_id, S.c.name == asked.name)).all()
    drains = slots_by_drain(cast("list[JournalEntry]", steps))
    named = [entry for drain in sorted(drains) for entry in reversed(drains[drain].get(asked.name, []))]
    live = [entry.no for entry in named if entry.retired_in is None]
    if asked.ordinal >= len(live):
        return None
    query = sa.select(A).where(A.c.run_id == run_id, A.c.step_no == live[asked.ordinal])
    return conn.execute(query).one_or_none()
