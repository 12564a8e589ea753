"""aiosqlite with one visit to its thread per statement instead of up to four, each of which costs about 90 µs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

import aiosqlite

CHUNK = 64


class OneHopCursor(aiosqlite.Cursor):
    """Fetches all rows where it executes."""

    def __init__(self, connection: OneHopConnection, cursor: sqlite3.Cursor) -> None:
        super().__init__(connection, cursor)
        self._rows: list[Any] = []
        self._busy = False

    async def __aenter__(self) -> OneHopCursor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> OneHopCursor:
        await self._visit(self._cursor.execute, sql, () if parameters is None else parameters)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> OneHopCursor:
        await self._visit(self._cursor.executemany, sql, parameters)
        return self

    async def _visit(self, call: Callable[..., Any], *args: Any) -> None:
        def run() -> list[Any]:
            call(*args)
            return self._cursor.fetchall() if self._cursor.description else []

        self._busy = True  # stays so when this is canceled: the thread may still be at it
        try:
            self._rows = await self._execute(run)  # type: ignore[no-untyped-call]  # aiosqlite leaves it untyped
        except sqlite3.Error:
            self._busy = False
            raise
        self._busy = False

    async def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        size = self.arraysize if size is None else size
        taken, self._rows = self._rows[:size], self._rows[size:]
        return taken

    async def fetchall(self) -> list[Any]:
        taken, self._rows = self._rows, []
        return taken

    async def close(self) -> None:
        if self._busy:
            await super().close()
        else:
            self._cursor.close()  # nothing is left to do on the other thread


class OneHopConnection(aiosqlite.Connection):
    """The connection has to be made with `check_same_thread=False`."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, CHUNK)
        self._thread.daemon = True

    def cursor(self) -> OneHopCursor:  # type: ignore[override]  # need not be awaited, may be entered all the same
        return OneHopCursor(self, self._conn.cursor())
