from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa

from signoff.store import Store, Tx
from signoff.store.clock import ManualClock, SystemClock
from signoff.store.tables import Base

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2030, 1, 1, 12)  # noqa: DTZ001
POOL = Base.metadata.tables["signoff_pool"]


async def test_a_manual_clock_wakes_who_waits_for_a_moment_that_it_passes() -> None:
    clock = ManualClock(START)
    wake = asyncio.Event()
    waiting = asyncio.create_task(clock.wait_until(START + timedelta(hours=1), wake))
    await asyncio.sleep(0)
    clock.advance(timedelta(minutes=59))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(clock.advance, timedelta(minutes=1))
    async with asyncio.timeout(5):
        await waiting
    assert clock.now() == START + timedelta(hours=1)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(START)])
@pytest.mark.parametrize("moment", [None, datetime(2100, 1, 1, tzinfo=UTC)])
async def test_wake_ends_a_wait_and_stays_set(clock: SystemClock | ManualClock, moment: datetime | None) -> None:
    wake = asyncio.Event()
    waiting = asyncio.create_task(clock.wait_until(moment, wake))
    await asyncio.sleep(0)
    wake.set()
    async with asyncio.timeout(5):
        await waiting
    assert wake.is_set()


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(START)])
async def test_a_moment_that_is_past_is_not_waited_for(clock: SystemClock | ManualClock) -> None:
    async with asyncio.timeout(5):
        await clock.wait_until(datetime(2020, 1, 1, tzinfo=UTC), asyncio.Event())


async def test_a_jump_of_the_wall_clock_is_noticed_by_a_sleeping_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    moment = clock.now() + timedelta(hours=1)
    waiting = asyncio.create_task(clock.wait_until(moment, asyncio.Event()))
    await asyncio.sleep(0)
    monkeypatch.setattr(SystemClock, "now", lambda self: moment)
    async with asyncio.timeout(30):
        await waiting


async def test_naive_times_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(NAIVE)
    with pytest.raises(ValueError, match="time zone"):
        await SystemClock().wait_until(NAIVE, asyncio.Event())


async def test_columns_refuse_naive_times_and_give_utc_back_to_the_microsecond(store: Store) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123457, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    def put(tx: Tx, at: datetime) -> None:
        tx.conn.execute(sa.insert(POOL).values(name="p", tokens_at=at))

    def get(tx: Tx) -> datetime:
        row = tx.dialect.fetch_rows(tx, POOL, ("tokens_at",), "name", ["p"])[0][0]
        assert tx.conn.execute(sa.select(POOL.c.tokens_at)).scalar_one() == row
        assert tx.conn.execute(sa.select(POOL.c.name).where(POOL.c.tokens_at >= moment)).scalar_one() == "p"
        return row  # type: ignore[no-any-return]  # a driver's tuple

    with pytest.raises(sa.exc.StatementError, match="time zone"):
        await store.write(put, NAIVE)
    await store.write(put, moment)
    back = await store.read(get)
    assert back == moment
    assert back.utcoffset() == timedelta(0)


async def test_the_time_stands_still_within_a_use_case_and_comes_from_the_stores_clock(database_url: str) -> None:
    clock = ManualClock(START)
    async with await Store.open(database_url, clock=clock) as store:

        def look(tx: Tx) -> tuple[datetime, datetime]:
            before = tx.now
            clock.advance(timedelta(minutes=1))
            return before, tx.now

        assert await store.write(look) == (START, START)
        assert await store.read(look) == (START + timedelta(minutes=1),) * 2
