"""Durations as people write them, and as JSON has them; no microsecond is lost on the way."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

_SPAN: Final = TypeAdapter(timedelta)
_UNITS: Final = {
    "weeks": 604_800_000_000, "week": 604_800_000_000, "w": 604_800_000_000,
    "days": 86_400_000_000, "day": 86_400_000_000, "d": 86_400_000_000,
    "hours": 3_600_000_000, "hour": 3_600_000_000, "hrs": 3_600_000_000, "hr": 3_600_000_000, "h": 3_600_000_000,
    "minutes": 60_000_000, "minute": 60_000_000, "mins": 60_000_000, "min": 60_000_000, "m": 60_000_000,
    "seconds": 1_000_000, "second": 1_000_000, "secs": 1_000_000, "sec": 1_000_000, "s": 1_000_000,
    "ms": 1_000, "us": 1, "µs": 1,
}  # fmt: skip
_TOKEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]+)", re.IGNORECASE)
_SAID: Final = (
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "min"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
)


def read_span(text: str) -> str | None:
    """ISO 8601 of `2 h 30 min`, `1 day, 4 hours`, `02:30:00` or `P1DT2H`; None when it is none of them."""
    text = text.strip()
    sign, rest = ("-", text[1:].strip()) if text.startswith("-") else ("", text)
    cleaned = re.sub(r",|\band\b", " ", rest)
    tokens = _TOKEN.findall(cleaned)
    if tokens and not _TOKEN.sub("", cleaned).strip():
        total = 0
        for number, unit in tokens:
            if (size := _UNITS.get(unit if unit in _UNITS else unit.lower())) is None:
                return None
            whole, _, part = number.partition(".")
            exact = int(whole) * size
            if part:
                piece, left = divmod(int(part) * size, 10 ** len(part))
                if left:
                    return None  # a fraction of a microsecond
                exact += piece
            total += exact
        try:
            return _iso(timedelta(microseconds=-total if sign else total))
        except OverflowError:
            return None
    try:
        return _iso(_SPAN.validate_strings(text))
    except ValidationError:
        return None


def say_span(text: object) -> str:
    """A duration from JSON in words that `read_span` takes back; what is none stays as it is."""
    try:
        span = _SPAN.validate_python(text)
    except ValidationError:
        return str(text)
    rest = span // timedelta(microseconds=1)
    parts = []
    sign, rest = ("-" if rest < 0 else ""), abs(rest)
    for size, unit in _SAID:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return f"{sign}{' '.join(parts) or '0 s'}"


def _iso(span: timedelta) -> str:
    total = span // timedelta(microseconds=1)
    sign, total = ("-" if total < 0 else ""), abs(total)
    days, rest = divmod(total, 86_400_000_000)
    seconds, micros = divmod(rest, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{micros:06d}" if micros else ""
    return f"{sign}P{days}DT{hours}H{minutes}M{seconds}{fraction}S"
