"""What the engine calls when an ask step opens or closes: writes and closes approvals in the same transaction."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import sqlalchemy as sa

from signoff.approvals import kept, ledger
from signoff.approvals.eligibility import Question, freeze
from signoff.approvals.json_schema import has_secrets
from signoff.approvals.stuck import at_creation
from signoff.people.canonical import canonical, content_hash, storable
from signoff.people.users import people
from signoff.replay.messages import AskDetail
from signoff.store.tables import Approval, Run
from signoff.store.tx import Tx

A = Approval.__table__
R = Run.__table__

# What a decider is told when a question is closed under them.
REASONS: Final = {
    "expired": "its deadline passed",
    "canceled": "the run stopped waiting for it",
    "retired": "the run was restarted from before it",
    "run_over": "the run is over",
}


class ApprovalQuestions:
    """The engine's `QuestionHandler`."""

    def open(self, tx: Tx, run: Any, step_no: int, detail: AskDetail, at: datetime) -> str | None:
        """Write the approval of an ask step. A key that the question does not have takes its plain default."""
        question = detail.question
        to = question.get("to") or []
        facts, schema = question.get("facts") or {}, question.get("schema") or {}
        title, body = storable(str(question.get("title") or detail.ask)), storable(question.get("body") or "") or None
        rule, options = question.get("rule"), question.get("options")
        row = {
            "tenant_id": run.tenant_id,
            "public_id": f"ap_{secrets.token_hex(8)}",
            "run_id": run.id,
            "step_no": step_no,
            "ask": detail.ask,
            "state": "open",
            "title": title,
            "body": body,
            "facts": json.dumps(facts),
            "schema": json.dumps(schema),
            "to": canonical(to if isinstance(to, list) else [to]),
            "rule": None if rule is None else canonical(rule),
            "options": None if options is None else json.dumps(options),
            "exclude": canonical(question["exclude"]) if question.get("exclude") else None,
            "not_requester": bool(question.get("not_requester")),
            "claim": question.get("claim") or "optional",
            "changes": None,
            "frozen": None,
            "revision": 1,
            "content_hash": question_hash(detail.ask, title, body, facts, schema, options, rule),
            "requester": run.requester,
            "created_at": at,
            "sensitive": bool(question.get("sensitive")),
            **_times(question, detail.timeout, at),
        }
        if question.get("members") == "as_asked":
            row["frozen"] = freeze(Question.of(SimpleNamespace(**row)), people(tx, run.tenant_id))
        former = kept.find(tx, run, row) if run.generation > 1 else None
        answered = former is not None and former.kept and former.complete
        if not answered:
            row["stuck"] = at_creation(tx, SimpleNamespace(**row))
        if former is not None:
            row |= kept.columns(former, at)
        insert = sa.insert(A).values(row)
        if former is None:
            tx.conn.execute(insert)
        else:
            kept.record(tx, run, tx.conn.execute(insert.returning(A)).one(), former)
        tx.notify("approvals", run.tenant_id)
        if row["next_at"] is not None:
            tx.notify("clerk")
        return former.row.answer if former is not None and answered else None

    def former(self, tx: Tx, run: Any, step_nos: Collection[int]) -> list[tuple[int, int]]:
        """The answered questions behind the cut of a restart or fork."""
        return kept.behind(tx, run, step_nos)

    def close(self, tx: Tx, run_id: int, step_nos: Sequence[int], reason: str, at: datetime) -> None:
        """Close what is still open of these steps' approvals, each with its row in the ledger."""
        state = "expired" if reason == "expired" else "closed"
        closed = tx.conn.execute(
            sa.update(A)
            .where(A.c.run_id == run_id, A.c.step_no.in_(step_nos), A.c.state == "open")
            .values(state=state, closed_at=at, closed_reason=reason)
            .returning(A.c.tenant_id, A.c.public_id, A.c.ask, A.c.title, A.c.content_hash)
        ).all()
        if not closed:
            return
        run = tx.conn.execute(sa.select(R.c.public_id).where(R.c.id == run_id)).scalar_one()
        for approval in closed:
            content = {"ask": approval.ask, "title": approval.title, "shown": approval.content_hash, "reason": reason}
            ids = {"tenant_id": approval.tenant_id, "run": run, "approval": approval.public_id}
            ledger.append(tx, kind=state, content=content, **ids)
        tx.notify("approvals", closed[0].tenant_id)


def question_hash(
    ask: str, title: str, body: str | None, facts: Any, schema: Any, options: Any = None, rule: Any = None
) -> str:
    """SHA-256 of exactly what is shown: what a decision is bound to, and what tells whether a question is the same."""
    shown = {"ask": ask, "title": title, "body": body, "facts": facts, "schema": schema}
    more = {"options": options, "rule": rule}
    return content_hash(shown | {key: value for key, value in more.items() if value is not None})


def _times(question: dict[str, Any], timeout: float | None, at: datetime) -> dict[str, Any]:
    """The columns of what time does to a question."""

    def after(seconds: float | None) -> datetime | None:
        return None if seconds is None else at + timedelta(seconds=seconds)

    secret = question.get("sensitive") or has_secrets(question.get("schema") or {})
    reminders, default = question.get("remind") or [], question.get("default")
    escalate_at = after(question.get("escalate_after"))
    next_at = min((moment for moment in (after(next(iter(reminders), None)), escalate_at) if moment), default=None)
    return {
        "due_at": after(question.get("due")),
        "timeout_at": after(timeout),
        "reminders": json.dumps(reminders) if reminders else None,
        "escalate_to": canonical(question["escalate_to"]) if question.get("escalate_to") else None,
        "escalate_at": escalate_at,
        "next_at": next_at,
        "extend": question.get("extend"),
        "on_timeout": None if timeout is None else "default" if default is not None else question.get("on_timeout"),
        # For people to see; the handler has its own. Nobody sees that of a sensitive question, nor one with secrets.
        "fallback": None if secret else default,
    }
