"""What people change about who may answer a question, and until when; each change stands in the thread.

The `changes` column is a JSON list of what happened, in order, each `{kind, to, from?, by, at}`; `to` is a list of
selectors, `from` is one:

- `reassign`: the question is put to `to`; with `from` only what was put to that person, group or role goes to them.
- `delegate`: one person (`to` is one user) answers in the place of `from`, and the decision says so.
- `escalate`, `add`: `to` may answer besides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from signoff.approvals.deeds import Deed, is_decider, stand
from signoff.approvals.eligibility import Question
from signoff.approvals.notes import clean_text, note
from signoff.approvals.questions import A
from signoff.approvals.schedule import next_moment
from signoff.approvals.settling import settle
from signoff.engine.outcomes import Row
from signoff.engine.questions import move_deadline
from signoff.people.audit import audit
from signoff.people.users import G, find_person
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.amounts import as_seconds
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, Refused
from signoff.workflow.selectors import Group, Role, Selector, User, selector_from_json, user

# A selector, its JSON, or an address that stands for that user.
Target = Selector | Mapping[str, Any] | str


def reassign(
    tx: Tx, scope: Scope, approval: str, to: Iterable[Target], *, via: str, reason: str, from_: Target | None = None
) -> None:
    """Put the question to others: all of it, or with `from_` what was put to that person, group or role. Operators;
    whoever may decide hands on their own place. Raises NotFound, Refused and InvalidInput (to, from, reason).
    """
    held = stand(tx, scope, approval, "approval.reassign", or_decider=True)
    row, person = held.row, held.person
    given = _targets(tx, row, to, "to")
    words = _reason(reason)
    leaving = None if from_ is None else _selector(from_, "from")
    if not held.operates:
        if leaving not in (None, User(person.email)):
            raise Refused("role", "Only an operator reassigns what is put to somebody else", approval=approval)
        leaving = User(person.email)
    if isinstance(leaving, User):
        _require_place(tx, held, leaving.email)
    elif leaving is not None and leaving not in Question.of(row).named:
        raise _wrong("from", "it is not put to them")
    _change(tx, held, "reassign", given, words, via, leaving)


def delegate(tx: Tx, scope: Scope, approval: str, to: str, *, via: str, reason: str) -> None:
    """Somebody else (an address) answers in one's own place; their decision says on whose behalf. For whoever may
    decide. Raises NotFound, Refused and InvalidInput (to, reason).
    """
    held = stand(tx, scope, approval, "approval.delegate", decider=True)
    row, person = held.row, held.person
    (chosen,) = _targets(tx, row, [to], "to")
    words = _reason(reason)
    assert isinstance(chosen, User)
    if chosen.email == person.email:
        raise _wrong("to", "that is you")
    other = find_person(tx, row.tenant_id, email=chosen.email)
    if other is not None and is_decider(tx, row, other):
        raise _wrong("to", f"{chosen.email} may answer this in their own name")
    moved = _change(tx, held, "delegate", [chosen], words, via, User(person.email))
    if other is None or not is_decider(tx, moved, other):
        raise _wrong("to", f"{chosen.email} may not answer this question")


def escalate(tx: Tx, scope: Scope, approval: str, *, via: str, reason: str) -> None:
    """Ask those too whom the question names for that, without waiting. Operators, and whoever may decide.

    Raises NotFound, Refused, InvalidInput (it names nobody, or the reason), Conflict (done already).
    """
    held = stand(tx, scope, approval, "approval.escalate", or_decider=True)
    words = _reason(reason)
    if not held.row.escalate_to:
        raise InvalidInput("This question names nobody to escalate to; add somebody instead", approval=approval)
    if held.row.escalated_at is not None:
        raise Conflict("This question was escalated already", approval=approval)
    escalate_now(tx, held.row, words, held.scope, via)
    audit(tx, held.scope, "approval.escalate", held.row.public_id, via=via)


def escalate_now(tx: Tx, row: Row, reason: str | None, scope: Scope | None, via: str | None) -> Row:
    """The part that the clerk has in common with people: `row` is locked, open, and not escalated yet."""
    to = json.loads(row.escalate_to)
    changed = _append(tx, row, "escalate", to, scope.actor if scope is not None else None, None, escalated_at=tx.now)
    changed = _write(tx, changed, next_at=next_moment(changed))
    note(tx, row, "escalate", scope=scope, via=via, text=reason, data={"to": to})
    settle(tx, changed)
    return changed


def add(tx: Tx, scope: Scope, approval: str, to: Iterable[Target], *, via: str, reason: str) -> None:
    """Let others answer besides. Operators. Raises NotFound, Refused and InvalidInput (to, reason)."""
    held = stand(tx, scope, approval, "approval.add")
    _change(tx, held, "add", _targets(tx, held.row, to, "to"), _reason(reason), via, None)


def extend(
    tx: Tx, scope: Scope, approval: str, *, via: str, reason: str = "", by: float | timedelta | None = None
) -> None:
    """Move the deadline, by what the question allows in one click. Operators always may, and by as much as they say
    (`by`, seconds or timedelta). What was to happen when it is due, an escalation too, moves along.

    Raises NotFound, Refused, InvalidInput (no deadline, nothing said of how much).
    """
    held = stand(tx, scope, approval, "approval.extend", or_decider=True)
    row = held.row
    if not held.operates:
        if row.extend is None:
            raise Refused("role", "Moving this deadline needs the role operator or above", approval=approval)
        if by is not None and as_seconds(by, "by=") != row.extend:
            raise Refused("role", "Moving it by another time needs the role operator or above", approval=approval)
    seconds = row.extend if by is None else as_seconds(by, "by=")
    if row.due_at is None and row.timeout_at is None:
        raise InvalidInput("This question has no deadline", approval=approval)
    if not seconds or seconds <= 0:
        raise _wrong("by", "say by how many seconds")
    length = timedelta(seconds=seconds)
    due_at, timeout_at = _later(row.due_at, length, tx.now), _later(row.timeout_at, length, tx.now)
    values: dict[str, Any] = {"due_at": due_at, "timeout_at": timeout_at}
    if row.escalate_at is not None and row.escalated_at is None:
        values["escalate_at"] = _later(row.escalate_at, length, tx.now)
    changed = _write(tx, row, **values)
    _write(tx, changed, next_at=next_moment(changed))
    if timeout_at is not None:
        move_deadline(tx, held.run, row.step_no, timeout_at)
    ends = {"due_at": due_at, "timeout_at": timeout_at}
    data = {"by": seconds, **{name: moment.isoformat() for name, moment in ends.items() if moment is not None}}
    note(tx, row, "extend", scope=held.scope, via=via, text=clean_text(reason, "reason") or None, data=data)
    audit(tx, held.scope, "approval.extend", row.public_id, via=via, detail=data)


def _change(tx: Tx, held: Deed, kind: str, to: list[Selector], reason: str, via: str, leaving: Selector | None) -> Row:
    row = held.row
    plain = [selector.to_json() for selector in to]
    changed = _append(tx, row, kind, plain, held.person.actor, leaving)
    data: dict[str, Any] = {"to": plain} if leaving is None else {"to": plain, "from": leaving.to_json()}
    note(tx, row, kind, scope=held.scope, via=via, text=reason, data=data)
    audit(tx, held.scope, f"approval.{kind}", row.public_id, via=via, detail=data)
    if kind == "delegate" and row.claimed_by == held.person.actor:  # with the place goes the claim
        changed = _write(tx, changed, claimed_by=plain[0]["user"], claimed_at=tx.now)
    settle(tx, changed)
    return changed


def _append(tx: Tx, row: Row, kind: str, to: Any, by: str | None, leaving: Selector | None, **more: Any) -> Row:
    change = {"kind": kind, "to": to, "by": by, "at": tx.now.isoformat()}
    if leaving is not None:
        change["from"] = leaving.to_json()
    changes = [*(json.loads(row.changes) if row.changes else []), change]
    return _write(tx, row, changes=json.dumps(changes), **more)


def _write(tx: Tx, row: Row, **values: Any) -> Row:
    return tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(**values).returning(A)).one()


def _later(moment: datetime | None, by: timedelta, now: datetime) -> datetime | None:
    """A moment that has passed already is counted from now: a day more is a day from today."""
    return None if moment is None else max(moment, now) + by


def _require_place(tx: Tx, held: Deed, email: str) -> None:
    leaving = find_person(tx, held.row.tenant_id, email=email)
    if leaving is None or not is_decider(tx, held.row, leaving):
        raise _wrong("from", f"{email} may not answer this question")


def _targets(tx: Tx, row: Row, to: Iterable[Target], field: str) -> list[Selector]:
    """The selectors, each of which must mean somebody who is here."""
    given = [_selector(item, field) for item in ([to] if isinstance(to, str | Mapping | User | Group | Role) else to)]
    found = list(dict.fromkeys(given))  # each is looked up, with the question locked
    if not found:
        raise _wrong(field, "name somebody")
    for selector in found:
        if isinstance(selector, User):
            person = find_person(tx, row.tenant_id, email=selector.email)
            if person is None or not person.role_at_least("approver"):
                raise _wrong(field, f"{selector.email} is no approver here")
        elif isinstance(selector, Group):
            known = sa.select(G.c.id).where(G.c.tenant_id == row.tenant_id, G.c.name == selector.name)
            if tx.conn.execute(known).first() is None:
                raise _wrong(field, f"there is no group {selector.name!r}")
    return found


def _selector(item: Target, field: str) -> Selector:
    try:
        if isinstance(item, str):
            return user(item)
        return selector_from_json(item) if isinstance(item, Mapping) else item
    except InvalidInput as error:
        raise _wrong(field, str(error)) from error


def _reason(reason: str | None) -> str:
    cleaned = clean_text(reason, "reason")
    if not cleaned:
        raise _wrong("reason", "say why")
    return cleaned


def _wrong(field: str, problem: str) -> InvalidInput:
    return InvalidInput("That does not fit", [FieldError((field,), problem)])
