"""One text for one value: what hashes of records and questions are made from."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any


def canonical(value: Any) -> str:
    """JSON in ASCII with sorted keys and no spaces; datetimes as UTC ISO text with microseconds, on either database."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def content_hash(value: Any) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def storable(text: str) -> str:
    """The text without what a database column cannot hold: NUL characters and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def is_storable(text: str) -> bool:
    """Whether a database column could hold it; else nothing that is stored can be like it."""
    return storable(text) == text


def nameable(name: str) -> bool:
    """Whether a name from outside can be that of anything at all; else it must not reach a query."""
    return name.isprintable()


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    raise TypeError(f"{type(value).__name__} has no canonical text")
