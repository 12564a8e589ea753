"""An open store on both databases, and a second one as another process would have it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from signoff.store import Store


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await Store.open(database_url) as opened:
        yield opened


@pytest.fixture
async def other(database_url: str, store: Store) -> AsyncIterator[Store]:
    async with await Store.open(database_url) as opened:
        yield opened
