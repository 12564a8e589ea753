from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.engine import cleanup, events, starting
from signoff.engine.cleanup import Cleaned
from signoff.engine.ending import finalize
from signoff.engine.outcomes import lock_run
from signoff.engine.starting import Started, StartSpec
from signoff.store.store import Tx
from signoff.store.tables import Approval, Attempt, Completion, Decision, LogLine, Round
from signoff.workflow.errors import Conflict, NotFound
from signoff.workflow.kinds import ResultKind
from tests.engine_usecases.support import OTHER_TENANT, Database

TABLES = (
    "run", "step", "event", "label", "start_key", "payload", "log", "attempt", "round", "completion",
)  # fmt: skip


async def _finish(db: Database, *runs: Started) -> None:
    def finish(tx: Tx) -> None:
        for run in runs:
            row = lock_run(tx, run.run_id)
            assert row is not None
            finalize(tx, row, ResultKind.COMPLETED, "1")

    await db.store.write(finish)


def _insert(tx: Tx, model: Any, **values: Any) -> None:
    tx.conn.execute(sa.insert(model.__table__).values(**values))


async def _full_run(db: Database, **given: Any) -> Started:
    """A final run with a row in every table."""
    large = json.dumps("x" * 10_000)
    run = await db.start(args=large, labels={"a": "b"}, **given)
    await db.activate(run)
    no = await db.ask(run, "action", started=True)
    await db.end_step(run, no, value=large)
    await db.ask(run, "ask")
    await db.do(events.send, run.public_id, "paid", large)

    def fill(tx: Tx) -> None:
        of = {"run_id": run.run_id}
        _insert(tx, LogLine, **of, at=tx.now, level="info", message="hello")
        _insert(tx, Attempt, **of, step_no=no, number=1, ended_at=tx.now, error="{}")
        _insert(tx, Round, **of, generation=2, seed="s", started_at=tx.now)
        _insert(tx, Completion, **of, generation=1, done=True)
        approval = {
            "tenant_id": 1, "ask": "order/ship", "title": "?", "facts": "{}", "schema": "{}", "to": "[]",
            "content_hash": "", "created_at": tx.now,
        }  # fmt: skip
        for step_no, state in ((1, "decided"), (2, "closed")):
            public_id = f"{state}-{run.public_id}"
            _insert(tx, Approval, **of, **approval, step_no=step_no, state=state, public_id=public_id)
        decided = tx.conn.execute(sa.text("SELECT max(id) FROM signoff_approval WHERE state = 'decided'")).scalar()
        decision = {"person": "ana@example.org", "answer": "true", "via": "page", "revision": 1, "ledger_id": 1}
        _insert(tx, Decision, approval_id=decided, at=tx.now, **decision)

    await db.store.write(fill)
    await _finish(db, run)
    return run


async def _counts(db: Database) -> dict[str, int]:
    return {table: await db.count(f"signoff_{table}") for table in TABLES}


async def test_all_that_is_a_runs_goes_and_decisions_stay(db: Database) -> None:
    kept = await _full_run(db, idempotency_key="kept")
    before = await _counts(db)
    assert all(before.values()), before
    run = await _full_run(db, idempotency_key="k")
    assert await db.do(cleanup.cleanup, run.public_id) == Cleaned(run.public_id, "deleted", runs=1, steps=2, events=1)
    assert await _counts(db) == before
    assert (await db.view(kept)).status == "completed"
    states = sa.text("SELECT state FROM signoff_approval ORDER BY id")
    rows = await db.store.read(lambda tx: tx.conn.execute(states).scalars().all())
    assert rows == ["decided", "closed", "decided"]
    assert await db.count("signoff_decision") == 2
    with pytest.raises(NotFound):
        await db.do(cleanup.cleanup, run.public_id)


async def test_what_stays_of_a_deleted_run_is_not_taken_for_that_of_a_later_one(db: Database) -> None:
    run = await _full_run(db)
    await db.do(cleanup.cleanup, run.public_id)
    again = await _full_run(db)
    assert [step.approval for step in (await db.steps(again)).values()] == [None, f"decided-{again.public_id}"]


async def test_a_run_that_is_not_over_is_never_deleted(db: Database) -> None:
    run = await db.start()
    before = await _counts(db)
    with pytest.raises(Conflict) as caught:
        await db.do(cleanup.cleanup, run.public_id)
    assert (caught.value.run, caught.value.state) == (run.public_id, "queued")
    assert await _counts(db) == before


async def test_a_list_says_what_became_of_each(db: Database) -> None:
    done, more, runs = await db.start(), await db.start(), await db.start()
    await _finish(db, done, more)
    wanted = [done.public_id, "nothing", runs.public_id, more.public_id, done.public_id]
    dry = await db.do(cleanup.cleanup_many, wanted, dry_run=True)
    assert await db.count("signoff_run") == 3
    results = await db.do(cleanup.cleanup_many, wanted)
    assert results == dry
    assert [item.result for item in results] == ["deleted", "not_found", "not_final", "deleted", "deleted"]
    assert await db.count("signoff_run") == 1
    (foreign,) = await db.store.write(cleanup.cleanup_many, OTHER_TENANT, [runs.public_id])
    assert foreign.result == "not_found"


async def test_children_go_with_their_parent_and_hold_it(db: Database) -> None:
    parent = await db.start()
    await db.activate(parent)
    no = await db.ask(parent, "child")
    child = await db.do(starting.start, StartSpec(workflow="order", parent_id=parent.run_id, parent_no=no))
    await db.activate(child)
    inner = await db.ask(child, "child")
    grandchild = await db.do(starting.start, StartSpec(workflow="order", parent_id=child.run_id, parent_no=inner))
    await db.activate(grandchild)
    await db.ask(grandchild, "sleep")
    detached = await db.do(starting.start, StartSpec(workflow="order", parent_id=parent.run_id))
    await _finish(db, child, parent)
    with pytest.raises(Conflict):
        await db.do(cleanup.cleanup, parent.public_id)
    await _finish(db, grandchild)
    (dry,) = await db.do(cleanup.cleanup_many, [parent.public_id], dry_run=True)
    assert (dry.runs, dry.steps) == (3, 4)
    assert await db.do(cleanup.cleanup_many, [parent.public_id, child.public_id]) == [
        dry,
        Cleaned(child.public_id, "not_found"),
    ]
    assert await db.count("signoff_run") == 1
    assert (await db.view(detached)).parent is None


async def test_a_run_whose_completion_is_owed_stays(db: Database) -> None:
    run = await db.start(on_complete={"name": "tell", "context": None})
    await _finish(db, run)
    with pytest.raises(Conflict):
        await db.do(cleanup.cleanup, run.public_id)
    told = sa.update(Completion.__table__).values(done=True, next_at=None)
    await db.store.write(lambda tx: tx.conn.execute(told))
    await db.do(cleanup.cleanup, run.public_id)
