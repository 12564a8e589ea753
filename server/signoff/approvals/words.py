"""What somebody decided, in a word or two."""

from __future__ import annotations

import json
from typing import Any

_YES_NO = {True: "Yes", False: "No"}
_APPROVING = {True: "Approve", False: "Reject"}  # as the buttons of the page say it


def said(approval: Any, decision: Any) -> str:
    """Of an approval's row and one of its decisions: the label of the option, else yes or no; empty where neither
    tells. What is sensitive is told by nothing but its option.
    """
    if decision.option is not None:
        options = json.loads(approval.options or "[]")
        label = next((raw["label"] for raw in options if raw["name"] == decision.option), decision.option)
        return str(label)
    return "" if approval.sensitive else yes_or_no(json.loads(decision.answer))


def yes_or_no(answer: Any) -> str:
    """Of an answer that is a bool, or has one that says whether it approves."""
    words, told = (_APPROVING, answer.get("approved")) if isinstance(answer, dict) else (_YES_NO, answer)
    return words[told] if isinstance(told, bool) else ""
