"""Small use-cases on a real table, and waiting for notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from signoff.store import Notice, Store, Tx
from signoff.store.tables import Base

POOL = Base.metadata.tables["signoff_pool"]


def add(tx: Tx, name: str, tokens: float = 0) -> str:
    """Fails for a name that is there already."""
    tx.conn.execute(sa.insert(POOL).values(name=name, tokens=tokens))
    tx.notify("pool", name)
    return name


def names(tx: Tx) -> list[str]:
    return list(tx.conn.execute(sa.select(POOL.c.name).order_by(POOL.c.name)).scalars())


def raise_tokens(tx: Tx, name: str) -> None:
    """Read, then write: loses updates wherever two transactions may read the same row at once."""
    row = tx.dialect.lock(sa.select(POOL.c.tokens).where(POOL.c.name == name))
    tokens = tx.conn.execute(row).scalar_one()
    tx.conn.execute(sa.update(POOL).where(POOL.c.name == name).values(tokens=tokens + 1))


def tokens_of(tx: Tx, name: str) -> float:
    return float(tx.conn.execute(sa.select(POOL.c.tokens).where(POOL.c.name == name)).scalar_one())


class Ear:
    """Collects a store's notices and lets a test wait for some of them."""

    def __init__(self, store: Store) -> None:
        self.notices: list[Notice] = []
        self._heard = asyncio.Event()
        store.subscribe(self._hear)

    def _hear(self, notices: Sequence[Notice]) -> None:
        self.notices += notices
        self._heard.set()

    def pools(self) -> list[str | int]:
        """Keys of what `add` told, without the resync that somebody else's writes to a SQLite file bring."""
        return [notice.key for notice in self.notices if notice.kind == "pool"]

    async def until(self, condition: Callable[[list[Notice]], bool], timeout: float = 20) -> None:
        async with asyncio.timeout(timeout):
            while not condition(self.notices):
                self._heard.clear()
                await self._heard.wait()

    async def until_kind(self, kind: str, key: str | int | None = None) -> None:
        await self.until(lambda all_: any(n.kind == kind and key in (None, n.key) for n in all_))
