"""An exception of an author's code as the journal keeps it."""

from __future__ import annotations

import json
import traceback
from typing import Any

from signoff.workflow.kinds import ErrorInfo

MAX_TRACEBACK = 8000  # characters, the last ones
MAX_FRAMES = 20  # the innermost ones of each exception


def error_info(error: BaseException, *, step_no: int | None = None) -> ErrorInfo:
    """Type, message, `.data` if it is JSON, and the traceback. Whatever the exception's own methods raise is told."""
    data = None
    try:
        message = str(error)
        data = getattr(error, "data", None)
    except Exception as broken:  # noqa: BLE001  # an author's __str__
        message = f"(no message: {type(broken).__name__})"
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_FRAMES)
    except Exception as broken:  # noqa: BLE001  # an author's __str__ or __repr__ again
        lines = [f"(no traceback: {type(broken).__name__})"]
    trace = "".join(lines)[-MAX_TRACEBACK:]
    return ErrorInfo(type(error).__name__, message, data if is_plain_json(data) else None, trace, step_no)


def is_plain_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
