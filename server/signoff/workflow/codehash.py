"""A hash of the code that a handler runs: other code may go on where this one could not."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from signoff.workflow.places import is_authors


def code_hash(fn: Callable[..., Any]) -> str:
    """16 hex digits: of the handler, and of the author's modules that its own module uses.

    The modules too, because a helper or a model may be what kept a run from going on. A change that means nothing only
    makes a blocked run try once more.
    """
    fn = inspect.unwrap(fn)
    digest = hashlib.sha256(_own_code(fn))
    for name, file in sorted(_modules(fn.__module__)):
        try:
            stat = os.stat(file)
            digest.update(f"\0{name}\0{_file_hash(file, stat.st_mtime_ns, stat.st_size)}".encode())
        except OSError:  # in a zip file, or gone: the handler's own code still counts
            continue
    return digest.hexdigest()[:16]


def _own_code(fn: Callable[..., Any]) -> bytes:
    """The source, or the bytecode where there is none."""
    try:
        return textwrap.dedent(inspect.getsource(fn)).encode()
    except (OSError, TypeError):
        code = getattr(fn, "__code__", None)
        return repr(fn).encode() if code is None else _bytecode(code)


def _bytecode(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode(), repr(code.co_varnames).encode()]
    # Constants hold the code of inner functions, whose repr has addresses.
    parts += [_bytecode(item) if isinstance(item, CodeType) else repr(item).encode() for item in code.co_consts]
    return b"\0".join(parts)


@functools.lru_cache(maxsize=4096)
def _file_hash(file: str, mtime: int, size: int) -> str:
    with open(file, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _modules(home: str) -> Iterator[tuple[str, str]]:
    """The author's modules, from `home` along what their globals come from, with their files."""
    todo, seen = [home], set()
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not is_authors(name, home=home):
            continue
        seen.add(name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            yield name, file
        todo.extend(filter(None, map(_module_of, list(vars(module).values()))))


def _module_of(value: Any) -> str | None:
    if isinstance(value, ModuleType):
        return value.__name__
    if not isinstance(value, type | FunctionType):
        cls = type(value)
        if cls.__module__.startswith("signoff.workflow."):  # a definition: its function, or the type of an event
            own = getattr(value, "__dict__", {})
            value = own.get("fn") or own.get("type") or cls
        if not isinstance(value, type | FunctionType):
            value = cls
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else None
