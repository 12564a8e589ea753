"""Where definitions stand, and which names are known there."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_OWN = os.path.dirname(__file__)
_INSTALLED = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a definition stands."""

    file: str
    line: int
    qualname: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.qualname})" if self.qualname else f"{self.file}:{self.line}"

    def replaces(self, other: Place) -> bool:
        """The same place again: a module or notebook cell that is run once more."""
        return self.file == other.file and (
            self.qualname == other.qualname if self.qualname else self.line == other.line
        )


def place_of(fn: Callable[..., Any]) -> Place:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    qualname = getattr(fn, "__qualname__", repr(fn))
    return Place("?", 0, qualname) if code is None else Place(code.co_filename, code.co_firstlineno, qualname)


def caller_place() -> Place:
    """Where `event(...)` or `ask(...)` stands: the first frame outside of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return Place("?", 0, "")
    linecache.checkcache(frame.f_code.co_filename)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    # The name that it is assigned to: the same file and name again is a reload.
    target = line.split("=", 1)[0].split(":", 1)[0].strip()
    qualname = target if target.isidentifier() else ""
    return Place(frame.f_code.co_filename, frame.f_lineno, qualname)


def closure_names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Names that annotations may use besides the module's: those of the functions around."""
    names: dict[str, Any] = {}
    code_file = getattr(getattr(fn, "__code__", None), "co_filename", None)
    walk: Any = sys._getframe(1)
    while walk is not None:
        if walk.f_code.co_filename == code_file and walk.f_locals is not walk.f_globals:
            names = {**walk.f_locals, **names}
        elif not walk.f_code.co_filename.startswith(_OWN) and names:
            break
        walk = walk.f_back
    try:
        names |= inspect.getclosurevars(fn).nonlocals
    except (TypeError, ValueError):
        return names
    return names


def is_authors(module: str | None, *, home: str | None) -> bool:
    """Whether a module is the author's own: neither of Python, nor installed, unless `home` is of the same package."""
    if not module:
        return False
    root = module.split(".", 1)[0]
    if home and root == home.split(".", 1)[0]:
        return True
    if root == "signoff" or (root in sys.stdlib_module_names and root != "__main__"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return not (isinstance(file, str) and any(file.startswith(folder) for folder in _INSTALLED))
