"""`signoff tenants`: the boundaries of visibility."""

from __future__ import annotations

import click

from signoff.cli.options import database_option, run_async
from signoff.people import tenants as tenants_of
from signoff.store.store import Store


@click.group()
def tenants() -> None:
    """Make and list tenants; other commands take one by --tenant."""


@tenants.command("add")
@click.argument("name")
@database_option
@run_async
async def add(name: str, database: str) -> None:
    """Make a tenant that nobody is in yet."""
    async with await Store.open(database) as store:
        await store.write(tenants_of.add_tenant, name)
    click.echo(f"Made {name}. Its first admin: signoff users add EMAIL --role admin --tenant {name}")


@tenants.command("list")
@database_option
@run_async
async def list_(database: str) -> None:
    """All tenants with how many people are in each."""
    async with await Store.open(database) as store:
        found = await store.read(tenants_of.list_tenants)
    for tenant in found:
        click.echo(f"{tenant.name}  {tenant.members} {'person' if tenant.members == 1 else 'people'}")
