"""One measurement: a side does a work on a fresh database, and its figures come back."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.databases import Place
from tests.bench.plan import Work
from tests.bench.sides import ROOT, SIGNOFF, Side, SideFailed, kill, running, wait_for_count, wait_for_line

CLIENTS = 16  # connections that start runs over HTTP
DONE_BEFORE_KILL = 0.4  # of the steps
SCRIPT = Path(sys.executable).with_name("signoff")


def measure(work: Work, side: Side, place: Place, size: int) -> dict[str, float]:
    """Raises SideFailed."""
    special: dict[str, Callable[[Work, Side, Place, int], dict[str, float]]] = {
        "http": _over_http,
        "crash": _over_a_crash,
        "bytes": _bytes,
    }
    if work.name in special:
        return special[work.name](work, side, place, size)
    return side.measure(work.name, place.url, size, work.limit)


def _bytes(work: Work, side: Side, place: Place, size: int) -> dict[str, float]:
    """The second half weighs: tables and indexes are there, and pages are filled as they are in the long run."""
    side.measure("bytes", place.url, size, work.limit)
    before = place.bytes()
    side.measure("bytes", place.url, size, work.limit)
    return {"bytes": (place.bytes() - before) / (size + 1)}


def _over_a_crash(work: Work, side: Side, place: Place, size: int) -> dict[str, float]:
    counts = side.counts(place.url)
    with running(side.command("crash", place.url, size)) as first:
        wait_for_line(first, "started")
        wait_for_count(place.url, counts.steps, int(size * 10 * DONE_BEFORE_KILL), work.limit)
        kill(first)
    began = time.perf_counter()
    with running(side.command("resume", place.url, size)):
        wait_for_count(place.url, counts.ended, size, work.limit)
        return {"recovery": time.perf_counter() - began}


def _over_http(work: Work, side: Side, place: Place, size: int) -> dict[str, float]:
    """Runs a second from the first request until all runs are over, as the database has it."""
    port = _free_port()
    if side is SIGNOFF:
        serve = [str(SCRIPT), "--log-level", "warning", "serve", "tests.bench.flows", "--port", str(port)]
        command = [*serve, "--migrate", "--database", place.url]
        path, body = "/api/v1/runs", json.dumps({"workflow": "bench/sequence", "args": {"steps": 5}})
    else:
        command, path, body = side.command("http", place.url, size, str(port)), "/runs", ""
    with running(command) as server:
        _wait_for_port(port, server, 60)
        headers = {"Content-Type": "application/json"}
        if side is SIGNOFF:
            headers["Authorization"] = f"Bearer {_token(place.url)}"
        local = threading.local()

        def start(_number: int) -> None:
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=work.limit)
            local.connection.request("POST", path, body, headers)
            response = local.connection.getresponse()
            answer = response.read()
            if response.status >= 300:
                raise SideFailed(f"{side.name} answered {response.status}: {answer[:300]!r}")

        ended = side.counts(place.url).ended
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(start, range(CLIENTS)))  # connections are open and everything is warm
            wait_for_count(place.url, ended, CLIENTS, work.limit)
            began = time.perf_counter()
            list(pool.map(start, range(size)))
            wait_for_count(place.url, ended, CLIENTS + size, work.limit)
            return {"rate": size / (time.perf_counter() - began)}


def _token(url: str) -> str:
    command = [str(SCRIPT), "tokens", "create", "bench", "--database", url]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return made.stdout.split()[0]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_for_port(port: int, server: subprocess.Popen[str], limit: float) -> None:
    until = time.monotonic() + limit
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > until:
                raise SideFailed(f"the server did not come up (exit code {server.poll()})") from error
            time.sleep(0.05)
