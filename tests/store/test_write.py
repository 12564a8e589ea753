# ruff: noqa: PT012  # a block that raises is what several of these tests are about
from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from signoff.store import Store, Tx
from signoff.store.errors import StoreClosed
from signoff.store.sqlite import SqliteBackend
from tests.store.support import Ear, add, names, raise_tokens, tokens_of


async def test_what_was_acknowledged_is_there(store: Store, other: Store) -> None:
    assert await store.write(add, "a") == "a"
    assert await store.read(names) == ["a"]
    assert await other.read(names) == ["a"]


async def test_no_update_is_lost_between_processes(store: Store, other: Store) -> None:
    await store.write(add, "counter")
    await asyncio.gather(*(each.write(raise_tokens, "counter") for _ in range(100) for each in (store, other)))
    assert await store.read(tokens_of, "counter") == 200


async def test_a_failing_use_case_leaves_nothing_and_tells_nobody(store: Store) -> None:
    ear = Ear(store)

    def half(tx: Tx) -> None:
        add(tx, "half")
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await store.write(half)
    await store.write(add, "whole")
    await ear.until_kind("pool", "whole")
    assert [notice.key for notice in ear.notices] == ["whole"]
    assert await store.read(names) == ["whole"]


async def test_one_failing_item_neither_fails_nor_undoes_others_in_its_commit(store: Store) -> None:
    await store.write(add, "taken")
    results = await asyncio.gather(
        *(store.write(add, name) for name in ["a", "b", "taken", "c", "a"]), return_exceptions=True
    )
    failures = [result for result in results if isinstance(result, IntegrityError)]
    assert len(failures) == 2
    assert await store.read(names) == ["a", "b", "c", "taken"]


async def test_queued_writes_share_one_commit_on_sqlite(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store:
        entered, go = threading.Event(), threading.Event()

        def hold(tx: Tx) -> None:
            entered.set()
            go.wait(20)

        def frames(tx: Tx) -> int:
            return int(tx.execute_raw("SELECT count(*) FROM signoff_pool")[0][0])

        holding = asyncio.create_task(store.write(hold))
        await asyncio.to_thread(entered.wait, 20)
        seen: list[int] = []
        other_reader = store.read(frames)
        writes = [asyncio.create_task(store.write(add, f"p{i}")) for i in range(50)]
        seen.append(await other_reader)
        commits: list[str] = []
        link = store.backend._link  # type: ignore[union-attr]  # the SQLite backend
        assert link is not None
        link.raw.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
        go.set()
        await asyncio.gather(holding, *writes)
        link.raw.set_trace_callback(None)
        assert seen == [0]
        # the held one's own, and one for all that queued meanwhile
        assert len(commits) == 2


async def test_savepoints_undo_their_part_with_its_notices(store: Store) -> None:
    ear = Ear(store)

    def mixed(tx: Tx) -> None:
        add(tx, "kept")
        with pytest.raises(IntegrityError), tx.savepoint():
            add(tx, "dropped")
            with tx.savepoint():
                add(tx, "inner")
            add(tx, "kept")
        add(tx, "after")

    await store.write(mixed)
    await ear.until_kind("pool", "after")
    assert await store.read(names) == ["after", "kept"]
    assert [notice.key for notice in ear.notices] == ["kept", "after"]


async def test_reads_see_one_snapshot_and_refuse_to_write(store: Store) -> None:
    await store.write(add, "a")
    loop = asyncio.get_running_loop()

    def look(tx: Tx) -> tuple[list[str], list[str]]:
        before = names(tx)
        asyncio.run_coroutine_threadsafe(store.write(add, "b"), loop).result(20)
        return before, names(tx)

    assert await store.read(look) == (["a"], ["a"])
    assert await store.read(names) == ["a", "b"]
    with pytest.raises(Exception, match=r"(?i)read-?only|cannot be written|takes no writes"):
        await store.read(add, "c")
    assert await store.read(names) == ["a", "b"]


async def test_a_canceled_caller_disturbs_nobody(store: Store) -> None:
    tasks = [asyncio.create_task(store.write(add, f"p{i}")) for i in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, str)] == [f"p{i}" for i in range(1, 20, 2)]
    assert await store.write(add, "later") == "later"


async def test_close_writes_what_is_queued_and_refuses_more(database_url: str) -> None:
    store = await Store.open(database_url)
    writes = [asyncio.create_task(store.write(add, f"p{i}")) for i in range(30)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writes) == [f"p{i}" for i in range(30)]
    with pytest.raises(StoreClosed):
        await store.write(add, "late")
    await store.close()


async def test_an_async_use_case_is_refused_at_once(store: Store) -> None:
    async def wrong(tx: Tx) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        await store.write(wrong)


async def test_a_database_in_memory_works_and_leaves_nothing(tmp_path: Path) -> None:
    async with await Store.open("sqlite://") as store:
        await asyncio.gather(*(store.write(add, f"p{i}") for i in range(10)))
        assert len(await store.read(names)) == 10
        async with store.snapshot() as session:
            assert (await session.exec(sa.text("SELECT count(*) FROM signoff_pool"))).scalar_one() == 10  # type: ignore[call-overload]  # text
        folder = store._folder
    assert folder is not None
    assert not folder.exists()


@pytest.mark.parametrize("count", [1, 3, 64, 65, 300])
async def test_bulk_statements_keep_every_kind_of_value(store: Store, count: int) -> None:
    table = sa.Table("signoff_step", store.metadata)
    columns = ("run_id", "no", "kind", "name", "asked_at", "due_at", "value", "started", "child_id")

    def rows(now: Any) -> list[tuple[Any, ...]]:
        return [
            (
                7,
                no,
                "action",
                f"n'{no}\\\"{{}}",
                now,
                (now, None)[no % 2],
                ('"ä"', None, "17", "1e3", "9007199254740993")[no % 5],
                no % 2 == 0,
                no or None,
            )
            for no in range(count)
        ]

    def write(tx: Tx) -> None:
        tx.dialect.insert_rows(tx, table, columns, rows(tx.now))
        tx.dialect.update_rows(
            tx, table, ("run_id", "no"), ("outcome_no", "ended_at"), [(7, no, no + 1, tx.now) for no in range(count)]
        )

        def check(found: list[tuple[Any, ...]]) -> None:
            assert [(row[0], row[1], *row[2:7], bool(row[7]), row[8]) for row in found] == rows(tx.now)

        check(tx.dialect.fetch_rows(tx, table, columns, "no", list(range(count)), lock=True))
        found = tx.dialect.fetch_rows(
            tx, table, ("outcome_no", "ended_at", "attempts", "by_handler"), "no", [count - 1, count + 5]
        )
        assert [(a, b, c, bool(d)) for a, b, c, d in found] == [(count, tx.now, 0, False)]

    await store.write(write)


async def test_a_call_between_commits_that_fails_takes_no_write_with_it(sqlite_url: str) -> None:
    busy = threading.Event()

    def wait(link: object) -> None:
        busy.wait(10)

    def fail(link: object) -> None:
        raise RuntimeError("this is not the writes' fault")

    async with await Store.open(sqlite_url) as store:
        assert isinstance(store.backend, SqliteBackend)
        writer = store.backend._writer
        writer.put(wait)
        write = asyncio.create_task(store.write(add, "a"))
        await asyncio.sleep(0)  # queued behind the call, and the failing one behind it
        writer.put(fail)
        busy.set()
        assert await asyncio.wait_for(write, 10) == "a"
