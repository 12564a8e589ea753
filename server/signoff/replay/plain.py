"""Values for people to read, as plain JSON."""

from __future__ import annotations

from typing import Any

import pydantic_core

from signoff.workflow.errors import InvalidInput


def as_plain(value: Any, what: str) -> Any:
    """For people to read: Decimal, dates, models and the like become JSON."""
    try:
        return pydantic_core.to_jsonable_python(_ordered(value), inf_nan_mode="strings", bytes_mode="base64")
    except (pydantic_core.PydanticSerializationError, ValueError) as error:
        raise InvalidInput(f"{what} holds something that cannot be shown: {error}") from error


def _ordered(value: Any) -> Any:
    """Sets as sorted lists: their own order differs from process to process."""
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_ordered(item) for item in value), key=repr)
    return value
