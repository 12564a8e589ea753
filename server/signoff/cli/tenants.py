"""`signoff tenants`: the boundaries of visibility."""

from __future__ import annotations

import click

from signoff.cli.options import database_option, run_async, url_option
from signoff.cli.people import link_address, run_use_case
from signoff.people import tenants as tenants_of


@click.group()
def tenants() -> None:
    """Make, list and rename tenants; other commands take one by --tenant."""


@tenants.command("add")
@click.argument("name")
@click.option("--title", default="", help="What pages call it, if not by its name.")
@click.option("--admin", metavar="EMAIL", help="Its first admin; prints a link with which they set a password.")
@url_option
@database_option
@run_async
async def add(name: str, title: str, admin: str | None, url: str, database: str) -> None:
    """Make a tenant. Code and commands call it by NAME, which stays."""
    name = name.strip()
    if admin is None:
        await run_use_case(database, tenants_of.DEFAULT_TENANT, tenants_of.add_tenant, name, title)
        click.echo(f"Made {name}. Its first admin: signoff users add EMAIL --role admin --tenant {name}")
        return
    secret = await run_use_case(database, tenants_of.DEFAULT_TENANT, tenants_of.open_tenant, name, title, admin)
    click.echo(f"Made {name}, with {admin.strip().lower()} as its admin.")
    if secret is not None:
        click.echo(f"They set their password here, once, within 24 hours:\n{link_address(url, secret)}")


@tenants.command("rename")
@click.argument("name")
@click.argument("title")
@database_option
@run_async
async def rename(name: str, title: str, database: str) -> None:
    """Have pages call the tenant NAME by TITLE; an empty one: by its name again."""
    await run_use_case(database, tenants_of.DEFAULT_TENANT, tenants_of.rename_tenant, name, title)
    click.echo(f"Pages call {name} {title.strip() or name} now.")


@tenants.command("list")
@database_option
@run_async
async def list_(database: str) -> None:
    """All tenants with how many people are in each."""
    for tenant in await run_use_case(database, tenants_of.DEFAULT_TENANT, tenants_of.list_tenants):
        called = f'  "{tenant.title}"' if tenant.title != tenant.name else ""
        click.echo(f"{tenant.name}{called}  {tenant.members} {'person' if tenant.members == 1 else 'people'}")
