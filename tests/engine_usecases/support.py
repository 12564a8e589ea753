"""What these tests do to a database in the place of a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from signoff.engine import starting, views
from signoff.engine.definitions import NewDefinition, register_definitions
from signoff.engine.outcomes import R, Row, S, lock_run, record_outcome
from signoff.engine.starting import Started, StartSpec
from signoff.store.clock import ManualClock
from signoff.store.store import Scope, Store, Tx
from signoff.workflow.kinds import ErrorInfo, OutcomeKind

Result = TypeVar("Result")

TENANT = Scope(1)
OTHER_TENANT = Scope(2)


class Database:
    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock

    async def do(self, use_case: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Runs a use-case of the tenant in a transaction of its own."""
        return await self.store.write(use_case, TENANT, *args, **kwargs)

    async def define(self, name: str, version: int = 1, **settings: Any) -> int:
        ids = await self.store.write(register_definitions, [NewDefinition(name, version, settings=settings)])
        return ids[name, version]

    async def start(self, workflow: str = "order", **given: Any) -> Started:
        return await self.do(starting.start, StartSpec(workflow=workflow, **given))

    async def row(self, run: Started | str) -> Row:
        public_id = run if isinstance(run, str) else run.public_id
        return await self.store.read(lambda tx: tx.conn.execute(sa.select(R).where(R.c.public_id == public_id)).one())

    async def view(self, run: Started) -> views.RunView:
        return await self.store.read(views.run_view, TENANT, run.public_id)

    async def steps(self, run: Started) -> dict[int, views.StepView]:
        return {step.no: step for step in await self.store.read(views.steps_view, TENANT, run.public_id)}

    async def count(self, table: str) -> int:
        counted = sa.text(f"SELECT count(*) FROM {table}")
        return await self.store.read(lambda tx: tx.conn.execute(counted).scalar_one())

    async def activate(self, run: Started, **columns: Any) -> None:
        """The run is claimed, and its first advance is written."""
        values = {"state": "active", "ready": None, "driven_no": 0, "activity": "waiting", **columns}
        await self.store.write(lambda tx: tx.conn.execute(sa.update(R).where(R.c.id == run.run_id).values(**values)))

    async def ask(self, run: Started, kind: str, name: str = "step", **given: Any) -> int:
        """The handler asks for a step after the last outcome; returns its number."""
        return await self.store.write(add_step, run.run_id, kind, name, **given)

    async def wait_for(
        self, run: Started, *names: str, event_id: str | None = None, timeout: float | None = None
    ) -> int:
        options = {"event_id": event_id} if event_id else {"names": list(names)}
        due_at = self.clock.now() + timedelta(seconds=timeout) if timeout is not None else None
        return await self.ask(run, "event", names[0] if names else "by id", options=options, due_at=due_at)

    async def end_step(
        self, run: Started, no: int, kind: OutcomeKind = OutcomeKind.SUCCESS, value: str = "null", **columns: Any
    ) -> int:
        """A step's outcome, handed over; returns its number."""
        return await self.store.write(end_step, run.run_id, no, kind, value, columns)


class CountingTx(Tx):
    """A transaction that notes what its use-case executes, also on the driver's cursor."""

    statements: list[str]

    def execute_raw(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self.statements.append(sql)
        return super().execute_raw(sql, parameters)


def statements_of(tx: Tx, use_case: Callable[..., Result], *args: Any, **kwargs: Any) -> tuple[list[str], Result]:
    """The SQL of a use-case, and what it gives."""
    counting = CountingTx(tx.conn, tx.now, tx.dialect, tx.notices)
    statements = counting.statements = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    sa.event.listen(tx.conn, "before_cursor_execute", note)
    try:
        return statements, use_case(counting, *args, **kwargs)
    finally:
        sa.event.remove(tx.conn, "before_cursor_execute", note)


def add_step(tx: Tx, run_id: int, kind: str, name: str, options: dict[str, Any] | None = None, **columns: Any) -> int:
    row = lock_run(tx, run_id)
    assert row is not None
    step = {
        "run_id": run_id,
        "no": row.next_no,
        "kind": kind,
        "name": name,
        "generation": row.generation,
        "asked_after": max(row.driven_no, 0),
        "asked_at": tx.now,
        "options": json.dumps(options) if options else None,
    }
    tx.conn.execute(sa.insert(S).values(**{**step, **columns}))
    due_at = columns.get("due_at")
    wakes = min(due_at, row.wake_at or due_at) if due_at else row.wake_at
    tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(next_no=R.c.next_no + 1, wake_at=wakes))
    return int(row.next_no)


def end_step(tx: Tx, run_id: int, no: int, kind: OutcomeKind, value: str, columns: dict[str, Any]) -> int:
    row = lock_run(tx, run_id)
    assert row is not None
    error = ErrorInfo("ValueError", "no good") if kind is OutcomeKind.FAILURE else None
    row = record_outcome(tx, row, no, kind, value, error)
    assert row is not None
    tx.conn.execute(sa.update(R).where(R.c.id == run_id).values(driven_no=row.outcome_no, ready=None))
    if columns:
        tx.conn.execute(sa.update(S).where(S.c.run_id == run_id, S.c.no == no).values(**columns))
    return int(row.outcome_no)
