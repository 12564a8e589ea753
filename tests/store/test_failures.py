# ruff: noqa: PT012  # a block that raises is what several of these tests are about
from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from signoff.store import Store, Tx
from signoff.store.errors import (
    CommitUnknown,
    DatabaseLocked,
    DatabaseUnavailable,
    DiskFull,
    NotADatabase,
    NotWritable,
    StoreError,
    TransactionConflict,
    UnsupportedDatabase,
)
from tests.store.support import Ear, add, names, raise_tokens, tokens_of
from tests.support.postgres import PostgresServer


async def terminate_others(url: str) -> int:
    """What a restart of the server does to everybody's connections."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        ended = await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return len(await ended.fetchall())


@pytest.mark.parametrize("url", ["mysql://host/db", "orders.db", "", "://", "postgresql//x"])
async def test_urls_that_are_none_say_what_to_write(url: str) -> None:
    with pytest.raises(UnsupportedDatabase, match=r"sqlite:///orders\.db or postgresql://"):
        await Store.open(url)


async def test_a_missing_folder_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match=r"missing/x.db cannot be opened.*folder"):
        await Store.open(f"sqlite:///{tmp_path / 'missing' / 'x.db'}")
    assert not (tmp_path / "missing").exists()


async def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:
        folder = Path("/proc")  # permissions do not stop root, this does
    with pytest.raises(NotWritable, match=r"x.db cannot be (opened|written)"):
        await Store.open(f"sqlite:///{folder / 'x.db'}")


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 500)
    with pytest.raises(NotADatabase, match=r"notes.txt is no intact SQLite database"):
        await Store.open(f"sqlite:///{path}")
    assert path.read_text() == "dear diary " * 500


async def test_no_server_or_no_such_database_or_no_password(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="is the server running"):
        await Store.open(f"postgresql://postgres:secret@/x?host={tmp_path}")
    with pytest.raises(DatabaseUnavailable, match=r"nowhere.*(does not exist|createdb)"):
        await Store.open(postgres_server.url("nowhere"))


async def test_messages_never_show_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        await Store.open(f"postgresql://postgres:hunter2@/x?host={tmp_path}")
    assert "hunter2" not in str(caught.value)


async def test_a_full_disk_fails_the_write_alone_and_leaves_nothing_half_written(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store:
        pages = int((await store.read(lambda tx: tx.execute_raw("PRAGMA page_count")))[0][0])
        await store.write(lambda tx: tx.execute_raw(f"PRAGMA max_page_count = {pages + 3}"))

        def large(tx: Tx, key: str) -> None:
            add(tx, key)
            tx.execute_raw("INSERT INTO signoff_payload (id, data) VALUES (?, ?)", (key, "x" * 100_000))

        results = await asyncio.gather(
            store.write(add, "a"), store.write(large, "b"), store.write(add, "c"), return_exceptions=True
        )
        assert [type(result) for result in results] == [str, DiskFull, str]
        assert "free some space" in str(results[1])
        with pytest.raises(DiskFull):
            async with store.session() as session:
                await session.run(large, "d")
        await store.write(lambda tx: tx.execute_raw("PRAGMA max_page_count = 1000000"))
        await store.write(large, "e")
        assert await store.read(names) == ["a", "c", "e"]


async def test_a_file_locked_for_too_long_says_so_and_work_goes_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.store.sqlite.BUSY_TIMEOUT", 0.05)
    async with await Store.open(sqlite_url) as store:
        raw = sqlite3.connect(sa.make_url(sqlite_url).database or "", isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLocked, match="locked for writing"):
            await store.write(add, "a")
        with pytest.raises(DatabaseLocked):
            async with store.session() as session:
                await session.run(add, "b")
        raw.execute("ROLLBACK")
        raw.close()
        await store.write(add, "c")
        assert await store.read(names) == ["c"]


async def test_a_short_lock_of_another_process_is_waited_for(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store:
        raw = sqlite3.connect(sa.make_url(sqlite_url).database or "", isolation_level=None, check_same_thread=False)
        raw.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.2, raw.execute, "ROLLBACK")
        await store.write(add, "a")
        raw.close()


async def test_lost_connections_are_made_again_and_work_goes_on(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:
        ear = Ear(store)
        committer = store.committer(lambda tx, items: [add(tx, item) for item in items])

        async def commit(item: str) -> str | BaseException:
            answer: asyncio.Future[str | BaseException] = asyncio.get_running_loop().create_future()
            committer.submit(item, answer.set_result)
            return await answer

        for turn in "abc":
            await asyncio.gather(*(store.write(add, f"{turn}{i}") for i in range(8)), commit(f"{turn}c"))
            async with store.session() as session:
                await session.run(add, f"{turn}s")
            assert await terminate_others(postgres_url) >= 3
        async with store.session() as session:
            await session.run(add, "d")
        assert await commit("e") == "e"
        assert await store.write(add, "f") == "f"
        async with store.snapshot() as snapshot:
            assert (await snapshot.exec(sa.text("SELECT count(*) FROM signoff_pool"))).scalar_one() == 33  # type: ignore[call-overload]  # text
        assert len(await store.read(names)) == 33
        await ear.until_kind("resync")


async def test_a_connection_lost_inside_a_mutation_is_transient_and_leaves_nothing(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:
        with pytest.raises(DatabaseUnavailable) as caught:
            async with store.session() as session:
                await session.run(add, "a")
                await terminate_others(postgres_url)
                await session.run(add, "b")
        assert caught.value.transient
        assert await store.read(names) == []


async def test_a_connection_lost_in_the_commit_says_that_nobody_knows(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:

        def doomed(tx: Tx) -> None:
            add(tx, "a")
            # fails the commit itself: the deferred trigger runs then
            tx.execute_raw(
                "CREATE FUNCTION pg_temp.die() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
            )
            tx.execute_raw(
                "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON signoff_pool DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION pg_temp.die()"
            )
            add(tx, "b")

        ear = Ear(store)
        with pytest.raises(CommitUnknown):
            await store.write(doomed)
        await ear.until_kind("resync")  # it may have happened: everybody looks
        with pytest.raises(CommitUnknown):
            async with store.session() as session:
                await session.run(doomed)
        assert await store.read(names) == []


async def test_deadlocks_of_use_cases_run_again(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:
        await store.write(add, "a")
        await store.write(add, "b")

        def both(tx: Tx, first: str, second: str) -> None:
            raise_tokens(tx, first)
            tx.execute_raw("SELECT pg_sleep(0.02)")
            raise_tokens(tx, second)

        await asyncio.gather(*(store.write(both, *pair) for _ in range(2) for pair in (("a", "b"), ("b", "a"))))
        assert [await store.read(tokens_of, name) for name in "ab"] == [4, 4]


async def test_a_deadlock_inside_a_mutation_is_transient(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:
        await store.write(add, "a")
        await store.write(add, "b")
        barrier = asyncio.Barrier(2)

        async def both(first: str, second: str) -> None:
            async with store.session() as session:
                await session.run(raise_tokens, first)
                await barrier.wait()
                await session.run(raise_tokens, second)

        results = await asyncio.gather(both("a", "b"), both("b", "a"), return_exceptions=True)
        failed = [result for result in results if result is not None]
        assert [type(result) for result in failed] == [TransactionConflict]
        assert [await store.read(tokens_of, name) for name in "ab"] == [1, 1]


async def test_an_unreachable_server_fails_a_use_case_after_a_while(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("signoff.store.postgres.PATIENCE", 0.2)
    caplog.set_level(logging.ERROR)
    async with await Store.open(postgres_url) as store:
        name = sa.make_url(postgres_url).database
        async with await psycopg.AsyncConnection.connect(
            postgres_url.replace(f"/{name}?", "/postgres?"), autocommit=True
        ) as admin:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            with pytest.raises(DatabaseUnavailable):
                await store.write(add, "a")
            with pytest.raises(DatabaseUnavailable):
                await store.read(names)
            committing: asyncio.Future[str | BaseException] = asyncio.get_running_loop().create_future()
            store.committer(lambda tx, items: [add(tx, item) for item in items]).submit("b", committing.set_result)
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        async with asyncio.timeout(30):
            assert await committing == "b"
        assert await store.read(names) == ["b"]


async def test_the_writer_outlives_a_connection_that_breaks_under_it(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store:
        link = store.backend._link  # type: ignore[union-attr]  # the SQLite backend
        assert link is not None

        def broken(tx: Tx) -> None:
            add(tx, "broken")
            link.raw.close()
            names(tx)

        with pytest.raises((sqlite3.Error, sa.exc.SQLAlchemyError)):
            await store.write(broken)
        await store.write(add, "next")
        async with store.session() as session:
            await session.run(add, "session")
        assert await store.read(names) == ["next", "session"]


async def test_last_writes_that_fail_with_the_commit_spoil_no_connection(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:

        def refused(tx: Tx) -> None:
            add(tx, "a")
            with tx.dialect.pipelined_to_end(tx):
                tx.execute_raw("INSERT INTO signoff_pool (name) VALUES (NULL)")

        for _ in range(3):
            with pytest.raises((sa.exc.IntegrityError, psycopg.IntegrityError), match="null value"):
                await store.write(refused)
            await store.write(add, "b")  # the pool gives the same connection again
            assert await store.read(names) == ["b"]
            await store.write(lambda tx: tx.execute_raw("DELETE FROM signoff_pool"))
