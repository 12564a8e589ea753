"""Processes under the driver's hand: started in groups of their own, killed, stalled, and read by their logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).with_name("signoff")


class Program:
    """A program that is started again and again under one name; all its lives write to one log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: dict[str, str], ready: str) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._env = {**os.environ, **env}
        self._ready = ready.encode()
        self._read_from = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.stalled = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.stalled = False
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            log.write(f"--- started at {time.time():.3f}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self.command, cwd=ROOT, env=self._env, stdout=log, stderr=log, start_new_session=True
            )

    def is_ready(self) -> bool:
        """Whether this life has written its word yet."""
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            return self._ready in log.read()

    def ended(self) -> int | None:
        """The exit code, if it ended."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """kill -9, the group and all; also when it is stalled."""
        self._signal(signal.SIGKILL)
        self.wait(30)
        self.stalled = False

    def stall(self) -> None:
        self._signal(signal.SIGSTOP)
        self.stalled = True

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self.stalled = False

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, limit: float) -> int | None:
        """The exit code; None if it still runs after `limit` seconds."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)
