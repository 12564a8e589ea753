# ruff: noqa: PT012  # a block that raises is what several of these tests are about
from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel import Field, SQLModel, select
from sqlmodel.ext.asyncio.session import AsyncSession

from signoff.store import Store
from signoff.store.errors import ReadOnlyTransaction, StoreError, TransactionOwned, WriteInsideMutation
from signoff.store.sqlite import _Borrowed, connect
from tests.store.support import Ear, add, names, raise_tokens, tokens_of


class StoreTestItem(SQLModel, table=True):
    """An author's own table, in the metadata that authors use."""

    __tablename__ = "item"
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)


ITEM = SQLModel.metadata.tables["item"]


@pytest.fixture
async def engine(store: Store) -> AsyncIterator[AsyncEngine]:
    """An author's own engine on the same database, with the author's table in it."""
    driver = "sqlite+aiosqlite" if store.dialect.name == "sqlite" else "postgresql+psycopg"
    engine = create_async_engine(sa.make_url(store.url).set(drivername=driver))
    async with engine.begin() as conn:
        await conn.run_sync(ITEM.create)
    yield engine
    await engine.dispose()


async def items(store: Store) -> list[str]:
    async with store.snapshot() as session:
        return list((await session.exec(select(StoreTestItem.name).order_by(StoreTestItem.name))).all())


async def test_the_authors_rows_and_ours_are_committed_together(store: Store, engine: AsyncEngine) -> None:
    ear = Ear(store)
    async with store.session() as session:
        session.add(StoreTestItem(name="theirs"))
        await session.run(add, "ours")
        assert not ear.pools()
    assert await items(store) == ["theirs"]
    assert await store.read(names) == ["ours"]
    assert ear.pools() == ["ours"]


async def test_an_exception_undoes_both_and_tells_nobody(store: Store, engine: AsyncEngine) -> None:
    ear = Ear(store)
    with pytest.raises(LookupError):
        async with store.session() as session:
            session.add(StoreTestItem(name="theirs"))
            await session.run(add, "ours")
            raise LookupError
    await store.write(add, "later")
    await ear.until_kind("pool", "later")
    assert await items(store) == []
    assert await store.read(names) == ["later"]
    assert ear.pools() == ["later"]


async def test_what_cannot_be_committed_raises_out_of_the_block(store: Store, engine: AsyncEngine) -> None:
    with pytest.raises(IntegrityError):
        async with store.session() as session:
            await session.run(add, "ours")
            session.add_all([StoreTestItem(name="same"), StoreTestItem(name="same")])
    assert await items(store) == []
    assert await store.read(names) == []


@pytest.mark.parametrize("call", ["commit", "rollback", "close", "reset", "invalidate"])
async def test_the_transaction_is_not_the_authors_to_end(store: Store, engine: AsyncEngine, call: str) -> None:
    async with store.session() as session:
        session.add(StoreTestItem(name="kept"))
        with pytest.raises(TransactionOwned, match=call):
            await getattr(session, call)()
        with pytest.raises(TransactionOwned):
            await session.run_sync(lambda inner: getattr(inner, call)())
    assert await items(store) == ["kept"]
    async with store.snapshot() as snapshot:
        with pytest.raises(TransactionOwned):
            await getattr(snapshot, call)()


async def test_an_authors_savepoint_takes_its_notices_with_it(store: Store, engine: AsyncEngine) -> None:
    ear = Ear(store)
    async with store.session() as session:
        await session.run(add, "before")
        with pytest.raises(LookupError):
            async with session.begin_nested():
                await session.run(add, "inside")
                raise LookupError
        async with session.begin_nested():
            session.add(StoreTestItem(name="nested"))
            await session.run(add, "kept")
        assert not ear.pools()
    assert await store.read(names) == ["before", "kept"]
    assert await items(store) == ["nested"]
    assert ear.pools() == ["before", "kept"]


async def test_a_savepoint_opened_before_the_first_use_case_counts_too(store: Store) -> None:
    ear = Ear(store)
    async with store.session() as session:
        with pytest.raises(LookupError):
            async with session.begin_nested():
                await session.run(add, "inside")
                raise LookupError
        await session.run(add, "after")
    assert ear.pools() == ["after"]


async def test_no_update_of_concurrent_sessions_is_lost(store: Store, other: Store) -> None:
    await store.write(add, "counter")

    async def once(on: Store) -> None:
        async with on.session() as session:
            await session.run(raise_tokens, "counter")

    writes = [each.write(raise_tokens, "counter") for each in (store, other) for _ in range(25)]
    await asyncio.gather(*(once(each) for each in (store, other) for _ in range(25)), *writes)
    assert await store.read(tokens_of, "counter") == 100


async def test_writing_beside_ones_own_transaction_is_refused(store: Store) -> None:
    async with store.session() as session:
        with pytest.raises(WriteInsideMutation, match="session=session"):
            await store.write(add, "beside")
        await session.run(add, "inside")

        async def child() -> None:
            await finished.wait()
            await store.write(add, "child")

        finished = asyncio.Event()
        task = asyncio.create_task(child())
    finished.set()
    await task
    await store.write(add, "after")
    assert await store.read(names) == ["after", "child", "inside"]


async def test_a_canceled_session_writes_nothing_and_gives_the_turn_back(store: Store, engine: AsyncEngine) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with store.session() as session:
            session.add(StoreTestItem(name="canceled"))
            await session.run(add, "canceled")
            entered.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await entered.wait()
    waiting = [asyncio.create_task(hold()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    holding.cancel()
    await asyncio.gather(holding, *waiting, return_exceptions=True)
    async with asyncio.timeout(20):
        await store.write(add, "next")
        async with store.session() as session:
            session.add(StoreTestItem(name="next"))
    assert await store.read(names) == ["next"]
    assert await items(store) == ["next"]


async def test_a_statement_that_is_canceled_under_way_leaves_a_usable_store(store: Store) -> None:
    slow = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT max(i) FROM n",
        "postgresql": "SELECT pg_sleep(1)",
    }[store.dialect.name]
    started = asyncio.Event()

    async def hold() -> None:
        async with store.session() as session:
            await session.run(add, "canceled")
            started.set()
            await session.exec(sa.text(slow))  # type: ignore[call-overload]  # text

    task = asyncio.create_task(hold())
    await started.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await store.write(add, "next")
        async with store.session() as session:
            await session.run(add, "again")
    assert await store.read(names) == ["again", "next"]


async def test_a_statement_that_is_canceled_before_it_begins_does_not_run_to_its_end(sqlite_url: str) -> None:
    raw = connect(sqlite_url.removeprefix("sqlite:///"))
    borrowed = await _Borrowed(raw)
    gate, ended = threading.Event(), threading.Event()
    borrowed._tx.put_nowait((None, gate.wait))
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) SELECT max(i) FROM n"
    statement = asyncio.ensure_future(borrowed.cursor().execute(slow))
    await asyncio.sleep(0)
    statement.cancel()
    borrowed.stop()  # as SQLAlchemy does with the connection of a canceled statement
    borrowed.when_idle(ended.set)
    gate.set()
    assert await asyncio.to_thread(ended.wait, 20)
    raw.close()


async def test_a_long_hold_of_the_write_turn_is_reported(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Store.open(sqlite_url) as store:
        with caplog.at_level(logging.WARNING, "signoff.store"):
            async with store.session():
                pass
            assert not caplog.records
            monkeypatch.setattr("signoff.store.sqlite.HELD_TOO_LONG", 0.0)
            async with store.session():
                pass
        assert "write turn" in caplog.text


async def test_a_snapshot_is_one_moment_and_refuses_writes(store: Store, engine: AsyncEngine) -> None:
    await store.write(add, "a")
    count = sa.text("SELECT count(*) FROM signoff_pool")
    async with store.snapshot() as session:
        assert (await session.exec(count)).scalar_one() == 1  # type: ignore[call-overload]  # text
        await store.write(add, "b")
        assert (await session.exec(count)).scalar_one() == 1  # type: ignore[call-overload]  # text
    with pytest.raises(ReadOnlyTransaction, match="mutation"):
        async with store.snapshot() as session:
            session.add(StoreTestItem(name="x"))
            await session.flush()
    assert await items(store) == []


async def test_join_stands_and_falls_with_the_callers_transaction(
    store: Store, other: Store, engine: AsyncEngine
) -> None:
    ear, far = Ear(store), Ear(other)
    if store.dialect.name == "sqlite":
        # as authors have to set up SQLAlchemy on SQLite for transactions that hold
        event.listen(engine.sync_engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        event.listen(engine.sync_engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
        await engine.dispose()
    async with AsyncSession(engine) as session:
        session.add(StoreTestItem(name="theirs"))
        assert await store.join(session, add, "ours") == "ours"
        assert await store.join(session, names) == ["ours"]
        await session.rollback()
        assert not ear.pools()
        session.add(StoreTestItem(name="theirs again"))
        await store.join(session, add, "ours again")
        assert not ear.pools()
        await session.commit()
        # the same session once more, in its next transaction
        await store.join(session, add, "third")
        await session.commit()
    await ear.until_kind("pool", "third")
    if store.dialect.name == "postgresql":
        await far.until_kind("pool", "third")
        assert far.pools() == ["ours again", "third"]
    else:
        await far.until_kind("resync")
    assert await store.read(names) == ["ours again", "third"]
    assert await items(store) == ["theirs again"]
    assert ear.pools() == ["ours again", "third"]


async def test_join_refuses_a_session_on_a_database_of_another_kind(postgres_url: str, sqlite_url: str) -> None:
    engine = create_async_engine(sa.make_url(sqlite_url).set(drivername="sqlite+aiosqlite"))
    async with await Store.open(postgres_url) as store, AsyncSession(engine) as session:
        with pytest.raises(StoreError, match="same database"):
            await store.join(session, add, "x")
    await engine.dispose()


async def test_other_processes_hear_of_joined_work(store: Store, other: Store) -> None:
    ear = Ear(other)
    async with store.session() as session:
        await session.run(add, "joined")
    await ear.until(lambda all_: any(n.kind == "resync" or n.key == "joined" for n in all_))
