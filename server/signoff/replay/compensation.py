"""Undoing what a run did, without its handler: a program of its own, journaled and replayed like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from signoff.replay.messages import AskStep, Command, Finish, Outcome
from signoff.workflow.kinds import OutcomeKind, ResultKind, StepKind
from signoff.workflow.options import EMPTY, StepOptions

# A compensation is retried unless its function says otherwise (C2).
_RETRIED = StepOptions(retry=True)


@dataclass(frozen=True, slots=True)
class Compensate:
    """One step to take: `args` is the JSON object text of the arguments of `fn`, an action or a mutation."""

    fn: Any
    args: str | None
    name: str
    on_error: Literal["stop", "continue"] = "stop"
    sensitive: bool = False  # what is undone is, and its args and result are among the args


class CompensationProgram:
    """Asks for the steps of `plan` in its order (newest first), one at a time. A cancel request changes nothing.

    Ends completed, or failed with the error of a step that says `stop`.
    """

    def __init__(self, plan: Sequence[Compensate], defaults: StepOptions | None = None) -> None:
        self._plan = plan
        self._defaults = defaults
        self._next = 0
        self._ordinals: dict[str, int] = {}

    def start(self, args: str | None) -> Sequence[Command]:
        return (self._go_on(),)

    def feed(self, outcome: Outcome) -> Sequence[Command]:
        if outcome.index is None:
            return ()
        failed = outcome.kind is not OutcomeKind.SUCCESS
        if failed and self._plan[outcome.index].on_error != "continue":
            return (Finish(ResultKind.FAILED, error=outcome.error),)
        return (self._go_on(),)

    def close(self) -> None:
        self._next = len(self._plan)

    def _go_on(self) -> Command:
        index = self._next
        if index == len(self._plan):
            return Finish(ResultKind.COMPLETED)
        self._next = index + 1
        step = self._plan[index]
        ordinal = self._ordinals.get(step.name, 0)
        self._ordinals[step.name] = ordinal + 1
        fn = step.fn
        options = StepOptions.resolve(fn.given, _RETRIED, fn.defaults, None, self._defaults)
        if fn.kind is StepKind.MUTATION:
            options = replace(options, retry=None)  # the engine repeats it by itself
        if step.sensitive or fn.codec.has_secrets:
            options = replace(options, sensitive=True)
        return AskStep(
            index,
            fn.kind,
            step.name,
            ordinal,
            step.args,
            None if options == EMPTY else options,
            fn=fn,
            normalize=fn.codec.normalize,
        )
