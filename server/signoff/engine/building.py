"""From outcomes to an advance: feeds a run's program and collects what must be written.

Runs on the driver thread, while the run is `busy`. Pure but for the run object that it moves on; if the advance is not
committed the run is loaded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from signoff.engine.active import ActiveRun, Compensable, OpenStep, known_outcome
from signoff.engine.advance import Advance, Record
from signoff.engine.blocking import tried
from signoff.engine.ending import CHILD_BATCH
from signoff.engine.outcomes import TIMED
from signoff.engine.programs import Known, compensation_plan
from signoff.engine.settings import EngineSettings
from signoff.replay.compensation import CompensationProgram
from signoff.replay.messages import (
    AskDetail,
    AskStep,
    ChildDetail,
    Drive,
    EventDetail,
    Finish,
    NewStep,
    Outcome,
    SleepDetail,
)
from signoff.replay.replayer import Replayer
from signoff.workflow.amounts import size_of
from signoff.workflow.errors import BlockedError, LimitExceeded, SignoffError
from signoff.workflow.kinds import FUNCTION_KINDS, Activity, ErrorInfo, OutcomeKind, ResultKind, RunState, StepKind
from signoff.workflow.registry import Registry

WAITING = frozenset({StepKind.EVENT, StepKind.ASK, StepKind.CHILD})


class Builder:
    """Builds one advance of one run."""

    def __init__(
        self,
        run: ActiveRun,
        known: Known,
        registry: Registry,
        settings: EngineSettings,
        worker_id: int,
        now: datetime,
    ) -> None:
        self.run, self.known, self.registry, self.settings = run, known, registry, settings
        self.worker_id = worker_id
        self.now = now
        self.number = run.outcome_no
        self.last_at = run.outcome_at
        self.finish: Finish | None = None
        self.inline: list[NewStep] = []
        self.given: list[Record] = []
        self.tasks = frozenset(run.tasks)  # the loop's thread changes it meanwhile
        self.advance = Advance(run.id, run.fence(), {}, now)
        self.timed = False  # timers fell due while events are awaited
        self.reason: str | None = run.blocked
        self.hash: str | None = run.row.blocked_hash

    def build(self, records: Sequence[Record], make: Callable[[], Replayer]) -> None:
        """Feed the records. Afterwards `inline` has steps to execute in the same transaction, or call `done()`."""
        run = self.run
        self.given = list(records)
        self.timed = any(r.no is None and (s := run.open.get(r.step_no)) and s.kind in TIMED for r in records) and any(
            step.kind is StepKind.EVENT for step in run.open.values()
        )
        try:
            canceled = self._canceled_blocked()
            if not canceled and run.state != RunState.FINAL and not run.drains and run.replayer is None:
                run.replayer = make()
                self._collect(run.replayer.catch_up())
                for no, new in run.replayer.open.items():
                    if (step := run.open.get(no)) is not None:
                        step.ask = new.ask
            for record in records:
                self.take(record)
        except BlockedError as error:
            self.block(error)

    def take(self, record: Record) -> None:
        """One outcome: number it if it is new, close its step, hand it over."""
        run = self.run
        generation = run.generation
        step = None
        if not record.cancel_request:
            step = run.open.get(record.step_no)
            if step is None:
                return  # canceled in the meantime
            if self.finish is not None and record.no is None and step.kind not in FUNCTION_KINDS:
                return  # a timer that nobody waits for any more
            del run.open[step.no]
            generation = step.generation
        if record.no is None:
            self.number += 1
            record.no = self.number
            record.at = max(record.at, self.last_at or record.at)
            record.by_handler = step is not None and step.orphaned
            self.advance.records.append(record)
            if record.kind is OutcomeKind.TIMEOUT and step is not None:
                self._close_ask(step, expired=True)
        run.journal_bytes += size_of(record.value)
        self.last_at = record.at
        item = run.compensables.get(record.step_no)
        if item is not None:
            item.outcome, item.value, item.started = known_outcome(record.kind, record.error), record.value, True
        if self.finish is not None:  # recorded, so that it is not canceled as well; the program has ended
            if record.cancel_request and run.replayer is not None:
                run.replayer.next_no = max(run.replayer.next_no, record.step_no + 1)
            return
        if run.drains or run.replayer is None:
            if run.replayer is not None:
                run.replayer.close()
                run.replayer = None  # it has not seen this outcome: replayed when the run goes on
            return
        outcome = Outcome(
            record.no, record.at, generation, None, record.kind, record.value, record.error, record.step_no
        )
        self._collect(run.replayer.feed(None if record.cancel_request else record.step_no, outcome))

    def block(self, error: BlockedError) -> None:
        """The handler does not match its journal: the run waits for other code, whatever was driven is forgotten.

        The outcomes that this began with are recorded all the same, whether they were handed over by then or not.
        """
        run, former = self.run, self.advance
        run.load_again = True
        taken = {id(record) for record in former.records}
        asked = {step["no"] for step in former.steps}
        still_open = {record.step_no for record in former.records if record.by_handler} | set(run.open)
        self.advance = Advance(run.id, run.fence(), {}, self.now)
        self.number = run.outcome_no
        for record in self.given:
            if id(record) in taken or (record.no is None and record.step_no in still_open - asked):
                self.number += 1
                record.no = self.number
                record.at = self.last_at = max(record.at, self.last_at or record.at)
                self.advance.records.append(record)
                if record.step_no in former.expired_asks:
                    self.advance.expired_asks.append(record.step_no)
        self.finish, self.inline = None, []
        self.reason = json.dumps(error.to_reason())
        self.hash = tried(run.row.blocked_hash, self.known.code_hash)

    def _canceled_blocked(self) -> bool:
        run = self.run
        if run.requested == "cancel" and run.blocked is not None and run.ending is None:
            self.finish = Finish(ResultKind.CANCELED)
            self.reason = self.hash = run.blocked = None  # undoing needs no handler
            return True
        return False

    def _collect(self, drive: Drive) -> None:
        canceled = set(drive.cancels)
        for new in drive.asks:
            self._ask(new, new.no in canceled)
        for no in drive.cancels:
            self._cancel(no)
        self.advance.logs.extend(drive.logs)
        if drive.finish is not None:
            self.finish = drive.finish

    def _ask(self, new: NewStep, canceled: bool) -> None:
        ask, run = new.ask, self.run
        options: dict[str, Any] = (ask.options.to_record() if ask.options is not None else None) or {}
        due_at = self._due(ask, options)
        pooled = "pool" in options
        function = ask.kind in FUNCTION_KINDS
        started = function and not pooled and (due_at is None or due_at <= self.now) and not canceled
        self.advance.steps.append(
            {
                "run_id": run.id,
                "no": new.no,
                "kind": ask.kind.value,
                "name": ask.name,
                "generation": run.generation,
                "asked_after": new.asked_after,
                "asked_at": self.now,
                "due_at": due_at,
                "args": ask.args,
                "options": json.dumps(options) if options else None,
                "started": started,
                "attempts": 0,
                "lost": 0,
                "by_handler": False,
            }
        )
        run.journal_bytes += size_of(ask.args)
        run.asked += 1
        if ask.kind is StepKind.MARKER:
            return
        run.open[new.no] = OpenStep(
            new.no, ask.kind, ask.name, self.now, due_at, started=started, options=options, ask=ask,
            generation=run.generation,
        )  # fmt: skip
        if "compensate" in options:
            self.run.compensables[new.no] = Compensable(
                new.no, options["compensate"], ask.args, options.get("on_error"), "sensitive" in options, started
            )
        run.used_pool = run.used_pool or pooled
        if canceled:
            return
        detail = ask.detail
        if isinstance(detail, EventDetail):
            self.advance.waits.append((new.no, detail))
        elif isinstance(detail, AskDetail):
            self.advance.questions.append((new.no, detail))
        elif isinstance(detail, ChildDetail):
            self.advance.children.append((new.no, ask.args, detail))
        elif function and options.get("inline"):
            self.inline.append(new)

    def _due(self, ask: AskStep, options: dict[str, Any]) -> datetime | None:
        detail = ask.detail
        if isinstance(detail, SleepDetail):
            return detail.until if detail.until is not None else self.now + timedelta(seconds=detail.seconds or 0)
        if isinstance(detail, EventDetail):
            options.update({"event_id": detail.event_id} if detail.event_id else {"names": list(detail.names)})
            return None if detail.timeout is None else self.now + timedelta(seconds=detail.timeout)
        if isinstance(detail, AskDetail):
            options["ask"] = detail.ask
            return None if detail.timeout is None else self.now + timedelta(seconds=detail.timeout)
        if isinstance(detail, ChildDetail) and detail.detached:
            options["detached"] = True
        if ask.options is not None:
            if ask.options.run_at is not None:
                return ask.options.run_at
            if ask.options.run_after is not None:
                return self.now + timedelta(seconds=ask.options.run_after)
        return None

    def _cancel(self, no: int) -> None:
        step = self.run.open.get(no)
        if step is None:
            return
        if step.kind is StepKind.CHILD and self.run.requested == "cancel":
            # the run is final when its children are
            step.orphaned = True
            self.advance.orphans.append(no)
            if len(self.advance.closed_children) < CHILD_BATCH:  # the others when the handler has ended
                self.advance.closed_children.append(no)
            return
        del self.run.open[no]
        self.number += 1
        at = self.last_at = max(self.now, self.last_at or self.now)
        self.advance.records.append(Record(no, OutcomeKind.CANCELED, at, no=self.number, by_handler=True))
        self._close_ask(step)
        if step.kind is StepKind.CHILD:
            self.advance.closed_children.append(no)

    def _close_ask(self, step: OpenStep, *, expired: bool = False) -> None:
        if step.kind is StepKind.ASK:
            (self.advance.expired_asks if expired else self.advance.closed_asks).append(step.no)

    # -- the end of a run

    def end(self) -> None:
        """Turn the program's finish into the run's: cancel what is open, compensate, wait for children, or be final."""
        run, finish = self.run, self.finish
        assert finish is not None
        if run.ending is None:
            kind, error = finish.kind, finish.error
            if run.requested == "cancel":
                kind = ResultKind.CANCELED
                if finish.kind is not ResultKind.FAILED:
                    by = {"actor": run.cancel_actor} if run.cancel_actor else None
                    error = ErrorInfo("RunCanceled", run.cancel_reason or "canceled", by)
            children = kind is ResultKind.CANCELED and any(s.kind is StepKind.CHILD for s in run.open.values())
            undo = (kind is ResultKind.FAILED or (kind is ResultKind.CANCELED and run.cancel_compensate)) and any(
                item.started for item in run.compensables.values()
            )
            self._cancel_open(keep_children=children)
            if children or undo:
                cause = f"{kind.value}: {error.message}" if error is not None else kind.value
                run.ending = {
                    "phase": "children" if children else "compensate",
                    "compensate": undo,
                    "kind": kind.value,
                    "error": error.to_json() if error is not None else None,
                    "cause": cause,
                    "from_no": run.replayer.next_no if run.replayer is not None else run.next_no,
                }
                self.finish = None
                if children:
                    self.advance.cancel_children = True
                else:
                    self._compensate()
                return
            self.advance.finished = (kind, finish.value if kind is ResultKind.COMPLETED else None, error)
            return
        # the compensations are through
        ending = run.ending
        self._cancel_open(keep_children=False)
        error = ErrorInfo.from_json(ending["error"]) if ending["error"] else None
        if finish.kind is not ResultKind.COMPLETED and finish.error is not None:
            text = f"{error.message if error else ending['kind']} (and compensating failed: {finish.error.message})"
            error = ErrorInfo(
                error.type if error else "CompensationFailed", text, finish.error.to_json(), None, finish.error.step_no
            )
        self.advance.finished = (ResultKind(ending["kind"]), None, error)

    def children_gone(self) -> None:
        """A canceled run whose children are final goes on to its compensations, or ends."""
        run = self.run
        assert run.ending is not None
        if any(step.kind is StepKind.CHILD for step in run.open.values()):
            self.advance.cancel_children = True  # the next of them
            return
        run.ending["phase"] = "compensate"
        if run.ending["compensate"]:
            self._compensate()
        else:
            error = ErrorInfo.from_json(run.ending["error"]) if run.ending["error"] else None
            self.advance.finished = (ResultKind(run.ending["kind"]), None, error)

    def _compensate(self) -> None:
        run = self.run
        assert run.ending is not None
        plan = compensation_plan(run, self.registry, run.ending["from_no"])
        if run.replayer is not None:
            run.replayer.close()
        run.replayer = Replayer(
            lambda host: CompensationProgram(plan),
            None,
            (),
            driven_no=-1,
            next_no=run.ending["from_no"],
            generation=run.generation,
            start_no=self.number,
        )
        run.ending["start_no"] = self.number
        self._collect(run.replayer.catch_up())
        if self.finish is not None:
            self.end()

    def _cancel_open(self, *, keep_children: bool) -> None:
        run = self.run
        at = max(self.now, self.last_at or self.now)
        for step in sorted(run.open.values(), key=lambda step: step.no):
            if step.kind is StepKind.CHILD:
                if keep_children:
                    continue
                self.advance.closed_children.append(step.no)
            self.number += 1
            self.advance.records.append(Record(step.no, OutcomeKind.CANCELED, at, no=self.number))
            self._close_ask(step)
            del run.open[step.no]
            self.last_at = at

    # -- the run's row

    def done(self) -> None:
        """Complete the advance with the run's columns."""
        run = self.run
        self._limits()
        if self.finish is not None and self.advance.finished is None and self.reason is None:
            self.end()
        elif run.waits_for_children:
            self.children_gone()
        advance, columns = self.advance, self.advance.columns
        finished = advance.finished
        if self.reason is not None and finished is not None:
            self.reason = self.hash = None  # a blocked run that was canceled
        executing = any(step.executable(self.now) for step in run.open.values())
        underway = any(no in run.open for no in self.tasks)  # also one that has just begun to back off
        holds = bool(self.tasks) if (run.drains or self.reason) else executing or underway
        wake_at = None if finished else run.next_due()
        waits = wake_at is None or wake_at > self.now or run.drains or self.reason is not None
        advance.parks = not holds and finished is None and waits
        advance.contestable = self.timed
        advance.holder, advance.grace = self.worker_id, self.settings.cancel_grace
        asked = {no for no, _ in advance.waits}
        advance.waits_on = any(step.kind is StepKind.EVENT and step.no not in asked for step in run.open.values())
        columns.update(
            state=RunState.FINAL.value if finished else RunState.ACTIVE.value,
            outcome_no=self.number,
            outcome_at=self.last_at,
            driven_no=run.replayer.driven_no if run.replayer is not None and self.reason is None else run.driven_no,
            next_no=run.replayer.next_no if run.replayer is not None and self.reason is None else run.next_no,
            activity=None if finished else self._activity(holds),
            wake_at=wake_at,
            ready=None,
            worker_id=None if finished or advance.parks else self.worker_id,
            epoch=run.epoch + (run.adopted is not None),
            code_hash=self.known.code_hash or None,
            started_at=run.started_at or self.now,
            ended_at=None,
            result_kind=None,
            value=None,
            error=None,
            ending=json.dumps(run.ending) if run.ending is not None else None,
            blocked_reason=self.reason,
            blocked_hash=self.hash,
            requested="none" if finished else run.requested,
            journal_bytes=run.journal_bytes,
        )
        if finished is not None:
            kind, value, error = finished
            at = max(self.now, self.last_at or self.now)
            columns.update(
                ended_at=at,
                outcome_at=at,
                result_kind=kind.value,
                value=value,
                error=json.dumps(error.to_json()) if error is not None else None,
            )
            advance.parent_id = run.parent_id if run.parent_no is not None else None
            advance.used_pool = run.used_pool
        row = run.row
        others_hear = row.parent_no is not None or row.admitted or row.options is not None or run.used_pool
        advance.needs_row = bool(advance.questions or advance.children or (finished is not None and others_hear))
        rare = finished is not None or self.reason is not None or run.ending is not None or run.blocked is not None
        advance.rare = rare

    def _limits(self) -> None:
        run, limits = self.run, self.settings
        if self.finish is not None or run.ending is not None or run.replayer is None:
            return
        workflow = self.known.definition.settings if self.known.kind == "workflow" else None
        steps = getattr(workflow, "max_steps", None) or limits.max_steps
        size = getattr(workflow, "max_journal_bytes", None) or limits.max_journal_bytes
        text = None
        if run.asked > steps:
            text = f"the run asked for more than {steps} steps in one round"
        elif run.journal_bytes > size:
            text = f"the journal has {run.journal_bytes} bytes, more than the limit of {size}"
        if text is not None:
            last = self.advance.steps[-1] if self.advance.steps else None
            at_step = f" (at step {last['no']}, {last['name']})" if last else ""
            error = ErrorInfo(LimitExceeded.__name__, text + at_step, step_no=last["no"] if last else None)
            self.finish = Finish(ResultKind.FAILED, error=error)

    def _activity(self, executing: bool) -> str:
        begins = not self.run.drains and self.reason is None
        attempts = [
            step
            for step in self.run.open.values()  # those of other steps end with this advance
            if step.no in self.tasks or (begins and step.executable(self.now))
        ]
        if executing and any(step.placed or not step.options.get("pool") for step in attempts):
            return Activity.RUNNING.value
        if any(
            step.kind in WAITING or (step.options.get("pool") and step.due_at is None)
            for step in self.run.open.values()
        ):
            return Activity.WAITING.value
        return Activity.SLEEPING.value


def refusal(error: SignoffError) -> ErrorInfo:
    return ErrorInfo(type(error).__name__, str(error), error.to_problem())
