"""Lays the steps of a run out on one time axis, in percent, for templates to draw.

Stretches in which no function runs are folded when they would press everything else flat: a run that computes for
seconds and waits for days shows both. Bars still span folded stretches, so one sees that people were waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from signoff.web import say

FUNCTIONS = frozenset({"query", "mutation", "action"})
OPEN = frozenset({"open", "running", "backoff", "delayed"})
MIN_WIDTH = 0.7  # percent, so that the shortest step is seen
FOLD_WIDTH = 14.0
FOLDS_SHARE = 60.0  # what all folds together take at most


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    look: str  # human, machine, running, failed, line, canceled


@dataclass(frozen=True, slots=True)
class Row:
    step: Any
    bars: list[Bar]
    took: timedelta | None


@dataclass(frozen=True, slots=True)
class Lane:
    generation: int
    rows: list[Row]
    info: Any = None  # the round that began it; None for the first


@dataclass(frozen=True, slots=True)
class Mark:
    """A tick of the axis; at the right end its text ends there instead of beginning."""

    x: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Fold:
    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: list[Lane] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)
    hidden: int = 0


class Axis:
    """Maps moments to percent. Between two neighbouring moments the scale is even."""

    def __init__(self, moments: Sequence[datetime], busy: Sequence[tuple[datetime, datetime]]) -> None:
        self.moments = sorted(set(moments))
        spans = [
            (later - earlier).total_seconds() for earlier, later in zip(self.moments, self.moments[1:], strict=False)
        ]
        idle = [not any(start < later and end > earlier for start, end in busy) for earlier, later in self._pairs()]
        used = sum(span for span, quiet in zip(spans, idle, strict=True) if not quiet)
        limit = max(2 * used, 1.0)
        self.folded = [quiet and span > limit for span, quiet in zip(spans, idle, strict=True)]
        shown = sum(span for span, fold in zip(spans, self.folded, strict=True) if not fold)
        if shown <= 0:
            self.folded = [False] * len(spans)
            shown = sum(spans)
        fold_width = min(FOLD_WIDTH, FOLDS_SHARE / max(sum(self.folded), 1))
        scale = (100 - fold_width * sum(self.folded)) / shown if shown else 0
        self.edges = [0.0]
        for span, fold in zip(spans, self.folded, strict=True):
            self.edges.append(self.edges[-1] + (fold_width if fold else span * scale))
        self.scale = scale

    def _pairs(self) -> list[tuple[datetime, datetime]]:
        return list(zip(self.moments, self.moments[1:], strict=False))

    def x(self, moment: datetime) -> float:
        if moment <= self.moments[0]:
            return 0.0
        if moment >= self.moments[-1]:
            return 100.0
        index = bisect_right(self.moments, moment) - 1
        earlier, later = self.moments[index], self.moments[index + 1]
        share = (moment - earlier) / (later - earlier)
        return self.edges[index] + share * (self.edges[index + 1] - self.edges[index])

    def folds(self) -> list[Fold]:
        return [
            Fold(round(self.edges[i], 2), round(self.edges[i + 1] - self.edges[i], 2), say.duration(later - earlier))
            for i, (earlier, later) in enumerate(self._pairs())
            if self.folded[i]
        ]

    def marks(self) -> list[Mark]:
        """Even ticks up to the first fold; after each fold the time of day."""
        start = self.moments[0]
        first_fold = next((i for i, fold in enumerate(self.folded) if fold), len(self.folded))
        width = self.edges[first_fold]
        seconds = (self.moments[first_fold] - start).total_seconds()
        marks = [Mark(0.0, say.clock(start))]
        step = _nice(seconds / max(1, int(width / 18))) if seconds else 0
        at = step
        while step and at < seconds:
            x = at * self.scale
            if x > 20 and x < width - 8 and x < 92:
                marks.append(Mark(round(x, 2), f"+{say.duration(at)}"))
            at += step
        for index, fold in enumerate(self.folded):
            x = self.edges[index + 1]
            follows_fold = index + 1 < len(self.folded) and self.folded[index + 1]
            if fold and not follows_fold and x - marks[-1].x > 15 and x < 99:
                marks.append(Mark(round(x, 2), say.clock(self.moments[index + 1], start), "end" if x > 88 else "start"))
        return marks


def _nice(raw: float) -> float:
    for unit in (0.001, 0.01, 0.1, 1, 60, 3600, 86_400):
        for factor in (1, 2, 5, 10, 15, 30):
            if unit * factor >= raw:
                return unit * factor
    return raw


def _bars(axis: Axis, step: Any, now: datetime) -> list[Bar]:
    end = step.ended_at or now
    start = step.asked_at

    def bar(begin: datetime, stop: datetime, look: str) -> Bar:
        x = axis.x(begin)
        width = max(axis.x(stop) - x, MIN_WIDTH)
        return Bar(round(min(x, 100 - width), 2), round(width, 2), look)

    if step.state == "canceled":
        return [bar(start, end, "canceled")]
    if step.kind == "ask":
        return [bar(start, end, "human")]
    if step.kind not in FUNCTIONS:
        return [bar(start, end, "failed" if step.state == "failure" else "line")]
    bars: list[Bar] = []
    begun = start
    for attempt in step.attempt_rows:
        tried = attempt.started_at or begun
        if tried > begun:
            bars.append(bar(begun, tried, "line"))
        bars.append(bar(tried, attempt.ended_at, "failed"))
        begun = attempt.ended_at
        if attempt.next_at is not None:
            retried = min(attempt.next_at, end)
            if retried > begun:
                bars.append(bar(begun, retried, "line"))
            begun = max(begun, retried)
    match step.state:
        case "success":
            bars.append(bar(begun, end, "machine"))
        case "running":
            bars.append(bar(begun, end, "running"))
        case "open" | "delayed":
            bars.append(bar(begun, end, "line"))
        case "failure" if end > begun or not bars:
            bars.append(bar(begun, end, "failed"))
        case _:
            pass
    return bars


def lay_out(run: Any, steps: Sequence[Any], rounds: Sequence[Any], now: datetime, limit: int | None = 200) -> Timeline:
    """`steps` in journal order; with a `limit` only the last ones are drawn."""
    steps = [step for step in steps if step.kind != "marker"]
    hidden = max(0, len(steps) - limit) if limit else 0
    steps = steps[hidden:]
    if not steps:
        return Timeline()
    end = run.ended_at or now
    moments = [end]
    busy: list[tuple[datetime, datetime]] = []
    for step in steps:
        stop = step.ended_at or now
        moments += [step.asked_at, stop]
        if (step.kind in FUNCTIONS or step.kind == "child") and step.state not in {"backoff", "delayed"}:
            busy.append((step.asked_at, stop))
    axis = Axis(moments, busy)
    started = {item.generation: item for item in rounds}
    lanes: dict[int, list[Row]] = {}
    for step in steps:
        took = (step.ended_at or now) - step.asked_at
        lanes.setdefault(step.generation, []).append(Row(step, _bars(axis, step, now), took))
    return Timeline(
        [Lane(generation, rows, started.get(generation)) for generation, rows in sorted(lanes.items())],
        axis.marks(),
        axis.folds(),
        hidden,
    )
