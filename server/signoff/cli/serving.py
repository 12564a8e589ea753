"""Runs a web app and a worker in one event loop until a signal ends both gracefully."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from signoff.cli.failures import CommandFailed, Exit
from signoff.runtime.process import settle_process

if TYPE_CHECKING:
    from litestar import Litestar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Requests that still run this long after a signal are cut off, so that the worker gets its turn to end.
REQUEST_GRACE_SECONDS = 5
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything else starts; raises CommandFailed saying what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CommandFailed(f"{host!r} is no address of this machine: {error.strerror}.", Exit.ADDRESS) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            message = f"Port {port} on {host} is in use. Stop what uses it, or choose another with --port."
        elif error.errno == errno.EACCES:
            message = f"Port {port} may not be opened by this user. Choose one above 1023 with --port."
        else:
            message = f"Cannot listen on {host}:{port}: {error.strerror}."
        raise CommandFailed(message, Exit.ADDRESS) from error
    bound.setblocking(False)
    return bound


def address_of(bound: socket.socket, host: str) -> str:
    """The URL under which a browser on this machine reaches it."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{bound.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before the worker could end its work."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve_app(app: Litestar, bound: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; a second SIGINT cuts off requests. Live streams end at once."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=REQUEST_GRACE_SECONDS,
            server_header=False,
            lifespan="on",
        ),
        ready,
    )

    settle_process()

    def stop(number: int) -> None:
        # through uvicorn's handler, because sse-starlette listens there to end its streams
        server.handle_exit(number, None)

    with signals(stop):
        try:
            await server.serve(sockets=[bound])
        finally:
            bound.close()


async def until_signal() -> None:
    """Return at the first SIGINT or SIGTERM."""
    settle_process()
    event = asyncio.Event()
    with signals(lambda _number: event.set()):
        await event.wait()


@contextmanager
def signals(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler(number)` on the loop for SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
