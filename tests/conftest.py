"""Fixtures that all tests share: databases of both kinds, and a browser.

Databases come migrated, and each test has one as new to itself: `sqlite_url`, `postgres_url`, and `database_url`, which
runs the test on both. `empty_database_url` is the same without any tables, for tests of migrations. The server and the
migrated templates are made once per test process, so that every xdist worker has its own.

Browser tests are coroutines that use `new_page`. They run on the session's event loop, because the browser does: async
fixtures that they share with it need `loop_scope="session"`.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings
from playwright.async_api import Browser

from tests.support.browser import Pages, running_chromium
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.schema import migrate
from tests.support.stock import Stock
from tests.support.tracing import trace_threads_one_at_a_time

# a slow machine breaks no promise: nothing is asserted of how long an example takes
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

trace_threads_one_at_a_time()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        browser = "chromium" in getattr(item, "fixturenames", ())
        second = "postgresql" in getattr(getattr(item, "callspec", None), "params", {}).values()
        if browser or second:  # whether code is tested shows without them, and following it costs a fifth of the time
            item.add_marker(pytest.mark.no_cover)
        if browser:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that nobody has open."""
    path = tmp_path_factory.mktemp("sqlite-template") / "signoff.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    path = tmp_path / "signoff.db"
    for suffix in ("", "-wal"):
        source = Path(f"{sqlite_template}{suffix}")
        if source.exists():
            shutil.copy(source, f"{path}{suffix}")
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated PostgreSQL database that nobody is connected to."""
    name = postgres_server.create()
    migrate(postgres_server.url(name))
    return name


@pytest.fixture(scope="session")
def postgres_stock(postgres_server: PostgresServer, postgres_template: str) -> Stock:
    return Stock(postgres_server, postgres_template)


@pytest.fixture
def postgres_url(postgres_stock: Stock) -> Iterator[str]:
    with postgres_stock.database() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'signoff.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with running_chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def new_page(chromium: Browser) -> AsyncIterator[Pages]:
    """`await new_page()` opens a page as another person; see `Pages`."""
    pages = Pages(chromium)
    yield pages
    await pages.close()
    assert not pages.faults
