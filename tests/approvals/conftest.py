from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from signoff import Registry
from signoff.testing import TestEngine
from tests.people.world import World, world


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest_asyncio.fixture
async def t(database_url: str, registry: Registry) -> AsyncIterator[TestEngine]:
    """An engine on the test's database with a clock that the test moves. Not open yet: define first, then `open()`."""
    engine = TestEngine(registry=registry, database=database_url)
    yield engine
    if getattr(engine, "worker", None) is not None:
        await engine.close(grace=0)
