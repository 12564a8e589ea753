"""Stored values as they are shown: their JSON text, wherever it stands, and nothing of sensitive ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from signoff.store import payloads
from signoff.store.tx import Tx
from signoff.workflow.kinds import ErrorInfo

REDACTED = '"[redacted]"'  # as JSON text


def texts_of(tx: Tx, stored: Iterable[str | None]) -> Mapping[str, str]:
    """The texts of those values that stand in the payload table."""
    large: list[str] = [text for text in stored if text is not None and text.startswith("@")]
    found = payloads.get_many(tx, large) if large else []
    return {key: text for key, text in zip(large, found, strict=True) if text is not None}


def shown_text(stored: str | None, texts: Mapping[str, str], secret: bool) -> str | None:
    if stored is None:
        return None
    return REDACTED if secret else texts.get(stored, stored)


def shown_error(stored: str | None, texts: Mapping[str, str]) -> ErrorInfo | None:
    return ErrorInfo.from_json(json.loads(texts.get(stored, stored))) if stored is not None else None
