"""The fixtures keep what the other tests build on."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from playwright.async_api import Browser

from tests.support.browser import Pages, accessibility_faults
from tests.support.postgres import PostgresServer


def connect(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_has_a_database_of_its_own(database_url: str, turn: int) -> None:
    with connect(database_url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (turn INTEGER)")
        connection.exec_driver_sql(f"INSERT INTO mine VALUES ({turn})")
    with connect(database_url).connect() as connection:
        assert connection.exec_driver_sql("SELECT turn FROM mine").scalars().all() == [turn]


def test_an_empty_database_has_no_tables(empty_database_url: str) -> None:
    assert sa.inspect(connect(empty_database_url)).get_table_names() == []


def test_urls_are_what_users_write(sqlite_url: str, postgres_url: str) -> None:
    assert sqlite_url.startswith("sqlite:////")
    assert sa.make_url(postgres_url).drivername == "postgresql"
    psycopg.connect(postgres_url).close()


def test_postgres_is_durable(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)


def test_a_database_is_dropped_under_whoever_is_still_connected(postgres_server: PostgresServer) -> None:
    name = postgres_server.create()
    with psycopg.connect(postgres_server.url(name)) as connection:
        postgres_server.drop(name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(postgres_server.url(name))


async def test_pages_are_different_people(new_page: Pages) -> None:
    first, second = await new_page(), await new_page(color_scheme="dark")
    site = "http://site.example.org/"
    await first.context.add_cookies([{"name": "who", "value": "first", "url": site}])
    assert await second.context.cookies(site) == []
    dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    assert (await first.evaluate(dark), await second.evaluate(dark)) == (False, True)


async def test_faults_of_a_page_are_noticed(chromium: Browser) -> None:
    pages = Pages(chromium)
    page = await pages()
    await page.set_content(
        "<meta http-equiv='Content-Security-Policy' content=\"style-src 'self'\"><p style='color: red'>Red</p>"
    )
    async with page.expect_event("pageerror"):
        await page.evaluate("() => { setTimeout(() => { throw new Error('uncaught here') }) }")
    await pages.close()
    assert len(pages.faults) == 2
    assert "Content Security Policy" in pages.faults[0]
    assert "uncaught here" in pages.faults[1]


async def test_accessibility_faults_are_found(new_page: Pages) -> None:
    page = await new_page()
    await page.set_content("<html lang=en><title>t</title><main><h1>Title</h1><p>Text</p></main></html>")
    assert await accessibility_faults(page) == []
    await page.set_content("<html lang=en><title>t</title><main><h1>Title</h1><input></main></html>")
    assert [fault.split(":")[0] for fault in await accessibility_faults(page)] == ["label"]
