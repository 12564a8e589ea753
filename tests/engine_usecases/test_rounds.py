from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from signoff.engine import control, events, rounds, starting, views
from signoff.engine.ending import finalize
from signoff.engine.outcomes import R, S, lock_run
from signoff.engine.starting import Started, StartSpec
from signoff.store.store import Tx
from signoff.store.tables import Round
from signoff.workflow.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind
from tests.engine_usecases.support import OTHER_TENANT, TENANT, Database

DONE, FAILED = OutcomeKind.SUCCESS, OutcomeKind.FAILURE


async def _finish(
    db: Database, run: Started, kind: ResultKind = ResultKind.COMPLETED, step_no: int | None = None
) -> None:
    def finish(tx: Tx) -> None:
        row = lock_run(tx, run.run_id)
        assert row is not None
        error = ErrorInfo("ValueError", "no good", step_no=step_no) if kind is ResultKind.FAILED else None
        finalize(tx, row, kind, "1" if kind is ResultKind.COMPLETED else None, error)

    await db.store.write(finish)


async def _sequence(db: Database, run: Started, *names: str) -> None:
    """Steps one after another, all successful."""
    for name in names:
        no = await db.ask(run, "action", name, started=True)
        await db.end_step(run, no, value=json.dumps(name))


async def _retired(db: Database, run: Started) -> set[int]:
    select = sa.select(S.c.no).where(S.c.run_id == run.run_id, S.c.retired_in.is_not(None))
    return set(await db.store.read(lambda tx: tx.conn.execute(select).scalars().all()))


async def _failed_run(db: Database) -> Started:
    """Two branches: `a` then `b`; `c` fails and ends the run while `d`, asked after `a`, is open."""
    run = await db.start()
    await db.activate(run)
    a, c = await db.ask(run, "action", "a", started=True), await db.ask(run, "action", "c", started=True)
    await db.end_step(run, a)
    await db.ask(run, "action", "d", started=True)
    await db.end_step(run, c, FAILED)
    await _finish(db, run, ResultKind.FAILED, c)
    return run


async def test_a_restart_keeps_all_but_the_failed_and_the_canceled(db: Database) -> None:
    run = await _failed_run(db)
    assert (await db.view(run)).status == "failed"
    generation = await db.do(rounds.restart, run.public_id, reason="fixed", actor="ana@example.org")
    assert generation == 2
    assert await _retired(db, run) == {1, 2}
    row = await db.row(run)
    assert (row.state, row.ready, row.generation, row.driven_no, row.requested) == ("queued", 0, 2, -1, "none")
    assert (row.result_kind, row.error, row.value, row.ended_at) == (None, None, None, None)
    (shown,) = await db.store.read(views.rounds_view, TENANT, run.public_id)
    assert (shown.generation, shown.actor, shown.reason) == (2, "ana@example.org", "fixed")
    assert shown.former is not None
    assert (shown.former["status"], shown.former["error"]["message"]) == ("failed", "no good")
    steps = await db.steps(run)
    assert [(steps[no].state, steps[no].retired_in) for no in range(3)] == [
        ("success", None),
        ("failure", 2),
        ("canceled", 2),
    ]


async def test_what_followed_from_a_failed_step_goes_with_it(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a")
    failed = await db.ask(run, "action", "b", started=True)
    await db.end_step(run, failed, FAILED)
    await _sequence(db, run, "tidy", "tell")
    await _finish(db, run, ResultKind.FAILED, failed)
    await db.do(rounds.restart, run.public_id)
    assert await _retired(db, run) == {1, 2, 3}
    assert (await db.row(run)).driven_no == 0


@pytest.mark.parametrize(
    ("ref", "retired", "driven_no"),
    [
        (0, {0, 1, 2, 3}, -1),
        (2, {2, 3}, 1),
        ("a", {2, 3}, 1),
        (("a", 0), {0, 1, 2, 3}, -1),
        (("a", 1), {2, 3}, 1),
        ("c", {3}, 2),
    ],
)
async def test_restart_from_a_step(db: Database, ref: Any, retired: set[int], driven_no: int) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a", "b", "a", "c")
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id, from_step=ref)
    assert await _retired(db, run) == retired
    assert (await db.row(run)).driven_no == driven_no


@pytest.mark.parametrize("ref", [4, -1, "z", ("a", 2), ("a", -1), ("a",), True, 1.5])
async def test_restart_from_a_step_that_is_not_there_changes_nothing(db: Database, ref: Any) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a", "b", "a", "c")
    await _finish(db, run)
    before = await db.row(run)
    with pytest.raises(InvalidInput):
        await db.do(rounds.restart, run.public_id, from_step=ref)
    assert await db.row(run) == before


async def test_a_retired_step_is_no_place_to_restart_from(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a", "b")
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id, from_step=1)
    await db.activate(run, driven_no=1)
    await _finish(db, run)
    with pytest.raises(InvalidInput):
        await db.do(rounds.restart, run.public_id, from_step=1)
    assert await db.do(rounds.restart, run.public_id, from_step=0) == 3


async def test_restart_from_the_failed_step_retires_all_later_ones(db: Database) -> None:
    run = await _failed_run(db)
    await db.do(rounds.restart, run.public_id, from_failed=True)
    assert await _retired(db, run) == {1, 2}
    good = await db.start()
    await db.activate(good)
    await _sequence(db, good, "a")
    await _finish(db, good)
    with pytest.raises(Conflict, match="no step"):
        await db.do(rounds.restart, good.public_id, from_failed=True)
    with pytest.raises(InvalidInput):
        await db.do(rounds.restart, good.public_id, from_failed=True, from_step=0)


async def test_restart_after_a_cancel_undoes_what_the_cancel_ended(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a")
    await db.ask(run, "action", "b", started=True)
    await db.do(control.cancel, run.public_id)
    await db.activate(run, driven_no=2)
    tidy = await db.ask(run, "action", "tidy", started=True)
    await db.end_step(run, tidy)
    await _finish(db, run, ResultKind.CANCELED)
    await db.do(rounds.restart, run.public_id)
    assert await _retired(db, run) == {1, 2, 3}
    row = await db.row(run)
    assert (row.driven_no, row.requested) == (0, "none")
    assert (await db.view(run)).status == "queued"


async def test_a_completed_run_ends_again(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a", "b")
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id)
    assert await _retired(db, run) == set()
    assert (await db.row(run)).driven_no == 1  # the drain in which it ended is driven anew


@pytest.mark.parametrize("state", ["queued", "running", "pausing", "canceling"])
async def test_a_run_that_goes_on_is_not_restarted(db: Database, state: str) -> None:
    run = await db.start()
    if state != "queued":
        await db.activate(run, activity="running")
        await db.ask(run, "action")
    if state == "pausing":
        await db.do(control.pause, run.public_id)
    if state == "canceling":
        await db.do(control.cancel, run.public_id)
    with pytest.raises(Conflict) as caught:
        await db.do(rounds.restart, run.public_id)
    assert (caught.value.state, caught.value.run) == (state, run.public_id)
    with pytest.raises(NotFound):
        await db.store.write(rounds.restart, OTHER_TENANT, run.public_id)


@pytest.mark.parametrize("state", ["blocked", "paused"])
async def test_a_blocked_or_paused_run_is_restarted(db: Database, state: Literal["blocked", "paused"]) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a")
    await db.ask(run, "sleep", "nap", due_at=db.clock.now() + timedelta(hours=1))
    if state == "blocked":
        await db.activate(run, driven_no=1, blocked_reason='{"code": "mismatch"}', worker_id=5)
    else:
        await db.do(control.pause, run.public_id)
    before = await db.row(run)
    await db.do(rounds.restart, run.public_id)
    row = await db.row(run)
    assert await _retired(db, run) == {1}
    assert (row.state, row.ready, row.worker_id, row.blocked_reason) == ("active", 0, None, None)
    assert (row.driven_no, row.wake_at, row.epoch) == (0, None, before.epoch + 1)


async def test_events_of_retired_waits_go_back_to_their_place(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    made = await db.do(events.create_event, run.public_id, "token")
    for name, event_id in (("paid", None), ("paid", None), ("", made.id)):
        await db.wait_for(run, name, event_id=event_id)
    for n in (1, 2, 3):
        await db.do(events.send, run.public_id, "paid", str(n))
    await db.do(events.send, run.public_id, made.id, "4", by_id=True)
    await db.activate(run, driven_no=3)
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id, from_step=1)

    async def shown() -> list[tuple[str | None, str, int | None]]:
        found = await db.store.read(views.events_view, TENANT, run.public_id)
        return sorted((event.value or "", event.state, event.consumed_by) for event in found)

    assert await shown() == [
        ("1", "consumed", 0), ("2", "buffered", None), ("3", "buffered", None), ("4", "buffered", None),
    ]  # fmt: skip
    await db.activate(run)
    no = await db.wait_for(run, "paid")
    await db.store.write(lambda tx: events.match_event(tx, _locked(tx, run)))
    assert ("2", "consumed", no) in await shown()
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id, from_step=0, events="drop")
    assert await shown() == [("", "created", None), *((str(n), "set_aside", None) for n in (1, 2, 3))]


def _locked(tx: Tx, run: Started) -> Any:
    row = lock_run(tx, run.run_id)
    assert row is not None
    return row


async def test_children_of_retired_steps_are_canceled(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await _sequence(db, run, "a")
    no = await db.ask(run, "child", "kid")
    child = await db.do(starting.start, StartSpec(workflow="order", parent_id=run.run_id, parent_no=no))
    linked = sa.update(S).where(S.c.run_id == run.run_id, S.c.no == no).values(child_id=child.run_id)
    await db.store.write(lambda tx: tx.conn.execute(linked))
    await db.do(control.pause, run.public_id)
    await db.do(rounds.restart, run.public_id)
    assert (await db.row(child)).result_kind == "canceled"
    assert (await db.steps(run))[no].retired_in == 2
    assert (await db.row(run)).outcome_no == 1  # the end of a retired child is no outcome


async def test_a_child_restarted_alone_wakes_nobody(db: Database) -> None:
    parent = await db.start()
    await db.activate(parent)
    no = await db.ask(parent, "child", "kid")
    child = await db.do(starting.start, StartSpec(workflow="order", parent_id=parent.run_id, parent_no=no))
    await _finish(db, child)
    before = await db.row(parent)
    assert before.outcome_no == 1
    await db.do(rounds.restart, child.public_id)
    await _finish(db, child)
    assert await db.row(parent) == before


async def test_a_restart_takes_another_version_when_told(db: Database) -> None:
    run = await _failed_run(db)
    new = await db.define("order", 2)
    await db.do(rounds.restart, run.public_id, version=2)
    assert (await db.row(run)).definition_id == new
    other = await _failed_run(db)
    with pytest.raises(NotFound):
        await db.do(rounds.restart, other.public_id, version=9)


async def test_a_restart_keeps_the_limits_of_its_workflow(db: Database) -> None:
    await db.define("narrow", max_concurrent=1, max_queued=1)
    first = await db.start("narrow")
    await _finish(db, first)
    running = await db.start("narrow")
    await db.do(rounds.restart, first.public_id)
    assert (await db.row(first)).ready is None
    third = await db.start("order")
    move = sa.update(R).where(R.c.id == third.run_id).values(definition_id=(await db.row(first)).definition_id)
    await db.store.write(lambda tx: tx.conn.execute(move))
    await _finish(db, third)
    with pytest.raises(LimitExceeded):
        await db.do(rounds.restart, third.public_id)
    await _finish(db, running)
    assert (await db.row(first)).ready is not None


async def test_what_was_undone_is_done_again(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    paid = await db.ask(run, "action", "pay", started=True, options={"compensate": "refund"})
    await db.end_step(run, paid)
    await _sequence(db, run, "b")
    failed = await db.ask(run, "action", "c", started=True)
    await db.end_step(run, failed, FAILED)
    refund = await db.ask(run, "action", "refund", started=True, asked_after=0)
    await db.end_step(run, refund)
    await _finish(db, run, ResultKind.FAILED, failed)
    ending = json.dumps({"phase": "compensate", "from_no": refund, "kind": "failed"})
    kept = sa.update(R).where(R.c.id == run.run_id).values(ending=ending)
    await db.store.write(lambda tx: tx.conn.execute(kept))
    await db.do(rounds.restart, run.public_id)
    assert await _retired(db, run) == {0, 1, 2, 3}
    assert (await db.row(run)).ending is None


async def _seeds(db: Database, run: Started) -> dict[int, str]:
    table = Round.__table__
    select = sa.select(table.c.generation, table.c.seed).where(table.c.run_id == run.run_id)
    return {row.generation: row.seed for row in await db.store.read(lambda tx: tx.conn.execute(select).all())}


async def test_a_fork_begins_with_what_the_run_did(db: Database) -> None:
    large = json.dumps("x" * 10_000)
    run = await db.start(args=large, labels={"team": "a"}, priority=2, requester="rita@example.org")
    await db.activate(run)
    a = await db.ask(run, "action", "a", args=large, started=True, options={"compensate": "undo", "pool": "p"})
    await db.end_step(run, a, value=large)
    await _sequence(db, run, "b")
    await db.ask(run, "sleep", "nap")
    before = await db.row(run)
    created = before.created_at
    db.clock.advance(timedelta(days=1))
    fork = await db.do(rounds.fork, run.public_id, reason="try", actor="ana@example.org")
    row = await db.row(fork)
    assert (row.generation, row.outcome_no, row.next_no, row.driven_no, row.ready) == (2, 2, 2, 1, 1)
    assert (row.created_at, row.priority, row.labels, row.state) == (created, 2, '{"team": "a"}', "queued")
    view = await db.view(fork)
    assert (view.args, view.forked_from, view.generation) == (large, run.public_id, 2)
    assert view.requester == "rita@example.org"  # whose request it still is, whoever forked it
    steps = await db.steps(fork)
    assert [(step.name, step.result) for step in steps.values()] == [("a", large), ("b", '"b"')]
    select = sa.select(S.c.options).where(S.c.run_id == fork.run_id).order_by(S.c.no)
    options = await db.store.read(lambda tx: tx.conn.execute(select).scalars().all())
    assert options == ['{"pool": "p"}', None]
    seeds = await _seeds(db, fork)
    assert set(seeds) == {1, 2}
    assert seeds[1] == rounds.seed_of(run.public_id, {}, 1)
    assert await db.row(run) == before


async def test_a_fork_with_other_args_from_a_step(db: Database) -> None:
    run = await db.start(args='{"n": 1}')
    await db.activate(run)
    await _sequence(db, run, "a", "b", "c")
    await _finish(db, run)
    await db.do(rounds.restart, run.public_id, from_step="c")
    second = await _seeds(db, run)
    fork = await db.do(rounds.fork, run.public_id, from_step="b", args='{"n": 2}', run_id="again")
    row = await db.row(fork)
    assert (row.public_id, row.args, row.generation, row.next_no) == ("again", '{"n": 2}', 3, 1)
    seeds = await _seeds(db, fork)
    assert seeds[2] == second[2]
    assert seeds[3] not in (seeds[1], seeds[2])
    repeated = await db.do(rounds.fork, run.public_id, from_step="b", args='{"n": 2}', run_id="again")
    assert repeated == Started(fork.run_id, "again", True)
    with pytest.raises(InvalidInput):
        await db.do(rounds.fork, run.public_id, from_step="z")


async def test_each_round_has_a_seed_of_its_own(db: Database) -> None:
    run = await db.start()
    for _ in range(3):
        await _finish(db, run)
        await db.do(rounds.restart, run.public_id)
    assert len(set((await _seeds(db, run)).values())) == 3
