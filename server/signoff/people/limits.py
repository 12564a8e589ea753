"""How often sign-in may be tried, counted in the database so that all processes count together.

An attempt is counted before its password is looked at, in a transaction of its own, so that guessing in parallel gains
nothing. Three counters stand beside each other: an account from one address (a person who mistypes), an address (one
machine that tries many accounts) and an account from everywhere (many machines at one account). A success clears the
first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from signoff.store.tables import SignInCount
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused

C = SignInCount.__table__

# name -> (attempts, window), in the order in which every transaction locks their rows
LIMITS: Final[dict[str, tuple[int, timedelta]]] = {
    "account at address": (5, timedelta(minutes=5)),
    "address": (50, timedelta(minutes=5)),
    "account": (100, timedelta(hours=1)),
}


class TooManyAttempts(Refused):
    """Sign-in is closed for `retry_after` seconds."""

    status: ClassVar[int] = 429

    def __init__(self, seconds: int, *, recorded: bool = False) -> None:
        minutes = math.ceil(seconds / 60)
        spoken = "a minute" if minutes <= 1 else f"{minutes} minutes"
        super().__init__(
            "too_many_attempts", f"Too many attempts to sign in. Try again in {spoken}", retry_after=seconds
        )
        self.recorded = recorded


@dataclass(frozen=True, slots=True)
class Blocked:
    """`first`: the one attempt that met a limit first, which the audit log keeps; those after it would only fill it."""

    seconds: int  # until the next attempt may be made
    first: bool


def take_attempt(tx: Tx, email: str, address: str) -> Blocked | None:
    """Count one attempt; None when it may be made.

    It returns rather than raises, because a count that is rolled back is none.
    """
    return _take(tx, LIMITS, email, address)


def take_arrival(tx: Tx, address: str) -> Blocked | None:
    """As `take_attempt`, for a sign-in at an identity provider: counted by address, with those by password."""
    return _take(tx, {"address": LIMITS["address"]}, "", address)


def _take(tx: Tx, counters: Mapping[str, tuple[int, timedelta]], email: str, address: str) -> Blocked | None:
    waits, first = [], False
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    for name, (limit, window) in counters.items():
        row = insert(C).values(key=_key(name, email, address), count=1, ends_at=tx.now + window)
        over = C.c.ends_at <= tx.now
        counted = row.on_conflict_do_update(
            index_elements=[C.c.key],
            set_={
                "count": sa.case((over, 1), else_=C.c.count + 1),
                "ends_at": sa.case((over, row.excluded.ends_at), else_=C.c.ends_at),
            },
        ).returning(C.c.count, C.c.ends_at)
        count, ends_at = tx.conn.execute(counted).one()
        if count > limit:
            waits.append(math.ceil((ends_at - tx.now).total_seconds()))
            first = first or count == limit + 1
    stale = tx.dialect.claim(sa.select(C.c.key).where(C.c.ends_at <= tx.now).limit(100))
    tx.conn.execute(sa.delete(C).where(C.c.key.in_(stale)))
    return Blocked(max(waits), first) if waits else None


def clear_attempts(tx: Tx, email: str, address: str) -> None:
    """Forget the account's attempts from this address after it signed in."""
    tx.conn.execute(sa.delete(C).where(C.c.key == _key("account at address", email, address)))


def _key(name: str, email: str, address: str) -> str:
    parts = {"account at address": (address, email), "address": (address,), "account": (email,)}[name]
    return hashlib.sha256("\n".join((name, *parts)).encode()).hexdigest()
