"""For pytest: `pytest_plugins = ["signoff.testing.plugin"]`. Needs pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from signoff.testing.engine import TestEngine


@pytest_asyncio.fixture
async def signoff_engine() -> AsyncIterator[TestEngine]:
    """An engine in memory with every workflow that was imported."""
    async with TestEngine() as engine:
        yield engine
