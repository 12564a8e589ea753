"""Sessions on the server. The cookie holds a random id, the table its hash; rights are read anew for each request."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.people.canonical import nameable, storable
from signoff.people.changes import rights_changed
from signoff.people.permissions import require
from signoff.people.secret_text import digest, new_secret
from signoff.store.scope import Scope
from signoff.store.tables import Session
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound

S = Session.__table__

IDLE: Final = timedelta(hours=12)
ABSOLUTE: Final = timedelta(days=7)
MAX_AGENT: Final = 300  # characters of a browser's name for itself
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
    agent: str | None = None  # what the browser called itself, and its network address, at sign-in
    address: str | None = None
    provider: str | None = None  # of an OpenID Connect sign-in


def open_session(
    tx: Tx,
    *,
    user_id: int | None = None,
    tenant_id: int | None = None,
    role: str | None = None,
    data: dict[str, Any] | None = None,
    agent: str | None = None,
    address: str | None = None,
    provider: str | None = None,
    minutes: int | None = None,
) -> tuple[str, SessionView]:
    """Start a session; returns the secret for the cookie, which is nowhere else, and what was stored.

    `minutes`: how long it lasts at most, instead of the 7 days of those who signed in.
    """
    secret = new_secret()
    ends_at = tx.now + (ABSOLUTE if minutes is None else timedelta(minutes=minutes))
    agent = None if agent is None else storable(agent[:MAX_AGENT])
    view = SessionView(
        digest(secret), user_id, tenant_id, role, new_secret(), data or {}, tx.now, tx.now, ends_at,
        agent, address, provider,
    )  # fmt: skip
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


def rotate_session(
    tx: Tx, secret: str, *, role: str | None, tenant_id: int | None = None
) -> tuple[str, SessionView] | None:
    """A new id and CSRF secret for a session whose rights changed. The old id is worth nothing from the commit on.

    `tenant_id`: where the session goes on, if elsewhere. It ends no later for that.
    """
    row = tx.conn.execute(sa.delete(S).where(S.c.hash == digest(secret)).returning(S)).first()
    if row is None or row.expires_at <= tx.now:
        return None
    fresh = new_secret()
    where = row.tenant_id if tenant_id is None else tenant_id
    view = replace(
        _view(row), key=digest(fresh), tenant_id=where, role=role, csrf=new_secret(), seen_at=tx.now
    )  # fmt: skip
    _insert(tx, view)
    return fresh, view


def save_data(tx: Tx, key: str, data: dict[str, Any]) -> None:
    """Keep small plain JSON with the session."""
    tx.conn.execute(sa.update(S).where(S.c.hash == key).values(data=json.dumps(data) if data else None))


def end_session(tx: Tx, secret: str) -> SessionView | None:
    """Sign out; returns what ended."""
    row = tx.conn.execute(sa.delete(S).where(S.c.hash == digest(secret)).returning(S)).first()
    if row is None:
        return None
    if row.user_id is not None:
        rights_changed(tx, row.user_id)
    return _view(row)


def end_session_by_key(tx: Tx, user_id: int, key: str) -> bool:
    """Sign out one of a user's other sessions; False when there is none."""
    ended = tx.conn.execute(sa.delete(S).where(S.c.hash == key, S.c.user_id == user_id)).rowcount
    if ended:
        rights_changed(tx, user_id)
    return bool(ended)


def end_sessions_of(tx: Tx, user_id: int, *, but: str | None = None, tenant_id: int | None = None) -> int:
    """Sign a user out everywhere (`but`: the key of one that stays), or in one tenant; returns how many ended."""
    query = sa.delete(S).where(S.c.user_id == user_id)
    if tenant_id is not None:
        query = query.where(S.c.tenant_id == tenant_id)
    ended = tx.conn.execute(query if but is None else query.where(S.c.hash != but)).rowcount
    if ended:
        rights_changed(tx, user_id)
    return ended


def revoke_session(tx: Tx, scope: Scope, key: str) -> None:
    """End one of the person's own sessions. `NotFound` for one that ended already and for somebody else's."""
    require(scope, "session.revoke")
    user_id = scope.person.user_id if scope.person else None
    if user_id is None or not nameable(key) or not end_session_by_key(tx, user_id, key):
        raise NotFound("That session has ended already")
    audit(tx, scope, "session.revoke", scope.actor, detail={"sessions": 1})


def revoke_other_sessions(tx: Tx, scope: Scope, but: str) -> int:
    """End all of the person's own sessions but one; returns how many."""
    require(scope, "session.revoke")
    user_id = scope.person.user_id if scope.person else None
    ended = end_sessions_of(tx, user_id, but=but) if user_id is not None else 0
    if ended:
        audit(tx, scope, "session.revoke", scope.actor, detail={"sessions": ended})
    return ended


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
        row.hash, row.user_id, row.tenant_id, row.role, row.csrf, data, row.created_at, row.seen_at, row.expires_at,
        row.agent, row.address, row.provider,
    )  # fmt: skip
