from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.web.world import Site, running_site


@pytest_asyncio.fixture(loop_scope="session")
async def site(sqlite_url: str) -> AsyncIterator[Site]:
    async with running_site(sqlite_url) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def both_sites(database_url: str) -> AsyncIterator[Site]:
    """The site on SQLite, and again on PostgreSQL."""
    async with running_site(database_url) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"site", "both_sites"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
