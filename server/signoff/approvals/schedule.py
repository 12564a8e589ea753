"""When a question next needs the clerk: its reminders and its escalation, as plain arithmetic."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any


def next_moment(row: Any) -> datetime | None:
    """The next reminder or escalation of an approval's row (or of anything with its columns); None: no more."""
    moments = [moment for moment in (next_reminder(row), escalation(row)) if moment is not None]
    return min(moments, default=None)


def next_reminder(row: Any) -> datetime | None:
    """`reminders` are seconds after asking, ascending; `reminded` of them have been given."""
    waiting = json.loads(row.reminders)[row.reminded :] if row.reminders else []
    return row.created_at + timedelta(seconds=waiting[0]) if waiting else None


def escalation(row: Any) -> datetime | None:
    """When others are asked too, if that is still to come."""
    moment: datetime | None = row.escalate_at
    return moment if row.escalate_to and row.escalated_at is None else None
