"""Replays a run a second time and compares: what differs would differ after a crash too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from signoff.replay.messages import Drive, Finish, Host, JournalEntry, NewStep, Outcome, Program
from signoff.replay.replayer import Replayer
from signoff.workflow.errors import Mismatch
from signoff.workflow.kinds import StepKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Diverged(Mismatch):
    """Two replays of one journal give different commands: the handler is not deterministic."""

    code = "diverged"


class Shadow:
    """Keeps the journal as it would be stored, and replays it after each drive of a live replayer."""

    def __init__(
        self,
        make_program: Callable[[Host], Program],
        args: str | None,
        entries: Sequence[JournalEntry],
        *,
        driven_no: int,
        next_no: int,
        generation: int,
        start_no: int = 0,
    ) -> None:
        self._make = make_program
        self._args = args
        self.rows = {entry.no: entry for entry in entries}
        self._driven_no = driven_no
        self._next_no = next_no
        self._generation = generation
        self._start_no = start_no

    def after(self, drive: Drive, next_no: int, no: int | None = None, outcome: Outcome | None = None) -> None:
        """`drive` is what `outcome` of step `no` brought; without an outcome, what catching up brought. Diverged."""
        if outcome is not None:
            self._record(no, outcome)
        second = Replayer(
            self._make,
            self._args,
            list(self.rows.values()),
            driven_no=self._driven_no,
            next_no=self._next_no,
            generation=self._generation,
            start_no=self._start_no,
        )
        try:
            require_same(drive, second.catch_up())
        finally:
            second.close()
        moment = max((row.ended_at or row.asked_at for row in self.rows.values()), default=_EPOCH)
        for new in drive.asks:
            ask = new.ask
            self.rows[new.no] = JournalEntry(
                new.no, ask.kind, ask.name, ask.args, self._generation, new.asked_after, moment
            )
        for canceled in drive.cancels:
            self.rows[canceled] = replace(self.rows[canceled], by_handler=True)
        self._driven_no, self._next_no = drive.driven_no, next_no

    def _record(self, no: int | None, outcome: Outcome) -> None:
        if no is None:
            no = self._next_no if outcome.step_no is None else outcome.step_no
            self.rows[no] = JournalEntry(
                no, StepKind.CANCEL, "cancel", None, outcome.generation, outcome.no - 1, outcome.at
            )
            self._next_no = max(self._next_no, no + 1)
        if no in self.rows:
            self.rows[no] = replace(
                self.rows[no],
                outcome_no=outcome.no,
                outcome_kind=outcome.kind,
                ended_at=outcome.at,
                value=outcome.value,
                error=outcome.error,
            )


def require_same(first: Drive, second: Drive) -> None:
    """Diverged if two drives of the same journal do not bring the same."""
    for one, other in zip(first.asks, second.asks, strict=False):
        if _key(one) != _key(other):
            raise Diverged(
                "a second replay asks for another step", recorded=_show(one), expected=_show(other), step_no=one.no
            )
    more, fewer = sorted((first.asks, second.asks), key=len, reverse=True)
    if len(more) > len(fewer):
        extra = more[len(fewer)]
        shown = {"recorded" if more is first.asks else "expected": _show(extra)}
        raise Diverged("one of two replays asks for one more step", step_no=extra.no, **shown)
    for what, side, other_side in (
        ("cancels", first.cancels, second.cancels),
        ("logs", first.logs, second.logs),
        ("end", _end(first.finish), _end(second.finish)),
        ("outcomes", first.driven_no, second.driven_no),
    ):
        if side != other_side:
            raise Diverged(f"a second replay differs in its {what}", recorded=str(side), expected=str(other_side))


def _key(new: NewStep) -> tuple[Any, ...]:
    ask = new.ask
    args = None if ask.unstable_args else ask.args
    return new.no, new.asked_after, ask.index, ask.kind, ask.name, ask.ordinal, args, ask.detail


def _end(finish: Finish | None) -> tuple[Any, ...] | None:
    if finish is None:
        return None
    error = finish.error
    # Not the traceback: memory addresses and the like may stand in it.
    return finish.kind, finish.value, None if error is None else (error.type, error.message, error.data, error.step_no)


def _show(new: NewStep) -> dict[str, Any]:
    return {"kind": str(new.ask.kind), "name": new.ask.name, "args": new.ask.args, "detail": repr(new.ask.detail)}
