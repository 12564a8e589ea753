"""`signoff tokens`: bearer tokens for programs that call the API."""

from __future__ import annotations

from datetime import timedelta

import click

from signoff.cli.options import database_option, run_async, tenant_option
from signoff.cli.people import run_use_case
from signoff.people import tokens as tokens_of
from signoff.store.scope import ROLES


@click.group()
def tokens() -> None:
    """Make, list and revoke tokens for the API."""


@tokens.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True)
@click.option("--user", "email", metavar="EMAIL", help="Act as this person, with at most their role.")
@click.option("--days", type=click.IntRange(1, 3650), help="End after so many days; without it the token does not end.")
@tenant_option
@database_option
@run_async
async def create(name: str, role: str, email: str | None, days: int | None, tenant: str, database: str) -> None:
    """Make a token and print it, once: only its hash is stored."""
    lifetime = None if days is None else timedelta(days=days)
    secret = await run_use_case(
        database, tenant, tokens_of.create_token, name, role=role, email=email, lifetime=lifetime
    )
    click.echo(secret)
    click.echo("Keep it now, it is not shown again. Use it as: Authorization: Bearer TOKEN", err=True)


@tokens.command("list")
@tenant_option
@database_option
@run_async
async def list_(tenant: str, database: str) -> None:
    """List all tokens, without their secrets."""
    found = await run_use_case(database, tenant, tokens_of.list_tokens)
    if not found:
        click.echo("No tokens yet. Make one with: signoff tokens create NAME")
    for token in found:
        ends = f"{token.expires_at:%Y-%m-%d}" if token.expires_at else "never"
        state = "revoked" if token.revoked_at else f"ends {ends}"
        click.echo(f"{token.name}  {token.role}  made {token.created_at:%Y-%m-%d}  {state}")


@tokens.command("revoke")
@click.argument("name")
@tenant_option
@database_option
@run_async
async def revoke(name: str, tenant: str, database: str) -> None:
    """End a token at once."""
    await run_use_case(database, tenant, tokens_of.revoke_token, name)
    click.echo(f"The token {name} is revoked.")
