"""`signoff users` and `signoff groups`: who may sign in, with which role, in which groups."""

from __future__ import annotations

import sys

import click

from signoff.approvals.naming import questions_naming
from signoff.cli.failures import CommandFailed
from signoff.cli.options import database_option, oidc_option, run_async, tenant_option, url_option
from signoff.cli.people import link_address, providers, run_use_case
from signoff.people import groups as groups_of
from signoff.people import links
from signoff.people import users as users_of
from signoff.people.passwords import hash_password
from signoff.store.scope import ROLES, Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict

role_choice = click.Choice(ROLES)
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input, first line."
)


@click.group()
def users() -> None:
    """Add people and give them roles: viewer, approver, operator, admin."""


@users.command("add")
@click.argument("email")
@click.option("--name", default="", help="How pages call the person.")
@click.option("--role", type=role_choice, default="approver", show_default=True)
@click.option("--group", "groups", multiple=True, help="Make the person a member; may be given several times.")
@click.option("--existing", is_flag=True, help="Also an account that an admin of another tenant made.")
@password_option
@url_option
@tenant_option
@database_option
@run_async
async def add(
    email: str,
    name: str,
    role: str,
    groups: tuple[str, ...],
    existing: bool,
    password_stdin: bool,
    url: str,
    tenant: str,
    database: str,
) -> None:
    """Add a person. Without a password, prints a link with which they set one.

    An account that another tenant has keeps its name and password, and is added with --existing only.
    """
    password = hash_password(_from_stdin()) if password_stdin else None
    try:
        secret = await run_use_case(database, tenant, _add, email, name, role, groups, password, existing)
    except Conflict as error:
        if not error.context.get("existing"):
            raise
        message = f"{error.message}. If that is whom you mean, add --existing: the account keeps its name and password."
        raise CommandFailed(message) from error
    click.echo(f"Added {email.strip().lower()} as {role}.")
    if secret is not None:
        click.echo(f"They set their password here, once, within 24 hours:\n{link_address(url, secret)}")


@users.command("list")
@tenant_option
@database_option
@run_async
async def list_(tenant: str, database: str) -> None:
    """List everybody with role and groups."""
    found = await run_use_case(database, tenant, users_of.list_users)
    if not found:
        click.echo("Nobody yet. Add the first admin with: signoff users add EMAIL --role admin")
    for user in found:
        notes = [] if user.active else ["deactivated"]
        notes += [] if user.has_password or user.external else ["no password"]
        notes += ["from a provider"] if user.external else []
        line = f"{user.email}  {user.role}  {user.name or '-'}  groups: {', '.join(user.groups) or '-'}"
        click.echo(line + (f"  ({', '.join(notes)})" if notes else ""))


@users.command("set-role")
@click.argument("email")
@click.argument("role", type=role_choice)
@tenant_option
@database_option
@run_async
async def set_role(email: str, role: str, tenant: str, database: str) -> None:
    """Change a person's role. It counts from their next request on."""
    await run_use_case(database, tenant, users_of.set_role, email, role)
    click.echo(f"{email.strip().lower()} is {role} now.")


@users.command("set-password")
@click.argument("email")
@password_option
@tenant_option
@database_option
@run_async
async def set_password(email: str, password_stdin: bool, tenant: str, database: str) -> None:
    """Set a person's password, and sign them out everywhere."""
    if not password_stdin and not sys.stdin.isatty():
        raise CommandFailed("There is no terminal to ask for a password on; use --password-stdin")
    password = _from_stdin() if password_stdin else click.prompt("Password", hide_input=True, confirmation_prompt=True)
    await run_use_case(database, tenant, users_of.set_password, email, hash_password(password))
    click.echo(f"{email.strip().lower()} has a new password and is signed out everywhere.")


@users.command("deactivate")
@click.argument("email")
@tenant_option
@database_option
@run_async
async def deactivate(email: str, tenant: str, database: str) -> None:
    """End a person's sessions, links and tokens; what they decided stays on record."""
    await run_use_case(database, tenant, users_of.set_active, email, False)
    click.echo(f"{email.strip().lower()} is deactivated.")


@users.command("activate")
@click.argument("email")
@tenant_option
@database_option
@run_async
async def activate(email: str, tenant: str, database: str) -> None:
    """Let a deactivated person sign in again."""
    await run_use_case(database, tenant, users_of.set_active, email, True)
    click.echo(f"{email.strip().lower()} is active again.")


@users.command("remove")
@click.argument("email")
@tenant_option
@database_option
@run_async
async def remove(email: str, tenant: str, database: str) -> None:
    """Take a person out of a tenant; the account stays, and so does what they decided."""
    await run_use_case(database, tenant, users_of.remove_user, email)
    click.echo(f"{email.strip().lower()} belongs to {tenant} no more.")


@users.command("setup-link")
@click.argument("email", required=False)
@url_option
@tenant_option
@database_option
@run_async
async def setup_link(email: str | None, url: str, tenant: str, database: str) -> None:
    """Print a one-time link: for EMAIL to set a password, or without EMAIL to make the first admin."""
    secret = await run_use_case(database, tenant, _setup_link, email)
    click.echo(link_address(url, secret))


@click.group()
def groups() -> None:
    """Put people into groups, which questions are put to."""


@groups.command("add")
@click.argument("group")
@click.argument("emails", nargs=-1, required=True, metavar="EMAIL...")
@tenant_option
@database_option
@run_async
async def add_members(group: str, emails: tuple[str, ...], tenant: str, database: str) -> None:
    """Add people to a group, which is made if it does not exist."""
    await run_use_case(database, tenant, _add_members, group, emails)
    click.echo(f"Added to {group}: {', '.join(emails)}")


@groups.command("make")
@click.argument("group")
@tenant_option
@database_option
@run_async
async def make(group: str, tenant: str, database: str) -> None:
    """Make a group that nobody is in yet."""
    click.echo(f"Made {await run_use_case(database, tenant, groups_of.make_group, group)}.")


@groups.command("remove")
@click.argument("group")
@click.argument("emails", nargs=-1, required=True, metavar="EMAIL...")
@tenant_option
@database_option
@run_async
async def remove_members(group: str, emails: tuple[str, ...], tenant: str, database: str) -> None:
    """Take people out of a group."""
    await run_use_case(database, tenant, _remove_members, group, emails)
    click.echo(f"Removed from {group}: {', '.join(emails)}")


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@oidc_option
@tenant_option
@database_option
@run_async
async def delete(group: str, yes: bool, oidc: str | None, tenant: str, database: str) -> None:
    """Delete a group. Questions that only it could answer wait until somebody else may; the record stays."""
    for provider in providers(oidc):
        if provider.tenant == tenant and group in provider.groups.values():
            raise CommandFailed(f"{provider.name} would make {group} again: take it out of its settings first")
    if not yes:
        named = await run_use_case(database, tenant, questions_naming, group)
        asked = "1 open question names" if named.asked == 1 else f"{named.asked} open questions name"
        keeps = f" {named.excluding} keep its members from answering." if named.excluding else ""
        click.echo(f"{asked} it; {named.stuck} of them nobody could answer then.{keeps}")
        click.confirm(f"Delete the group {group}?", abort=True)
    members = await run_use_case(database, tenant, groups_of.delete_group, group)
    click.echo(f"Deleted {group}, which had {members} {'member' if members == 1 else 'members'}.")


@groups.command("list")
@tenant_option
@database_option
@run_async
async def list_groups(tenant: str, database: str) -> None:
    """List groups and their members."""
    found = await run_use_case(database, tenant, groups_of.list_groups)
    if not found:
        click.echo("No groups yet. Make one with: signoff groups add GROUP EMAIL")
    for group in found:
        click.echo(f"{group.name}: {', '.join(group.members) or '-'}")


def _add(
    tx: Tx,
    scope: Scope,
    email: str,
    name: str,
    role: str,
    groups: tuple[str, ...],
    password: str | None,
    existing: bool,
) -> str | None:
    user_id = users_of.add_user(tx, scope, email, name=name, role=role, password_hash=password, existing=existing)
    for group in groups:
        groups_of.add_to_group(tx, scope, group, email)
    return None if users_of.has_password(tx, user_id) else users_of.password_link(tx, scope, email)


def _setup_link(tx: Tx, scope: Scope, email: str | None) -> str:
    if email is not None:
        return users_of.password_link(tx, scope, email)
    secret = links.first_admin_link(tx, scope.tenant_id)
    if secret is None:
        raise Conflict("There is an admin already; name the person whose password is to be set")
    return secret


def _add_members(tx: Tx, scope: Scope, group: str, emails: tuple[str, ...]) -> None:
    for email in emails:
        groups_of.add_to_group(tx, scope, group, email)


def _remove_members(tx: Tx, scope: Scope, group: str, emails: tuple[str, ...]) -> None:
    for email in emails:
        groups_of.remove_from_group(tx, scope, group, email)


def _from_stdin() -> str:
    return sys.stdin.readline().rstrip("\r\n")
