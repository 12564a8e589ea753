"""One measurement: a side does a work on a fresh database, and its figures come back."""

from __future__ import annotations

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

CLIENTS = 64  # connections that start runs over HTTP: 500 at once, and what is measured is the server
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
        head = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if side is SIGNOFF:
            head.append(f"Authorization: Bearer {_token(place.url)}")
        request = ("\r\n".join(head) + "\r\n\r\n" + body).encode()
        local = threading.local()

        def start(_number: int) -> None:
            if not hasattr(local, "connection"):
                local.connection = _Connection(port, work.limit)
            status, answer = local.connection.ask(request)
            if status >= 300:
                raise SideFailed(f"{side.name} answered {status}: {answer[:300]!r}")

        ended = side.counts(place.url).ended
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(start, range(CLIENTS)))  # connections are open and everything is warm
            wait_for_count(place.url, ended, CLIENTS, work.limit)
            began = time.perf_counter()
            list(pool.map(start, range(size)))
            wait_for_count(place.url, ended, CLIENTS + size, work.limit)
            return {"rate": size / (time.perf_counter() - began)}


class _Connection:
    """A client that costs next to nothing: on two cores it would otherwise be the client that is measured."""

    def __init__(self, port: int, limit: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=limit)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        self._socket.sendall(request)
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._more()
        head = got[:end].lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(got) < end + 4 + length:
            got += self._more()
        return int(head.split(b" ", 2)[1]), got[end + 4 :]

    def _more(self) -> bytes:
        if not (part := self._socket.recv(65536)):
            raise SideFailed("the server closed the connection")
        return part


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
