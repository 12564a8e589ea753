"""Bad input gets one clear message, its own exit code, and leaves everything as it was."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from signoff.cli.failures import CommandFailed
from signoff.cli.modules import import_modules
from signoff.store.migrate import migrate
from tests.cli.support import run, serving

WORKFLOWS = """
from signoff import Step, event, workflow

paid = event("t/paid", int)

@workflow("t/wait")
async def wait(step: Step, order: str) -> int:
    return await step.await_event(paid)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(WORKFLOWS)
    return tmp_path


def one_message(text: str) -> str:
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, text
    return lines[0]


def test_help_lists_the_commands_and_exit_codes() -> None:
    result = run("--help")
    assert result.returncode == 0
    for word in ("serve", "worker", "demo", "migrate", "check", "users", "tokens", "Exit codes"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("missing", "import nothing_of_that_name", "nothing_of_that_name"),
        ("raising", "1 / 0", "raising.py:1"),
        ("ending", "raise SystemExit(0)", "SystemExit"),
        ("clock", WORKFLOWS.replace("    return await", "    import time; time.time()\n    return await"), "step.now"),
        ("twice", WORKFLOWS + WORKFLOWS.replace("def wait", "def again"), "defined twice"),
    ],
)
def test_what_a_module_raises_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, told: str
) -> None:
    (folder / f"bad_{name}.py").write_text(source)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(CommandFailed, match=told) as failed:
        import_modules([f"bad_{name}"])
    assert failed.value.exit_code == 2
    assert f"bad_{name}" in failed.value.message


def test_a_module_that_does_not_import_leaves_nothing_behind(folder: Path) -> None:
    (folder / "bad.py").write_text("def broken(:")
    result = run("serve", "bad", "--port", "0", cwd=folder)
    assert result.returncode == 2
    assert "bad.py:1" in one_message(result.stderr)
    assert not (folder / "signoff.db").exists()


def test_a_module_that_is_not_there(folder: Path) -> None:
    result = run("worker", "nobody.workflows", cwd=folder)
    assert result.returncode == 2
    assert "nobody" in one_message(result.stderr)
    with pytest.raises(CommandFailed, match=r"no file nobody\.py"):
        import_modules(["nobody.py"])


def test_debug_shows_where(folder: Path) -> None:
    (folder / "bad.py").write_text("1 / 0")
    result = run("--debug", "serve", "bad", "--port", "0", cwd=folder)
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_a_port_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", "good", "--port", str(port), cwd=folder)
    assert result.returncode == 4
    assert f"Port {port} on 127.0.0.1 is in use" in one_message(result.stderr)
    assert not (folder / "signoff.db").exists()


def test_a_host_that_is_none_of_this_machine(folder: Path) -> None:
    result = run("serve", "good", "--host", "192.0.2.1", "--port", "0", cwd=folder)
    assert result.returncode == 4
    one_message(result.stderr)


def test_a_database_of_a_newer_release(folder: Path) -> None:
    database = folder / "newer.db"
    migrate(f"sqlite:///{database}")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE signoff_alembic_version SET version_num = '9999'")
    with sqlite3.connect(database) as connection:
        before = list(connection.iterdump())
    for command in (["serve", "good", "--port", "0"], ["migrate"]):
        result = run(*command, "--database", f"sqlite:///{database}", cwd=folder)
        assert result.returncode == 3
        assert "newer" in one_message(result.stderr)
    with sqlite3.connect(database) as connection:
        assert list(connection.iterdump()) == before


def test_a_url_that_is_none(folder: Path) -> None:
    result = run("migrate", "--database", "mysql://here", cwd=folder)
    assert result.returncode == 2
    assert "sqlite:///" in one_message(result.stderr)


def test_a_folder_that_is_not_there(folder: Path) -> None:
    result = run("migrate", "--database", f"sqlite:///{folder}/missing/x.db", cwd=folder)
    assert result.returncode == 3
    one_message(result.stderr)


def test_a_read_only_folder(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:
        closed = Path("/proc")  # root may write everywhere else
    result = run("serve", "good", "--port", "0", "--database", f"sqlite:///{closed}/x.db", cwd=folder)
    assert result.returncode == 3
    assert "user may write" in one_message(result.stderr)


def test_a_server_that_is_not_there(folder: Path) -> None:
    result = run("migrate", "--database", "postgresql://me:secret@127.0.0.1:1/none", cwd=folder)
    assert result.returncode == 3
    message = one_message(result.stderr)
    assert "127.0.0.1" in message
    assert "secret" not in message


def test_a_second_worker_on_one_file_is_told_what_to_do(folder: Path) -> None:
    database = f"sqlite:///{folder}/one.db"
    with serving("worker", "good", "--database", database, folder=folder) as first:
        first.wait_for("working")
        result = run("worker", "good", "--database", database, cwd=folder)
        assert result.returncode == 5
        one_message(result.stderr)
        assert first.end() == 0


def test_an_unknown_run_workflow_and_wrong_args(folder: Path) -> None:
    run("migrate", cwd=folder)
    unknown = run("run", "show", "nobody", cwd=folder)
    assert unknown.returncode == 1
    assert "nobody" in one_message(unknown.stderr)
    workflow = run("run", "start", "t/nothing", "--module", "good", cwd=folder)
    assert workflow.returncode == 1
    assert "t/nothing" in one_message(workflow.stderr)
    wrong = run("run", "start", "t/wait", "order=[1]", "--module", "good", cwd=folder)
    assert wrong.returncode == 1
    assert "order" in one_message(wrong.stderr)


@pytest.mark.parametrize(("given", "said"), [("max_actve=5", "max_active"), ("max_active=many", "whole number")])
def test_a_limit_that_is_none(folder: Path, given: str, said: str) -> None:
    result = run("serve", "good", "--set", given, cwd=folder)
    assert result.returncode == 2
    assert said in one_message(result.stderr)


def test_identity_providers_that_cannot_be_read(folder: Path) -> None:
    (folder / "bad.toml").write_text(
        '[[provider]]\nid = "a"\nissuer = "http://id.example.org"\nclient_secret = "hush"\n'
    )
    for given, said in (("none.toml", "none.toml: No such file"), ("bad.toml", "provider.0.name: Field required")):
        result = run("serve", "good.py", "--oidc", given, "--port", "0", cwd=folder)
        assert result.returncode == 2
        message = one_message(result.stderr)
        assert said in message
        assert "hush" not in result.stderr
    assert not list(folder.glob("*.db"))
