"""Brings a database's tables up to date."""

from __future__ import annotations

import sqlalchemy as sa

from signoff.store.tables import Base


def migrate(url: str) -> None:
    """Blocking."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(parsed)
    try:
        Base.metadata.create_all(engine)
    finally:
        engine.dispose()
