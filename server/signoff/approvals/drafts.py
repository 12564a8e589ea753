"""What somebody typed into a form and has not sent yet: kept per person until it is sent or discarded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from signoff.engine.lookup import insert_new
from signoff.people.canonical import nameable
from signoff.store.scope import Scope
from signoff.store.tables import Draft
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput, LimitExceeded

DR = Draft.__table__

MAX_DRAFT: Final = 256 * 1024  # characters of JSON
MAX_KEY: Final = 600
MAX_DRAFTS: Final = 500  # of one person in one tenant; the oldest goes
KEPT_FOR: Final = timedelta(days=180)

Typed = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class DraftView:
    """`data`: form fields as a browser sends them. `revision`: of the question that it was typed for."""

    data: dict[str, list[str]]
    revision: int | None
    saved_at: datetime


def save_draft(tx: Tx, scope: Scope, key: str, data: Typed, revision: int | None = None) -> None:
    """Keep it in place of what was kept before. Only users have drafts; `data` is without secrets: the form sees to it.

    Raises InvalidInput for a key that is none, and LimitExceeded for more than `MAX_DRAFT`.
    """
    if (owner := _owner(scope)) is None:
        return
    if not nameable(key) or len(key) > MAX_KEY:
        raise InvalidInput("a draft needs a name of at most 600 characters")
    text = json.dumps({name: list(texts) for name, texts in data.items()})
    if len(text) > MAX_DRAFT:
        raise LimitExceeded(f"a draft has at most {MAX_DRAFT} characters, and this one {len(text)}")
    mine = sa.and_(DR.c.tenant_id == owner["tenant_id"], DR.c.user_id == owner["user_id"])
    tx.conn.execute(sa.delete(DR).where(mine, DR.c.saved_at < tx.now - KEPT_FOR))
    kept = sa.select(DR.c.key).where(mine).order_by(DR.c.saved_at.desc()).limit(MAX_DRAFTS - 1)
    names = tx.conn.execute(kept).scalars().all()
    if len(names) == MAX_DRAFTS - 1:
        tx.conn.execute(sa.delete(DR).where(mine, DR.c.key.not_in(names)))
    values = {"data": text, "revision": revision, "saved_at": tx.now}
    if tx.conn.execute(insert_new(tx, DR).values(**owner, key=key, **values).returning(DR.c.key)).first() is None:
        tx.conn.execute(sa.update(DR).where(*_is(owner, key)).values(values))


def get_draft(tx: Tx, scope: Scope, key: str) -> DraftView | None:
    if (owner := _owner(scope)) is None or not nameable(key):
        return None
    row = tx.conn.execute(sa.select(DR).where(*_is(owner, key))).first()
    return None if row is None else DraftView(json.loads(row.data), row.revision, row.saved_at)


def drop_draft(tx: Tx, scope: Scope, key: str) -> None:
    if (owner := _owner(scope)) is not None and nameable(key):
        tx.conn.execute(sa.delete(DR).where(*_is(owner, key)))


def approval_key(approval: str) -> str:
    return f"approval:{approval}"


def start_key(workflow: str) -> str:
    return f"start:{workflow}"


def _owner(scope: Scope) -> dict[str, int] | None:
    if scope.person is None or scope.person.user_id is None:
        return None
    return {"tenant_id": scope.tenant_id, "user_id": scope.person.user_id}


def _is(owner: Mapping[str, int], key: str) -> list[sa.ColumnElement[bool]]:
    return [DR.c.tenant_id == owner["tenant_id"], DR.c.user_id == owner["user_id"], DR.c.key == key]
