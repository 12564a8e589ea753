"""Sends that come together share a commit, and what they look up and write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from signoff.engine import events
from signoff.engine.events import Handed, Looked, OpenStep, RunBusy
from signoff.engine.outcomes import RUN_COLUMNS, R, Row, RunRow
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
        ids = [sends[at].run for at in places]
        width = 1 << (len(ids) - 1).bit_length()  # few statement texts, so that drivers keep them prepared
        which = (tenant, *ids, *ids[-1:] * (width - len(ids)))
        looks = _looks(width, tx.dialect.row_lock_now)
        locked, steps, buffered = tx.dialect.run_all(tx, *((look, which) for look in looks))
        runs: dict[str, Row] = {}
        for values in tx.dialect.read_rows(R, RUN_COLUMNS, locked.rows):
            run = cast(Row, RunRow._make(values))
            runs[run.public_id] = run
        waits: dict[str, list[OpenStep]] = defaultdict(list)
        for public_id, *step in steps.rows:
            waits[public_id].append(OpenStep._make(step))
        kept = {(public_id, name) for public_id, name in buffered.rows}
        for at in places:
            send = sends[at]
            if send.run in runs:
                yield at, Looked(runs[send.run], waits[send.run], (send.run, send.event) in kept)


@lru_cache(maxsize=32)
def _looks(width: int, lock: str) -> tuple[str, str, str]:
    # the tenant is added to for the reason that lookup.OF_TENANT has
    these = f"r.tenant_id + 0 = ? AND r.public_id IN ({', '.join('?' * width)})"
    steps = (
        "SELECT r.public_id, s.no, s.kind, s.name, s.options FROM signoff_run r JOIN signoff_step s ON s.run_id = r.id"
        f" WHERE {these} AND s.outcome_no IS NULL AND s.retired_in IS NULL AND s.kind IN ('event', 'ask')"
        " ORDER BY s.run_id, s.no"
    )
    buffered = (
        "SELECT r.public_id, e.name FROM signoff_run r JOIN signoff_event e ON e.run_id = r.id"
        f" WHERE {these} AND e.state = 'buffered' AND NOT e.by_id"
    )
    runs = f"SELECT {', '.join(RUN_COLUMNS)} FROM signoff_run r WHERE {these} ORDER BY r.id{lock}"
    return runs, steps, buffered
