"""`signoff migrate`: bring a database up to date."""

from __future__ import annotations

import click

from signoff.cli.options import database_option
from signoff.store.migrate import migrate as migrate_database
from signoff.store.urls import parse_url, shown


@click.command()
@database_option
def migrate(database: str) -> None:
    """Make or update Signoff's tables. SQLite files are also migrated whenever they are opened."""
    migrate_database(database)
    click.echo(f"{shown(parse_url(database))} is up to date.".replace("the ", "The ", 1))
