"""Lookups by key that share a read: what is asked while one is under way is answered together by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from signoff.store.tx import Tx

if TYPE_CHECKING:
    from signoff.store.store import Store

K = TypeVar("K")
V = TypeVar("V")


class SharedRead(Generic[K, V]):
    """`use_case(tx, keys)` gives a value for each key. No answer comes from a snapshot older than its question."""

    def __init__(self, store: Store, use_case: Callable[[Tx, list[K]], Mapping[K, V]]) -> None:
        self._store = store
        self._use_case = use_case
        self._asked: dict[K, list[asyncio.Future[V]]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __call__(self, key: K) -> V:
        """Raises as `store.read`."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(key, []).append(future)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return await future

    async def _read(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                answers: Mapping[K, V] = {}
                problem: Exception | None = None
                try:
                    answers = await self._store.read(self._use_case, list(asked))
                except Exception as error:  # noqa: BLE001  # raised where it was asked
                    problem = error
                for key, futures in asked.items():
                    for future in futures:
                        if future.done():  # its asker was canceled
                            continue
                        if problem is not None:
                            future.set_exception(problem)
                        else:
                            future.set_result(answers[key])
        finally:
            self._reading = None
