"""Options that several commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_DATABASE = "sqlite:///signoff.db"

database_option = click.option(
    "--database",
    envvar="SIGNOFF_DATABASE",
    default=DEFAULT_DATABASE,
    show_default=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user@host/name  [env: SIGNOFF_DATABASE]",
)
tenant_option = click.option("--tenant", default="default", show_default=True, help="Name of the tenant.")
modules_argument = click.argument("modules", nargs=-1, metavar="MODULE...")
required_modules_argument = click.argument("modules", nargs=-1, required=True, metavar="MODULE...")


def run_async(command: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Let a coroutine function be a click command."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        async def main() -> R:
            return await command(*args, **kwargs)

        return asyncio.run(main())

    return wrapper
