"""Sends that come together share a commit, and what they look up and write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from signoff.engine import events
from signoff.engine.events import Handed, Looked, RunBusy
from signoff.engine.lookup import look_up
from signoff.engine.views import EventView
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import SignoffError


@dataclass(frozen=True, slots=True)
class Send:
    """A call of `events.send` that still lacks its transaction; `options` are those of `events.send`."""

    scope: Scope
    run: str
    event: str
    value: str
    options: Mapping[str, Any]

    def __call__(self, tx: Tx, /, **more: Any) -> EventView:
        return events.send(tx, self.scope, self.run, self.event, self.value, **self.options, **more)

    @property
    def is_plain(self) -> bool:
        """Whether the run, its waits and its events of this name are all that has to be known."""
        special = self.options.get("by_id") or self.options.get("idempotency_key") is not None
        return bool(self.scope.tenant_id) and not special and "\0" not in self.run and payloads.is_inline(self.value)


def send_together(tx: Tx, sends: Sequence[Send]) -> list[EventView | SignoffError | None]:
    """Unrelated sends in one commit: what each made, or its refusal.

    None: it has to be sent by itself, because this commit must not wait for whoever holds its run.
    """
    if len(sends) == 1:
        try:
            return [sends[0](tx, patient=False)]  # of a refused one nothing may stay
        except RunBusy:
            return [None]
    results: list[EventView | SignoffError | None] = [None] * len(sends)
    several = replace(tx, until_commit=None)
    plain, others = _sorted(sends)
    together: list[Handed] = []
    for at, looked in _look_up(several, sends, plain):
        if looked.follows or (looked.run.wake_at is not None and looked.run.wake_at <= tx.now):
            others.append(at)
            continue
        try:  # it is refused before it writes anything
            results[at] = sends[at](several, looked=looked, together=together)
        except SignoffError as error:
            results[at] = error
    if together:
        events.hand_over(several if others else tx, together)
    for at in sorted(others):
        try:
            with several.savepoint():
                results[at] = sends[at](several, patient=False)
        except RunBusy:
            pass
        except SignoffError as error:
            results[at] = error
    return results


def _sorted(sends: Sequence[Send]) -> tuple[list[int], list[int]]:
    """The first plain ones of each run, and the others, which come after them."""
    plain: list[int] = []
    others: list[int] = []
    runs: set[tuple[int, str]] = set()
    for at, send in enumerate(sends):
        run = (send.scope.tenant_id or 0, send.run)
        (plain if send.is_plain and run not in runs else others).append(at)
        runs.add(run)
    return plain, others


def _look_up(tx: Tx, sends: Sequence[Send], chosen: Iterable[int]) -> Iterator[tuple[int, Looked]]:
    """The runs of the chosen sends, locked, with what is open; without those that others hold or that are not there."""
    of_tenant: dict[int, list[int]] = defaultdict(list)
    for at in chosen:
        of_tenant[sends[at].scope.tenant_id or 0].append(at)
    for tenant, places in of_tenant.items():
        found, _ = look_up(tx, tenant, [sends[at].run for at in places], patient=False)
        here = [at for at in places if sends[at].run in found]
        kept = events.runs_with_buffered(tx, [(found[sends[at].run][0].id, sends[at].event) for at in here])
        for at in here:
            run, steps = found[sends[at].run]
            yield at, Looked(run, steps, run.id in kept)
