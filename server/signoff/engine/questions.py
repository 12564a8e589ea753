"""What happens when an ask step opens or closes.

The engine knows of approvals only that an ask step carries a question; the approvals floor registers its handler here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa

from signoff.replay.messages import AskDetail
from signoff.store.tables import Run, Step
from signoff.store.tx import Tx
from signoff.workflow.kinds import RunState

R = Run.__table__
S = Step.__table__


class QuestionHandler(Protocol):
    def open(self, tx: Tx, run: Any, step_no: int, detail: AskDetail, at: datetime) -> str | None:
        """Writes what people need to answer. `run` is the run's row. Must not fail for one run's sake.

        Returns the step's value (JSON text) when an answer of an earlier round is kept; None: it waits for people.
        """
        ...

    def close(self, tx: Tx, run_id: int, step_nos: Sequence[int], reason: str, at: datetime) -> None:
        """Closes open questions: `reason` is `expired`, `canceled`, `retired` or `run_over`."""
        ...

    def former(self, tx: Tx, run: Any, step_nos: Collection[int]) -> list[tuple[int, int]]:
        """What people answered in these steps of the run, and in rounds before without that it was asked since.

        Pairs of the approval's row id and the step's number, in the order in which a new round may ask for them.
        """
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


def former_answers(tx: Tx, run: Any, step_nos: Collection[int]) -> list[tuple[int, int]]:
    return [] if _handler is None else _handler.former(tx, run, step_nos)


def move_deadline(tx: Tx, run: Any, step_no: int, due_at: datetime) -> None:
    """Gives an open ask step of the locked `run` another deadline, wherever the run is held.

    The epoch rises, so that a worker that has the old deadline in memory loads the run again before it writes anything.
    """
    open_steps = sa.and_(S.c.run_id == run.id, S.c.outcome_no.is_(None), S.c.retired_in.is_(None))
    tx.conn.execute(sa.update(S).where(open_steps, S.c.no == step_no).values(due_at=due_at))
    earliest = sa.select(sa.func.min(S.c.due_at)).where(open_steps).scalar_subquery()
    held = sa.and_(R.c.worker_id.is_not(None), R.c.state == RunState.ACTIVE.value)
    tx.conn.execute(
        sa.update(R)
        .where(R.c.id == run.id)
        .values(
            wake_at=earliest, epoch=R.c.epoch + 1, touch_no=R.c.touch_no + 1, ready=sa.case((held, 0), else_=R.c.ready)
        )
    )
    tx.notify("run", run.id)
    tx.notify("ready")
