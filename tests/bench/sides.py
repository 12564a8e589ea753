"""The two sides as programs: how each is started, and how what it has done is counted in its own tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from tests.bench.databases import connect

ROOT = Path(__file__).parents[2]


class SideFailed(Exception):
    """A side's program ended with an error, or took too long; the text says which."""


@dataclass(frozen=True, slots=True)
class Counts:
    ended: str  # how many runs are over
    steps: str  # how many steps have their outcome


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    module: str
    sqlite: Counts
    postgresql: Counts

    def counts(self, url: str) -> Counts:
        return self.sqlite if url.startswith("sqlite") else self.postgresql

    def command(self, mode: str, url: str, size: int, *rest: str) -> list[str]:
        return [sys.executable, "-m", self.module, mode, url, str(size), *rest]

    def measure(self, mode: str, url: str, size: int, limit: float) -> dict[str, float]:
        """Do a work in a process of its own and return its figures."""
        with running(self.command(mode, url, size)) as process:
            try:
                out, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                raise SideFailed(f"{self.name} took more than {limit:g} s") from None
        if process.returncode != 0 or not out.strip():
            raise SideFailed(f"{self.name} ended with {process.returncode}")
        figures: dict[str, float] = json.loads(out.strip().splitlines()[-1])
        return figures


_OURS = Counts(
    "SELECT count(*) FROM signoff_run WHERE state = 'final'",
    "SELECT count(*) FROM signoff_step WHERE outcome_no IS NOT NULL",
)


def _theirs(schema: str) -> Counts:
    return Counts(
        f"SELECT count(*) FROM {schema}workflow_status WHERE status = 'SUCCESS'",
        f"SELECT count(*) FROM {schema}operation_outputs",
    )


SIGNOFF = Side("Signoff", "tests.bench.ours", _OURS, _OURS)
DBOS = Side("DBOS", "tests.bench.theirs", _theirs(""), _theirs("dbos."))
SIDES = (SIGNOFF, DBOS)


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program of its own process group, killed at the end with all that it started."""
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)
        if process.stdout is not None:
            process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, the group and all."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_line(process: subprocess.Popen[str], word: str) -> str:
    """The first line of its output with `word` in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise SideFailed(f"a program ended with {process.wait()} before it said {word!r}")


def wait_for_count(url: str, query: str, at_least: int, limit: float, every: float = 0.01) -> None:
    """Look at the database until the query gives so many."""
    until = time.monotonic() + limit
    with connect(url) as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        while connection.execute(sa.text(query)).scalar_one() < at_least:
            if time.monotonic() > until:
                raise SideFailed(f"not {at_least} after {limit:g} s: {query}")
            time.sleep(every)
