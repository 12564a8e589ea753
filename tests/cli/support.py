"""Runs `signoff` as users do: as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

SECONDS = 40


def run(*args: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "signoff", *args], cwd=cwd, env={**os.environ, **(env or {})},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A command that serves until it is ended; what it printed is in a file."""

    def __init__(self, process: subprocess.Popen[str], output: Path, address: str) -> None:
        self.process = process
        self.output = output
        self.address = address

    def text(self) -> str:
        return self.output.read_text()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.text()}")
            try:
                if httpx.get(f"{self.address}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"it does not answer:\n{self.text()}")

    def wait_for(self, text: str) -> str:
        """What it printed, once `text` is in it."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if text in self.text():
                return self.text()
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"it did not print {text!r}:\n{self.text()}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=SECONDS)


@contextmanager
def serving(*args: str, folder: Path, port: int | None = None) -> Iterator[Server]:
    """A command that serves; `port` None: one without pages."""
    output = folder / f"output-{time.monotonic_ns()}.txt"
    with output.open("w") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "signoff", *args], cwd=folder, stdout=target, stderr=subprocess.STDOUT, text=True
        )
    server = Server(process, output, f"http://127.0.0.1:{port}")
    try:
        if port is not None:
            server.wait_until_up()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
