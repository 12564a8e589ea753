"""A date and a time with the zone they are meant in. Nothing is converted: what was typed travels with its offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_OFFSET: Final = re.compile(r"(Z|[+-]\d{2}:?\d{2})$", re.IGNORECASE)
_TYPED: Final = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?")


class NotAMoment(ValueError):
    """Says what is wrong, for the person who typed it."""


def split_moment(text: str) -> tuple[str, str]:
    """(what a clock on the wall shows, the zone) of a moment from JSON."""
    found = _OFFSET.search(text)
    if found is None or "T" not in text.upper().replace(" ", "T"):
        return text, ""
    offset = found[1].upper()
    return text[: found.start()], "UTC" if offset in ("Z", "+00:00", "+0000") else offset


def join_moment(text: str, zone: str, *, asked: str) -> str:
    """The moment as JSON has it. `asked`: `any`, `aware` or nothing, how far a zone belongs to it."""
    text = text.strip().replace(" ", "T", 1)
    if not asked or _OFFSET.search(text[11:]):
        return text
    if not zone.strip():
        if asked == "aware":
            raise NotAMoment("Say in which time zone, like UTC, +02:00 or Europe/Vienna.")
        return text
    if not _MOMENT.fullmatch(text):
        raise NotAMoment("Enter a date and a time.")
    return text + _offset(text, zone.strip())


def _offset(text: str, zone: str) -> str:
    if zone.upper() in ("UTC", "Z", "GMT"):
        return "Z"
    if found := _TYPED.fullmatch(zone):
        return f"{found[1]}{int(found[2]):02d}:{found[3] or '00'}"
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
        offset = moment.utcoffset()
        back = moment.astimezone(UTC).astimezone(moment.tzinfo)
    except (ZoneInfoNotFoundError, ValueError, OSError, OverflowError) as error:
        if (
            isinstance(error, ValueError)
            and not isinstance(error, ZoneInfoNotFoundError)
            and "zone" not in str(error).lower()
        ):
            raise NotAMoment("Enter a date and a time.") from error
        raise NotAMoment("Name the time zone like UTC, +02:00 or Europe/Vienna.") from error
    if back.replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise NotAMoment(f"This time does not exist in {zone}: the clocks go forward then.")
    total = int(offset.total_seconds()) if offset is not None else 0
    if total % 60:
        raise NotAMoment(f"{zone} had an offset with seconds then; write the offset or take UTC.")
    hours, minutes = divmod(abs(total) // 60, 60)
    return f"{'-' if total < 0 else '+'}{hours:02d}:{minutes:02d}"
