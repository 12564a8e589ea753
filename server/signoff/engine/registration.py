"""What code a worker has, as the others see it."""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa

from signoff.engine import pools
from signoff.engine.definitions import NewDefinition, register_definitions
from signoff.engine.outcomes import R
from signoff.engine.programs import Known
from signoff.engine.recovery import WD, W
from signoff.store.tx import Tx
from signoff.workflow.functions import StepFunction
from signoff.workflow.kinds import RunState
from signoff.workflow.registry import Registry


def definitions_of(registry: Registry) -> list[tuple[NewDefinition, Any]]:
    """What can be started by this code, for the database's list, each with its workflow or function."""
    targets = [*registry.workflows(), *registry.functions()]
    return [(_definition(target), target) for target in targets]


def _definition(target: Any) -> NewDefinition:
    # That there are secrets in its types, neither its parents can see nor those who start it without its code.
    secret = {"sensitive": True} if target.sensitive else {}
    if isinstance(target, StepFunction):
        return NewDefinition(target.name, kind="function", settings=secret)
    return NewDefinition(target.name, target.version, settings=target.settings.to_json() | secret)


def register(tx: Tx, worker_id: int, registry: Registry) -> dict[int, Known]:
    """Writes the definitions and this worker's code of them, and wakes runs that other code had blocked."""
    found = definitions_of(registry)
    ids = register_definitions(tx, [new for new, _ in found])
    known = {}
    for new, definition in found:
        number = ids[new.name, new.version]
        code_hash = _hash(definition) if new.kind == "function" else definition.code_hash
        known[number] = Known(number, new.kind, new.name, new.version, code_hash, definition)
    tx.conn.execute(sa.delete(WD).where(WD.c.worker_id == worker_id))
    if known:
        rows = [{"worker_id": worker_id, "definition_id": k.id, "code_hash": k.code_hash} for k in known.values()]
        tx.conn.execute(sa.insert(WD), rows)
    for item in known.values():
        tx.conn.execute(
            sa.update(R)
            .where(
                R.c.definition_id == item.id,
                R.c.blocked_reason.is_not(None),
                R.c.state != RunState.FINAL.value,
                ~R.c.blocked_hash.contains(item.code_hash),
            )
            .values(blocked_reason=None, ready=0, touch_no=R.c.touch_no + 1)
        )
    tx.notify("ready")
    return known


def unregister(tx: Tx, worker_id: int) -> None:
    """The worker ends in order; its slots in pools are free again."""
    pools.free_slots(tx, [worker_id])
    tx.conn.execute(sa.delete(WD).where(WD.c.worker_id == worker_id))
    tx.conn.execute(sa.update(W).where(W.c.id == worker_id).values(lost_at=tx.now))
    tx.notify("ready")  # others have to wake the runs that it would have woken


def _hash(fn: Any) -> str:
    code = getattr(fn.fn, "__code__", None)
    return hashlib.sha256(code.co_code if code is not None else fn.name.encode()).hexdigest()[:16]
