from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from signoff.engine import pools
from signoff.engine.pools import PoolLimits, Wanted
from signoff.workflow.errors import InvalidInput, NotFound
from tests.engine_usecases.support import Database, statements_of


@dataclass(frozen=True)
class Grant:
    granted: bool
    retry_in: float | None


async def _acquire(db: Database, step_no: int, *, key: str | None = None, worker: int = 1) -> Grant:
    wanted = Wanted(1, step_no, key)
    result = await db.store.write(pools.acquire, "mail", [wanted], worker)
    return Grant(wanted in result.places, result.retry_in)


async def test_at_most_so_many_hold_a_slot(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(2))
    granted = await asyncio.gather(*(_acquire(db, no) for no in range(6)))
    assert sum(grant.granted for grant in granted) == 2
    assert {grant.retry_in for grant in granted if not grant.granted} == {None}
    holder = next(no for no, grant in enumerate(granted) if grant.granted)
    assert (await _acquire(db, holder)).granted  # it has its slot already
    await db.store.write(pools.release, 1, holder, 1)
    await db.store.write(pools.release, 1, holder, 1)
    assert (await _acquire(db, 7)).granted
    assert not (await _acquire(db, 8)).granted


async def test_releasing_tells_those_that_wait(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(1))
    await _acquire(db, 0)
    heard = asyncio.Event()

    def listen(notices: Any) -> None:
        if any((notice.kind, notice.key) == ("pool", "mail") for notice in notices):
            heard.set()

    end = db.store.subscribe(listen)
    await db.store.write(pools.release, 1, 0, 1)
    await asyncio.wait_for(heard.wait(), 10)
    heard.clear()
    await db.store.write(pools.change, "mail", PoolLimits(5))
    await asyncio.wait_for(heard.wait(), 10)
    end()


async def test_one_at_a_time_for_a_key(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(serial_keys=True))
    assert (await _acquire(db, 0, key="ana")).granted
    assert not (await _acquire(db, 1, key="ana")).granted
    assert (await _acquire(db, 2, key="ben")).granted
    assert (await _acquire(db, 3)).granted
    await db.store.write(pools.release, 1, 0, 1)
    assert (await _acquire(db, 1, key="ana")).granted


async def test_a_rate_says_when_to_ask_again(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(rate=(2, 10.0)))
    assert [(await _acquire(db, no)).granted for no in range(3)] == [True, True, False]
    refused = await _acquire(db, 2)
    assert refused.retry_in == pytest.approx(5)
    db.clock.advance(timedelta(seconds=4))
    assert (await _acquire(db, 2)).retry_in == pytest.approx(1)
    db.clock.advance(timedelta(seconds=1))
    assert (await _acquire(db, 2)).granted
    db.clock.advance(timedelta(hours=1))
    assert [(await _acquire(db, no)).granted for no in (3, 4, 5)] == [True, True, False]


async def test_a_pool_is_changed_live(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(2))
    await _acquire(db, 0)
    await _acquire(db, 1)
    await db.store.write(pools.change, "mail", PoolLimits(1))
    await db.store.write(pools.release, 1, 0, 1)
    assert not (await _acquire(db, 2)).granted  # lowering drains
    await db.store.write(pools.change, "mail", PoolLimits(0))
    await db.store.write(pools.release, 1, 1, 1)
    assert not (await _acquire(db, 2)).granted  # 0 pauses
    await db.store.write(pools.change, "mail", PoolLimits(3))
    assert (await _acquire(db, 2)).granted
    view = await db.store.read(pools.pool_view, "mail")
    assert (view.limits, view.declared, view.running) == (PoolLimits(3), PoolLimits(2), 1)
    await db.store.write(pools.change, "by hand", PoolLimits(1))
    assert [pool.name for pool in await db.store.read(pools.pools_view)] == ["by hand", "mail"]
    with pytest.raises(NotFound):
        await db.store.read(pools.pool_view, "nothing")


async def test_code_sets_the_first_values_only_and_a_difference_is_reported(db: Database) -> None:
    first, second = PoolLimits(2, (1, 5.0), True), PoolLimits(9)
    assert await db.store.write(pools.declare, "mail", first) is None
    assert await db.store.write(pools.declare, "mail", first) is None
    await db.store.write(pools.change, "mail", PoolLimits(7))
    assert await db.store.write(pools.declare, "mail", first) is None
    assert await db.store.write(pools.declare, "mail", second) == first
    assert (await db.store.read(pools.pool_view, "mail")).limits == PoolLimits(7)
    await db.store.write(pools.change, "by hand", PoolLimits(1))
    assert await db.store.write(pools.declare, "by hand", second) is None
    assert (await db.store.read(pools.pool_view, "by hand")).limits == PoolLimits(1)


@pytest.mark.parametrize("limits", [PoolLimits(-1), PoolLimits(rate=(0, 1.0)), PoolLimits(rate=(1, 0.0))])
async def test_limits_that_make_no_sense(db: Database, limits: PoolLimits) -> None:
    with pytest.raises(InvalidInput):
        await db.store.write(pools.declare, "mail", limits)
    with pytest.raises(InvalidInput):
        await db.store.write(pools.change, "mail", limits)


async def test_slots_of_lost_workers_are_given_out_again(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits(2))
    await _acquire(db, 0, worker=1)
    await _acquire(db, 1, worker=2)
    await db.store.write(pools.free_slots, [1])
    assert (await _acquire(db, 2, worker=2)).granted
    assert not (await _acquire(db, 3, worker=2)).granted


async def test_a_pool_without_limits_touches_no_row(db: Database) -> None:
    await db.store.write(pools.declare, "mail", PoolLimits())

    wanted = Wanted(1, 0)
    statements, granted = await db.store.write(statements_of, pools.acquire, "mail", [wanted], 1)
    assert granted.places == {wanted}
    assert all(statement.startswith("SELECT") and "FOR UPDATE" not in statement for statement in statements)
    assert await db.count("signoff_pool_slot") == 0
    assert (await db.store.write(pools.acquire, "unknown", [wanted], 1)).places == {wanted}


async def test_many_ask_at_once_and_are_served_in_their_order(db: Database) -> None:
    wanted = [Wanted(run, step, key) for run in (1, 2) for step, key in enumerate(("a", "b", "a", None))]
    await db.store.write(pools.declare, "mail", PoolLimits(5, serial_keys=True))
    first = await db.store.write(pools.acquire, "mail", wanted, 1)
    assert first.places == {Wanted(1, 0, "a"), Wanted(1, 1, "b"), Wanted(1, 3), Wanted(2, 3)}
    await db.store.write(pools.release, 1, 0, 1)
    second = await db.store.write(pools.acquire, "mail", [item for item in wanted if item not in first.places], 1)
    assert second.places == {Wanted(1, 2, "a")}
    await db.store.write(pools.change, "mail", PoolLimits(rate=(2, 10.0)))
    third = await db.store.write(pools.acquire, "mail", [Wanted(3, no) for no in range(4)], 1)
    assert (third.places, third.retry_in) == ({Wanted(3, 0), Wanted(3, 1)}, pytest.approx(5))
