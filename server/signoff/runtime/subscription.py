"""Live changes of one run, for whoever watches it (Q3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace

from signoff.engine import views
from signoff.engine.status import FINAL_STATUSES as FINAL
from signoff.engine.views import EventView, LogView, RunView, StepView
from signoff.runtime.watcher import SAFETY_SECONDS, Watcher
from signoff.store.store import Scope, Store, Tx

# Log lines of attempts are written a few times a second, so the last ones may come after the run's end.
LATE_SECONDS = 0.5
PAUSE = 0.01  # seconds between two looks: what changes faster is told at once


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The run as it is now. `version` never decreases, also across restarts of any process."""

    version: int
    run: RunView


@dataclass(frozen=True, slots=True)
class StepChanged:
    version: int
    step: StepView


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt failed or was lost; `step` says how many did, and when the next one is due."""

    version: int
    step: StepView


@dataclass(frozen=True, slots=True)
class Progressed:
    """A running step told how far it is. Whoever begins to look later hears it too, after its `StepChanged`."""

    version: int
    step: StepView


@dataclass(frozen=True, slots=True)
class Logged:
    version: int
    line: LogView


@dataclass(frozen=True, slots=True)
class EventChanged:
    version: int
    event: EventView


Change = RunChanged | StepChanged | AttemptEnded | Progressed | Logged | EventChanged


@dataclass(frozen=True, slots=True)
class _Snapshot:
    run: RunView
    steps: Sequence[StepView]
    events: Sequence[EventView]
    logs: Sequence[LogView]


def _read_snapshot(tx: Tx, scope: Scope, run_id: str, seen: _Seen) -> _Snapshot:
    run = views.run_view(tx, scope, run_id)
    # steps that ended stay as they are until a restart retires them
    after = seen.settled if seen.run is not None and run.generation == seen.run.generation else -1
    return _Snapshot(
        run,
        views.steps_view(tx, scope, run_id, after=after),
        views.events_view(tx, scope, run_id),
        views.logs_view(tx, scope, run_id, after=seen.last_log),
    )


class _Seen:
    """What a subscriber was told already."""

    def __init__(self) -> None:
        self.version = -1
        self.run: RunView | None = None
        self.steps: dict[int, StepView] = {}
        self.settled = -1  # up to here every step has its outcome
        self.events: dict[str, EventView] = {}
        self.last_log = 0

    def differences(self, now: _Snapshot) -> Iterator[Change]:
        """The snapshot as changes; the run comes last, so that its end is the last thing that a subscriber hears."""
        version = self.version = max(self.version, now.run.version_no)
        for event in now.events:
            if self.events.get(event.id) != event:
                self.events[event.id] = event
                yield EventChanged(version, event)
        for step in now.steps:
            former = self.steps.get(step.no)
            if former == step:
                continue
            self.steps[step.no] = step
            yield from _step_changes(version, former, step)
        unended = [step.no for step in now.steps if step.ended_at is None and step.retired_in is None]
        self.settled = min(unended, default=max((step.no for step in now.steps), default=self.settled) + 1) - 1
        for line in now.logs:
            self.last_log = max(self.last_log, line.id)
            yield Logged(version, line)
        if now.run != self.run:
            self.run = now.run
            yield RunChanged(version, now.run)


def _step_changes(version: int, former: StepView | None, step: StepView) -> Iterator[Change]:
    if former is None:
        yield StepChanged(version, step)
        if step.progress is not None and step.ended_at is None:
            yield Progressed(version, step)
        return
    if (former.attempts, former.lost) != (step.attempts, step.lost):
        yield AttemptEnded(version, step)
    if former.progress != step.progress and step.progress is not None:
        yield Progressed(version, step)
    same_but = replace(former, progress=step.progress, attempts=step.attempts, lost=step.lost)
    if same_but != step:
        yield StepChanged(version, step)


async def subscribe(store: Store, watcher: Watcher, scope: Scope, key: int, run_id: str) -> AsyncIterator[Change]:
    """The run as it is now, then every change; ends a moment after the run did."""
    seen = _Seen()
    with watcher.changes(key) as signal:
        while True:
            signal.clear()
            snapshot = await store.read(_read_snapshot, scope, run_id, seen)
            for change in seen.differences(snapshot):
                yield change
            await asyncio.sleep(PAUSE)
            if snapshot.run.status not in FINAL:
                await _wait(signal, SAFETY_SECONDS)  # after which it looks all the same, in case a notice went missing
            elif not await _wait(signal, LATE_SECONDS):
                return


async def _wait(signal: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await signal.wait()
    except TimeoutError:
        return False
