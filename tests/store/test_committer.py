from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import IntegrityError

from signoff.store import Store, Tx
from signoff.store.writer import Committer
from tests.store.support import Ear, add, names


async def submit_all(committer: Committer[str, str], items: Sequence[str]) -> dict[str, str | BaseException]:
    results: dict[str, str | BaseException] = {}
    done = asyncio.Event()

    def keep(item: str, result: str | BaseException) -> None:
        results[item] = result
        if len(results) == len(items):
            done.set()

    for item in items:
        committer.submit(item, lambda result, item=item: keep(item, result))  # type: ignore[misc]  # default argument
    async with asyncio.timeout(30):
        await done.wait()
    return results


async def test_items_are_applied_together_and_answered_in_order(store: Store) -> None:
    batches: list[int] = []

    def apply(tx: Tx, items: list[str]) -> list[str]:
        batches.append(len(items))
        return [add(tx, item).upper() for item in items]

    items = [f"p{i:03}" for i in range(300)]
    results = await submit_all(store.committer(apply, max_batch=64), items)
    assert list(results) == items
    assert results["p007"] == "P007"
    assert sum(batches) == 300
    assert max(batches) <= 64
    assert len(batches) < 100
    assert await store.read(names) == items


async def test_an_item_that_cannot_be_written_fails_alone(store: Store) -> None:
    def apply(tx: Tx, items: list[str]) -> list[str]:
        for item in items:
            if item == "bad":
                raise ValueError("bad item")
        return [add(tx, item) for item in items]

    await store.write(add, "taken")
    ear = Ear(store)
    items = ["a", "bad", "b", "taken", "c"]
    writes = [asyncio.create_task(store.write(add, f"w{i}")) for i in range(5)]
    results = await submit_all(store.committer(apply), items)
    await asyncio.gather(*writes)
    assert isinstance(results["bad"], ValueError)
    assert isinstance(results["taken"], IntegrityError)
    assert [results[item] for item in "abc"] == ["a", "b", "c"]
    assert await store.read(names) == ["a", "b", "c", "taken", "w0", "w1", "w2", "w3", "w4"]
    assert sorted(str(n.key) for n in ear.notices) == ["a", "b", "c", "w0", "w1", "w2", "w3", "w4"]


async def test_nothing_is_acknowledged_before_its_commit(store: Store, other: Store) -> None:
    committer = store.committer(lambda tx, items: [add(tx, item) for item in items])
    seen: list[str] = []
    done = asyncio.Event()

    async def look(name: str) -> None:
        if name in await other.read(names):
            seen.append(name)
        if len(seen) == 20:
            done.set()

    tasks: list[asyncio.Task[None]] = []
    for i in range(20):
        committer.submit(f"p{i}", lambda result: tasks.append(asyncio.create_task(look(str(result)))))
    async with asyncio.timeout(30):
        await done.wait()


async def test_a_callback_that_fails_does_not_keep_others_from_hearing(store: Store) -> None:
    committer = store.committer(lambda tx, items: [add(tx, item) for item in items])
    heard: asyncio.Future[str | BaseException] = asyncio.get_running_loop().create_future()

    def fail(result: str | BaseException) -> None:
        raise RuntimeError("in a callback")

    committer.submit("a", fail)
    committer.submit("b", heard.set_result)
    async with asyncio.timeout(30):
        assert await heard == "b"


async def test_a_wrong_number_of_results_is_an_error_and_writes_nothing(store: Store) -> None:
    def apply(tx: Tx, items: list[str]) -> list[str]:
        return [add(tx, item) for item in items] + ["too many"]

    results = await submit_all(store.committer(apply), ["a", "b"])
    assert all(isinstance(result, RuntimeError) for result in results.values())
    with pytest.raises(RuntimeError):
        raise next(result for result in results.values() if isinstance(result, RuntimeError))
    assert await store.read(names) == []


async def test_those_who_wait_for_rows_write_before_those_who_take_free_ones(store: Store) -> None:
    order: list[str] = []

    def applier(name: str) -> Committer[str, str]:
        def apply(tx: Tx, items: list[str]) -> list[str]:
            order.append(name)
            return items

        return store.committer(apply, repeatable=name == "waits")

    entered, go_on = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        entered.set()
        go_on.wait(30)

    held = asyncio.create_task(submit_all(store.committer(lambda tx, items: [hold(tx)]), ["held"]))
    await asyncio.to_thread(entered.wait, 30)
    takes, waits = applier("takes"), applier("waits")
    both = [asyncio.create_task(submit_all(committer, ["a"])) for committer in (takes, waits)]
    await asyncio.sleep(0)  # both have queued, in this order
    go_on.set()
    await asyncio.gather(held, *both)
    assert order == ["waits", "takes"]
