"""What is measured: the works, their sizes, their figures, and the floors that the figures are held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Database = Literal["sqlite", "postgresql"]
DATABASES: tuple[Database, ...] = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that is wanted: `ratio` to DBOS, or `value` in the figure's own unit. Printed, never asserted."""

    ratio: float | None = None
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.ratio:g} x" if self.ratio is not None else f"{self.value:,g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a work gives. `more` is whether more of it is better."""

    key: str
    label: str
    unit: str
    more: bool = False
    floors: dict[Database, Floor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """Something that both sides do. `name` is the mode of the sides' programs, `quick` the size for a short look."""

    number: int
    name: str
    title: str
    size: int
    quick: int
    figures: tuple[Figure, ...]
    repeats: int = 5
    limit: float = 300  # seconds that a side may take

    def sized(self, quick: bool) -> int:
        return self.quick if quick else self.size


def _both(value: float) -> dict[Database, Floor]:
    return {"sqlite": Floor(value=value), "postgresql": Floor(value=value)}


def _ratios(sqlite: float, postgresql: float) -> dict[Database, Floor]:
    return {"sqlite": Floor(ratio=sqlite), "postgresql": Floor(ratio=postgresql)}


def _values(sqlite: float, postgresql: float) -> dict[Database, Floor]:
    return {"sqlite": Floor(value=sqlite), "postgresql": Floor(value=postgresql)}


WORKS = (
    Work(1, "sequence", "one run of {n:,} trivial steps", 1_000, 200,
         (Figure("rate", "steps", "/s", True, _ratios(1.3, 2.3)),)),
    Work(2, "many", "{n:,} runs x 5 steps at once, in process", 500, 100,
         (Figure("rate", "runs", "/s", True, _ratios(10, 5)),)),
    Work(2, "http", "{n:,} runs x 5 steps at once, started over HTTP", 500, 100,
         (Figure("rate", "runs", "/s", True, _ratios(10, 5)),)),
    Work(3, "latency", "latency of {n:,}, one after the other", 200, 30, (
        Figure("first_p50", "start to first step, p50", "ms"),
        Figure("first_p95", "start to first step, p95", "ms"),
        Figure("event_p50", "event to next step, p50", "ms", False, _values(2.5, 6)),
        Figure("event_p95", "event to next step, p95", "ms"),
    ), repeats=3),
    Work(4, "park", "{n:,} runs parked on an event, then all resumed", 10_000, 500, (
        Figure("park", "park", "s", False, _both(5)),
        Figure("resume", "resume", "s", False, _both(8)),
        Figure("grown", "memory for the parked runs", "MB", False, _both(100)),
        Figure("memory", "memory of the process, parked", "MB"),
    ), repeats=3),
    Work(5, "crash", "kill -9 during {n:,} runs x 10 steps of 20 ms", 200, 50,
         (Figure("recovery", "restart until all are done", "s", False, _both(2)),), repeats=3),
    Work(6, "bytes", "database size of {n:,} runs of 5 steps", 2_000, 300,
         (Figure("bytes", "a run of 5 steps", "B", False, _values(1_200, 2_500)),), repeats=1),
)  # fmt: skip
