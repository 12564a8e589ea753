from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.people.world import World, world


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made
