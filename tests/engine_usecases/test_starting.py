from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.engine import cleanup, starting
from signoff.engine.definitions import forget_definitions
from signoff.engine.ending import finalize
from signoff.engine.outcomes import lock_run
from signoff.engine.starting import Refusal, Started, StartSpec
from signoff.replay.messages import ChildDetail
from signoff.store.store import Person, Scope, Tx
from signoff.store.tables import Label, Worker, WorkerDefinition
from signoff.workflow.errors import Conflict, InvalidInput, LimitExceeded, NotFound, Refused
from signoff.workflow.kinds import ResultKind
from tests.engine_usecases.support import OTHER_TENANT, TENANT, Database, statements_of


async def test_a_start_costs_one_statement_once_its_workflow_is_known(db: Database) -> None:
    await db.start()

    spec = StartSpec(workflow="order", args='{"n": 1}')
    (statement,), _ = await db.store.write(statements_of, starting.start, TENANT, spec)
    assert "INSERT INTO signoff_run (" in statement


async def test_a_start_is_stored_and_announced(db: Database) -> None:
    seen: list[tuple[str, str | int]] = []
    end = db.store.subscribe(lambda notices: seen.extend((notice.kind, notice.key) for notice in notices))
    person = Scope(1, Person("ana@example.org", "Ana", "operator"))
    spec = StartSpec(workflow="order", args='{"n": 1}', priority=3, labels={"team": "a"}, retention={"failed": 60.0})
    run = await db.store.write(starting.start, person, spec)
    async with asyncio.timeout(10):
        while len(seen) < 2:
            await asyncio.sleep(0.01)
    end()
    assert {("ready", ""), ("run", run.run_id)} <= set(seen)
    row = await db.row(run)
    assert (row.state, row.ready, row.wake_at, row.args, row.priority) == ("queued", 1, None, '{"n": 1}', 3)
    assert (row.requester, row.options) == ("ana@example.org", '{"retention": {"failed": 60.0}}')
    assert len(run.public_id) == 26
    assert run.public_id == run.public_id.lower()
    label = Label.__table__
    rows = await db.store.read(lambda tx: tx.conn.execute(sa.select(label.c.key, label.c.value)).all())
    assert [tuple(row) for row in rows] == [("team", "a")]


async def test_public_ids_sort_by_time(db: Database) -> None:
    ids = []
    for _ in range(5):
        ids.append((await db.start()).public_id)
        db.clock.advance(timedelta(milliseconds=1))
    assert ids == sorted(ids)


async def test_an_unknown_workflow_is_refused_with_names_that_come_near(db: Database) -> None:
    with pytest.raises(NotFound, match="did you mean 'order'"):
        await db.start("ordr")
    with pytest.raises(NotFound, match="no version 7; known: 1"):
        await db.start(version=7)
    assert await db.count("signoff_run") == 0


async def test_the_highest_version_that_a_live_worker_has_is_taken(db: Database) -> None:
    old = (await db.row(await db.start())).definition_id
    new = await db.define("order", 2)
    assert (await db.row(await db.start())).definition_id == new

    def add_worker(tx: Tx) -> int:
        worker = Worker.__table__
        number = tx.conn.execute(
            sa.insert(worker).values(name="w", started_at=tx.now).returning(worker.c.id)
        ).scalar_one()
        has = {"worker_id": number, "definition_id": old, "code_hash": "a"}
        tx.conn.execute(sa.insert(WorkerDefinition.__table__).values(**has))
        forget_definitions(tx)
        return int(number)

    def lose_worker(tx: Tx, number: int) -> None:
        worker = Worker.__table__
        tx.conn.execute(sa.update(worker).where(worker.c.id == number).values(lost_at=tx.now))
        forget_definitions(tx)

    number = await db.store.write(add_worker)
    assert (await db.row(await db.start())).definition_id == old
    assert (await db.row(await db.start(version=2))).definition_id == new
    await db.store.write(lose_worker, number)
    assert (await db.row(await db.start())).definition_id == new


async def test_the_same_key_gives_the_same_run(db: Database) -> None:
    first = await db.start(idempotency_key="k", args='{"n": 1}')
    again = await db.start(idempotency_key="k", args='{"n": 1}')
    assert (again.run_id, again.public_id, again.existing) == (first.run_id, first.public_id, True)
    assert not first.existing
    with pytest.raises(Conflict) as caught:
        await db.start(idempotency_key="k", args='{"n": 2}')
    assert caught.value.run == first.public_id
    await db.define("refund")
    with pytest.raises(Conflict):
        await db.start("refund", idempotency_key="k", args='{"n": 1}')
    other = await db.store.write(starting.start, OTHER_TENANT, StartSpec(workflow="order", idempotency_key="k"))
    assert not other.existing
    assert await db.count("signoff_run") == 2


async def test_an_own_id_gives_the_same_run(db: Database) -> None:
    large = '"' + "x" * 10_000 + '"'
    first = await db.start(run_id="mine", args=large)
    assert first.public_id == "mine"
    assert await db.start(run_id="mine", args=large) == Started(first.run_id, "mine", True)
    with pytest.raises(Conflict):
        await db.start(run_id="mine", args="1")
    with pytest.raises(Conflict):
        await db.start(run_id="mine", args=large, idempotency_key="k")
    assert await db.count("signoff_run") == 1
    assert await db.count("signoff_payload") == 1


async def test_a_key_is_free_again_after_clean_up(db: Database) -> None:
    first = await db.start(idempotency_key="k")

    def finish(tx: Tx) -> None:
        row = lock_run(tx, first.run_id)
        assert row is not None
        finalize(tx, row, ResultKind.COMPLETED, "1")

    await db.store.write(finish)
    await db.do(cleanup.cleanup, first.public_id)
    again = await db.start(idempotency_key="k", args="2")
    assert not again.existing


async def test_two_starts_with_one_key_at_once_are_one_run(db: Database) -> None:
    results = await asyncio.gather(*(db.start(idempotency_key="k", args="1") for _ in range(8)))
    assert len({started.run_id for started in results}) == 1
    assert sum(not started.existing for started in results) == 1
    assert await db.count("signoff_run") == 1
    named = await asyncio.gather(*(db.start(run_id="mine", args="1") for _ in range(8)))
    assert len({started.run_id for started in named}) == 1
    assert sum(not started.existing for started in named) == 1


async def test_many_starts_are_one_transaction_in_which_bad_ones_are_refused(db: Database) -> None:
    earlier = await db.start(idempotency_key="old", args="1")
    specs = [
        StartSpec(workflow="order", args="1"),
        StartSpec(workflow="nothing"),
        StartSpec(workflow="order", idempotency_key="k", args="1"),
        StartSpec(workflow="order", idempotency_key="k", args="1"),
        StartSpec(workflow="order", idempotency_key="k", args="2"),
        StartSpec(workflow="order", idempotency_key="old", args="1", labels={"a": "b"}),
        StartSpec(workflow="order", run_after=1.0, run_at=db.clock.now()),
        StartSpec(workflow="order", labels={"a": "b\n"}),
        StartSpec(workflow="order", labels={"a": "b"}),
    ]
    results = await db.do(starting.start_many, specs)
    kinds = [type(result).__name__ if isinstance(result, Started) else result.code for result in results]
    made, bad = "Started", "invalid_input"
    assert kinds == [made, "not_found", made, made, "conflict", made, bad, bad, made]
    assert [result.index for result in results if isinstance(result, Refusal)] == [1, 4, 6, 7]
    assert isinstance(results[2], Started)
    assert results[3] == Started(results[2].run_id, results[2].public_id, True)
    assert results[5] == Started(earlier.run_id, earlier.public_id, True)
    assert await db.count("signoff_run") == 4
    assert await db.count("signoff_label") == 1


async def test_hundreds_of_starts_take_few_statements(db: Database) -> None:
    specs = [StartSpec(workflow="order", args=str(i)) for i in range(500)]
    await db.start()
    statements, results = await db.store.write(statements_of, starting.start_many, TENANT, specs)
    assert all("INSERT INTO signoff_run (" in statement for statement in statements)
    assert len(statements) == (8 if db.store.dialect.name == "sqlite" else 1)  # 64 rows at a time
    select = sa.text("SELECT id, args FROM signoff_run")
    args = {row.id: row.args for row in await db.store.read(lambda tx: tx.conn.execute(select).all())}
    assert [args[result.run_id] for result in results if isinstance(result, Started)] == [str(i) for i in range(500)]


async def test_a_delayed_start_waits_for_its_moment(db: Database) -> None:
    at = db.clock.now() + timedelta(hours=1)
    for given in ({"run_at": at}, {"run_after": 3600.0}):
        row = await db.row(await db.start(**given))
        assert (row.ready, row.wake_at) == (None, at)
    for given in ({"run_at": db.clock.now() - timedelta(days=1)}, {"run_after": -5.0}):
        row = await db.row(await db.start(**given))
        assert (row.ready, row.wake_at) == (1, None)


@pytest.mark.parametrize(
    "given",
    [
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"run_after": float("nan")},
        {"run_after": 1e300},
        {"idempotency_key": ""},
        {"run_id": "a\x00"},
        {"labels": {"a" * 257: "b"}},
        {"labels": {"a": ""}},
    ],
)
async def test_bad_options_leave_nothing(db: Database, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await db.start(**given)
    assert await db.count("signoff_run") == 0


async def test_args_above_the_limit_leave_nothing(db: Database) -> None:
    await db.define("small", max_value_bytes=100)
    with pytest.raises(LimitExceeded, match="102 bytes, the limit is 100"):
        await db.start("small", args='"' + "x" * 100 + '"')
    with pytest.raises(LimitExceeded, match="102 bytes"):
        await db.start("small", args='"' + "é" * 50 + '"')
    assert await db.count("signoff_run") == 0
    assert await db.count("signoff_payload") == 0


async def test_nobody_starts_in_another_tenant(db: Database) -> None:
    with pytest.raises(Refused):
        await db.start(tenant_id=2)


async def test_what_the_workflow_declares_goes_into_the_run(db: Database) -> None:
    await db.define("secret", sensitive=True, on_complete="tidy")
    row = await db.row(await db.start("secret"))
    assert row.options == '{"on_complete": {"name": "tidy", "context": null}, "sensitive": true}'


async def test_a_child_belongs_to_its_step(db: Database) -> None:
    parent = await db.start(requester="ana@example.org")
    await db.activate(parent)
    row = await db.row(parent)

    def child(tx: Tx, step_no: int, **start: Any) -> Started:
        detached = start.pop("detached", False)
        detail = ChildDetail("order", detached=detached, start=start)
        return starting.start_child(tx, Scope.system, row, step_no, '{"n": 1}', detail)

    waited = await db.store.write(child, 0, idempotency_key="k")
    stored = await db.row(waited)
    assert (stored.parent_id, stored.parent_no, stored.tenant_id) == (parent.run_id, 0, 1)
    assert stored.requester == "ana@example.org"
    assert (await db.store.write(child, 0, idempotency_key="k")).existing
    with pytest.raises(Conflict, match="cannot be waited for"):
        await db.store.write(child, 1, idempotency_key="k")
    detached = await db.row(await db.store.write(child, 2, detached=True))
    assert (detached.parent_id, detached.parent_no) == (parent.run_id, None)
