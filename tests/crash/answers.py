"""The books of the questions: what people and the clerk did about them, each of it once and in order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from signoff.approvals.ledger import verify
from signoff.approvals.questions import question_hash
from signoff.people.chain import seal_pending, verify_chain
from signoff.people.tenants import DEFAULT_TENANT, tenant_id
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tables import ApprovalNote, AuditRow
from tests.crash.flows import CHANGES, NOBODY, REMINDERS, is_patient, panel, verdict

if TYPE_CHECKING:
    from tests.crash.checks import Books

# An outcome's time is never before the run's former one, which another machine's clock may have given.
CLOCK_SLACK = timedelta(milliseconds=5)


async def chain_faults(url: str) -> list[str]:
    """What `signoff ledger verify` and `signoff audit verify` would find."""
    async with await Store.open(url) as store:
        while await store.write(seal_pending):
            pass
        scope = Scope(await store.read(tenant_id, DEFAULT_TENANT))
        found = [await store.read(verify, scope), await store.read(verify_chain, scope.tenant_id, "audit")]
    return [f"the {one.name}: {one.problem}, {one.unsealed} unsealed" for one in found if not one.holds or one.unsealed]


class Answers:
    """What is wrong with questions, decisions, threads and the audit rows of both."""

    def __init__(self, books: Books, connection: sa.Connection) -> None:
        self._books = books
        self._notes = _by(connection, ApprovalNote, "approval_id")
        self._audits = _by(connection, AuditRow, "target")
        self._decisions: dict[int, list[Any]] = defaultdict(list)
        for decision in sorted(books.decisions, key=lambda one: one.id):
            self._decisions[decision.approval_id].append(decision)
        self._ledger: dict[str, list[Any]] = defaultdict(list)
        for row in books.ledger_rows:
            self._ledger[row.approval].append(row)

    def summary(self) -> str:
        approvals = self._books.approvals.values()
        states = Counter(approval.state for approval in approvals)
        kinds = Counter(note.kind for notes in self._notes.values() for note in notes)
        lapsed = sum(decision.lapsed_at is not None for decision in self._books.decisions)
        return (
            f"{len(approvals)} questions ({', '.join(f'{count} {state}' for state, count in states.items())}), "
            f"{len(self._books.decisions)} decisions, {lapsed} lapsed; "
            f"{', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
        )

    def faults(self) -> Iterator[tuple[str, int | None]]:
        """In words, and the run's key."""
        for approval in self._books.approvals.values():
            checks = (self._ending, self._records, self._clerk, self._changes, self._claims, self._audited)
            for check in checks:
                for text in check(approval):
                    yield f"the question {approval.ask} of step {approval.step_no} {text}", approval.run_id
        for run in self._books.runs.values():
            if run.parent_id in self._books.number_of and run.result_kind == "completed":
                for text in self._seen(run, self._books.number_of[run.parent_id]):
                    yield text, run.id
        yield from self._acknowledged()

    def _live(self, approval: Any) -> list[Any]:
        return [decision for decision in self._decisions[approval.id] if decision.lapsed_at is None]

    def _lapsed(self, approval: Any) -> list[Any]:
        return [decision for decision in self._decisions[approval.id] if decision.lapsed_at is not None]

    def _ending(self, approval: Any) -> Iterator[str]:
        """As many decisions as its rule asks for, and the run has just them; or the deadline, and nothing else."""
        live, step = self._live(approval), self._books.steps[approval.run_id, approval.step_no]
        needed = 2 if approval.ask == panel.name else 1
        if approval.state == "decided" and len(live) != needed:
            yield f"is decided by {len(live)} of {needed}"
        if approval.state != "decided" and len(live) >= needed:
            yield f"is {approval.state} though {len(live)} of {needed} decided"
        if len({decision.person for decision in live}) < len(live):
            yield f"has two decisions of one person: {[decision.person for decision in live]}"
        ends = {"decided": "success", "expired": "timeout", "closed": "canceled"}
        if step.outcome_kind != ends.get(approval.state):
            yield f"is {approval.state}, and the run has {step.outcome_kind}"
        if approval.state == "decided":
            given, answer = [json.loads(decision.answer) for decision in live], json.loads(approval.answer)
            if step.value != approval.answer:
                yield f"was answered by {approval.answer}, and the run has {step.value}"
            if given != ([one["answer"] for one in answer] if needed > 1 else [answer]):
                yield f"has the answer {answer} of the decisions {given}"
            if needed > 1 and [one["person"] for one in answer] != [decision.person for decision in live]:
                yield f"names other people in {answer} than {[decision.person for decision in live]}"
        if approval.timeout_at is not None and approval.state in ("decided", "expired"):
            late = approval.closed_at > approval.timeout_at + CLOCK_SLACK
            early = approval.closed_at < approval.timeout_at - CLOCK_SLACK
            if (late and approval.state == "decided") or (early and approval.state == "expired"):
                yield f"was {approval.state} at {approval.closed_at}, its deadline was {approval.timeout_at}"

    def _records(self, approval: Any) -> Iterator[str]:
        """The ledger has each decision, each that lapsed, and an end without an answer: once."""
        rows: dict[str, list[Any]] = defaultdict(list)
        for row in self._ledger[approval.public_id]:
            rows[row.kind].append(row)
        decided = [(decision.ledger_id, decision.person) for decision in self._decisions[approval.id]]
        if sorted((row.id, row.actor) for row in rows["decision"]) != sorted(decided):
            yield f"has {len(rows['decision'])} decisions in the ledger and {len(decided)} beside it"
        lapsed = sorted(json.loads(row.content)["lapsed"] for row in rows["lapsed"])
        if lapsed != sorted(decision.ledger_id for decision in self._lapsed(approval)):
            yield f"has other lapsed decisions in the ledger ({lapsed}) than beside it"
        for state in ("expired", "closed"):
            if len(rows[state]) != (approval.state == state):
                yield f"is {approval.state} with {len(rows[state])} rows {state!r} in the ledger"

    def _clerk(self, approval: Any) -> Iterator[str]:
        """Reminders and the escalation: once each, in order, not before their time; all of them where people wait."""
        reminders = json.loads(approval.reminders or "[]")
        given = [(note, json.loads(note.data)) for note in self._notes[approval.id] if note.kind == "remind"]
        if [data["number"] for _, data in given] != list(range(1, approval.reminded + 1)):
            yield f"has the reminders {[data['number'] for _, data in given]}, and {approval.reminded} are counted"
        for note, data in given:
            due = approval.created_at + timedelta(seconds=reminders[data["number"] - 1])
            if data["due_at"] != due.isoformat() or note.at < due - CLOCK_SLACK:
                yield f"had reminder {data['number']} at {note.at}, due {data['due_at']} and not {due}"
        escalations = [note for note in self._notes[approval.id] if note.kind == "escalate"]
        changes = [change for change in json.loads(approval.changes or "[]") if change["kind"] == "escalate"]
        if not len(escalations) == len(changes) == (approval.escalated_at is not None):
            yield f"was escalated {len(escalations)} times by its thread, {len(changes)} by its changes"
        if any(note.actor is None and note.at < approval.escalate_at - CLOCK_SLACK for note in escalations):
            yield f"was escalated before {approval.escalate_at}"
        waited = approval.ask == panel.name and approval.state == "decided" and is_patient(self._order(approval))
        if waited and (approval.reminded != len(REMINDERS) or not escalations):
            yield f"has {approval.reminded} reminders and {len(escalations)} escalations; people waited for all"

    def _changes(self, approval: Any) -> Iterator[str]:
        """As many as the run made; what was decided and claimed before does not count any more."""
        changes = [json.loads(note.data) for note in self._notes[approval.id] if note.kind == "change"]
        steps = [step for (run_id, _), step in self._books.steps.items() if run_id == approval.run_id]
        made = [step for step in steps if step.name == "update_ask" and step.value == "true"]
        if len(changes) != (len(made) if approval.ask == panel.name else 0):
            yield f"has {len(changes)} changes in its thread, the run made {len(made)}"
        revisions = [data["revision"] for data in changes]
        if revisions != list(range(1, approval.revision)):
            yield f"is at revision {approval.revision} after changes of {revisions}"
        if any(data["facts"] != {"price": price} for price, data in enumerate(changes)):
            yield f"was changed from {[data['facts'] for data in changes]}"
        facts, rule = json.loads(approval.facts), approval.rule and json.loads(approval.rule)
        shown = (approval.ask, approval.title, approval.body, facts, json.loads(approval.schema), None, rule)
        if question_hash(*shown) != approval.content_hash:
            yield "has a content hash of something else"
        lapsed = self._lapsed(approval)
        for data in changes:
            voted = [decision.person for decision in lapsed if decision.revision == data["revision"]]
            if sorted(data["voted"]) != sorted(voted):
                yield f"lost the votes of {voted} at revision {data['revision']}, its thread says {data['voted']}"
        if any(decision.revision != approval.revision for decision in self._live(approval)):
            yield f"is at revision {approval.revision} with decisions of an earlier one that count"
        if any(decision.revision not in revisions for decision in lapsed):
            yield f"has decisions that lapsed without a change: {[decision.revision for decision in lapsed]}"

    def _claims(self, approval: Any) -> Iterator[str]:
        """Whoever lost a claim is the one who had it last."""
        last = None
        for note in self._notes[approval.id]:
            data = json.loads(note.data or "{}")
            former = {"claim": data.get("from"), "release": data.get("of"), "change": data.get("claimed_by")}
            if former.get(note.kind) not in (None, last):
                yield f"lost a claim of {former[note.kind]} by {note.kind}, the last to claim it was {last}"
            if note.kind == "claim":
                last = note.actor
        if approval.claimed_by not in (None, last):
            yield f"is claimed by {approval.claimed_by}, the last to claim it was {last}"

    def _audited(self, approval: Any) -> Iterator[str]:
        """An audit row for each thing that was done, and no other."""
        done = Counter(note.kind for note in self._notes[approval.id] if note.kind not in ("remind", "change"))
        done["decide"] = len(self._decisions[approval.id])
        rows = Counter(row.action.removeprefix("approval.") for row in self._audits[approval.public_id] if row.allowed)
        if +done != +rows:
            yield f"has {dict(rows)} in the audit log, done was {dict(done)}"

    def _seen(self, review: Any, number: int) -> Iterator[str]:
        """What the review's handler saw is what stands on record."""
        entries = {entry: value for of, entry, value in self._books.entries if of == number}
        approvals = self._books.approvals_of(review.id)
        if not approvals:
            return  # the other child
        if json.loads(review.value) not in range(CHANGES + 1):
            yield f"the handler made {review.value} changes"
        for approval in approvals:
            answers = [json.loads(decision.answer)["note"] for decision in self._live(approval)]
            if approval.ask == panel.name:
                if json.loads(entries["panel"]) != answers:
                    yield f"the handler saw the decisions {entries['panel']}, on record are {answers}"
                written = iter([note.text for note in self._notes[approval.id] if note.kind == "comment"])
                if not all(text in written for text in json.loads(entries["comments"])):
                    yield f"the handler read the comments {entries['comments']}, which are not there or not in order"
            if approval.ask == verdict.name and [entries["verdict"]] != (answers or [NOBODY]):
                yield f"the handler saw the verdict {entries['verdict']}, on record is {answers or approval.state}"

    def _acknowledged(self) -> Iterator[tuple[str, int | None]]:
        """Nothing that somebody was told is lost."""
        decisions = {decision.id for decision in self._books.decisions}
        comments = {note.text for notes in self._notes.values() for note in notes if note.kind == "comment"}
        complete: dict[str, set[int]] = defaultdict(set)
        for line in self._books.receipts:
            if "decision" in line and line["decision"] not in decisions:
                yield f"decision {line['decision']} of run {line['run']} was acknowledged and is not there", None
            if "comment" in line and line["comment"] not in comments:
                yield f"comment {line['comment']!r} of run {line['run']} was acknowledged and is not there", None
            if line.get("complete"):
                complete[line["approval"]].add(line["decision"])
        for approval_id, ids in complete.items():
            if len(ids) > 1:
                yield f"two people were told that their answer to {approval_id} ended it", None

    def _order(self, approval: Any) -> int:
        return self._books.number_of[self._books.runs[approval.run_id].parent_id]


def _by(connection: sa.Connection, model: Any, column: str) -> dict[Any, Sequence[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in connection.execute(sa.select(model.__table__).order_by(model.__table__.c.id)):
        found[getattr(row, column)].append(row)
    return defaultdict(tuple, found)
