"""Which names workflows, steps, events, asks, keys and labels may have."""

from __future__ import annotations

import unicodedata
from typing import Any

from signoff.workflow.errors import InvalidInput

MAX_NAME = 256


def check_name(name: Any, what: str) -> str:
    """The name itself, if it is 1 to 256 characters without control characters; InvalidInput if not (D6)."""
    if type(name) is str and name.isascii() and name.isprintable() and 1 <= len(name) <= MAX_NAME:
        return name
    if not isinstance(name, str):
        raise InvalidInput(f"the {what} must be named by a string, not {type(name).__name__}")
    what = f"{'an' if what[0] in 'aeio' else 'a'} {what}"
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidInput(f"the name of {what} has 1 to {MAX_NAME} characters, not {len(name)}")
    # Cc: control characters. Cs: half a surrogate pair, which no database takes.
    bad = next((char for char in name if unicodedata.category(char) in ("Cc", "Cs")), None)
    if bad is not None:
        raise InvalidInput(f"the name of {what} must not contain the control character {bad!r}")
    return str(name)
