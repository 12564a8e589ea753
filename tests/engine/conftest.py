"""A running engine over definitions that each test makes for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from signoff import Engine, Registry
from signoff.engine.settings import EngineSettings
from signoff.testing import TestEngine

EngineMaker = Callable[..., Awaitable[Engine]]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest_asyncio.fixture
async def open_engine(database_url: str) -> AsyncIterator[EngineMaker]:
    """Opens engines on the test's database; what is still open at the end is closed."""
    opened: list[Engine] = []

    async def make(registry: Registry, **options: object) -> Engine:
        options.setdefault("settings", EngineSettings(check_replay=True))
        engine = Engine(database_url, registry=registry, grace=0, **options)  # type: ignore[arg-type]  # passed on
        await engine.open()
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        await engine.close()


@pytest_asyncio.fixture
async def engine(open_engine: EngineMaker, registry: Registry) -> Engine:
    """Started empty; tests define in `registry` and call `worker.refresh_definitions()` through `define`."""
    return await open_engine(registry)


@pytest_asyncio.fixture
async def t(database_url: str, registry: Registry) -> AsyncIterator[TestEngine]:
    """An engine on the test's database with a clock that the test moves. Not open yet: define first, then `open()`."""
    engine = TestEngine(registry=registry, database=database_url)
    yield engine
    if getattr(engine, "worker", None) is not None:
        await engine.close(grace=0)
