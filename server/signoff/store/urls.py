"""Database URLs as users write them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from signoff.store.errors import UnsupportedDatabase

_HINT = "write sqlite:///orders.db or postgresql://user@host/name"


def parse_url(url: str) -> sa.URL:
    """Accepts `sqlite:///file`, `sqlite://` (in memory), `postgresql://...` and `postgres://...`, with any driver."""
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise UnsupportedDatabase(f"{url!r} is no database URL; {_HINT}") from None
    name = parsed.drivername.split("+")[0]
    if name == "postgres":
        name = "postgresql"
    if name not in ("sqlite", "postgresql"):
        raise UnsupportedDatabase(f"{name!r} is not supported; {_HINT}")
    return parsed.set(drivername=name)


def shown(url: sa.URL) -> str:
    """How messages name a database, without its password."""
    if url.get_backend_name() == "sqlite":
        return f"the SQLite file {url.database}"
    return f"the database {url.set(drivername='postgresql').render_as_string(hide_password=True)}"
