from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.engine import control, starting
from signoff.engine.ending import finalize
from signoff.engine.outcomes import R, S, lock_run
from signoff.engine.starting import Started, StartSpec
from signoff.store.store import Person, Scope, Tx
from signoff.workflow.errors import Conflict, NotFound
from signoff.workflow.kinds import ResultKind
from tests.engine_usecases.support import OTHER_TENANT, Database


async def _cancel_rows(db: Database, run: Started) -> list[Any]:
    select = sa.select(S).where(S.c.run_id == run.run_id, S.c.kind == "cancel")
    return list(await db.store.read(lambda tx: tx.conn.execute(select).all()))


async def _child(db: Database, parent: Started, no: int | None) -> Started:
    spec = StartSpec(workflow="order", parent_id=parent.run_id, parent_no=no)
    child = await db.do(starting.start, spec)
    if no is not None:
        linked = sa.update(S).where(S.c.run_id == parent.run_id, S.c.no == no).values(child_id=child.run_id)
        await db.store.write(lambda tx: tx.conn.execute(linked))
    return child


async def test_a_cancel_is_an_outcome_with_reason_actor_and_grace(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await db.ask(run, "sleep", due_at=db.clock.now() + timedelta(hours=1))
    person = Scope(1, Person("ana@example.org", "Ana", "operator"))
    status = await db.store.write(
        control.cancel, person, run.public_id, reason="wrong order", compensate=True, grace=30.0
    )
    assert status == "canceling"
    (step,) = await _cancel_rows(db, run)
    assert (step.no, step.outcome_no, step.outcome_kind) == (1, 1, "success")
    assert json.loads(step.value) == {"reason": "wrong order", "actor": "ana@example.org", "compensate": True}
    row = await db.row(run)
    assert (row.requested, row.ready, row.outcome_no, row.next_no) == ("cancel", 0, 1, 2)
    assert row.wake_at == step.due_at == db.clock.now() + timedelta(seconds=30)


async def test_canceling_again_changes_nothing(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await db.ask(run, "sleep")
    statuses = await asyncio.gather(*(db.do(control.cancel, run.public_id, reason=str(n)) for n in range(6)))
    assert set(statuses) == {"canceling"}
    assert len(await _cancel_rows(db, run)) == 1


async def test_a_run_that_has_not_started_is_canceled_at_once(db: Database) -> None:
    run = await db.start()
    assert await db.do(control.cancel, run.public_id, reason="no") == "canceled"
    view = await db.view(run)
    assert (view.status, view.error and view.error.message) == ("canceled", "no")
    assert await db.do(control.cancel, run.public_id) == "canceled"


async def test_a_blocked_run_is_canceled_at_once(db: Database) -> None:
    run = await db.start()
    await db.activate(run, blocked_reason='{"code": "mismatch"}')
    no = await db.wait_for(run, "paid")
    assert await db.do(control.cancel, run.public_id) == "canceled"
    assert (await db.steps(run))[no].state == "canceled"
    other = await db.start()
    await db.activate(other, blocked_reason='{"code": "mismatch"}')
    await db.ask(other, "action", options={"compensate": "undo"}, started=True)
    # there is something to undo, which needs a worker
    assert await db.do(control.cancel, other.public_id, compensate=True) == "canceling"
    assert (await db.row(other)).ready == 0


async def test_a_final_run_keeps_its_result(db: Database) -> None:
    run = await db.start()

    def finish(tx: Tx) -> None:
        row = lock_run(tx, run.run_id)
        assert row is not None
        finalize(tx, row, ResultKind.COMPLETED, "1")

    await db.store.write(finish)
    assert await db.do(control.cancel, run.public_id) == "completed"
    for use_case in (control.pause, control.resume):
        with pytest.raises(Conflict):
            await db.do(use_case, run.public_id)


async def test_timers_that_were_due_come_before_the_cancel(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.ask(run, "sleep", due_at=db.clock.now() + timedelta(seconds=5))
    db.clock.advance(timedelta(seconds=6))
    await db.do(control.cancel, run.public_id)
    assert (await db.steps(run))[no].state == "success"
    assert (await _cancel_rows(db, run))[0].outcome_no == 2


async def test_a_child_that_is_canceled_tells_its_parent(db: Database) -> None:
    parent = await db.start()
    await db.activate(parent)
    no = await db.ask(parent, "child")
    child = await _child(db, parent, no)
    assert await db.do(control.cancel, child.public_id) == "canceled"
    assert (await db.steps(parent))[no].state == "canceled"
    assert (await db.row(parent)).ready == 0


async def test_children_are_canceled_in_batches(db: Database) -> None:
    parent = await db.start()
    await db.activate(parent)
    children = [await _child(db, parent, await db.ask(parent, "child")) for _ in range(5)]
    detached = await _child(db, parent, None)
    assert await db.store.write(control.cancel_children, parent.run_id, 2) == 3
    assert await db.store.write(control.cancel_children, parent.run_id, 2) == 1
    assert await db.store.write(control.cancel_children, parent.run_id, 2) == 0
    assert {(await db.row(child)).result_kind for child in children} == {"canceled"}
    assert (await db.row(detached)).state == "queued"


async def test_pause_and_resume(db: Database) -> None:
    run = await db.start()
    await db.activate(run, activity="running")
    assert await db.do(control.pause, run.public_id) == "pausing"
    assert (await db.row(run)).ready == 0
    assert await db.do(control.resume, run.public_id) == "running"
    await db.activate(run, activity="waiting")
    assert await db.do(control.pause, run.public_id) == "paused"
    assert await db.do(control.pause, run.public_id) == "paused"
    await db.activate(run, activity="waiting")
    assert await db.do(control.resume, run.public_id) == "waiting"
    assert (await db.row(run)).ready == 0
    before = (await db.row(run)).touch_no
    assert await db.do(control.resume, run.public_id) == "waiting"
    assert (await db.row(run)).touch_no == before


async def test_a_queued_run_is_paused_without_a_worker(db: Database) -> None:
    run = await db.start()
    assert await db.do(control.pause, run.public_id) == "paused"
    assert (await db.row(run)).ready is None
    assert await db.do(control.resume, run.public_id) == "queued"
    assert (await db.row(run)).ready == 1
    delayed = await db.start(run_after=60.0)
    await db.do(control.pause, delayed.public_id)
    await db.do(control.resume, delayed.public_id)
    row = await db.row(delayed)
    assert (row.ready, row.wake_at) == (None, db.clock.now() + timedelta(seconds=60))
    await db.do(control.pause, delayed.public_id)
    db.clock.advance(timedelta(seconds=61))
    await db.do(control.resume, delayed.public_id)
    assert (await db.row(delayed)).ready == 1


async def test_pausing_reaches_children_when_asked(db: Database) -> None:
    parent = await db.start()
    await db.activate(parent)
    child = await _child(db, parent, await db.ask(parent, "child"))
    await db.activate(child)
    grandchild = await _child(db, child, await db.ask(child, "child"))
    await db.do(control.pause, parent.public_id)
    assert (await db.row(child)).requested == "none"
    await db.do(control.pause, parent.public_id, children=True)
    assert [(await db.row(run)).requested for run in (parent, child, grandchild)] == ["pause"] * 3
    await db.do(control.resume, parent.public_id, children=True)
    assert [(await db.row(run)).requested for run in (parent, child, grandchild)] == ["none"] * 3


async def test_a_canceling_run_cannot_be_paused(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await db.ask(run, "sleep")
    await db.do(control.pause, run.public_id)
    assert await db.do(control.cancel, run.public_id) == "canceling"
    with pytest.raises(Conflict) as caught:
        await db.do(control.pause, run.public_id)
    assert caught.value.state == "canceling"


async def test_foreign_runs_are_not_found(db: Database) -> None:
    run = await db.start()
    for use_case in (control.cancel, control.pause, control.resume):
        with pytest.raises(NotFound):
            await db.store.write(use_case, OTHER_TENANT, run.public_id)
    assert await db.store.read(lambda tx: tx.conn.execute(sa.select(R.c.requested)).scalar()) == "none"
