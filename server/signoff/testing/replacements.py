"""What a test puts in the place of steps. It goes by the attempt's number, so it outlives a restart of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from signoff.engine.execution import Replaced

UNSET: Final[Any] = object()


class ReplacedError(Exception):
    """Raised in the place of a step that was replaced by a number of errors."""


@dataclass(frozen=True, slots=True)
class Rule:
    step: str
    ordinal: int | None  # None: every use of the name
    run: str | None  # None: every run
    errors: tuple[Exception, ...]  # one for each of the first attempts
    timeouts: int  # attempts after those that time out
    value: Any  # UNSET: the attempts after those are the real function's

    def applies(self, run_id: str, step: str, ordinal: int) -> bool:
        return self.step == step and self.ordinal in (None, ordinal) and self.run in (None, run_id)

    def at(self, attempt: int) -> Replaced | None:
        if attempt <= len(self.errors):
            return Replaced(error=self.errors[attempt - 1])
        if attempt <= len(self.errors) + self.timeouts:
            return Replaced(timeout=True)
        return None if self.value is UNSET else Replaced(value=self.value)


class Replacements:
    """Rules for steps; of several that apply to one, the last given counts."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(
        self,
        step: str,
        *,
        value: Any = UNSET,
        errors: int | Exception | Sequence[Exception] = (),
        timeouts: int = 0,
        ordinal: int | None = None,
        run: str | None = None,
    ) -> None:
        if isinstance(errors, int):
            errors = [ReplacedError(f"error {number} of {errors}") for number in range(1, errors + 1)]
        elif isinstance(errors, Exception):
            errors = [errors]
        if value is UNSET and not errors and not timeouts:
            raise ValueError("say what replaces the step: value=, errors= or timeouts=")
        self._rules.append(Rule(step, ordinal, run, tuple(errors), timeouts, value))

    def clear(self) -> None:
        self._rules.clear()

    def find(self, run_id: str, step: str, ordinal: int, attempt: int) -> Replaced | None:
        for rule in reversed(self._rules):
            if rule.applies(run_id, step, ordinal):
                return rule.at(attempt)
        return None
