"""The tables that the benchmark prints."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.plan import Database, Figure, Work

HEADINGS = ("database", "figure", "unit", "Signoff", "DBOS", "ratio", "floor", "", "range of Signoff")


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of both sides, every repeat of it."""

    work: Work
    database: Database
    figure: Figure
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ratio(self) -> float | None:
        """How many times better than DBOS, whichever way better is."""
        if not self.ours or not self.theirs or not median(self.ours) or not median(self.theirs):
            return None
        times = median(self.ours) / median(self.theirs)
        return times if self.figure.more else 1 / times

    def verdict(self) -> str:
        floor = self.figure.floors.get(self.database)
        if floor is None or not self.ours:
            return ""
        if floor.ratio is not None:
            return "" if self.ratio is None else _reached(self.ratio >= floor.ratio)
        assert floor.value is not None
        measured = median(self.ours)
        return _reached(measured >= floor.value if self.figure.more else measured <= floor.value)

    def cells(self) -> tuple[str, ...]:
        floor = self.figure.floors.get(self.database)
        spread = f"{number(min(self.ours))} to {number(max(self.ours))}" if len(self.ours) > 1 else ""
        return (
            self.database,
            self.figure.label,
            self.figure.unit,
            number(median(self.ours)) if self.ours else "-",
            number(median(self.theirs)) if self.theirs else "-",
            f"{self.ratio:.2f} x" if self.ratio is not None else "-",
            str(floor) if floor is not None else "",
            self.verdict(),
            spread,
        )


def _reached(yes: bool) -> str:
    return "reached" if yes else "BELOW"


def number(value: float) -> str:
    """Three digits that matter."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Columns as wide as they need; numbers to the right."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings))]
    shown = []
    for line in lines:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() and not cell.endswith("y") else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        shown.append("  ".join(cells).rstrip())
    shown.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(shown)


def machine() -> str:
    """What the numbers were measured on."""
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, "
        f"load {load:.1f} at the start. Medians; ratio: how many times better than DBOS. Full durability on all sides."
    )
