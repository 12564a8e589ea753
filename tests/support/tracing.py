"""Threads come under coverage one at a time.

While a thread installs its trace function, Python asks the audit hooks. One of them is Signoff's and written in Python,
so another thread may get its turn in the middle; if that one has just begun, it is refused with "another trace function
is being installed" and ends without having run. A worker whose driver ended so waits for ever.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType, ModuleType
from typing import Any

_lock = threading.RLock()
_settrace = threading.settrace


class _Sys(ModuleType):
    """What `threading` knows as `sys`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def settrace(self, function: Any) -> None:
        with _lock:
            sys.settrace(function)


def _set(function: Any) -> None:
    def begin(frame: FrameType, event: str, arg: Any) -> Any:
        with _lock:
            return function(frame, event, arg)

    _settrace(None if function is None else begin)


def trace_threads_one_at_a_time() -> None:
    """For whatever traces now or later through `threading.settrace`, as coverage does."""
    threading._sys = _Sys("sys")  # type: ignore[attr-defined]  # where a new thread takes it from
    threading.settrace = _set
    if (function := threading.gettrace()) is not None:
        _set(function)
