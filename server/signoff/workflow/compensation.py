"""What a compensation is told of the step that it undoes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Compensation:
    """The one argument of a function named by `compensate=`.

    `args` are the step's arguments by name and `result` its result, both as plain JSON values; `result` is None unless
    `outcome` is `success`. `unknown`: the step was started, but what came of it is not known.
    """

    args: dict[str, Any] = field(default_factory=dict)
    outcome: Literal["success", "failure", "timeout", "unknown"] = "unknown"
    result: Any = None
    cause: dict[str, Any] = field(default_factory=dict)  # {"kind": "failed" | "canceled", "type": ..., "message": ...}
