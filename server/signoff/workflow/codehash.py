"""A hash of a function's code: other code may go on where this one could not."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any


def code_hash(fn: Callable[..., Any]) -> str:
    """16 hex digits: of the source, or of the bytecode where there is no source."""
    fn = inspect.unwrap(fn)
    try:
        text = textwrap.dedent(inspect.getsource(fn)).encode()
    except (OSError, TypeError):
        code = getattr(fn, "__code__", None)
        text = repr(fn).encode() if code is None else _bytecode(code)
    return hashlib.sha256(text).hexdigest()[:16]


def _bytecode(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode(), repr(code.co_varnames).encode()]
    # Constants hold the code of inner functions, whose repr has addresses.
    parts += [_bytecode(item) if isinstance(item, CodeType) else repr(item).encode() for item in code.co_consts]
    return b"\0".join(parts)
