from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from signoff.store import Store, Tx, liveness
from signoff.store.errors import WorkerRefused
from signoff.store.liveness import LockLiveness, mark_lost, open_liveness
from tests.store.test_failures import terminate_others


def living(tx: Tx) -> list[int]:
    return [row[0] for row in tx.execute_raw("SELECT id FROM signoff_worker WHERE lost_at IS NULL ORDER BY id")]


async def until(condition: Any, event: asyncio.Event, timeout: float = 30) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await event.wait()
            event.clear()


async def test_a_worker_registers_and_signs_off(store: Store) -> None:
    life = open_liveness(store)
    assert not life.healthy
    worker = await life.start()
    assert life.healthy
    assert life.worker_id == worker
    assert life.lost() == []
    assert await store.read(living) == [worker]
    await life.stop()
    assert not life.healthy
    assert await store.read(living) == []
    again = await life.start()
    assert await store.read(living) == [again]
    await life.stop()


async def test_a_worker_that_leaves_runs_behind_is_found_lost(store: Store) -> None:
    life = open_liveness(store)
    worker = await life.start()

    def run(tx: Tx) -> None:
        tx.conn.execute(
            sa.insert(store.metadata.tables["signoff_run"]).values(
                tenant_id=1, public_id="r", definition_id=1, created_at=tx.now, worker_id=worker
            )
        )

    await store.write(run)
    await life.stop()
    after = open_liveness(store)
    await after.start()
    assert after.lost() == [worker]
    assert await store.write(mark_lost, worker)
    assert not await store.write(mark_lost, worker)
    after.settled(worker)
    assert after.lost() == []
    await after.stop()


async def test_workers_that_are_gone_and_have_nothing_left_are_forgotten(store: Store) -> None:
    def leave(tx: Tx) -> None:
        for number in (101, 102):
            tx.conn.execute(
                sa.insert(store.metadata.tables["signoff_worker"]).values(
                    id=number, name="w", started_at=tx.now, lost_at=tx.now
                )
            )
            tx.conn.execute(
                sa.insert(store.metadata.tables["signoff_worker_definition"]).values(
                    worker_id=number, definition_id=1, code_hash="h"
                )
            )
        tx.conn.execute(
            sa.insert(store.metadata.tables["signoff_run"]).values(
                tenant_id=1, public_id="r", definition_id=1, created_at=tx.now, worker_id=102
            )
        )

    def left(tx: Tx) -> tuple[list[int], list[int]]:
        workers = tx.execute_raw("SELECT id FROM signoff_worker WHERE lost_at IS NOT NULL")
        hashes = tx.execute_raw("SELECT worker_id FROM signoff_worker_definition")
        return [row[0] for row in workers], [row[0] for row in hashes]

    await store.write(leave)
    life = open_liveness(store)
    await life.start()
    assert await store.read(left) == ([102], [102])
    if store.dialect.name == "postgresql":
        # it claimed once more before it noticed that others had taken over
        assert life.lost() == [102]
    await life.stop()


async def test_a_second_worker_on_one_sqlite_file_is_refused_with_advice(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store, await Store.open(sqlite_url) as other:
        first, second = open_liveness(store), open_liveness(other)
        await first.start()
        with pytest.raises(WorkerRefused, match=r"process \d+ on .* already runs the worker of .*PostgreSQL"):
            await second.start()
        assert await other.read(living) == [first.worker_id]
        await first.stop()
        await second.start()
        await second.stop()
        assert Path(f"{store.backend.path}.owner").exists()  # type: ignore[union-attr]  # the SQLite backend


@pytest.fixture
async def pair(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[LockLiveness, LockLiveness, asyncio.Event]]:
    monkeypatch.setattr(liveness, "LOOK", 0.02)
    monkeypatch.setattr(liveness, "HEARTBEAT", 0.05)
    monkeypatch.setattr(liveness, "STILL", 0.5)
    monkeypatch.setattr(liveness, "RECONNECTED", 0.3)
    changed = asyncio.Event()
    async with await Store.open(postgres_url) as store, await Store.open(postgres_url) as other:
        first, second = open_liveness(store), open_liveness(other, changed.set)
        assert isinstance(first, LockLiveness)
        assert isinstance(second, LockLiveness)
        await first.start()
        await second.start()
        yield first, second, changed
        await first.stop()
        await second.stop()


Pair = tuple[LockLiveness, LockLiveness, asyncio.Event]


async def test_living_workers_are_not_lost(pair: Pair) -> None:
    first, second, changed = pair
    with pytest.raises(TimeoutError):
        await until(lambda: first.lost() or second.lost(), changed, timeout=1.5)
    assert first.healthy
    assert second.healthy


async def test_a_worker_whose_connection_is_gone_for_good_is_lost_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, changed = pair
    monkeypatch.setattr(liveness, "STILL", 1000.0)

    def refuse() -> Any:
        raise psycopg.OperationalError("as if the process were gone")

    monkeypatch.setattr(first._backend, "connect_raw", refuse)
    await terminate_heartbeat(first)
    await until(lambda: second.lost() == [first.worker_id], changed)


async def terminate_heartbeat(life: LockLiveness) -> None:
    async with await psycopg.AsyncConnection.connect(life._store.url, autocommit=True) as admin:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s",
            (life.worker_id,),
        )


async def test_a_worker_that_only_lost_its_connection_takes_its_lock_again(pair: Pair) -> None:
    first, _, _ = pair
    for _ in range(2):
        before = await lock_holder(first)
        await terminate_heartbeat(first)
        async with asyncio.timeout(30):
            while await lock_holder(first) in (None, before):
                await asyncio.sleep(0.01)


async def lock_holder(life: LockLiveness) -> int | None:
    """The server process that holds a worker's lock."""
    async with await psycopg.AsyncConnection.connect(life._store.url, autocommit=True) as admin:
        locks = await admin.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted", (life.worker_id,)
        )
        row = await locks.fetchone()
        return None if row is None else int(row[0])


async def test_a_lock_found_free_once_may_be_a_reconnect_found_free_twice_it_is_lost(pair: Pair) -> None:
    first, second, _ = pair
    observer = LockLiveness(first._store, first._backend, lambda: None)
    worker = second.worker_id
    assert worker is not None
    await second.stop()
    with first._backend.connect_raw() as conn:
        conn.execute(
            "INSERT INTO signoff_worker (id, name, heartbeat, started_at) VALUES (%s, 'w', 1, now())", (worker,)
        )
        lock, unlock = f"SELECT pg_advisory_lock({liveness.LOCKS}, {worker})", "SELECT pg_advisory_unlock_all()"
        for locked, lost in [(1, False), (0, False), (1, False), (0, False), (0, True), (1, False)]:
            conn.execute(lock if locked else unlock)
            observer._look(conn, 0, 0.0)
            assert (worker in observer.lost()) is lost
        conn.execute(unlock)
        # after a reconnect of one's own, a free lock says nothing for a while; at a start it says all
        observer._look(conn, 0, 0.0, trusting=False)
        observer._look(conn, 0, 0.0, trusting=False)
        assert observer.lost() == []
        fresh = LockLiveness(first._store, first._backend, lambda: None)
        fresh._look(conn, 0, 0.0, first=True)
        assert worker in fresh.lost()


async def test_a_restart_of_the_server_makes_nobody_lost(pair: Pair) -> None:
    first, second, changed = pair
    for _ in range(3):
        await terminate_others(first._store.url)
        with pytest.raises(TimeoutError):
            await until(lambda: first.lost() or second.lost(), changed, timeout=0.8)
    async with asyncio.timeout(30):
        while not (first.healthy and second.healthy):  # again, with their next beat
            await asyncio.sleep(0.05)


async def test_a_worker_that_stands_still_is_lost_and_cannot_come_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, changed = pair
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    beat = LockLiveness._beat

    def stalled(self: LockLiveness, conn: Any, worker: int) -> None:
        if self is first:  # keeps its lock, as a stopped process does
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(60)
        beat(self, conn, worker)

    worker = first.worker_id
    assert worker is not None
    monkeypatch.setattr(LockLiveness, "_beat", stalled)
    await until(lambda: second.lost() == [worker], changed)
    assert await second._store.write(mark_lost, worker)
    expelled = asyncio.Event()
    monkeypatch.setattr(first, "_changed", expelled.set)
    go.set()
    await until(lambda: first.expelled, expelled)
    assert not first.healthy
    await until(lambda: second.lost() == [], changed)
    await first.stop()
    assert await first.start() != worker
    assert first.healthy


async def test_time_in_which_the_observer_stood_still_does_not_count(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = pair
    monkeypatch.setattr(liveness, "STILL", 10.0)
    with first._backend.connect_raw() as conn:
        observer = LockLiveness(first._store, first._backend, lambda: None)
        worker = second.worker_id
        assert worker is not None
        await second.stop()
        conn.execute(
            "INSERT INTO signoff_worker (id, name, heartbeat, started_at) VALUES (%s, 'w', 1, now())", (worker,)
        )
        conn.execute("SELECT pg_advisory_lock(%s, %s)", (liveness.LOCKS, worker))
        for _ in range(100):
            observer._look(conn, 0, 3600.0)
        assert worker not in observer.lost()
        for _ in range(400):
            observer._look(conn, 0, 0.03)
        assert worker in observer.lost()


async def test_without_beats_a_worker_is_unhealthy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = pair
    later = time.monotonic() + liveness.UNHEALTHY + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not first.healthy
