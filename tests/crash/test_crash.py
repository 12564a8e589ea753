"""The short crash test. `make crash` is the long one; both run the same storm and check the same books."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.verdict import run_storm

SEED = int(os.environ.get("SIGNOFF_CRASH_SEED", "1"))
KILLS = 4  # of each database


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_done_twice_on_sqlite(tmp_path: Path) -> None:
    folder = tmp_path / "crash"
    assert run_storm(f"sqlite:///{tmp_path / 'signoff.db'}", folder, SEED, KILLS, print) == []


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_done_twice_on_postgresql(empty_postgres_url: str, tmp_path: Path) -> None:
    assert run_storm(empty_postgres_url, tmp_path / "crash", SEED, KILLS, print) == []
