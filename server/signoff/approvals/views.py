"""What pages and API see of approvals: projections for one person, never rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from signoff.approvals.abilities import Doing, Looking, Why
from signoff.approvals.body import render_body
from signoff.approvals.eligibility import selectors, who_may_answer
from signoff.approvals.inbox import DEF, business_key, names_of
from signoff.approvals.kept import Former, formers_of
from signoff.approvals.notes import NoteView, notes_of, threads_of
from signoff.approvals.questions import REASONS, A
from signoff.approvals.rules import Part
from signoff.approvals.standing import D, stands
from signoff.engine.lookup import find_run
from signoff.engine.outcomes import R, Row
from signoff.people.canonical import nameable
from signoff.people.chain import LEDGER
from signoff.people.permissions import require
from signoff.people.users import U
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound
from signoff.workflow.selectors import Selector

NOTES: Final = 50  # entries of a thread that are shown at once


@dataclass(frozen=True, slots=True)
class OptionView:
    """An outcome in the author's words. `schema` is its own form, `value` its answer where it has none."""

    name: str
    label: str
    consequence: str = ""
    rejects: bool = False
    reason: bool = False  # a comment must say why
    style: str | None = None  # primary, danger
    schema: dict[str, Any] | None = None
    has_value: bool = False
    value: Any = None


@dataclass(frozen=True, slots=True)
class DecisionView:
    """An answer. `answer` is as it was given, with secrets redacted; `ledger_id` is the number on the receipt."""

    person: str
    name: str
    at: datetime
    via: str
    answer: Any
    comment: str | None
    revision: int
    ledger_id: int
    option: str | None = None
    rejects: bool = False
    on_behalf_of: str | None = None
    lapsed: bool = False  # the question changed afterwards


@dataclass(frozen=True, slots=True)
class ProgressView:
    """How far the rule has come. `waits_for`: whose decisions are missing, in words; `parts`: how many of whom."""

    have: int
    need: int
    text: str  # "1 of 2"
    waits_for: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class ChangedView:
    """What the question was when the person decided; None where it is still the same."""

    at: datetime
    decision: DecisionView
    title: str | None
    body: str | None  # markdown
    facts: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class FormerView:
    """Decisions of an earlier round. `kept`: they hold for this question too; `same`: it was word for word this one."""

    decisions: list[DecisionView]
    kept: bool
    same: bool
    title: str


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A question with all that a person needs to answer it."""

    id: str
    run: str
    workflow: str
    business_key: str | None
    step_no: int
    ask: str
    title: str
    body_html: str  # sanitised
    facts: dict[str, Any]
    schema: dict[str, Any]
    options: list[OptionView]
    sensitive: bool
    to: list[dict[str, str]]
    who: str  # "anyone in finance or ana@example.org"
    named: list[tuple[str, str]]  # whom it is put to, one by one: `group:finance`, and in words
    kept_from: str  # whom it is kept from, in words; empty: nobody
    not_requester: bool
    requester: str | None
    requester_name: str | None
    state: str  # open, decided, expired, closed
    created_at: datetime
    due_at: datetime | None
    timeout_at: datetime | None
    closed_at: datetime | None
    closed_because: str | None
    on_timeout: str | None  # default, raise, cancel_run
    fallback: Any  # the answer that is taken when the time is over
    reminders: list[datetime]  # still to come
    escalate_at: datetime | None  # still to come
    extend: float | None  # seconds of the one-click extension
    claim: str  # none, optional, required
    claimed_by: str | None
    claimed_name: str | None
    claimed_at: datetime | None
    stuck: str | None  # nobody, only_requester, too_few
    revision: int
    content_hash: str
    decisions: list[DecisionView]  # in the order in which they were given
    progress: ProgressView
    escalate_to: str  # who is asked besides when it is escalated, in words; empty: nobody
    notes: list[NoteView]  # comments and changes, oldest first
    more_notes: bool  # there are older ones
    can: dict[Doing, Why | None]  # what the person who looks may do, and else why not
    changed: ChangedView | None  # what changed since the person decided
    former: FormerView | None  # what was answered in an earlier round of the run

    @property
    def why_not(self) -> Why | None:
        """Why the person may not answer."""
        return self.can["decide"]

    @property
    def decision(self) -> DecisionView | None:
        """The last decision that counts."""
        return next((one for one in reversed(self.decisions) if not one.lapsed), None)


def approval_view(tx: Tx, scope: Scope, approval: str, *, whole_thread: bool = True) -> ApprovalView:
    """One approval by its public id; without `whole_thread` with the newest `NOTES` entries of its thread. `NotFound`
    for an unknown one and for another tenant's.
    """
    require(scope, "approval.view")
    which = sa.and_(A.c.tenant_id == scope.tenant_id, A.c.public_id == approval)
    found = _select(tx, which) if nameable(approval) else []
    if not found:
        raise NotFound(f"There is no approval {approval}", approval=approval)
    run = tx.conn.execute(sa.select(R).where(R.c.id == found[0].run_id)).one()
    return _views(tx, scope, run, found, which, None if whole_thread else NOTES)[0]


def approvals_of_run(tx: Tx, scope: Scope, run: str) -> list[ApprovalView]:
    """All approvals of a run (a public id) in the order in which they were asked for. So many questions cost no more
    queries than one.
    """
    require(scope, "approval.view")
    row = find_run(tx, scope, run)
    which = sa.and_(A.c.tenant_id == scope.tenant_id, A.c.run_id == row.id)
    return _views(tx, scope, row, _select(tx, which), which)


def _select(tx: Tx, which: sa.ColumnElement[bool]) -> list[Row]:
    query = (
        sa.select(A, R.c.public_id.label("run"), DEF.c.name.label("workflow"), business_key().label("business_key"))
        .join(R, R.c.id == A.c.run_id)
        .join(DEF, DEF.c.id == R.c.definition_id)
        .where(which)
        .order_by(A.c.id)
    )
    return list(tx.conn.execute(query))


def _views(
    tx: Tx, scope: Scope, run: Row, rows: Sequence[Row], which: sa.ColumnElement[bool], notes: int | None = None
) -> list[ApprovalView]:
    """Of questions of one run, which are all that `which` finds. `notes`: of one question, how many entries of its
    thread at most.
    """
    if not rows:
        return []
    look = Looking.at(tx, scope, run)
    names = names_of(tx, [actor for row in rows for actor in (row.requester, row.claimed_by)])
    decisions = _decisions(tx, which)
    threads = threads_of(tx, which, None if notes is None else notes + 1)
    formers = formers_of(tx, scope.tenant_id, which) if run.generation > 1 else {}
    asked_again = [one.row.id for one in formers.values() if not one.kept]
    before = _decisions(tx, A.c.id.in_(asked_again)) if asked_again else {}
    views = []
    for row in rows:
        given, thread, former = decisions.get(row.id, []), threads.get(row.id, []), formers.get(row.id)
        counted = before.get(former.row.id, []) if former is not None and not former.kept else given
        views.append(
            _view(
                look,
                row,
                names,
                given,
                thread if notes is None else thread[-notes:],
                more=notes is not None and len(thread) > notes,
                changed=_changed(tx, scope.actor, row, given, thread, whole=notes is None),
                former=_former(former, counted),
            )
        )
    return views


def _view(
    look: Looking,
    row: Row,
    names: Mapping[str, str],
    given: Sequence[_Given],
    notes: list[NoteView],
    *,
    more: bool,
    changed: ChangedView | None,
    former: FormerView | None,
) -> ApprovalView:
    late = row.state == "open" and row.timeout_at is not None and row.timeout_at <= look.tx.now
    state = "expired" if late else row.state
    reminders = json.loads(row.reminders) if row.reminders else []
    standing = stands(row, [one.row for one in given if not one.view.lapsed])
    now = standing.progress
    return ApprovalView(
        id=row.public_id,
        run=row.run,
        workflow=row.workflow,
        business_key=row.business_key,
        step_no=row.step_no,
        ask=row.ask,
        title=row.title,
        body_html=render_body(row.body),
        facts=json.loads(row.facts),
        schema=json.loads(row.schema),
        options=[_option(raw) for raw in json.loads(row.options or "[]")],
        sensitive=row.sensitive,
        to=json.loads(row.to),
        who=who_may_answer(standing.question.asked),
        named=[_named(selector) for selector in standing.question.asked],
        kept_from=who_may_answer(standing.question.exclude) if standing.question.exclude else "",
        not_requester=row.not_requester,
        requester=row.requester,
        requester_name=names.get(row.requester, row.requester),
        state=state,
        created_at=row.created_at,
        due_at=row.due_at,
        timeout_at=row.timeout_at,
        closed_at=row.timeout_at if late else row.closed_at,
        closed_because=REASONS.get("expired" if late else row.closed_reason or ""),
        on_timeout=row.on_timeout,
        fallback=json.loads(row.fallback) if row.fallback else None,
        reminders=[row.created_at + timedelta(seconds=after) for after in reminders[row.reminded :]],
        escalate_at=row.escalate_at if row.escalated_at is None and row.escalate_to else None,
        extend=row.extend,
        claim=row.claim,
        claimed_by=row.claimed_by,
        claimed_name=names.get(row.claimed_by, row.claimed_by),
        claimed_at=row.claimed_at,
        stuck=row.stuck if state == "open" else None,
        revision=row.revision,
        content_hash=row.content_hash,
        decisions=[one.view for one in given],
        progress=ProgressView(now.have, now.need, now.text, now.waits_for, now.parts),
        escalate_to=who_may_answer(selectors(row.escalate_to)) if row.escalate_to else "",
        notes=notes,
        more_notes=more,
        can=look.abilities(row, standing),
        changed=changed,
        former=former,
    )


def _named(selector: Selector) -> tuple[str, str]:
    ((kind, name),) = selector.to_json().items()
    return f"{kind}:{name}", who_may_answer([selector])


def _option(raw: dict[str, Any]) -> OptionView:
    return OptionView(
        raw["name"], raw["label"], raw.get("consequence", ""), raw.get("rejects", False), raw.get("reason", False),
        raw.get("style"), raw.get("schema"), "value" in raw, raw.get("value"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Given:
    """A decision: as it is shown, and as the rule counts it."""

    view: DecisionView
    row: Row


def _decisions(tx: Tx, which: sa.ColumnElement[bool]) -> dict[int, list[_Given]]:
    """The decisions on approvals, by row id, in the order in which they were given."""
    query = (
        sa.select(D, U.c.name, LEDGER.c.content)
        .join(A, A.c.id == D.c.approval_id)
        .join(LEDGER, LEDGER.c.id == D.c.ledger_id)
        .outerjoin(U, U.c.email == D.c.person)
        .where(which)
        .order_by(D.c.id)
    )
    found: dict[int, list[_Given]] = {}
    for row in tx.conn.execute(query):
        # The ledger has the answer as it was given and without its secrets; the decision has it as the run gets it.
        view = DecisionView(
            row.person, row.name or row.person, row.at, row.via, json.loads(row.content).get("answer"), row.comment,
            row.revision, row.ledger_id, row.option, row.rejects, row.on_behalf_of, row.lapsed_at is not None,
        )  # fmt: skip
        found.setdefault(row.approval_id, []).append(_Given(view, row))
    return found


def _changed(
    tx: Tx, actor: str, row: Row, given: Sequence[_Given], thread: list[NoteView], *, whole: bool
) -> ChangedView | None:
    mine = [one.view for one in given if one.view.person == actor]
    if not mine or not mine[-1].lapsed:
        return None
    # The first change after the decision holds what the person had before them.
    notes = thread if whole else notes_of(tx, row.id, ("change",))
    note = next((item for item in notes if item.kind == "change" and item.at >= mine[-1].at), None)
    if note is None:
        return None
    was = {key: note.data[key] for key in ("title", "body", "facts") if key in note.data}
    return ChangedView(note.at, mine[-1], was.get("title"), was.get("body"), was.get("facts"))


def _former(found: Former | None, given: Sequence[_Given]) -> FormerView | None:
    """`given`: the decisions that it tells of, whose own they are where they were kept."""
    if found is None:
        return None
    told = [one.view for one in given if found.kept or not one.view.lapsed]
    return FormerView(told, found.kept, found.same, found.row.title) if told else None
