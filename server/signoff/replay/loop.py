"""A deterministic asyncio loop: it runs what is ready and returns. Time passes only by outcomes of the journal.

Semi-private calls of asyncio are needed to be the running loop without running for ever: `_enter`, `_leave`, `drive`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeVarTuple

from signoff.replay.call import Awaiting, StepCall
from signoff.workflow.amounts import as_seconds

_UNWINDINGS = 16
_Ts = TypeVarTuple("_Ts")
_swap_current_task = getattr(asyncio.tasks, "_swap_current_task", None)  # Python 3.12 and later


class Interrupted(KeyboardInterrupt):
    """For a watchdog to raise in the driving thread (PyThreadState_SetAsyncExc) when a handler computes without end.

    A KeyboardInterrupt, because tasks and handles let that one pass, and `except Exception` in a handler does not
    catch it.
    """


class LoopHost(Protocol):
    """The program that a loop belongs to."""

    def loop_time(self) -> float: ...

    def timer_started(self, timer: Timer, seconds: float) -> None: ...

    def timer_cancelled(self, timer: Timer) -> None: ...

    def impossible(self, message: str) -> NoReturn: ...

    def callback_failed(self, message: str, error: BaseException) -> None: ...


class _Closed:
    """What stands for the program once it is closed, for what a handler left somewhere."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("the program is closed")


CLOSED: Any = _Closed()


class Timer(asyncio.TimerHandle):
    """A timer of the handler, durable as a sleep step: it fires when that step's outcome is handed over."""

    __slots__ = ("index",)
    _loop: Loop

    def __init__(self, when: float, callback: Any, args: Any, loop: Loop, context: Any = None) -> None:
        super().__init__(when, callback, args, loop, context)
        self.index = -1


class Task(asyncio.Task[Any]):
    """Tasks hash by number: sets of them (in TaskGroup, wait, as_completed) have the same order on every replay."""

    number = 0

    def __hash__(self) -> int:
        # asyncio registers tasks, by their first hash, in one set for all programs of the process: a hundred thousand
        # that are each the first of their program must not share one place there
        return self.number or id(self) >> 4


class Loop(asyncio.AbstractEventLoop):
    def __init__(self, host: LoopHost) -> None:
        self.host = host
        self.closed = False
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: list[Task] = []  # all that are not done, so that none is lost to the garbage collector
        self._compact_at = 64
        self._numbers = 0

    def drive(self) -> None:
        """Run until nothing is ready."""
        ready = self._ready
        hooks = sys.get_asyncgen_hooks()
        if hooks.finalizer is not _finalize_generator:
            sys.set_asyncgen_hooks(None, _finalize_generator)
        outer, outer_task = _enter(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:  # as asyncio's own loop asks, without a call
                    # A SystemExit is the handler's own: its task has it too, and ends with it.
                    with contextlib.suppress(SystemExit):
                        handle._run()
        finally:
            _leave(outer, outer_task)
            if outer is not None:  # else they stay: this thread drives programs
                sys.set_asyncgen_hooks(*hooks)

    def fire(self, timer: Timer) -> None:
        """The timer's step has its outcome."""
        self._ready.append(timer)

    def clear(self) -> None:
        """The handler has ended; what its tasks had still to do is not done."""
        self._ready.clear()

    def close(self) -> None:
        """Unwinds all coroutines now, in this thread, rather than whenever the garbage collector comes by."""
        self.closed = True
        tasks, self._tasks = self._tasks, []
        unfinished = [task for task in tasks if not task.done()]
        if not unfinished:
            return
        outer, outer_task = _enter(self)  # what a `finally` asks of asyncio is refused here, not taken to another loop
        try:
            for task in unfinished:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose, not an oversight
                coro: Any = task.get_coro()
                # A handler's `finally` may await again and again: unwound some more, then left as it is.
                for _ in range(_UNWINDINGS):
                    # Whatever the handler raises, also to end the process: the program is gone.
                    with contextlib.suppress(Exception, asyncio.CancelledError, SystemExit):
                        coro.close()
                    if getattr(coro, "cr_frame", None) is None:
                        break
        finally:
            _leave(outer, outer_task)
            self._ready.clear()

    # What asyncio asks of a loop

    def time(self) -> float:
        return self.host.loop_time()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.closed

    def is_closed(self) -> bool:
        return self.closed

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.closed:
            self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        seconds = as_seconds(round(delay, 6), "a delay", minimum=float("-inf"))
        timer = Timer(self.time() + seconds, callback, args, self, context)
        if self.closed:
            return timer
        if seconds > 0:
            self.host.timer_started(timer, seconds)
        else:
            self._ready.append(timer)
        return timer

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # wider, for the parameters of all versions of Python
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Any = None, **options: Any
    ) -> Task:
        options.pop("eager_start", None)
        if self.closed:
            coro.close()
            raise RuntimeError("the program is closed")
        if isinstance(coro, StepCall):
            coro = Awaiting(coro)
        self._numbers += 1
        task = Task(coro, loop=self, name=f"Task-{self._numbers}" if name is None else str(name), context=context)
        task.number = self._numbers
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._compact_at:
            self._tasks = [task for task in tasks if not task.done()]
            self._compact_at = 2 * len(self._tasks) + 64
        return task

    def _timer_handle_cancelled(self, timer: Timer) -> None:  # what TimerHandle.cancel() calls
        if not self.closed:
            self.host.timer_cancelled(timer)

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # With a handle: a callback has raised. Without: asyncio's complaints at garbage collection, at random moments.
        error = context.get("exception")
        if "handle" in context and error is not None and not self.closed:
            self.host.callback_failed(str(context.get("message", "")), error)


def _enter(loop: Loop) -> tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None]:
    """Make `loop` the running one. The thread may be running another (tests, mostly): what to give back to `_leave`.

    Its task is put aside too: from Python 3.14 on a thread has one current task, whichever loop is asked for it.
    """
    outer = events._get_running_loop()
    task = _swap_current_task(outer, None) if outer is not None and _swap_current_task is not None else None
    events._set_running_loop(loop)
    return outer, task


def _leave(outer: asyncio.AbstractEventLoop | None, task: asyncio.Task[Any] | None) -> None:
    events._set_running_loop(outer)
    if task is not None and _swap_current_task is not None:
        _swap_current_task(outer, task)


def _finalize_generator(generator: AsyncGenerator[Any, Any]) -> None:
    # Dropped by the handler itself: its clean-up runs as a task. By the garbage collector, between drives: left.
    loop = events._get_running_loop()
    if isinstance(loop, Loop) and not loop.closed:
        _ = loop.create_task(generator.aclose())


_SUBSTITUTES = {
    "run_in_executor": "run it as an action, or step.do(...)",
    "call_soon_threadsafe": "nothing from outside may reach a handler but events: use step.await_event(...)",
}
for _name in (
    *("run_in_executor", "call_soon_threadsafe", "set_default_executor", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
    *("sendfile", "start_tls", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell", "add_reader", "remove_reader", "add_writer", "remove_writer"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler"),
    *("run_forever", "run_until_complete", "stop", "shutdown_asyncgens", "shutdown_default_executor"),
    *("set_task_factory", "set_exception_handler", "set_debug"),
):

    def _refuse(self: Loop, *args: Any, _name: str = _name, **kwargs: Any) -> NoReturn:
        substitute = _SUBSTITUTES.get(_name, "do it in an action")
        self.host.impossible(f"a workflow's handler cannot use the event loop's {_name}(): {substitute}")

    setattr(Loop, _name, _refuse)
