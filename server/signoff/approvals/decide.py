"""The one gate. Every answer to a question, from whatever door, goes through `decide`, and nothing else answers an ask.

The checks come in a fixed order and each refuses with its own reason:

1. `wrong_tenant` (outward: not found)   2. `not_member`, `role`   3. `not_eligible`, `excluded`, `own_request`
4. `closed`   5. `deadline`   6. `revision`   7. `already_decided`   8. `voted`, and `not_eligible` for those whose turn
is over or has not come   9. `claim`   10. `form`

What is checked, and what is written, is one transaction that holds the locks of the run and the approval: of two people
at once exactly one is told yes, where one place is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

import sqlalchemy as sa

from signoff.approvals import ledger, stuck
from signoff.approvals.claims import still_counts
from signoff.approvals.doors import check_open, lock_approval, person_now, record_refusal, through
from signoff.approvals.drafts import approval_key, drop_draft
from signoff.approvals.eligibility import Authority, Find, Question, names_user
from signoff.approvals.forms import Checked, check_answer, find_option, form_of
from signoff.approvals.questions import REASONS, A
from signoff.approvals.rules import progress
from signoff.approvals.standing import D as D
from signoff.approvals.standing import Standing, finder, require_asked, require_seat, standing_of, vote_of
from signoff.engine.lookup import find_run
from signoff.engine.outcomes import Row, S, record_outcome
from signoff.people.audit import audit
from signoff.people.canonical import content_hash, storable
from signoff.people.permissions import require
from signoff.people.users import clean_email, exists, find_person
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.codec import dump
from signoff.workflow.errors import FieldError, NotFound, Refused
from signoff.workflow.kinds import OutcomeKind, RunState
from signoff.workflow.registry import Registry
from signoff.workflow.rules import several

MAX_COMMENT: Final = 10_000  # characters
WAIT: Final = 10.0  # seconds that embedded code waits for the run to ask


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a person gets for an answer that was taken."""

    decision_id: int
    ledger_id: int
    approval: str
    run: str
    person: str
    at: datetime
    content_hash: str  # of what was shown and what was answered
    effect: str
    complete: bool = True  # False: others must decide too
    progress: str = "1 of 1"


def decide(
    tx: Tx,
    scope: Scope,
    approval: str,
    answer: Any,
    *,
    revision: int | None,
    via: str,
    option: str | None = None,
    comment: str | None = None,
    registry: Registry | None = None,
) -> Receipt:
    """Answer an approval (a public id) in the name of the scope's person.

    `answer` is a plain JSON value; the embedded call may give one of the ask's own type. `option` names the one that
    was chosen, where the question has options. `revision` is the one that the person saw; None where nothing was shown
    (the embedded call). `via`: page, api, cli, link, embedded. Raises `NotFound` or `Refused`, whose `reason` is one of
    the words above; with `form` the `fields` say what does not fit. A refusal undoes everything: its audit is the
    business of `decide_through`.
    """
    run, row = lock_approval(tx, scope, approval)
    seat = admit(tx, scope, run, row, revision)
    said = _said(comment)
    chosen = find_option(row.options, option)
    wanting = [FieldError(("comment",), "must say why")] if chosen and chosen["reason"] and said is None else []
    try:
        checked = check_answer(
            row.ask, json.loads(row.schema), answer, registry, typed=via == "embedded", option=chosen
        )
    except Refused as refusal:
        refusal.fields += wanting
        raise
    if wanting:
        raise Refused("form", "Say why", wanting, approval=approval)
    return _record(tx, run, row, seat, checked, chosen, said, via)


@dataclass(frozen=True, slots=True)
class Seat:
    """Somebody who may decide, and by what right."""

    person: Person
    authority: Authority
    standing: Standing


def admit(tx: Tx, scope: Scope, run: Row, approval: Row, revision: int | None = None) -> Seat:
    """Every rule but the form's: raises `Refused`, or returns the person as they are now, and all that was found."""
    person, standing = person_now(tx, scope), standing_of(tx, approval)
    authority = check(tx, person, run, approval, standing, finder(tx, approval.tenant_id), revision)
    return Seat(person, authority, standing)


def check(
    tx: Tx, person: Person, run: Row, approval: Row, standing: Standing, find: Find, revision: int | None = None,
    canceled: Collection[int] | None = None,
) -> Authority:  # fmt: skip
    """The rules that `admit` asks, of a person as they are now; pages ask them too. `canceled`: see `check_open`."""
    require(Scope(approval.tenant_id, person), "approval.decide")
    context = {"approval": approval.public_id}
    require_asked(standing, person, find, approval)
    check_open(tx, run, approval, canceled)
    if revision is not None and revision != approval.revision:
        raise Refused("revision", "The question changed after you opened it; look at it again", **context)
    if approval.state == "decided":
        message = f"{approval.decided_by} answered this question at {approval.closed_at:%Y-%m-%d %H:%M} UTC"
        raise Refused("already_decided", message, by=approval.decided_by, **context)
    authority = require_seat(standing, person, find, approval)
    if approval.claimed_by not in (None, person.actor) and still_counts(tx, approval, standing, find):
        message = f"{approval.claimed_by} has claimed this question"
        raise Refused("claim", message, by=approval.claimed_by, **context)
    if approval.claim == "required" and approval.claimed_by != person.actor:
        raise Refused("claim", "Claim this question first", **context)
    return authority


def decide_embedded(
    tx: Tx,
    scope: Scope,
    run: str,
    ask: str,
    answer: Any,
    *,
    by: str,
    option: str | None = None,
    comment: str | None = None,
    registry: Registry | None = None,
) -> Receipt:
    """`run.decide(ask, answer, by=...)`: code inside the process answers in a person's name.

    It answers the oldest open question of this name in the run that they have not decided yet. `by` is looked up, and a
    member is held to all the rules of the gate. An address that no account has may stand for somebody outside, but only
    where the question names it or is put to nobody in particular: code cannot make up members of groups or holders of
    roles.
    """
    found = find_run(tx, scope, run)
    query = sa.select(A).where(A.c.run_id == found.id, A.c.ask == ask)
    email = clean_email(by)
    is_open = A.c.state == "open"
    voted = sa.exists().where(is_open, D.c.approval_id == A.c.id, D.c.person == email, D.c.lapsed_at.is_(None))
    # Of several that are open the oldest; of none that is, the last one, which tells what became of it.
    query = query.order_by(~is_open, voted, sa.case((is_open, A.c.id), else_=-A.c.id))
    row = tx.conn.execute(query.limit(1)).first()
    if row is None:
        raise NotFound(f"Run {run} has asked no question {ask!r}", run=run, ask=ask)
    person = find_person(tx, scope.tenant_id, email=email)
    if person is None:
        named = Question.of(row).named
        if exists(tx, email) or (named and not names_user(email, named)):
            raise Refused("not_member", f"{email} is not an active user here", run=run, ask=ask, approval=row.public_id)
        person = Person(email, email, "approver")
    inner = Scope(scope.tenant_id, person)
    try:
        return decide(
            tx, inner, row.public_id, answer, revision=None, via="embedded", option=option, comment=comment,
            registry=registry,
        )  # fmt: skip
    except Refused as refusal:
        refusal.context.setdefault("approval", row.public_id)
        raise


async def decide_through(
    store: Store,
    scope: Scope,
    approval: str,
    answer: Any,
    *,
    revision: int | None,
    via: str,
    option: str | None = None,
    comment: str | None = None,
    registry: Registry | None = None,
) -> Receipt:
    """`decide` in a transaction, and the audit row of a refusal in one of its own. What every door calls."""
    return await through(
        store, "approval.decide", decide, scope, approval, answer,
        revision=revision, via=via, option=option, comment=comment, registry=registry,
    )  # fmt: skip


async def decide_embedded_through(
    store: Store,
    scope: Scope,
    run: str,
    ask: str,
    answer: Any,
    *,
    by: str,
    option: str | None = None,
    comment: str | None = None,
    registry: Registry | None = None,
    wait: float = WAIT,
) -> Receipt:
    """`decide_embedded` with the audit row of a refusal. Waits up to `wait` seconds for a question that is coming."""
    await _until_asked(store, scope, run, ask, wait)
    try:
        return await store.write(
            decide_embedded, scope, run, ask, answer, by=by, option=option, comment=comment, registry=registry
        )
    except (Refused, NotFound) as refusal:
        target = refusal.context.get("approval") or f"{run} {ask}"
        await store.write(_record_embedded_refusal, scope, target, refusal, by)
        raise


def _record_embedded_refusal(tx: Tx, scope: Scope, target: str, refusal: Refused | NotFound, by: str) -> None:
    """In the name of the member who was to answer, like that of any other door; else with the name that was given."""
    person = find_person(tx, scope.tenant_id, email=clean_email(by))
    if person is None:
        record_refusal(tx, scope, target, refusal, "embedded", by)
    else:
        record_refusal(tx, Scope(scope.tenant_id, person), target, refusal, "embedded")


async def _until_asked(store: Store, scope: Scope, run: str, ask: str, wait: float) -> None:
    changed = asyncio.Event()
    stop = store.subscribe(lambda notices: changed.set())
    try:
        async with asyncio.timeout(wait):
            while await store.read(_is_coming, scope, run, ask):
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return  # the gate says what is there instead
    finally:
        stop()


def _is_coming(tx: Tx, scope: Scope, run: str, ask: str) -> bool:
    """Whether no question of this name is open, but the run may be just about to ask it."""
    try:
        row = find_run(tx, scope, run)
    except NotFound:
        return False
    if row.state == RunState.FINAL or row.blocked_reason is not None or row.requested != "none":
        return False
    states = set(tx.conn.execute(sa.select(A.c.state).where(A.c.run_id == row.id, A.c.ask == ask)).scalars())
    if not states:
        return True
    # It was asked and answered before: again only if the run has yet to see what happened last.
    return "open" not in states and bool(row.driven_no < row.outcome_no)


def _said(comment: str | None) -> str | None:
    """The comment as it is kept."""
    if comment is not None and len(comment) > MAX_COMMENT:
        words = f"has at most {MAX_COMMENT} characters"
        raise Refused("form", f"A comment {words}", [FieldError(("comment",), words)])
    return storable(comment.strip()) or None if comment else None


def _record(
    tx: Tx,
    run: Row,
    row: Row,
    seat: Seat,
    checked: Checked,
    option: dict[str, Any] | None,
    comment: str | None,
    via: str,
) -> Receipt:
    person, authority, before = seat.person, seat.authority, seat.standing
    new = SimpleNamespace(
        approval_id=row.id,
        person=person.actor,
        answer=checked.text,
        option=None if option is None else option["name"],
        rejects=checked.rejects,
        on_behalf_of=authority.on_behalf_of,
        parts=None if row.rule is None else json.dumps(sorted(authority.parts)),
        comment=comment,
        via=via,
        revision=row.revision,
        at=tx.now,
    )
    decisions = [*before.decisions, SimpleNamespace(**vars(new), name=person.name)]
    after = progress(before.question.rule, [vote_of(one) for one in decisions], before.question.whom)
    if after.done:
        text = _all_of(decisions) if several(before.question.rule) else checked.text
        # The journal may be ahead of the approval: nothing waits for this answer any more.
        taken = record_outcome(tx, run, row.step_no, OutcomeKind.SUCCESS, text) is not None
        changed: dict[str, Any] = {"state": "decided", "answer": text, "decided_by": person.actor}
        changed |= {"closed_at": tx.now, "closed_reason": "decided"}
    else:
        taken = _is_waiting(tx, run, row.step_no)
        changed = {"claimed_by": None, "claimed_at": None}
    if not taken:
        raise Refused("closed", f"This question is closed: {REASONS['canceled']}", approval=row.public_id)
    content = {
        "ask": row.ask,
        "title": row.title,
        "shown": row.content_hash,
        "revision": row.revision,
        "form": content_hash(form_of(json.loads(row.schema), option)),
        "option": new.option,
        "answer": "[redacted]" if row.sensitive else checked.shown,
        "rejects": new.rejects,
        "comment": comment,
        "on_behalf_of": new.on_behalf_of,
    }
    who = {"tenant_id": row.tenant_id, "run": run.public_id, "approval": row.public_id, "actor": person.actor}
    ledger_id = ledger.append(tx, kind="decision", via=via, content=content, **who)
    decision = sa.insert(D).values(**vars(new), ledger_id=ledger_id).returning(D.c.id)
    decision_id = tx.conn.execute(decision).scalar_one()
    changed_row = tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(changed).returning(A)).one()
    if not after.done:
        stuck.refresh(tx, changed_row)  # whoever has decided is not counted on again
    who_decided = Scope(row.tenant_id, person)
    drop_draft(tx, who_decided, approval_key(row.public_id))
    audit(tx, who_decided, "approval.decide", row.public_id, via=via)
    tx.notify("approvals", row.tenant_id)
    return Receipt(
        decision_id=decision_id,
        ledger_id=ledger_id,
        approval=row.public_id,
        run=run.public_id,
        person=person.actor,
        at=tx.now,
        content_hash=content_hash(content),
        effect=_effect(run) if after.done else f"Recorded, {after.text}. It waits for {after.waits_for}",
        complete=after.done,
        progress=after.text,
    )


def _all_of(decisions: Sequence[Any]) -> str:
    """The ask's value where several decide: the journal's form of `list[Decided]`."""
    items = []
    for row in decisions:
        item = {
            "person": row.person,
            "name": row.name or row.person,
            "at": row.at.isoformat(),
            "option": row.option,
            "comment": row.comment,
            "on_behalf_of": row.on_behalf_of,
            "rejects": row.rejects,
        }
        # The answer is JSON text already, in the exact form that its type needs.
        items.append(f'{dump(item)[:-1]},"answer":{row.answer}}}')
    return f"[{','.join(items)}]"


def _is_waiting(tx: Tx, run: Row, step_no: int) -> bool:
    step = sa.select(S.c.no).where(
        S.c.run_id == run.id, S.c.no == step_no, S.c.outcome_no.is_(None), S.c.retired_in.is_(None)
    )
    return tx.conn.execute(step).first() is not None


def _effect(run: Row) -> str:
    if run.blocked_reason is not None:
        return "Recorded. The run is blocked and takes the answer when it goes on"
    if run.requested == "pause":
        return "Recorded. The run is paused and takes the answer when it is resumed"
    return "The run goes on"
