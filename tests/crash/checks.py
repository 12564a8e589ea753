"""The books: what must be true of the database and the files after any storm."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from signoff.store.tables import Approval, Completion, Decision, Event, LedgerRow, PoolSlot, Run, Step
from tests.crash.answers import Answers
from tests.crash.feeder import read_lines
from tests.crash.flows import PAYMENTS, PLAIN_ENTRIES

# An attempt that was on its way into the function when its process was stopped cannot be called back. It may begin this
# long after the process goes on (seconds), and no later: by then the process knows that it was away.
ON_ITS_WAY = 1.0
CANCEL_SLACK = 1.0  # seconds between a cancel's time and its commit, in which an attempt may still begin
LEDGER_AT_QUERY = len(PLAIN_ENTRIES) - 1  # all but `closed`


@dataclass
class Stall:
    """A process that stood still. Times are of the wall clock."""

    name: str
    pid: int
    since: float
    until: float | None = None


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout = 20000")
        yield connection


def _rows(connection: sa.Connection, model: Any) -> Sequence[Any]:
    return connection.execute(sa.select(model.__table__)).all()


class Books:
    """Everything that was written down, and the faults that are found in it."""

    def __init__(self, url: str, folder: Path, stalls: Sequence[Stall]) -> None:
        self.stalls = stalls
        self.faults: list[str] = []
        self.suspects: set[int] = set()  # runs, by their key
        with connect(url) as connection:
            self.runs = {run.id: run for run in _rows(connection, Run)}
            self.steps = {(step.run_id, step.no): step for step in _rows(connection, Step)}
            self.events = _rows(connection, Event)
            self.approvals = {approval.id: approval for approval in _rows(connection, Approval)}
            self.decisions = _rows(connection, Decision)
            self.ledger_rows = _rows(connection, LedgerRow)
            self.completions = _rows(connection, Completion)
            self.slots = _rows(connection, PoolSlot)
            self.entries = connection.execute(sa.text("SELECT number, entry, value FROM crash_ledger")).all()
            self._answers = Answers(self, connection)
            self.totals = connection.execute(sa.text("SELECT SUM(amount) FROM crash_total")).scalar_one()
        self.by_id = {run.public_id: run for run in self.runs.values()}
        self.accepted = read_lines(folder / "accepted")
        self.receipts = read_lines(folder / "receipts")
        self.trace = read_lines(folder / "trace")
        self.number_of = {
            self.by_id[line["run"]].id: int(line["number"]) for line in self.accepted if line["run"] in self.by_id
        }

    def suspect_open_runs(self) -> None:
        """Of a storm that did not come to its end: the runs that are not over."""
        self.suspects |= {run.id for run in self.runs.values() if run.state != "final"}

    def check(self) -> list[str]:
        """All faults, one line each."""
        self._accepted()
        self._finality()
        self._journal()
        self._ledger()
        self._events()
        for text, run_id in self._answers.faults():
            self._fault(text, run_id)
        self._actions()
        return self.faults

    def _fault(self, text: str, run_id: int | None = None) -> None:
        if run_id is not None and run_id in self.runs:
            self.suspects.add(run_id)
            text = f"run {self.runs[run_id].public_id} (order {self.number_of.get(run_id)}): {text}"
        self.faults.append(text)

    # -- runs

    def _accepted(self) -> None:
        """Every accepted start is there, once for each order."""
        runs_of: dict[int, set[str]] = defaultdict(set)
        for line in self.accepted:
            runs_of[line["number"]].add(line["run"])
            if line["run"] not in self.by_id:
                self._fault(f"order {line['number']} was accepted as run {line['run']}, which is not there")
        for number, runs in runs_of.items():
            if len(runs) > 1:
                self._fault(f"order {number} was started more than once: {sorted(runs)}")

    def _finality(self) -> None:
        """Every run is over, as its kind says it ends, with nothing left open behind it."""
        wanted = {"plain": {"completed"}, "fails": {"failed"}}
        kinds = {line["run"]: line["kind"] for line in self.accepted}
        for run in self.runs.values():
            if run.state != "final" or run.blocked_reason is not None:
                self._fault(f"is {run.state}, activity {run.activity}, blocked {run.blocked_reason}", run.id)
                continue
            kind = kinds.get(run.public_id)
            expected = wanted.get(kind or "", {"completed", "canceled"})
            if run.result_kind not in expected:
                self._fault(f"of kind {kind} is {run.result_kind}: {(run.error or '')[:600]}", run.id)
            if run.result_kind == "failed" and "spoiled" not in (run.error or ""):
                self._fault(f"failed for another reason: {(run.error or '')[:600]}", run.id)
        for step in self.steps.values():
            if step.outcome_no is None and step.retired_in is None and self.runs[step.run_id].state == "final":
                self._fault(f"step {step.no} {step.name} is open though the run is over", step.run_id)
        for approval in self.approvals.values():
            if approval.state == "open":
                self._fault(f"the question of step {approval.step_no} is still open", approval.run_id)
        for completion in self.completions:
            if not completion.done:
                self._fault(f"on_complete is not done: {completion.error}", completion.run_id)
        for slot in self.slots:
            self._fault(f"step {slot.step_no} still holds a slot of pool {slot.pool}", slot.run_id)

    def _journal(self) -> None:
        """Outcomes have one number each, and their times never decrease."""
        outcomes: dict[int, list[Any]] = defaultdict(list)
        for step in self.steps.values():
            if step.outcome_no is not None:
                outcomes[step.run_id].append(step)
        for run_id, steps in outcomes.items():
            steps.sort(key=lambda step: step.outcome_no)
            numbers = [step.outcome_no for step in steps]
            if len(set(numbers)) < len(numbers):
                self._fault(f"one outcome number was given out twice: {numbers}", run_id)
            for earlier, later in pairwise(steps):
                if later.ended_at < earlier.ended_at:
                    self._fault(f"outcome {later.outcome_no} is before outcome {earlier.outcome_no} in time", run_id)

    # -- what was done

    def _ledger(self) -> None:
        """Mutations, compensations and on_complete: exactly once."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        values: dict[int, dict[str, str]] = defaultdict(dict)
        for number, entry, value in self.entries:
            found[number][entry] += 1
            values[number][entry] = value
        if self.totals != len(self.entries):
            self._fault(f"the shared rows say {self.totals} entries, the ledger has {len(self.entries)}")
        for number in found.keys() - set(self.number_of.values()):
            # a start whose acknowledgement was cut off and that nobody tried again would be here
            self._fault(f"the ledger has entries of order {number}, which nobody accepted")
        for run_id, number in self.number_of.items():
            run, entries = self.runs[run_id], found[number]
            for entry, times in entries.items():
                if times > 1:
                    self._fault(f"{entry!r} is in the ledger {times} times", run_id)
            expected = {"complete"}
            if run.result_kind == "completed":
                expected |= PLAIN_ENTRIES
            elif run.result_kind == "failed":
                expected |= PLAIN_ENTRIES - {"closed"} | {"undo opened"}
            elif self._compensates(run_id) and entries["opened"]:
                expected |= {"undo opened"}
            missing = sorted(expected - entries.keys())
            if missing:
                self._fault(f"{', '.join(missing)} is missing in the ledger", run_id)
            if run.result_kind != "canceled" and entries.keys() - expected:
                self._fault(f"{sorted(entries.keys() - expected)} should not be in the ledger", run_id)
            if entries["undo opened"] and not (run.result_kind == "failed" or self._compensates(run_id)):
                self._fault("was compensated without a reason", run_id)
            self._values(run_id, number, values[number])

    def _compensates(self, run_id: int) -> bool:
        return any(
            line["kind"] == "undone" and line["run"] == self.runs[run_id].public_id for line in self.accepted
        ) and (self.runs[run_id].result_kind == "canceled")

    def _values(self, run_id: int, number: int, values: dict[str, str]) -> None:
        run = self.runs[run_id]
        expected = {
            "hint": f"hint {number}",
            **{f"paid {turn}": str(turn) for turn in range(PAYMENTS)},
            "child": str(number * 2),
            "closed": str(LEDGER_AT_QUERY),
            "complete": run.result_kind,
        }
        for entry, value in values.items():
            if expected.get(entry, value) != value:
                self._fault(f"{entry!r} is {value!r} in the ledger instead of {expected[entry]!r}", run_id)
        answers = [json.loads(one.answer)["note"] for one in self.approvals_of(run_id) if one.answer]
        if "answer" in values and values["answer"] not in answers:
            self._fault(f"the handler saw the answer {values['answer']!r}, decided was {answers}", run_id)

    def approvals_of(self, run_id: int) -> list[Any]:
        """The questions of a run, by its key."""
        return [approval for approval in self.approvals.values() if approval.run_id == run_id]

    def _events(self) -> None:
        """Each event is there once, was consumed by one wait at most, and none that was accepted is lost."""
        sent: dict[tuple[int, str], list[Any]] = defaultdict(list)
        consumers: Counter[tuple[int, int]] = Counter()
        for event in self.events:
            sent[event.run_id, event.name].append(event)
            if event.consumed_by is not None:
                consumers[event.run_id, event.consumed_by] += 1
                step = self.steps.get((event.run_id, event.consumed_by))
                if step is None or step.outcome_kind != "success":
                    text = f"event {event.public_id} is consumed by step {event.consumed_by}, which it did not end"
                    self._fault(text, event.run_id)
            elif self.runs[event.run_id].result_kind in ("completed", "failed"):
                self._fault(f"event {event.name} {event.value} was never consumed", event.run_id)
        for (run_id, no), times in consumers.items():
            if times > 1:
                self._fault(f"step {no} consumed {times} events", run_id)
        for (run_id, name), events in sent.items():
            if len({event.idempotency_key for event in events}) < len(events):
                self._fault(f"an event {name} is there twice", run_id)
        for step in self.steps.values():
            if step.kind == "event" and step.outcome_kind == "success" and not consumers[step.run_id, step.no]:
                self._fault(f"step {step.no} got an event that no row has", step.run_id)
        there = {event.public_id for event in self.events}
        for line in self.receipts:
            if "event" in line and line["event"] not in there:
                self._fault(f"event {line['event']} of run {line['run']} was acknowledged and is not there")

    def _actions(self) -> None:
        """Side effects: once their step is durable, never after its outcome, no oftener than attempts are known."""
        begun: dict[str, list[dict[str, Any]]] = defaultdict(list)
        ended: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in self.trace:
            (begun if line["what"] == "begin" else ended)[line["key"]].append(line)
        for key, lines in begun.items():
            run = self.by_id.get(lines[0]["run"])
            step = self.steps.get((run.id, lines[0]["step"])) if run is not None else None
            if run is None or step is None or step.name != lines[0]["name"]:
                self._fault(f"{lines[0]['name']} ran as {key}, a step that is not there", run and run.id)
                continue
            attempts = 1 + step.attempts + step.lost
            if len(lines) > attempts:
                self._fault(f"step {step.no} {step.name} ran {len(lines)} times, known are {attempts} attempts", run.id)
            for line in lines:
                slack = CANCEL_SLACK if step.outcome_kind == "canceled" else 0.0
                late = line["at"] - _seconds(step.ended_at) - slack if step.ended_at else 0.0
                if late > 0 and not self._was_away(line):
                    text = f"step {step.no} {step.name} began {late:.3f} s after its outcome, in process {line['pid']}"
                    self._fault(text, run.id)
        for step in self.steps.values():
            run = self.runs[step.run_id]
            if step.kind != "action" or step.outcome_kind != "success":
                continue
            times = [line["at"] for line in ended[f"{run.public_id}:{step.no}"]]
            if not times or min(times) > _seconds(step.ended_at):
                self._fault(f"step {step.no} {step.name} succeeded and never ran to its end", run.id)

    def _was_away(self, line: dict[str, Any]) -> bool:
        return any(
            stall.pid == line["pid"] and stall.until is not None and 0 <= line["at"] - stall.until <= ON_ITS_WAY
            for stall in self.stalls
        )

    def journal_of(self, run_id: int) -> str:
        """A run's journal for people to read, with what else is known of it."""
        run = self.runs[run_id]
        lines = [f"run {run.public_id} key {run.id} order {self.number_of.get(run_id)}"]
        names = "state result_kind requested blocked_reason worker_id epoch ready wake_at outcome_no driven_no error"
        lines.append("  " + " ".join(f"{name}={getattr(run, name)}" for name in names.split()))
        names = "no kind name asked_after outcome_no outcome_kind attempts lost started by_handler args value child_id"
        for step in sorted((one for one in self.steps.values() if one.run_id == run_id), key=lambda one: one.no):
            shown = "  ".join(str(getattr(step, name))[:160] for name in names.split())
            times = [moment and f"{moment:%H:%M:%S.%f}" for moment in (step.asked_at, step.ended_at, step.due_at)]
            lines.append(f"  {shown}  asked {times[0]} ended {times[1]} due {times[2]}")
        events = [one for one in self.events if one.run_id == run_id]
        lines += [f"  event {one.name} {one.value} {one.state} by {one.consumed_by}" for one in events]
        lines += [f"  approval step {one.step_no} {one.state} {one.answer}" for one in self.approvals_of(run_id)]
        lines += [f"  trace {json.dumps(line)}" for line in self.trace if line["run"] == run.public_id]
        number = self.number_of.get(run_id)
        lines += [f"  ledger {entry} {value}" for of, entry, value in self.entries if of == number]
        return "\n".join(lines)

    def summary(self) -> str:
        kinds = Counter(run.result_kind for run in self.runs.values())
        lost = sum(step.lost for step in self.steps.values())
        return (
            f"{len(self.runs)} runs ({', '.join(f'{count} {kind}' for kind, count in kinds.items())}), "
            f"{len(self.steps)} steps, {len(self.entries)} ledger entries, {len(self.events)} events, "
            f"{lost} lost attempts; {self._answers.summary()}"
        )


def _seconds(moment: datetime) -> float:
    return moment.timestamp()
