"""Sessions on the server. The cookie holds a random id, the table its hash; rights are read anew for each request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from signoff.people.secret_text import digest, new_secret
from signoff.store.tables import Session
from signoff.store.tx import Tx

S = Session.__table__  # type: ignore[attr-defined]  # SQLModel sets it on table classes

IDLE: Final = timedelta(hours=12)
ABSOLUTE: Final = timedelta(days=7)
# How often `seen_at` is written: a page view costs no write, and the idle limit is exact to this much.
TOUCH_AFTER: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session that holds. `key` (the hash) names it in lists and for ending it; it is no secret."""

    key: str
    user_id: int | None  # None: nobody has signed in yet
    tenant_id: int | None
    role: str | None
    csrf: str
    data: dict[str, Any]
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


def open_session(
    tx: Tx,
    *,
    user_id: int | None = None,
    tenant_id: int | None = None,
    role: str | None = None,
    data: dict[str, Any] | None = None,
) -> tuple[str, SessionView]:
    """Start a session; returns the secret for the cookie, which is nowhere else, and what was stored."""
    secret = new_secret()
    view = SessionView(
        digest(secret), user_id, tenant_id, role, new_secret(), data or {}, tx.now, tx.now, tx.now + ABSOLUTE
    )
    _insert(tx, view)
    tx.conn.execute(sa.delete(S).where(S.c.expires_at <= tx.now))
    return secret, view


def find_session(tx: Tx, secret: str) -> SessionView | None:
    """The session of a cookie, if it holds: neither idle for 12 hours nor older than 7 days."""
    row = tx.conn.execute(sa.select(S).where(S.c.hash == digest(secret))).first()
    if row is None or row.expires_at <= tx.now or row.seen_at + IDLE <= tx.now:
        return None
    return _view(row)


def touch_session(tx: Tx, key: str) -> None:
    """Move the idle limit on."""
    tx.conn.execute(sa.update(S).where(S.c.hash == key, S.c.seen_at < tx.now).values(seen_at=tx.now))


def rotate_session(tx: Tx, secret: str, *, role: str | None) -> tuple[str, SessionView] | None:
    """A new id and CSRF secret for a session whose rights changed. The old id is worth nothing from the commit on."""
    row = tx.conn.execute(sa.delete(S).where(S.c.hash == digest(secret)).returning(S)).first()
    if row is None or row.expires_at <= tx.now:
        return None
    fresh = new_secret()
    old = _view(row)
    view = SessionView(
        digest(fresh), old.user_id, old.tenant_id, role, new_secret(), old.data, old.created_at, tx.now, old.expires_at
    )
    _insert(tx, view)
    return fresh, view


def save_data(tx: Tx, key: str, data: dict[str, Any]) -> None:
    """Keep small plain JSON with the session."""
    tx.conn.execute(sa.update(S).where(S.c.hash == key).values(data=json.dumps(data) if data else None))


def end_session(tx: Tx, secret: str) -> None:
    """Sign out."""
    tx.conn.execute(sa.delete(S).where(S.c.hash == digest(secret)))


def end_session_by_key(tx: Tx, user_id: int, key: str) -> bool:
    """Sign out one of a user's other sessions; False when there is none."""
    return bool(tx.conn.execute(sa.delete(S).where(S.c.hash == key, S.c.user_id == user_id)).rowcount)


def end_sessions_of(tx: Tx, user_id: int, *, but: str | None = None) -> int:
    """Sign a user out everywhere (`but`: the key of one that stays); returns how many sessions ended."""
    query = sa.delete(S).where(S.c.user_id == user_id)
    return tx.conn.execute(query if but is None else query.where(S.c.hash != but)).rowcount


def sessions_of(tx: Tx, user_id: int) -> list[SessionView]:
    """A user's sessions that hold, the last used first."""
    query = sa.select(S).where(S.c.user_id == user_id, S.c.expires_at > tx.now, S.c.seen_at > tx.now - IDLE)
    return [_view(row) for row in tx.conn.execute(query.order_by(S.c.seen_at.desc()))]


def _insert(tx: Tx, view: SessionView) -> None:
    values = {name: getattr(view, name) for name in SessionView.__slots__ if name not in ("key", "data")}
    tx.conn.execute(sa.insert(S).values(hash=view.key, data=json.dumps(view.data) if view.data else None, **values))


def _view(row: sa.Row[Any]) -> SessionView:
    data = json.loads(row.data) if row.data else {}
    return SessionView(
        row.hash, row.user_id, row.tenant_id, row.role, row.csrf, data, row.created_at, row.seen_at, row.expires_at
    )
