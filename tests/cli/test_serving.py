"""Servers and workers as processes: set-up link, graceful end, kill -9, commands beside them, and `check`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from signoff import Engine, Registry
from signoff.runtime.handles import Run
from signoff.runtime.subscription import RunChanged
from tests.cli.support import SECONDS, free_port, run, serving

WORKFLOWS = """
import asyncio

from signoff import Step, action, event, workflow

paid = event("t/paid", int)

@action(name="t/slow")
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slow but done"

@workflow("t/wait")
async def wait(step: Step, order: str) -> int:
    return await step.await_event(paid)

@workflow("t/slow")
async def slowly(step: Step, seconds: float) -> str:
    return await step.run_action(slow, seconds)
"""
OTHER = WORKFLOWS.replace("    return await step.await_event(paid)", "    await step.sleep(1)\n    return 0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(WORKFLOWS)
    return tmp_path


@pytest_asyncio.fixture
async def beside(folder: Path) -> AsyncIterator[Engine]:
    """An engine of this process on the database of the server's: it has none of the code, and no worker."""
    async with Engine(f"sqlite:///{folder / 'signoff.db'}", registry=Registry(), worker=False) as engine:
        yield engine


async def until(run: Run[object], status: str) -> None:
    async for change in run.subscribe():
        if isinstance(change, RunChanged) and change.run.status == status:
            return
    raise AssertionError(f"the run ended without being {status}")


async def test_a_server_prints_a_set_up_link_until_there_is_an_admin_and_ends_gracefully(folder: Path) -> None:
    port = free_port()
    with serving("serve", "flows", "--port", str(port), folder=folder, port=port) as server:
        found = re.search(rf"http://127\.0\.0\.1:{port}(/setup/\S+)", server.wait_for("/setup/"))
        assert found
        page = httpx.get(f"{server.address}{found[1]}")
        assert page.status_code == 200
        assert server.end() == 0
    added = run("users", "add", "root@example.org", "--role", "admin", cwd=folder)
    assert added.returncode == 0, added.stderr
    with serving("serve", "flows", "--port", str(port), folder=folder, port=port) as server:
        server.wait_for("serving")
        assert "/setup/" not in server.text()


async def test_commands_reach_a_server_that_runs_and_its_runs_survive_kill_9(folder: Path, beside: Engine) -> None:
    port = free_port()
    with serving("serve", "flows", "--port", str(port), folder=folder, port=port) as server:
        started = run("run", "start", "t/wait", "order=o-1", "--key", "k", cwd=folder)
        assert started.returncode == 0, started.stderr
        handle = beside.run(started.stdout.strip())
        await until(handle, "waiting")
        server.end(signal.SIGKILL)
    sent = run("events", "send", handle.id, "t/paid", "12", "--module", "flows", cwd=folder)
    assert sent.returncode == 0, sent.stderr
    with serving("worker", "flows", folder=folder) as worker:
        assert await handle.result(timeout=SECONDS) == 12
        shown = run("run", "show", handle.id, cwd=folder)
        assert "result 12" in shown.stdout, shown.stderr
        assert worker.end() == 0


async def test_a_running_step_ends_before_the_worker_does(folder: Path, beside: Engine) -> None:
    with serving("worker", "flows", "--grace", "30", folder=folder) as worker:
        worker.wait_for("working")
        handle = await beside.start_by_name("t/slow", {"seconds": 1.5})
        await until(handle, "running")
        assert worker.end() == 0
    assert await handle.result(timeout=1) == "slow but done"


async def test_check_names_the_runs_that_would_be_blocked_and_writes_nothing(folder: Path, beside: Engine) -> None:
    with serving("worker", "flows", folder=folder) as worker:
        worker.wait_for("working")
        handle = await beside.start_by_name("t/wait", {"order": "o-1"})
        await until(handle, "waiting")
        assert worker.end() == 0
    before = (await handle.status(), await handle.steps())
    (folder / "changed.py").write_text(OTHER)
    fits = run("check", "flows", cwd=folder)
    assert (fits.returncode, fits.stdout) == (0, "1 open run fits, 0 would be blocked.\n"), fits.stderr
    blocked = run("check", "changed", "--json", cwd=folder)
    assert blocked.returncode == 1
    told = json.loads(blocked.stdout.splitlines()[0])
    assert (told["run"], told["problem"]["code"]) == (handle.id, "mismatch")
    assert "t/paid" in json.dumps(told["problem"]["recorded"])
    assert (await handle.status(), await handle.steps()) == before


async def test_a_run_is_canceled_from_the_shell(folder: Path, beside: Engine) -> None:
    started = run("run", "start", "t/wait", "order=o-1", "--module", "flows", cwd=folder)
    canceled = run("run", "cancel", started.stdout.strip(), "--reason", "not needed", cwd=folder)
    assert (canceled.returncode, canceled.stdout.strip()) == (0, "canceled"), canceled.stderr


async def test_live_streams_end_with_the_server(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "signoff", "users", "add", "ana@example.org", "--password-stdin"],
        cwd=folder, input="correct horse battery\n", text=True, check=True, capture_output=True, timeout=SECONDS,
    )  # fmt: skip
    port = free_port()
    with serving("serve", "flows", "--port", str(port), folder=folder, port=port) as server:
        async with httpx.AsyncClient(base_url=server.address, follow_redirects=True) as browser:
            page = await browser.get("/sign-in")
            token = re.search(r'name="csrf" value="([^"]+)"', page.text)
            assert token
            form = {"csrf": token[1], "email": "ana@example.org", "password": "correct horse battery"}
            assert (await browser.post("/sign-in", data=form)).status_code == 200
            async with browser.stream("GET", "/live?topic=runs") as stream:
                assert stream.status_code == 200
                chunks = stream.aiter_text()
                await anext(chunks)
                server.process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(SECONDS):
                    async for _ in chunks:
                        pass  # to its orderly end: a stream that is cut off raises
        assert server.process.wait(timeout=SECONDS) == 0
