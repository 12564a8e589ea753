from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from signoff.store import Store, migrate
from signoff.store.errors import SchemaMissing, SchemaTooNew
from signoff.store.migrate import REVISIONS, VERSION_TABLE, alembic_config, engine_for
from signoff.store.tables import Base
from tests.store.support import names


def tables(url: str) -> set[str]:
    engine = engine_for(url)
    with engine.connect() as conn:
        return set(sa.inspect(conn).get_table_names())


def test_migrations_make_the_tables_that_the_models_describe(empty_database_url: str) -> None:
    """An author's own table in the same database is nobody's difference."""
    engine = engine_for(empty_database_url)
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE author (id INTEGER PRIMARY KEY)"))
    assert migrate(empty_database_url)
    assert not migrate(empty_database_url)
    with engine.begin() as conn, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Alembic says that it skips indexes with DESC on SQLite
        command.check(alembic_config(conn))
    assert tables(empty_database_url) == {*Base.metadata.tables, "author", VERSION_TABLE}


def test_on_sqlite_migrations_make_the_very_statements_that_the_models_do(tmp_path: Path) -> None:
    """Alembic sees neither DESC in an index nor WITHOUT ROWID."""

    def words(url: str) -> dict[str, list[str]]:
        with engine_for(url).connect() as conn:
            rows = conn.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
            clean = {name: sql.translate(str.maketrans("()\"',\n\t", "       ")) for name, sql in rows}
        return {name: sorted(sql.split()) for name, sql in clean.items() if name != VERSION_TABLE}

    migrated, made = (f"sqlite:///{tmp_path / name}.db" for name in ("migrated", "made"))
    migrate(migrated)
    with engine_for(made).begin() as conn:
        Base.metadata.create_all(conn)
    assert words(migrated) == words(made)


def test_the_revisions_known_to_the_code_are_those_in_the_folder(sqlite_url: str) -> None:
    with engine_for(sqlite_url).connect() as conn:
        scripts = ScriptDirectory.from_config(alembic_config(conn))
    assert tuple(script.revision for script in reversed(list(scripts.walk_revisions()))) == REVISIONS


def test_downgrading_leaves_nothing(empty_database_url: str) -> None:
    migrate(empty_database_url)
    with engine_for(empty_database_url).begin() as conn:
        command.downgrade(alembic_config(conn), "base")
    assert tables(empty_database_url) == {VERSION_TABLE}


async def test_sqlite_migrates_itself_and_has_the_default_tenant(tmp_path: Path) -> None:
    async with await Store.open(f"sqlite:///{tmp_path / 'new.db'}") as store:
        rows = await store.read(lambda tx: tx.execute_raw("SELECT id, name FROM signoff_tenant"))
    assert rows == [(1, "default")]


async def test_two_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    import asyncio

    url = f"sqlite:///{tmp_path / 'new.db'}"
    stores = await asyncio.gather(*(Store.open(url) for _ in range(4)))
    for store in stores:
        assert await store.read(names) == []
        await store.close()


async def test_postgresql_is_migrated_only_when_told(empty_postgres_url: str) -> None:
    with pytest.raises(SchemaMissing, match=r"signoff migrate"):
        await Store.open(empty_postgres_url)
    assert tables(empty_postgres_url) == set()
    async with await Store.open(empty_postgres_url, migrate=True) as store:
        assert await store.read(names) == []


async def test_a_database_of_a_newer_release_is_refused_and_left_alone(database_url: str) -> None:
    engine = engine_for(database_url)
    with engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    for told in (None, True, False):
        with pytest.raises(SchemaTooNew, match=r"newer release.*9999"):
            await Store.open(database_url, migrate=told)
    with engine.connect() as conn:
        assert conn.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one() == "9999"


async def test_a_database_of_an_older_release_says_what_to_do(database_url: str) -> None:
    with engine_for(database_url).begin() as conn:
        conn.execute(sa.text(f"DELETE FROM {VERSION_TABLE}"))
    with pytest.raises(SchemaMissing, match=r"older release.*signoff migrate"):
        await Store.open(database_url, migrate=False)
