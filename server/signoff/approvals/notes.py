"""Entries of an approval's thread: what people wrote, and what happened to it, in order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from signoff.people.canonical import canonical, storable
from signoff.people.users import U
from signoff.store.scope import Scope
from signoff.store.tables import Approval, ApprovalNote
from signoff.store.tx import Tx
from signoff.workflow.errors import FieldError, InvalidInput

A = Approval.__table__
N = ApprovalNote.__table__

MAX_TEXT: Final = 10_000  # characters


@dataclass(frozen=True, slots=True)
class NoteView:
    """One entry. `actor` and `name` are None where the server acted by itself; `data` by kind, see `note`."""

    id: int
    at: datetime
    actor: str | None
    name: str | None
    via: str | None
    kind: str
    text: str | None
    data: dict[str, Any]


def notes_of(tx: Tx, approval_id: int, kinds: Iterable[str] | None = None) -> list[NoteView]:
    """The thread of an approval's row."""
    query = (
        sa.select(N.c.id, N.c.at, N.c.actor, U.c.name, N.c.via, N.c.kind, N.c.text, N.c.data)
        .outerjoin(U, U.c.email == N.c.actor)
        .where(N.c.approval_id == approval_id)
        .order_by(N.c.id)
    )
    if kinds is not None:
        query = query.where(N.c.kind.in_(list(kinds)))
    return [_view(row) for row in tx.conn.execute(query)]


def threads_of(tx: Tx, which: sa.ColumnElement[bool], newest: int | None = None) -> dict[int, list[NoteView]]:
    """The threads of approvals (those that `which` says of their table) by row id, oldest entries first. `newest`: no
    more than so many entries in all.
    """
    query = (
        sa.select(N.c.approval_id, N.c.id, N.c.at, N.c.actor, U.c.name, N.c.via, N.c.kind, N.c.text, N.c.data)
        .join(A, A.c.id == N.c.approval_id)
        .outerjoin(U, U.c.email == N.c.actor)
        .where(which)
        .order_by(N.c.id.desc())
    )
    found: dict[int, list[NoteView]] = {}
    for row in reversed(tx.conn.execute(query.limit(newest)).all()):
        found.setdefault(row.approval_id, []).append(_view(row))
    return found


def note(
    tx: Tx,
    approval: Any,
    kind: str,
    *,
    scope: Scope | None = None,
    via: str | None = None,
    text: str | None = None,
    data: dict[str, Any] | None = None,
) -> int:
    """Append an entry to the thread of an approval's row and tell open pages; returns its number.

    `data` by kind: claim {from?}, release {of?}, reassign and add {to, from?}, delegate {from, to}, escalate {to},
    remind {number, due_at}, extend {by, due_at, timeout_at}, change {revision, changed, title?, body?, facts?, voted,
    claimed_by?} (as they were before), kept {approval, ledger}, again {approval} (the answer of an earlier round).
    """
    number: int = tx.conn.execute(
        sa.insert(N)
        .values(
            approval_id=approval.id,
            at=tx.now,
            actor=scope.person.actor if scope is not None and scope.person is not None else None,
            via=via,
            kind=kind,
            text=text,
            data=canonical(data) if data else None,
        )
        .returning(N.c.id)
    ).scalar_one()
    tx.notify("approvals", approval.tenant_id)
    return number


def clean_text(text: str | None, field: str) -> str:
    """What somebody wrote, as it is stored; InvalidInput when it is too long."""
    cleaned = storable((text or "").strip())
    if len(cleaned) > MAX_TEXT:
        problem = f"at most {MAX_TEXT} characters, and it has {len(cleaned)}"
        raise InvalidInput("That is too long", [FieldError((field,), problem)])
    return cleaned


def _view(row: Any) -> NoteView:
    return NoteView(row.id, row.at, row.actor, row.name or row.actor, row.via, row.kind, row.text, _data(row.data))


def _data(text: str | None) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}
