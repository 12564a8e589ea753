from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from signoff.engine import control, limits, starting
from signoff.engine.ending import finalize
from signoff.engine.limits import Bucket
from signoff.engine.outcomes import R, lock_run
from signoff.engine.starting import Refusal, Started, StartSpec
from signoff.store.store import Tx
from signoff.workflow.errors import LimitExceeded
from signoff.workflow.kinds import ResultKind
from tests.engine_usecases.support import OTHER_TENANT, Database

START = datetime(2026, 1, 1, tzinfo=UTC)


def _finish(tx: Tx, run_id: int) -> None:
    row = lock_run(tx, run_id)
    assert row is not None
    finalize(tx, row, ResultKind.COMPLETED, "1")


async def _ready(db: Database, *runs: Started) -> list[bool]:
    return [(await db.row(run)).ready is not None for run in runs]


async def test_runs_past_the_limit_are_held_and_let_in_by_priority_then_age(db: Database) -> None:
    await db.define("narrow", max_concurrent=2)
    first, second, third, urgent, fifth = [await db.start("narrow", priority=int(n == 3)) for n in range(5)]
    assert await _ready(db, first, second, third, urgent, fifth) == [True, True, False, False, False]
    await db.store.write(_finish, first.run_id)
    assert await _ready(db, third, urgent, fifth) == [False, True, False]
    await db.store.write(_finish, urgent.run_id)
    assert await _ready(db, third, fifth) == [True, False]
    await db.do(control.cancel, third.public_id)
    assert await _ready(db, fifth) == [True]
    await db.store.write(_finish, second.run_id)
    await db.store.write(_finish, fifth.run_id)
    assert await _ready(db, await db.start("narrow")) == [True]


async def test_each_tenant_has_its_own_count(db: Database) -> None:
    await db.define("narrow", max_concurrent=1)
    await db.start("narrow")
    other = await db.store.write(starting.start, OTHER_TENANT, StartSpec(workflow="narrow"))
    assert await _ready(db, other) == [True]


async def test_a_held_run_that_is_canceled_or_paused_is_passed_over(db: Database) -> None:
    await db.define("narrow", max_concurrent=1)
    first, canceled, paused, last = [await db.start("narrow") for _ in range(4)]
    await db.do(control.cancel, canceled.public_id)
    await db.do(control.pause, paused.public_id)
    await db.store.write(_finish, first.run_id)
    assert await _ready(db, paused, last) == [False, True]
    assert await db.do(control.resume, paused.public_id) == "queued"
    assert await _ready(db, paused) == [False]
    await db.store.write(_finish, last.run_id)
    assert await _ready(db, paused) == [True]


async def test_a_delayed_run_is_let_in_or_held_when_its_delay_is_over(db: Database) -> None:
    await db.define("narrow", max_concurrent=1)
    delayed = await db.start("narrow", run_after=60.0)
    free = await db.start("order", run_after=60.0)
    first = await db.start("narrow")
    assert await _ready(db, first) == [True]
    db.clock.advance(timedelta(minutes=2))
    for _ in range(2):
        await db.store.write(limits.admit_due, [free.run_id, delayed.run_id, first.run_id])
        rows = [await db.row(run) for run in (delayed, free)]
        assert [(row.ready, row.wake_at, row.admitted) for row in rows] == [(None, None, False), (1, None, False)]
    await db.store.write(_finish, first.run_id)
    row = await db.row(delayed)
    assert (row.ready, row.admitted) == (1, True)


async def test_a_queue_that_is_full_refuses(db: Database) -> None:
    await db.define("narrow", max_concurrent=1, max_queued=2)
    for _ in range(3):
        await db.start("narrow")
    with pytest.raises(LimitExceeded, match="2 runs of workflow 'narrow'"):
        await db.start("narrow")
    results = await db.do(starting.start_many, [StartSpec(workflow="narrow"), StartSpec(workflow="order")])
    assert isinstance(results[0], Refusal)
    assert results[0].code == "limit_exceeded"
    assert isinstance(results[1], Started)
    assert await db.count("signoff_run") == 4


async def test_a_queue_can_be_limited_alone(db: Database) -> None:
    await db.define("narrow", max_queued=2)
    first = await db.start("narrow")
    await db.start("narrow")
    with pytest.raises(LimitExceeded):
        await db.start("narrow")
    await db.activate(first)
    await db.start("narrow")


async def test_starts_keep_the_rate(db: Database) -> None:
    await db.define("slow", rate=[2, 10.0], max_queued=3)
    runs = [await db.start("slow") for _ in range(5)]
    now = db.clock.now()
    waits = [(await db.row(run)).wake_at for run in runs]
    assert waits == [None, None, *(now + timedelta(seconds=5 * n) for n in (1, 2, 3))]
    assert await _ready(db, *runs) == [True, True, False, False, False]
    with pytest.raises(LimitExceeded):
        await db.start("slow")
    db.clock.advance(timedelta(seconds=6))
    assert (await db.row(await db.start("slow"))).wake_at == now + timedelta(seconds=20)


async def test_new_limits_count_anew_and_let_in(db: Database) -> None:
    await db.define("narrow", max_concurrent=1)
    runs = [await db.start("narrow") for _ in range(4)]
    await db.define("narrow", max_concurrent=3)
    assert await _ready(db, *runs) == [True, True, True, False]
    await db.define("narrow")
    assert await _ready(db, *runs) == [True] * 4


async def test_starts_at_once_never_pass_the_limit(db: Database) -> None:
    await db.define("narrow", max_concurrent=3)
    runs = await asyncio.gather(*(db.start("narrow") for _ in range(12)))
    assert sum(await _ready(db, *runs)) == 3
    let_in = [run for run in runs if (await db.row(run)).admitted]
    await asyncio.gather(*(db.store.write(_finish, run.run_id) for run in let_in))
    admitted = sa.select(sa.func.count()).select_from(R).where(R.c.admitted, R.c.state != "final")
    assert await db.store.read(lambda tx: tx.conn.execute(admitted).scalar()) == 3


moves = st.lists(st.floats(0, 20), min_size=1, max_size=60)


@given(moves, st.integers(1, 5), st.floats(0.5, 30))
def test_a_bucket_never_promises_more_than_its_rate(waits: list[float], count: int, per: float) -> None:
    bucket, now, starts = Bucket(float(count), START), START, []
    for wait in waits:
        now += timedelta(seconds=wait)
        bucket, at = bucket.promise(now, count, per)
        assert at >= now
        starts.append(at)
    assert starts == sorted(starts)
    for first, later in zip(starts, starts[2 * count :], strict=False):
        # a full bucket and what comes into it: 2 * count starts need at least `per` seconds
        assert (later - first).total_seconds() > per * 0.999


@given(moves, st.integers(1, 5), st.floats(0.5, 30))
def test_a_bucket_says_when_to_come_again(waits: list[float], count: int, per: float) -> None:
    bucket, now, taken = Bucket(float(count), START), START, 0
    for wait in waits:
        now += timedelta(seconds=wait)
        bucket, left = bucket.take(now, count, per)
        taken += left == 0
        if left:
            assert bucket.take(now + timedelta(seconds=left * 1.001 + 1e-5), count, per)[1] == 0
    assert taken <= count + (now - START).total_seconds() * count / per + 1e-6
