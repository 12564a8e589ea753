"""The thread on which programs are driven, and the watchdog that interrupts one that computes for too long."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

import structlog

from signoff.replay.loop import Interrupted

logger = structlog.get_logger(__name__)

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STDLIB = sysconfig.get_paths()["stdlib"]


class Overrun(Interrupted):
    """Raised inside a handler that computed past its limit. No Exception: handlers must not catch it by accident."""


class Driver:
    """Runs jobs one after another on a thread of its own; `limit` in seconds for one job.

    A thread that was interrupted is given up: the next job gets a new one.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._jobs: SimpleQueue[tuple[Callable[[], None], Callable[[str], None]] | None] = SimpleQueue()
        self._busy = threading.Event()
        self._lock = threading.Lock()
        self._job = 0
        self._since: float | None = None  # processor time of the thread when the job began
        self._overrun: Callable[[str], None] | None = None
        self._given_up: set[threading.Thread] = set()
        self._stopped = False
        self._thread = self._new_thread()
        self._watchdog = threading.Thread(target=self._watch, name="signoff-watchdog", daemon=True)
        self._watchdog.start()

    def submit(self, job: Callable[[], None], overrun: Callable[[str], None]) -> None:
        """Run `job` on the driver thread; one that takes too long is interrupted and `overrun(line)` called instead."""
        self._jobs.put((job, overrun))

    def stop(self) -> None:
        self._stopped = True
        self._jobs.put(None)
        self._busy.set()

    def _new_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="signoff-driver", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._work()
        except Overrun:
            pass  # hit between two jobs: the thread was given up anyway
        finally:
            self._given_up.discard(threading.current_thread())

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, overrun = item
            with self._lock:
                self._job += 1
                self._since, self._overrun = time.thread_time(), overrun
            self._busy.set()
            try:
                try:
                    job()
                finally:
                    with self._lock:
                        gone = self.interrupted
                        if not gone:  # else they are the next thread's
                            self._since = None
                            self._busy.clear()
            except Overrun:
                gone = True
            if gone:
                return  # this thread may still be hit by the exception: a new one has taken over

    def _watch(self) -> None:
        tick = min(self._limit / 4, 0.25)
        job, ticks = 0, 0
        while not self._stopped:
            if not self._busy.is_set() and not self._given_up:
                self._busy.wait()
                ticks = 0
            # A stalled or starved process must not count: a tick is a tick, however long it took, and a job that has
            # used hardly any processor time only waits for its turn.
            time.sleep(tick)
            with self._lock:
                for thread in tuple(self._given_up):  # the exception may have hit where exceptions are ignored
                    _interrupt(thread)
                if self._since is None or self._job != job:
                    job, ticks = self._job, 0
                    continue
                ticks += 1
                seconds = ticks * tick
                used = _cpu_seconds(self._thread) - self._since
                if seconds < self._limit or (used < self._limit / 2 and seconds < 10 * self._limit):
                    continue
                ident = self._thread.ident
                if ident is None:
                    continue
                line = author_line(sys._current_frames().get(ident))
                overrun = self._overrun
                self._given_up.add(self._thread)
                self._since = None
                self._busy.clear()
                _interrupt(self._thread)
            self._thread = self._new_thread()
            logger.warning("a handler computed past its limit", seconds=self._limit, line=line)
            if overrun is not None:
                overrun(line or "unknown line")

    @property
    def interrupted(self) -> bool:
        """For a job that goes on after all: whether it was given up meanwhile (its results must not be used)."""
        return threading.current_thread() in self._given_up


def _interrupt(thread: threading.Thread) -> None:
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Overrun))


def _cpu_seconds(thread: threading.Thread) -> float:
    """Processor time of a thread; infinite where the platform does not tell."""
    clock = getattr(time, "pthread_getcpuclockid", None)
    if clock is None or thread.ident is None:
        return float("inf")
    try:
        return time.clock_gettime(clock(thread.ident))
    except OSError:  # it has just ended
        return 0.0


def author_line(frame: FrameType | None) -> str:
    """The innermost line that is neither ours nor the standard library's."""
    best = None
    while frame is not None:
        name = frame.f_code.co_filename
        if best is None:
            best = frame
        if not name.startswith((_OWN, _STDLIB, "<frozen")):
            best = frame
            break
        frame = frame.f_back
    return f"{best.f_code.co_filename}:{best.f_lineno}" if best is not None else "unknown line"
