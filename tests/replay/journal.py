"""A journal in memory, kept as the engine keeps it, around one live replayer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from signoff.replay.messages import Drive, Finish, Host, JournalEntry, Log, NewStep, Outcome, Program, RunInfo
from signoff.replay.program import CoroutineProgram
from signoff.replay.replayer import Replayer
from signoff.workflow.definitions import Workflow
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind, StepKind
from signoff.workflow.options import StepOptions
from signoff.workflow.registry import Registry

CREATED = datetime(2026, 3, 1, 12, tzinfo=UTC)
registry = Registry()


def program_of(workflow: Workflow[Any, Any], defaults: StepOptions | None = None) -> Callable[[Host], Program]:
    info = RunInfo("run-1", workflow.name, workflow.version, "default", CREATED, labels={"team": "a"})
    return lambda host: CoroutineProgram(workflow, info, host, lambda generation: f"seed {generation}", defaults)


class Journal:
    """`settle` and `cancel` commit what the live program answers; `replays` replays what is committed."""

    def __init__(
        self, make: Workflow[Any, Any] | Callable[[Host], Program], args: Any = None, *, check: bool = True
    ) -> None:
        self.make = program_of(make) if isinstance(make, Workflow) else make
        self.args = None if args is None else json.dumps(args)
        self.check = check
        self.rows: dict[int, JournalEntry] = {}
        self.driven_no, self.next_no, self.outcome_no, self.generation = -1, 0, 0, 1
        self.now = CREATED
        self.logs: list[Log] = []
        self.finish: Finish | None = None
        self.asked: list[NewStep] = []
        self.live = self.replays(check)
        self.commit(self.live.catch_up())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.live.close()  # else its handler is unwound by the garbage collector, in the middle of another test

    def replays(self, check: bool = False, make: Callable[[Host], Program] | None = None) -> Replayer:
        return Replayer(
            make or self.make,
            self.args,
            list(self.rows.values()),
            driven_no=self.driven_no,
            next_no=self.next_no,
            generation=self.generation,
            check=check,
        )

    def commit(self, drive: Drive) -> Drive:
        self.asked = drive.asks
        for new in drive.asks:
            ask = new.ask
            assert new.no not in self.rows
            self.rows[new.no] = JournalEntry(
                new.no, ask.kind, ask.name, ask.args, self.generation, new.asked_after, self.now
            )
        self.driven_no, self.next_no = drive.driven_no, self.live.next_no
        for no in drive.cancels:
            self.outcome_no += 1
            self.rows[no] = replace(
                self.rows[no], by_handler=True, outcome_no=self.outcome_no, outcome_kind=OutcomeKind.CANCELED
            )
        self.logs += drive.logs
        self.finish = drive.finish
        if drive.finish is not None:
            for no in sorted(self.live.open):
                self.record(no, OutcomeKind.CANCELED)
        return drive

    def record(self, no: int, kind: OutcomeKind, value: Any = None, error: ErrorInfo | None = None) -> Outcome:
        """Write an outcome that the live program does not get (yet)."""
        self.outcome_no += 1
        self.now += timedelta(seconds=1)
        text = json.dumps(value) if kind is OutcomeKind.SUCCESS else None
        row = self.rows[no]
        self.rows[no] = replace(
            row, outcome_no=self.outcome_no, outcome_kind=kind, ended_at=self.now, value=text, error=error
        )
        return Outcome(self.outcome_no, self.now, self.generation, None, kind, text, error)

    def settle(
        self, no: int, value: Any = None, kind: OutcomeKind = OutcomeKind.SUCCESS, error: ErrorInfo | None = None
    ) -> Drive:
        return self.commit(self.live.feed(no, self.record(no, kind, value, error)))

    def fail(self, no: int, message: str = "no", type: str = "ValueError", data: Any = None) -> Drive:
        return self.settle(no, kind=OutcomeKind.FAILURE, error=ErrorInfo(type, message, data))

    def event(self, no: int, name: str, value: Any) -> Drive:
        sent_at = self.now.isoformat()
        envelope = {"name": name, "value": value, "id": "e1", "sender": "s", "channel": "api", "sent_at": sent_at}
        return self.settle(no, envelope)

    def cancel(self) -> Drive:
        no, self.next_no = self.next_no, self.next_no + 1
        self.rows[no] = JournalEntry(no, StepKind.CANCEL, "cancel", None, self.generation, self.driven_no, self.now)
        outcome = self.record(no, OutcomeKind.SUCCESS)
        outcome.step_no = no
        return self.commit(self.live.feed(None, outcome))

    def evict(self) -> None:
        """Drop the live program and go on with another one, which must find everything as it was."""
        before = {no: (new.asked_after, new.ask.name, new.ask.args) for no, new in self.live.open.items()}
        self.live.close()
        self.live = self.replays(self.check)
        drive = self.live.catch_up()
        assert (drive.asks, drive.cancels, drive.logs, drive.finish) == ([], [], [], None)
        assert {no: (new.asked_after, new.ask.name, new.ask.args) for no, new in self.live.open.items()} == before

    def restart(self, from_no: int) -> None:
        """Retire a step and all asked later, what was open or canceled, and what followed from those (X1)."""
        retired = {
            no
            for no, row in self.rows.items()
            if row.retired_in is None
            and (no >= from_no or row.outcome_kind in (None, OutcomeKind.CANCELED) or row.kind is StepKind.CANCEL)
            and (no >= from_no or row.kind is not StepKind.MARKER)
        }
        self.retire(retired)

    def retire(self, retired: set[int]) -> None:
        self.generation += 1
        while True:
            followed = {self.rows[no].outcome_no for no in retired}
            more = {no for no, row in self.rows.items() if row.retired_in is None and row.asked_after in followed}
            if more <= retired:
                break
            retired |= more
        for no in retired:
            self.rows[no] = replace(self.rows[no], retired_in=self.generation)
        asked = [self.rows[no].asked_after for no in retired if self.rows[no].kind is not StepKind.CANCEL]
        self.driven_no = min(asked) - 1 if asked else self.outcome_no - 1
        self.live.close()
        self.finish = None
        self.live = self.replays(self.check)
        self.commit(self.live.catch_up())

    @property
    def open(self) -> list[int]:
        return sorted(self.live.open)

    def names(self) -> list[str]:
        return [row.name for row in self.rows.values() if row.retired_in is None]

    @property
    def result(self) -> Any:
        assert self.finish is not None, f"still open: {self.live.open}"
        assert self.finish.kind is ResultKind.COMPLETED, self.finish
        return json.loads(self.finish.value or "null")


def shown(asks: Iterable[NewStep]) -> list[tuple[str, str | None]]:
    return [(new.ask.name, new.ask.args) for new in asks]
