"""What the commands about people share: one use-case on the database, and whose name stands in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from signoff.cli.failures import CommandFailed, Exit
from signoff.people.links import SETUP_PATH
from signoff.people.tenants import tenant_id
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.web.providers import ProviderConfig, read_providers

P = ParamSpec("P")
R = TypeVar("R")


async def run_use_case(
    database: str, tenant: str, use_case: Callable[Concatenate[Tx, Scope, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a use-case in one transaction. Who can open the database may do anything in it, so no person is asked for."""

    def inside(tx: Tx) -> R:
        return use_case(tx, Scope(tenant_id(tx, tenant), via="cli"), *args, **kwargs)

    async with await Store.open(database) as store:
        return await store.write(inside)


def link_address(url: str, secret: str) -> str:
    """Where a person opens a one-time link."""
    return f"{url.rstrip('/')}{SETUP_PATH}{secret}"


def providers(source: str | None) -> list[ProviderConfig]:
    """What `--oidc` names."""
    try:
        return read_providers(source) if source else []
    except ValueError as error:
        raise CommandFailed(f"The identity providers cannot be read: {error}.", Exit.USAGE) from error
