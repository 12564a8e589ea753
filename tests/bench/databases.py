"""Fresh databases for every measurement, and what can be read from them without going through either side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from tests.bench.plan import Database
from tests.support.postgres import PostgresServer


class Place(Protocol):
    url: str

    def bytes(self) -> int:
        """Size of the database, everything written out."""
        ...


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'bench.db'}"

    def bytes(self) -> int:
        with connect(self.url) as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
            return int((pages - free) * connection.exec_driver_sql("PRAGMA page_size").scalar_one())


class PostgresDatabase:
    def __init__(self, server: PostgresServer) -> None:
        self.name = server.create()
        self.url = server.url(self.name)

    def bytes(self) -> int:
        """As it lies on the disk: with the versions of rows that a vacuum has not yet removed."""
        with connect(self.url) as connection:
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


@contextmanager
def fresh(database: Database, server: PostgresServer | None) -> Iterator[Place]:
    """A database that nothing is in, gone afterwards."""
    if database == "sqlite":
        folder = Path(tempfile.mkdtemp(prefix="signoff-bench-", dir=disk_folder()))
        try:
            yield SqliteFile(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        assert server is not None
        place = PostgresDatabase(server)
        try:
            yield place
        finally:
            server.drop(place.name)


def disk_folder() -> Path:
    """Where SQLite files lie: on the disk that PostgreSQL's data are on as well."""
    return Path(tempfile.gettempdir())


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection
