"""Brings a database's tables up to date, and refuses one that is not what this release works with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import NullPool

from signoff.resources import migrations_dir
from signoff.store.errors import SchemaMissing, SchemaTooNew, translate
from signoff.store.urls import parse_url, shown

if TYPE_CHECKING:
    from alembic.config import Config

logger = logging.getLogger(__name__)

VERSION_TABLE = "signoff_alembic_version"
# In order; the last is what this release works with. Opening a database need not load Alembic to know them.
REVISIONS = ("0001", "0002", "0003")
_LOCK = 0x5167_0FF0  # PostgreSQL advisory lock: one migration at a time


class Schema(StrEnum):
    EMPTY = "empty"
    OLD = "old"
    CURRENT = "current"


def engine_for(url: str | sa.URL) -> sa.Engine:
    """For a few statements. Transactions on SQLite really begin, and lock the file at once."""
    parsed = parse_url(url) if isinstance(url, str) else url
    if parsed.get_backend_name() == "postgresql":
        return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    engine = sa.create_engine(
        parsed.set(drivername="sqlite"),
        poolclass=NullPool,
        connect_args={"isolation_level": None, "timeout": 30.0},
    )
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def check_version(conn: sa.Connection) -> Schema:
    """How the tables stand to this release. Raises SchemaTooNew."""
    if not sa.inspect(conn).has_table(VERSION_TABLE):
        return Schema.EMPTY
    versions = set(conn.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())
    if unknown := versions.difference(REVISIONS):
        raise SchemaTooNew(
            f"this database was migrated by a newer release of Signoff (revision {', '.join(sorted(unknown))}, "
            f"this release knows up to {REVISIONS[-1]}): install that release, or restore a backup from before"
        )
    return Schema.CURRENT if REVISIONS[-1] in versions else Schema.OLD


@contextmanager
def _connected(url: str | sa.URL) -> Iterator[sa.Connection]:
    engine = engine_for(url)
    try:
        with engine.connect() as conn:
            yield conn
    except Exception as error:
        typed = translate(error, shown(engine.url))
        if typed is None or typed is error:
            raise
        raise typed from error
    finally:
        engine.dispose()


def alembic_config(conn: sa.Connection) -> Config:
    """For Alembic's commands on an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    return config


def migrate(url: str | sa.URL) -> bool:
    """Make or upgrade the tables; blocking. Returns whether that was needed. Raises StoreError with nothing changed."""
    with _connected(url) as conn:
        if conn.dialect.name == "sqlite":
            conn.connection.cursor().execute("PRAGMA journal_mode = WAL")
        with conn.begin():
            if conn.dialect.name == "postgresql":
                conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if check_version(conn) is Schema.CURRENT:
                return False
            from alembic import command  # takes 0.15 s to load, which most starts do not need

            command.upgrade(alembic_config(conn), "head")
        logger.info("migrated %s to revision %s", shown(conn.engine.url), REVISIONS[-1])
        return True


def require_current(url: str | sa.URL) -> None:
    """Blocking. Raises SchemaMissing or SchemaTooNew unless the tables are those of this release."""
    with _connected(url) as conn:
        schema = check_version(conn)
    if schema is Schema.EMPTY:
        raise SchemaMissing(
            f"{shown(conn.engine.url)} has no tables of Signoff yet; run `signoff migrate`, or open it with "
            "migrate=True"
        )
    if schema is Schema.OLD:
        raise SchemaMissing(
            f"the tables in {shown(conn.engine.url)} are those of an older release; run `signoff migrate`, or open it "
            "with migrate=True"
        )
