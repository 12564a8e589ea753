"""Lookups that share a read, and unrelated writes that share a commit."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
import sqlalchemy as sa

from signoff.store import Notice, Store, Tx
from signoff.store.errors import CommitUnknown, DatabaseUnavailable
from signoff.store.shared import SharedRead
from tests.store.support import Ear, add, names


async def test_what_is_asked_during_a_read_is_answered_together_by_the_next(store: Store) -> None:
    reads: list[list[str]] = []

    def there(tx: Tx, keys: list[str]) -> dict[str, bool]:
        reads.append(keys)
        found = set(names(tx))
        return {key: key in found for key in keys}

    look = SharedRead(store, there)
    await store.write(add, "a")
    answers = await asyncio.gather(*(look(key) for key in "aabcabc"))
    assert answers == [True, True, False, False, True, False, False]
    assert len(reads) == 1
    assert sorted(reads[0]) == ["a", "b", "c"]


async def test_an_answer_is_never_older_than_its_question(store: Store) -> None:
    look = SharedRead(store, lambda tx, keys: {key: key in names(tx) for key in keys})
    for number in range(20):
        before = asyncio.ensure_future(look("other"))  # a read may be under way
        await store.write(add, f"n{number}")
        assert await look(f"n{number}")
        await before


async def test_a_failing_lookup_raises_where_it_was_asked_and_the_next_works(store: Store) -> None:
    fails = [True]

    def look_up(tx: Tx, keys: list[str]) -> dict[str, str]:
        if fails and fails.pop():
            raise LookupError("not now")
        return {key: key.upper() for key in keys}

    look = SharedRead(store, look_up)
    asked = [asyncio.ensure_future(look("a")), asyncio.ensure_future(look("a"))]
    await asyncio.wait(asked)
    assert all(isinstance(one.exception(), LookupError) for one in asked)
    canceled = asyncio.ensure_future(look("b"))
    await asyncio.sleep(0)
    canceled.cancel()
    assert await look("b") == "B"


async def test_refused_items_do_not_touch_the_others_of_their_commit(store: Store) -> None:
    def apply(tx: Tx, items: list[str]) -> list[str | BaseException]:
        return [ValueError(item) if item.startswith("bad") else add(tx, item) for item in items]

    committer = store.committer(apply, repeatable=False)
    results = await asyncio.gather(
        *(store.write_with(committer, item) for item in ("a", "bad", "b")), return_exceptions=True
    )
    assert results[0] == "a"
    assert isinstance(results[1], ValueError)
    assert results[2] == "b"
    assert await store.read(names) == ["a", "b"]


async def test_a_commit_whose_answer_is_lost_is_not_done_again_for_items_that_cannot_tell(postgres_url: str) -> None:
    """Those that can are applied again; the others are told that nobody knows."""
    async with await Store.open(postgres_url) as store:
        applied: list[str] = []

        def once(tx: Tx, items: list[str]) -> list[str]:
            applied.extend(items)
            tx.notify("pool", "once")
            return items

        def again(tx: Tx, items: list[str]) -> list[str]:
            applied.extend(items)
            return items

        careful, sure = store.committer(once, repeatable=False), store.committer(again)
        blocked = asyncio.Event()

        def hold(link: object) -> None:
            """Between two commits: what is submitted meanwhile shares the next one, which loses its connection."""
            commit = link.commit  # type: ignore[attr-defined]

            def lost(notices: object) -> None:
                link.commit = commit  # type: ignore[attr-defined]
                link._conn.connection.driver_connection.close()  # type: ignore[attr-defined]
                raise psycopg.OperationalError("the connection is closed")

            link.commit = lost  # type: ignore[attr-defined]
            store._hub.post(blocked.set)

        store.backend._writer.put(hold)
        await blocked.wait()
        ear = Ear(store)
        results = await asyncio.gather(
            store.write_with(careful, "careful"), store.write_with(sure, "sure"), return_exceptions=True
        )
        assert isinstance(results[0], CommitUnknown)
        assert results[1] == "sure"
        assert applied.count("careful") == 1
        await ear.until_kind("resync")  # it may have happened: everybody looks


async def test_who_asks_a_database_that_is_away_is_told_in_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("store", "writer"):
        monkeypatch.setattr(f"signoff.store.{module}.PATIENCE", 0.3)
    async with await Store.open(postgres_url) as store:
        committer = store.committer(lambda tx, items: [add(tx, item) for item in items], repeatable=False)
        name = sa.make_url(postgres_url).database
        async with await psycopg.AsyncConnection.connect(
            postgres_url.replace(f"/{name}?", "/postgres?"), autocommit=True
        ) as admin:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            async with asyncio.timeout(20):
                for item in ("a", "b"):
                    with pytest.raises(DatabaseUnavailable):
                        await store.write_with(committer, item)
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        async with asyncio.timeout(30):
            while True:
                try:
                    await store.write_with(committer, "c")
                    break
                except DatabaseUnavailable:
                    continue
        assert await store.read(names) == ["c"]


async def test_others_hear_of_mere_progress_a_moment_later_and_before_what_follows_it(postgres_url: str) -> None:
    async with await Store.open(postgres_url) as store, await Store.open(postgres_url) as other:
        ear = Ear(other)

        def tell(tx: Tx, items: list[tuple[int, bool]]) -> list[None]:
            for key, ends in items:
                if ends:
                    tx.notify("run", key)
                else:
                    tx.notify("run", key, open=True)
            return [None for _ in items]

        committer = store.committer(tell)
        await store.write_with(committer, (1, False))
        await ear.until_kind("run", 1)  # though nothing else is written
        await store.write_with(committer, (2, False))
        await store.write_with(committer, (3, True))
        await ear.until_kind("run", 3)
        assert Notice("run", 2) in ear.notices
        await store.write_with(committer, (4, False))
        # what is held when the store closes is told as well
        await store.close()
        await ear.until_kind("run", 4)
