from __future__ import annotations

import json

import psycopg
import pytest

from signoff.store import Notice, Store, Tx
from signoff.store.postgres import payloads
from tests.store.support import Ear, add, names


async def test_other_processes_hear_of_a_commit(store: Store, other: Store) -> None:
    ear, own = Ear(other), Ear(store)
    await store.write(add, "a")
    await ear.until_kind("pool" if store.dialect.name == "postgresql" else "resync")
    await store.write(add, "b")
    await own.until_kind("pool", "b")
    # one's own come once, directly, and are no reason to look at everything
    assert own.notices == [Notice("pool", "a"), Notice("pool", "b")]


async def test_data_of_a_notice_reaches_this_process(store: Store) -> None:
    ear = Ear(store)

    def progress(tx: Tx) -> None:
        tx.notify("run", 7, step=3)

    await store.write(progress)
    await ear.until_kind("run")
    assert ear.notices == [Notice("run", 7, {"step": 3})]


async def test_ones_own_mutations_are_no_resync_on_sqlite(sqlite_url: str) -> None:
    async with await Store.open(sqlite_url) as store, await Store.open(sqlite_url) as other:
        ear, far = Ear(store), Ear(other)
        async with store.session() as session:
            await session.run(add, "a")
        await far.until_kind("resync")
        far.notices.clear()
        async with store.session() as session:
            await session.run(add, "b")
        await far.until_kind("resync")
        assert ear.notices == [Notice("pool", "a"), Notice("pool", "b")]


async def test_a_subscriber_that_fails_does_not_keep_others_from_hearing(store: Store) -> None:
    def fail(notices: object) -> None:
        raise RuntimeError("in a subscriber")

    store.subscribe(fail)
    ear = Ear(store)
    end = store.subscribe(lambda notices: ended.append(1))
    ended: list[int] = []
    end()
    end()
    await store.write(add, "a")
    await ear.until_kind("pool", "a")
    assert not ended


async def test_a_lost_listener_comes_back_and_resyncs(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store, await Store.open(postgres_url) as other:
        ear = Ear(other)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
            ended = await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%'"
            )
            assert len(await ended.fetchall()) == 2
        await ear.until_kind("resync")
        await store.write(add, "after")
        await ear.until_kind("pool", "after")


async def test_foreign_messages_on_the_channel_do_no_harm(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store:
        ear = Ear(store)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            for text in ("", "no json", "[]", '{"a": 1}', '["x", 5]', '["x", ["run"]]'):
                await other.execute("SELECT pg_notify('signoff', %s)", (text,))
            await other.execute("SELECT pg_notify('signoff', %s)", ('["x",["run",5]]',))
        await ear.until_kind("run", 5)
        assert ear.notices[-1] == Notice("run", 5)


@pytest.mark.parametrize("count", [1, 50, 5000])
def test_payloads_stay_under_the_servers_limit_and_lose_nothing(count: int) -> None:
    notices = [Notice("run", 10**15 + i, {"only": "here"}) for i in range(count)] + [Notice("ready")] * count
    texts = payloads("0123456789abcdef", notices)
    assert all(len(text.encode()) < 8000 for text in texts)
    got = [tuple(pair) for text in texts for pair in json.loads(text)[1:]]
    assert got == list(dict.fromkeys((notice.kind, notice.key) for notice in notices))
    assert all(json.loads(text)[0] == "0123456789abcdef" for text in texts)


def test_a_key_too_long_to_send_becomes_a_resync() -> None:
    texts = payloads("o", [Notice("pool", "ü" * 5000), Notice("run", 1)])
    assert [json.loads(text)[1:] for text in texts] == [[["resync", ""], ["run", 1]]]


async def test_thousands_of_notices_in_one_transaction_arrive(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store, await Store.open(postgres_url) as other:
        ear = Ear(other)

        def many(tx: Tx) -> None:
            for i in range(3000):
                tx.notify("run", i)

        await store.write(many)
        await ear.until(lambda all_: len(all_) == 3000)
        assert await store.read(names) == []
