"""The command line on PostgreSQL: migrating first, and any number of processes on one database."""

from __future__ import annotations

import signal
from pathlib import Path

from signoff import Engine, Registry
from tests.cli.support import SECONDS, free_port, run, serving
from tests.cli.test_serving import WORKFLOWS


async def test_processes_share_a_database_and_take_over_from_one_that_was_killed(
    empty_postgres_url: str, tmp_path: Path
) -> None:
    (tmp_path / "flows.py").write_text(WORKFLOWS)
    database = ("--database", empty_postgres_url)
    early = run("worker", "flows", *database, cwd=tmp_path)
    assert early.returncode == 3
    assert "signoff migrate" in early.stderr
    assert run("migrate", *database, cwd=tmp_path).returncode == 0

    port = free_port()
    async with Engine(empty_postgres_url, registry=Registry(), worker=False) as beside:
        with serving("worker", "flows", *database, folder=tmp_path) as worker:
            worker.wait_for("working")
            with serving("serve", "flows", "--port", str(port), *database, folder=tmp_path, port=port) as server:
                handles = [await beside.start_by_name("t/slow", {"seconds": 1.5}) for _ in range(8)]
                worker.end(signal.SIGKILL)
                for handle in handles:
                    assert await handle.result(timeout=SECONDS) == "slow but done"
                assert server.end() == 0
