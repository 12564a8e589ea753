"""Percentiles and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def memory_mb() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def latencies(first: Sequence[float], after_event: Sequence[float]) -> dict[str, float]:
    """Seconds measured, as figures in ms."""
    return {
        f"{name}_p{percent}": percentile(values, percent) * 1e3
        for name, values in (("first", first), ("event", after_event))
        for percent in (50, 95)
    }
