"""Options that several commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from signoff.engine.settings import EngineSettings

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
url_option = click.option(
    "--url",
    envvar="SIGNOFF_URL",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="Where people reach the server; links begin with it.  [env: SIGNOFF_URL]",
)
oidc_option = click.option(
    "--oidc", envvar="SIGNOFF_OIDC", metavar="FILE", help="Identity providers: TOML or JSON, see the docs."
)
modules_argument = click.argument("modules", nargs=-1, metavar="MODULE...")
required_modules_argument = click.argument("modules", nargs=-1, required=True, metavar="MODULE...")


class _Setting(click.ParamType[Any]):
    """One number of `EngineSettings`, as NAME=VALUE."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        key, _, text = str(value).partition("=")
        name = key.strip().replace("-", "_")
        kind = _NUMBERS.get(name)
        if kind is None:
            self.fail(f"there is no setting {key!r}; settings: {', '.join(_NUMBERS)}", param, ctx)
        try:
            number = kind(text)
            if not 0 <= number < float("inf"):
                raise ValueError
        except ValueError:
            self.fail(f"{key}: {text!r} is no {'whole ' * (kind is int)}number from 0 on", param, ctx)
        return name, number


_NUMBERS: dict[str, type[int] | type[float]] = {
    name: kind for name in EngineSettings.__slots__ if (kind := type(getattr(EngineSettings(), name))) in (int, float)
}
settings_option = click.option(
    "--set",
    "settings",
    type=_Setting(),
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A limit of the engine; may be repeated. Names: {', '.join(_NUMBERS)}.",
)


def engine_settings(given: Iterable[tuple[str, float]]) -> EngineSettings:
    """What `--set` asks for; the rest as built in."""
    return EngineSettings(**dict(given))  # type: ignore[arg-type]  # names and types were checked by the option


def run_async(command: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Let a coroutine function be a click command."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        async def main() -> R:
            return await command(*args, **kwargs)

        return asyncio.run(main())

    return wrapper
