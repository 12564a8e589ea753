"""What happens when an ask step opens or closes.

The engine knows of approvals only that an ask step carries a question; the approvals floor registers its handler here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from signoff.replay.messages import AskDetail
from signoff.store.tx import Tx


class QuestionHandler(Protocol):
    def open(self, tx: Tx, run: Any, step_no: int, detail: AskDetail, at: datetime) -> str | None:
        """Writes what people need to answer. `run` is the run's row. Must not fail for one run's sake.

        Returns the step's value (JSON text) when an answer of an earlier round is kept; None: it waits for people.
        """
        ...

    def close(self, tx: Tx, run_id: int, step_nos: Sequence[int], reason: str, at: datetime) -> None:
        """Closes open questions: `reason` is `expired`, `canceled`, `retired` or `run_over`."""
        ...


_handler: QuestionHandler | None = None


def register(handler: QuestionHandler) -> None:
    """Called once, when the approvals floor is imported."""
    global _handler
    _handler = handler


def open_question(tx: Tx, run: Any, step_no: int, detail: AskDetail, at: datetime) -> str | None:
    return None if _handler is None else _handler.open(tx, run, step_no, detail, at)


def close_questions(tx: Tx, run_id: int, step_nos: Sequence[int], reason: str, at: datetime) -> None:
    if _handler is not None and step_nos:
        _handler.close(tx, run_id, step_nos, reason, at)
