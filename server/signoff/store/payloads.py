"""Values too large for a journal row stand in a table of their own, and the row holds `@` and the payload's id."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from signoff.store.tables import Base
from signoff.store.tx import Tx

INLINE_LIMIT = 8192  # bytes of UTF-8

_TABLE = Base.metadata.tables["signoff_payload"]


def is_inline(text: str) -> bool:
    # four bytes are the most that a character takes, so most texts need no encoding to know
    return len(text) * 4 <= INLINE_LIMIT or len(text.encode()) <= INLINE_LIMIT


def put(tx: Tx, run_id: int | None, text: str) -> str:
    """What a column is to hold for this JSON text: the text, or `@` and the id of the payload written here."""
    if is_inline(text):
        return text
    key = secrets.token_urlsafe(15)
    tx.dialect.insert_rows(tx, _TABLE, ("id", "run_id", "data"), [(key, run_id, text)])
    return f"@{key}"


def get(tx: Tx, stored: str) -> str:
    """The JSON text of what a column holds. Raises LookupError when its payload is gone."""
    text = get_many(tx, [stored])[0]
    assert text is not None
    return text


def get_many(tx: Tx, stored: Iterable[str | None]) -> list[str | None]:
    """The same for many, in their order, with one query; None stays None."""
    columns = list(stored)
    keys = {text[1:] for text in columns if text is not None and text.startswith("@")}
    if not keys:
        return columns
    found: dict[str, str] = dict(tx.dialect.fetch_rows(tx, _TABLE, ("id", "data"), "id", sorted(keys)))
    if missing := keys - found.keys():
        raise LookupError(f"payload {min(missing)} is gone")
    return [found[text[1:]] if text is not None and text.startswith("@") else text for text in columns]
