"""Amounts that callers give, checked once, in one unit, and the sizes that limits count."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from signoff.workflow.errors import InvalidInput

MAX_SECONDS = 100 * 365.25 * 86400.0  # a longer wait cannot be stored as a date
MAX_WHOLE = 2**31 - 1  # columns have 32 bits

Seconds = float | timedelta


def as_seconds(value: Any, what: str, *, minimum: float = 0.0) -> float:
    """Seconds of a number or timedelta; InvalidInput for NaN, infinity, less than `minimum`, or over 100 years."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{what} takes seconds or a timedelta, not {type(value).__name__}")
    # math.isfinite refuses ints beyond the range of floats
    if value != value or not minimum <= value <= MAX_SECONDS or not math.isfinite(value):
        least = "finite, at most" if minimum == -math.inf else f"between {minimum:g} seconds and"
        raise InvalidInput(f"{what} must be {least} 100 years, not {value}")
    return float(value)


def size_of(text: str | None) -> int:
    """Bytes of a text as it is stored, UTF-8; limits count them."""
    return 0 if text is None else len(text) if text.isascii() else len(text.encode())


def as_whole(value: Any, what: str, *, minimum: int = 1, maximum: int = MAX_WHOLE) -> int:
    """A whole number from `minimum` to `maximum`; InvalidInput for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidInput(f"{what} takes a whole number from {minimum} to {maximum}, not {value!r}")
    return value
