"""Drives a program through a run's journal and says what is not in the journal yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from signoff.replay.messages import (
    AskStep,
    CancelStep,
    Command,
    Drive,
    Finish,
    Host,
    JournalEntry,
    Log,
    NewStep,
    Outcome,
    Program,
)
from signoff.replay.slots import BOOKKEEPING, Slots, slots_by_drain
from signoff.workflow.errors import Mismatch
from signoff.workflow.kinds import StepKind

if TYPE_CHECKING:
    from signoff.replay.check import Shadow

MakeProgram = Callable[[Host], Program]


class Replayer:
    """One live program of one run, and how its asks and the journal's numbers belong together.

    driven_no: outcomes up to this one were handed over and what followed is in the journal (-1: not even the start).
    start_no: what counts as `asked_after` of the program's start; 0 for a handler, for compensations the outcome that
    came last before them (with the entries from there on, and driven_no -1 while there are none).

    `feed` costs the same however long the journal is. After any error that `catch_up` or `feed` raises (BlockedError)
    the replayer is done for: close it.
    """

    def __init__(
        self,
        make_program: MakeProgram,
        args: str | None,
        entries: Sequence[JournalEntry],
        *,
        driven_no: int,
        next_no: int,
        generation: int,
        start_no: int = 0,
        check: bool = False,
    ) -> None:
        self.open: dict[int, NewStep] = {}
        self.finished: Finish | None = None
        self.driven_no = driven_no
        self.next_no = next_no
        self.generation = generation
        self._start_no = start_no
        self._committed = driven_no  # drains up to here are in the journal with all that they asked
        self._program = make_program(self)
        self._args = args
        self._nos: dict[int, int] = {}  # index -> journal number, of steps that have no outcome yet
        self._indexes: dict[int, int] = {}  # and back
        self._expected = slots_by_drain(entries)
        live = [entry for entry in entries if entry.retired_in is None]
        self._unmatched = sum(entry.kind not in BOOKKEEPING for entry in live)
        self._markers = {entry.name for entry in live if entry.kind == StepKind.MARKER}
        self._dropped = {entry.no for entry in live if entry.by_handler}
        self._outcomes: list[JournalEntry] | None = [
            entry
            for entry in live
            if entry.outcome_no is not None and not entry.by_handler and entry.kind != StepKind.MARKER
        ]
        self._outcomes.sort(key=_outcome_no)
        # Matched entries whose outcome is still to be handed over, and those that the handler canceled
        self._recorded: dict[int, JournalEntry] = {}
        # One drain
        self._drain = 0
        self._slots: Slots = {}
        self._taken = 0  # commands of the drain that are looked at already
        self._extra: AskStep | None = None
        self._failure: Mismatch | None = None
        self._drive = Drive(driven_no=driven_no)
        self._shadow: Shadow | None = None
        if check:
            from signoff.replay.check import Shadow

            self._shadow = Shadow(
                make_program,
                args,
                entries,
                driven_no=driven_no,
                next_no=next_no,
                generation=generation,
                start_no=start_no,
            )

    def catch_up(self) -> Drive:
        """Start the program and hand over all recorded outcomes, each with a drain of its own."""
        outcomes, self._outcomes = self._outcomes, None
        if outcomes is None:
            raise RuntimeError("catch_up() was called before")
        drive = self._drive = Drive()
        self._begin(self._start_no)
        self._end(self._program.start(self._args))
        for entry in outcomes:
            if self.finished is not None:
                break
            assert entry.outcome_no is not None
            assert entry.outcome_kind is not None
            outcome = Outcome(
                entry.outcome_no,
                entry.ended_at or entry.asked_at,
                entry.generation,
                None,
                entry.outcome_kind,
                entry.value,
                entry.error,
                entry.no,
            )
            if entry.kind == StepKind.CANCEL:
                self._hand_over(outcome)
            elif self._recorded.pop(entry.no, None) is not None:
                index = self._indexes.pop(entry.no, None)
                if index is not None:
                    del self._nos[index]
                    outcome.index = index
                    self._hand_over(outcome)
                # else: the handler had canceled the step when its outcome was recorded all the same
            else:
                self._mismatch("the journal has an outcome of a step that the handler does not ask for", entry, None)
            self.driven_no = max(self.driven_no, entry.outcome_no)
        if self.finished is None:
            self._require_cancels()
        self.driven_no = drive.driven_no = max(self.driven_no, self._start_no)
        if self._shadow is not None:
            self._shadow.after(drive, self.next_no)
        return drive

    def feed(self, no: int | None, outcome: Outcome, into: Drive | None = None) -> Drive:
        """Hand over one new outcome: of step `no`, or a cancel request (None).

        The outcome's `index` and `step_no` are filled in here; a cancel's `step_no` is that of its own row. With
        `into`, what it brings is added to that drive.
        """
        if self._outcomes is not None:
            raise RuntimeError("feed() before catch_up()")
        if outcome.no <= self.driven_no:
            raise ValueError(f"outcome {outcome.no} after outcome {self.driven_no}")
        drive = self._drive = Drive() if into is None else into
        before = (len(drive.asks), len(drive.cancels), len(drive.logs))
        if self.finished is None:
            if no is None:
                outcome.index = None
                # The request has a row of its own in the journal, the next one unless told otherwise.
                self.next_no = max(self.next_no, (self.next_no if outcome.step_no is None else outcome.step_no) + 1)
                self._hand_over(outcome)
            else:
                self.open.pop(no, None)
                index = self._indexes.pop(no, None)
                if index is not None:  # else: the handler has canceled it
                    del self._nos[index]
                    outcome.index, outcome.step_no = index, no
                    self._hand_over(outcome)
        self.driven_no = drive.driven_no = outcome.no
        if self._shadow is not None:
            asks, cancels, logs = before
            fresh = Drive(drive.asks[asks:], drive.cancels[cancels:], drive.logs[logs:], drive.finish, outcome.no)
            self._shadow.after(fresh, self.next_no, no, outcome)
        return drive

    def close(self) -> None:
        self._program.close()
        self.open.clear()

    # Host

    def changed(self, marker: str, commands: Sequence[Command] = ()) -> bool:
        if self._failure is None:
            try:
                self._take(commands)
            except Mismatch as mismatch:
                self._failure = mismatch  # raised after the drain: here a handler could catch it
        return marker in self._markers or not (self._drain <= self._committed or self._unmatched)

    # One drain

    def _begin(self, drain: int) -> None:
        self._drain = drain
        self._taken = 0
        if self._expected or self._slots:
            self._slots = self._expected.pop(drain, {})

    def _hand_over(self, outcome: Outcome) -> None:
        self._begin(outcome.no)
        self._end(self._program.feed(outcome))

    def _end(self, commands: Sequence[Command]) -> None:
        if self._failure is not None:
            raise self._failure
        if commands:
            self._take(commands)
        if self._extra is None and not any(self._slots.values()):
            return
        missing = [entry for slots in self._slots.values() for entry in slots if entry.retired_in is None]
        if missing:
            first = min(missing, key=lambda entry: entry.no)
            self._mismatch("the handler does not ask for a recorded step", first, self._extra)
        if self._extra is not None:
            self._mismatch("the handler asks for a step that is not in the journal", None, self._extra)

    def _take(self, commands: Sequence[Command]) -> None:
        """Match commands of the current drain from where it was left."""
        start, self._taken = self._taken, len(commands)
        for command in commands[start:] if start else commands:
            if type(command) is AskStep:
                self._ask(command)
            elif type(command) is CancelStep:
                self._cancel(command)
            elif type(command) is Log:
                if self._drain > self._committed:
                    self._drive.logs.append(command)
            elif type(command) is Finish:
                self._finish(command)

    def _ask(self, ask: AskStep) -> None:
        marker = ask.kind is StepKind.MARKER
        if marker:
            if ask.name in self._markers:
                return
            self._markers.add(ask.name)
        elif self._slots:
            slots = self._slots.get(ask.name)
            entry = slots.pop() if slots else None
            if entry is not None and entry.retired_in is None:
                self._match(entry, ask)
                return
        if self._drain <= self._committed:
            if self._extra is None:
                self._extra = ask
            return
        no = self.next_no
        self.next_no = no + 1
        new = NewStep(no, self._drain, ask)
        self._drive.asks.append(new)
        if not marker:
            self.open[no] = new
            self._nos[ask.index] = no
            self._indexes[no] = ask.index

    def _match(self, entry: JournalEntry, ask: AskStep) -> None:
        if entry.kind != ask.kind:
            self._mismatch("the handler asks for another kind of step", entry, ask)
        if entry.args != ask.args and not ask.unstable_args and not _same_args(entry.args, ask):
            self._mismatch("the handler calls a step with other arguments", entry, ask)
        self._unmatched -= 1
        self._nos[ask.index] = entry.no
        self._indexes[entry.no] = ask.index
        if entry.outcome_no is None and not entry.by_handler:
            self.open[entry.no] = NewStep(entry.no, entry.asked_after, ask)
        else:
            self._recorded[entry.no] = entry

    def _cancel(self, command: CancelStep) -> None:
        no = self._nos.pop(command.index, None)
        if no is None:
            return
        del self._indexes[no]
        if no in self._dropped:
            self._dropped.discard(no)
            del self._recorded[no]
        elif no in self._recorded:
            return  # its outcome was recorded before the cancel could be
        else:
            step = self.open.pop(no)
            if self._drain <= self._committed:
                self._mismatch("the handler cancels a step that is open in the journal", None, step.ask, no)
            self._drive.cancels.append(no)

    def _finish(self, finish: Finish) -> None:
        missing = [
            entry for drain in (self._slots, *self._expected.values()) for slots in drain.values() for entry in slots
        ]
        live = [entry for entry in missing if entry.retired_in is None]
        if live:
            first = min(live, key=lambda entry: entry.no)
            self._mismatch("the handler ends before a recorded step", first, self._extra or finish)
        if self._extra is None and self._drain <= self._committed:
            self._mismatch("the handler ends where it went on before", None, finish)
        self.finished = self._drive.finish = finish

    def _require_cancels(self) -> None:
        """Steps that the handler had canceled by now must have been canceled again."""
        for no in sorted(self._dropped):
            if no in self._recorded:
                entry = self._recorded[no]
                self._mismatch("the handler had canceled a step and does not cancel it now", entry, None)

    def _mismatch(
        self, message: str, entry: JournalEntry | None, expected: AskStep | Finish | None, no: int | None = None
    ) -> NoReturn:
        raise Mismatch(
            message,
            recorded=None if entry is None else _show(entry),
            expected=None if expected is None else _show(expected),
            step_no=no if entry is None else entry.no,
            after=self._drain,
        )


def _outcome_no(entry: JournalEntry) -> int:
    return entry.outcome_no or 0


def _same_args(recorded: str | None, ask: AskStep) -> bool:
    normalize = ask.normalize
    if normalize is None:
        return False
    return normalize(recorded) == normalize(ask.args)


def _show(side: JournalEntry | AskStep | Finish) -> dict[str, Any]:
    if isinstance(side, Finish):
        return {"end": str(side.kind)}
    shown: dict[str, Any] = {"kind": str(side.kind), "name": side.name}
    if side.args is not None:
        shown["args"] = side.args if len(side.args) <= 2000 else side.args[:2000] + "…"
    return shown
