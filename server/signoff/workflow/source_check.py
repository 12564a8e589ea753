"""Reads a handler's source for what would differ on replay (D5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the source. `level` "error" in the handler's own body, "warning" in what it calls."""

    file: str
    line: int
    what: str
    replacement: str
    level: str = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.replacement}"


def check_handler(fn: Callable[..., Any], name: str) -> list[Finding]:
    """The warnings; raises NondeterministicCode with all errors."""
    return []
