from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest_asyncio

from signoff.store.clock import ManualClock
from signoff.store.store import Store
from tests.engine_usecases.support import Database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest_asyncio.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """A store on a clock that stands still, with the workflow `order` in version 1."""
    clock = ManualClock(NOW)
    store = await Store.open(database_url, clock=clock)
    database = Database(store, clock)
    await database.define("order")
    yield database
    await store.close()
