"""Definitions as the store knows them: looked up for every start, so kept in memory for a moment."""

from __future__ import annotations

import difflib
import json
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from signoff.engine.lookup import insert_new
from signoff.engine.outcomes import Row
from signoff.store.tables import Definition, Worker, WorkerDefinition
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound
from signoff.workflow.names import check_name

D = Definition.__table__
W = Worker.__table__
WD = WorkerDefinition.__table__

# how long a start may go by what was known: workers and versions come and go
KNOWN_FOR = 1.0  # seconds


@dataclass(frozen=True)
class KnownDefinition:
    """A workflow (or enqueued function) of the process, with the settings that its code registered last."""

    id: int
    name: str
    version: int
    kind: str
    settings: Mapping[str, Any]

    @cached_property
    def limits(self) -> WorkflowLimits | None:
        return WorkflowLimits.from_settings(self.settings)

    @property
    def events(self) -> frozenset[str] | None:
        """The declared events; None: anything may be sent."""
        declared = self.settings.get("events")
        return frozenset(declared) if declared is not None else None


@dataclass(frozen=True, slots=True)
class WorkflowLimits:
    """S5. `rate` is starts in seconds; None: not limited."""

    max_concurrent: int | None = None
    rate: tuple[int, float] | None = None
    max_queued: int | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> WorkflowLimits | None:
        rate = settings.get("rate")
        limits = cls(settings.get("max_concurrent"), (rate[0], rate[1]) if rate else None, settings.get("max_queued"))
        return None if limits == cls() else limits

    @property
    def holds(self) -> bool:
        """Whether runs may have to wait to be let in."""
        return self.max_concurrent is not None or self.rate is not None


@dataclass(frozen=True, slots=True)
class NewDefinition:
    """What code brings along: `settings` is plain JSON."""

    name: str
    version: int = 1
    kind: str = "workflow"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "function":  # functions have no versions
            object.__setattr__(self, "version", 0)


class _Known:
    """What one engine knows; one for each database, so that databases in memory are told apart."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int | None], tuple[float, KnownDefinition]] = {}
        self.by_id: dict[int, tuple[float, KnownDefinition]] = {}


_known: weakref.WeakKeyDictionary[sa.Engine, _Known] = weakref.WeakKeyDictionary()


def _memory(tx: Tx) -> _Known:
    engine = tx.conn.engine
    memory = _known.get(engine)
    if memory is None:
        memory = _known.setdefault(engine, _Known())
    return memory


def forget_definitions(tx: Tx) -> None:
    """Called when definitions or workers of this process change."""
    _known.pop(tx.conn.engine, None)


def resolve_definition(tx: Tx, name: str, version: int | None = None) -> KnownDefinition:
    """The version asked for, else the highest that a live worker has, else the highest known (D1).

    NotFound names what comes near.
    """
    memory = _memory(tx)
    kept = memory.by_name.get((name, version))
    if kept is not None and kept[0] > time.monotonic():
        return kept[1]
    check_name(name, "workflow")
    live = sa.exists().where(WD.c.definition_id == D.c.id, WD.c.worker_id == W.c.id, W.c.lost_at.is_(None))
    rows = tx.conn.execute(
        sa.select(D, live.label("live"))
        .where(D.c.tenant_id == 0, D.c.bundle == "", D.c.name == name)
        .order_by(sa.desc("live"), D.c.version.desc())
    ).all()
    row = next((row for row in rows if version in (None, row.version)), None)
    if row is None:
        raise _unknown(tx, name, version, [row.version for row in rows])
    found = _from_row(row)
    memory.by_name[name, version] = (time.monotonic() + KNOWN_FOR, found)
    return found


def definition_by_id(tx: Tx, definition_id: int) -> KnownDefinition:
    memory = _memory(tx)
    kept = memory.by_id.get(definition_id)
    if kept is not None and kept[0] > time.monotonic():
        return kept[1]
    found = _from_row(tx.conn.execute(sa.select(D).where(D.c.id == definition_id)).one())
    memory.by_id[definition_id] = (time.monotonic() + KNOWN_FOR, found)
    return found


def register_definitions(tx: Tx, definitions: Sequence[NewDefinition]) -> dict[tuple[str, int], int]:
    """Makes the definitions known, or their settings new, and returns the ids by (name, version)."""
    forget_definitions(tx)
    wanted = {(item.name, item.version): item for item in definitions}
    known = _rows(tx, {name for name, _ in wanted})
    missing = [item for key, item in wanted.items() if key not in known]
    if missing:
        values = [{"tenant_id": 0, "name": item.name, "version": item.version, "kind": item.kind} for item in missing]
        tx.conn.execute(insert_new(tx, D), values)
        known = _rows(tx, {name for name, _ in wanted})
    for key, item in wanted.items():
        row, settings = known[key], _settings_text(item.settings)
        if row.settings != settings or row.kind != item.kind:
            tx.conn.execute(sa.update(D).where(D.c.id == row.id).values(settings=settings, kind=item.kind))
            before = WorkflowLimits.from_settings(json.loads(row.settings) if row.settings else {})
            if before != WorkflowLimits.from_settings(item.settings):
                from signoff.engine import limits  # limits looks definitions up here

                limits.recount(tx, row.id)
    return {key: known[key].id for key in wanted}


def _rows(tx: Tx, names: set[str]) -> dict[tuple[str, int], Row]:
    rows = tx.conn.execute(sa.select(D).where(D.c.tenant_id == 0, D.c.bundle == "", D.c.name.in_(names)))
    return {(row.name, row.version): row for row in rows}


def _settings_text(settings: Mapping[str, Any]) -> str | None:
    return json.dumps(settings, sort_keys=True) if settings else None


def _from_row(row: Row) -> KnownDefinition:
    return KnownDefinition(row.id, row.name, row.version, row.kind, json.loads(row.settings) if row.settings else {})


def _unknown(tx: Tx, name: str, version: int | None, versions: Sequence[int]) -> NotFound:
    if versions:
        listed = ", ".join(map(str, sorted(versions)))
        return NotFound(f"workflow {name!r} has no version {version}; known: {listed}", workflow=name, version=version)
    names = tx.conn.execute(sa.select(D.c.name).where(D.c.tenant_id == 0).distinct()).scalars().all()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return NotFound(f"there is no workflow {name!r}{hint}", workflow=name, near=near)
