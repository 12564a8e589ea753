"""What the disk and the bare databases do at most: durable one-row commits, one after the other."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import psycopg


def rate(commit: Callable[[], object], seconds: float) -> float:
    """How often a second `commit` returns."""
    done, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        commit()
        done += 1
    return done / (now - began)


def fsync_rate(folder: Path, seconds: float) -> float:
    """Appends of 4 KiB, each followed by fdatasync."""
    file = os.open(folder / "fsync", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def commit() -> None:
        os.write(file, bytes(4096))
        os.fdatasync(file)

    try:
        return rate(commit, seconds)
    finally:
        os.close(file)


def sqlite_rate(folder: Path, seconds: float) -> float:
    """Inserts of one row in SQLite with WAL and synchronous=FULL."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, value TEXT)")
        return rate(lambda: connection.execute("INSERT INTO bare (value) VALUES ('0123456789')"), seconds)
    finally:
        connection.close()


def postgres_rate(url: str, seconds: float) -> float:
    """Inserts of one row in PostgreSQL with synchronous_commit=on."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (id BIGSERIAL PRIMARY KEY, value TEXT)")
        return rate(lambda: connection.execute("INSERT INTO bare (value) VALUES ('0123456789')"), seconds)
