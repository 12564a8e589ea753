"""Keeps a handler from what replay cannot repeat, while it is driven, and finds the line to name."""

from __future__ import annotations

import contextvars
import os
import sys
import sysconfig
import threading
import zoneinfo
from types import CodeType, FrameType, TracebackType
from typing import Any, Protocol


class Driven(Protocol):
    def impossible(self, message: str) -> Any: ...


# The program whose handler runs in this context; the handler's tasks inherit it, nothing else has it.
driven: contextvars.ContextVar[Driven | None] = contextvars.ContextVar("signoff_driven", default=None)

# Audit events have fixed names, so the verdict on each is kept.
_verdicts: dict[str, str | None] = {}
_PREFIXES = ("socket.", "subprocess.", "shutil.", "tempfile.", "sqlite3.", "urllib.", "http.", "ftplib.", "smtplib.")
_EVENTS = {
    "open": "opens a file",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
    "pty.spawn": "starts a process",
    "webbrowser.open": "opens a browser",
    "glob.glob": "reads a folder",
    "os.listdir": "reads a folder",
    "os.scandir": "reads a folder",
    **{
        f"os.{name}": "starts a process"
        for name in ("system", "exec", "fork", "forkpty", "posix_spawn", "spawn", "startfile")
    },
    **{
        f"os.{name}": "changes files or the environment"
        for name in (
            *("chdir", "chmod", "chown", "link", "mkdir", "putenv", "remove", "rename", "rmdir", "symlink", "truncate"),
            *("unsetenv", "utime", "kill", "killpg"),
        )
    },
}
# Modules that open files by themselves: the import system, time zones, source lines of tracebacks.
_LET_THROUGH = ("importlib", "zoneinfo", "linecache", "tokenize", "pkgutil", "zipimport", "_distutils_hack", "inspect")
_installed = threading.Lock()
_done = False


def install() -> None:
    """The audit hook of this process; it cannot be taken out again, so it does next to nothing outside of handlers."""
    global _done
    if not _done:
        with _installed:
            if not _done:
                _done = True
                sys.addaudithook(_audit)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    try:
        what = _verdicts[event]
    except KeyError:
        other = "uses the network, a process or a file" if event.startswith(_PREFIXES) else None
        what = _verdicts[event] = _EVENTS.get(event, other)
    if what is None:
        return
    program = driven.get()
    if program is None or _harmless(event, args):
        return
    shown = f" ({args[0]!r})" if args and isinstance(args[0], str) else ""
    program.impossible(f"a workflow's handler {what}: {event}{shown}; do it in an action")


def _harmless(event: str, args: tuple[Any, ...]) -> bool:
    if event in ("open", "os.listdir", "os.scandir"):
        path = args[0] if args else None
        if isinstance(path, str) and path.startswith(zoneinfo.TZPATH):
            return True
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if isinstance(name, str) and name.partition(".")[0] in _LET_THROUGH:
                return True
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            if name == "signoff.replay.loop":
                return False
            frame = frame.f_back
    return False


# Lines ---------------------------------------------------------------------------------------------------------------


_STDLIB = sysconfig.get_path("stdlib")
_HERE = os.path.dirname(__file__)


def _own(code: CodeType) -> bool:
    """Whether code is Python's or this package's rather than the author's."""
    file = code.co_filename
    return file.startswith((_HERE, "<frozen")) or (file.startswith(_STDLIB) and "-packages" not in file)


def _line(code: CodeType, number: int | None) -> str:
    return f"{code.co_filename}:{number} in {code.co_qualname}"


def calling_line() -> str | None:
    """Where the author's code is that is running now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _own(frame.f_code):
            return _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def suspended_line(coro: Any) -> str | None:
    """Where the author's code is suspended: the innermost of its frames."""
    found = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None and not _own(frame.f_code):
            found = _line(frame.f_code, frame.f_lineno)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return found


def traceback_line(trace: TracebackType | None) -> str | None:
    found = None
    while trace is not None:
        if not _own(trace.tb_frame.f_code):
            found = _line(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next
    return found
