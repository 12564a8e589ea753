"""What stands around a question: what its run did before it, has under way besides, and went on with afterwards; and
what followed when the same workflow asked it the last time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from signoff.approvals.eligibility import Question, who_may_answer
from signoff.approvals.inbox import business_key
from signoff.approvals.questions import A
from signoff.approvals.standing import D
from signoff.approvals.words import said
from signoff.engine.outcomes import R, S
from signoff.engine.views import StepView, open_steps_view, steps_following, steps_view
from signoff.people.permissions import require
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound

BEFORE: Final = 30  # steps
BESIDES: Final = 12
AFTER: Final = 5
LOOKED_AT: Final = 50  # answers to questions of the same name, for one whose run is over


@dataclass(frozen=True, slots=True)
class OtherQuestion:
    """Another question of the run that is open."""

    id: str
    title: str
    who: str


@dataclass(frozen=True, slots=True)
class LastTime:
    """The same question in a run that is over. `answered`: in a word or two, where it can be said so."""

    run: str
    business_key: str | None
    answered: str
    at: datetime
    steps: list[StepView]  # that followed, the first ones
    more: bool
    ended: str  # completed, failed, canceled


@dataclass(frozen=True, slots=True)
class Outlook:
    before: list[StepView]
    besides: list[StepView]  # under way, while the question is open
    others: Mapping[int, OtherQuestion]  # by step, of those under way that are questions
    after: list[StepView]  # what followed the answer
    last: LastTime | None  # while the question is open
    run: str  # how its run stands: paused, blocked, completed, failed, canceled; empty: it is under way


def outlook(tx: Tx, scope: Scope, approval: str) -> Outlook:
    """Of an approval by its public id. `NotFound` for an unknown one and for another tenant's."""
    require(scope, "approval.view")
    require(scope, "run.view")
    of_run = (R.c.public_id.label("run"), R.c.definition_id, R.c.requested, R.c.blocked_reason, R.c.result_kind)
    known = sa.select(A, *of_run).join(R, R.c.id == A.c.run_id)
    row = tx.conn.execute(known.where(A.c.tenant_id == scope.tenant_id, A.c.public_id == approval)).one_or_none()
    if row is None:
        raise NotFound(f"There is no approval {approval}", approval=approval)
    no, before = row.step_no, []
    if no:
        before = steps_view(tx, scope, row.run, after=max(no - BEFORE, 0) - 1, limit=min(BEFORE, no))
        before = [step for step in before if step.retired_in is None and step.no < no]
    halted = "blocked" if row.blocked_reason else "paused" if row.requested == "pause" else ""
    run = str(row.result_kind or halted)
    if row.state != "open":
        return Outlook(before, [], {}, steps_following(tx, scope, row.run, no, limit=AFTER), None, run)
    besides = [step for step in open_steps_view(tx, scope, row.run, limit=BESIDES + 1) if step.no != no]
    others = _questions(tx, row.run_id, [step.no for step in besides if step.kind == "ask"])
    return Outlook(before, besides, others, [], _last_time(tx, scope, row), run)


def _questions(tx: Tx, run_id: int, steps: list[int]) -> dict[int, OtherQuestion]:
    if not steps:
        return {}
    found = tx.conn.execute(sa.select(A).where(A.c.run_id == run_id, A.c.step_no.in_(steps)))
    return {
        row.step_no: OtherQuestion(row.public_id, row.title, who_may_answer(Question.of(row).asked)) for row in found
    }


def _last_time(tx: Tx, scope: Scope, row: Any) -> LastTime | None:
    """Of the questions of this name that were answered last, the first whose run is over. A run that asks it again
    and again is told from where it stood most like this one.
    """
    decided = A.c.state == sa.literal_column("'decided'")  # no parameter: only then does SQLite use the partial index
    newest = (
        sa.select(A.c.id, A.c.run_id)
        .where(A.c.tenant_id == scope.tenant_id, A.c.ask == row.ask, decided)
        .order_by(A.c.id.desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    runs = (
        sa.select(R.c.id, R.c.public_id, R.c.result_kind, business_key().label("business_key"))
        .join(newest, newest.c.run_id == R.c.id)
        .where(R.c.definition_id == row.definition_id, R.c.state == "final", R.c.id != row.run_id)
    )
    run = tx.conn.execute(runs.order_by(newest.c.id.desc()).limit(1)).first()
    if run is None:
        return None
    asked = sa.select(A).join(S, sa.and_(S.c.run_id == A.c.run_id, S.c.no == A.c.step_no))
    asked = asked.where(A.c.run_id == run.id, A.c.ask == row.ask, A.c.state == "decided", S.c.retired_in.is_(None))
    former = tx.conn.execute(asked.order_by(sa.func.abs(A.c.step_no - row.step_no), A.c.id).limit(1)).first()
    if former is None:
        return None
    steps = steps_following(tx, scope, run.public_id, former.step_no, limit=AFTER + 1)
    return LastTime(
        run.public_id, run.business_key, _said(tx, former), former.closed_at, steps[:AFTER], len(steps) > AFTER,
        str(run.result_kind),
    )  # fmt: skip


def _said(tx: Tx, former: Any) -> str:
    counts = sa.select(D).where(D.c.approval_id == former.id, D.c.lapsed_at.is_(None))
    last = tx.conn.execute(counts.order_by(D.c.id.desc()).limit(1)).first()
    return said(former, last) if last is not None else ""
