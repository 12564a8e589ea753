"""`signoff serve` and `signoff worker`."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import structlog

from signoff.cli.modules import import_modules
from signoff.cli.options import (
    database_option,
    engine_settings,
    modules_argument,
    oidc_option,
    required_modules_argument,
    run_async,
    settings_option,
)
from signoff.cli.people import link_address, providers
from signoff.cli.serving import address_of, bind, serve_app, until_signal
from signoff.people.links import first_admin_link
from signoff.runtime.engine import DEFAULT_GRACE, Engine
from signoff.web.app import create_app

logger = structlog.get_logger("signoff")

grace_option = click.option(
    "--grace",
    type=click.FloatRange(0),
    default=DEFAULT_GRACE,
    show_default=True,
    metavar="SECONDS",
    help="How long running steps may take to end after SIGTERM; then they are handed back.",
)
migrate_option = click.option("--migrate", is_flag=True, help="Migrate a PostgreSQL database first.")


@click.command()
@modules_argument
@click.option("--host", default="127.0.0.1", show_default=True, envvar="SIGNOFF_HOST")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, envvar="SIGNOFF_PORT")
@click.option("--url", envvar="SIGNOFF_URL", help="Where people reach the server, when it stands behind a proxy.")
@oidc_option
@click.option("--no-worker", is_flag=True, help="Only pages and API; `signoff worker` executes the runs.")
@grace_option
@settings_option
@migrate_option
@database_option
@run_async
async def serve(
    modules: tuple[str, ...],
    host: str,
    port: int,
    url: str | None,
    oidc: str | None,
    no_worker: bool,
    grace: float,
    settings: tuple[tuple[str, float], ...],
    migrate: bool,
    database: str,
) -> None:
    """Import MODULEs with workflows, and serve pages, API and a worker until SIGTERM."""
    known = providers(oidc)
    import_modules(modules)
    bound = bind(host, port)
    engine = Engine(database, worker=not no_worker, migrate=migrate, grace=grace, settings=engine_settings(settings))
    async with opened(engine, bound):
        address = url or address_of(bound, host)
        link = await engine.store.write(first_admin_link, engine.scope().tenant_id)
        if link is not None:
            click.echo(
                f"Nobody is admin yet. Make yourself one here, once, within 24 hours:\n{link_address(address, link)}"
            )
        names = sorted({workflow.name for workflow in engine.registry.workflows()})
        await serve_app(
            create_app(engine, url=url, providers=known),
            bound,
            ready=lambda: logger.info("serving", address=address, workflows=names, worker=not no_worker),
        )


@click.command()
@required_modules_argument
@grace_option
@settings_option
@migrate_option
@database_option
@run_async
async def worker(
    modules: tuple[str, ...], grace: float, settings: tuple[tuple[str, float], ...], migrate: bool, database: str
) -> None:
    """Import MODULEs with workflows, and execute their runs until SIGTERM.

    Any number of workers may share a PostgreSQL database; a SQLite file has one.
    """
    import_modules(modules)
    async with Engine(database, migrate=migrate, grace=grace, settings=engine_settings(settings)) as engine:
        names = sorted({workflow.name for workflow in engine.registry.workflows()})
        logger.info("working", workflows=names, process=os.getpid())
        await until_signal()
        logger.info("ending", grace=grace)


@asynccontextmanager
async def opened(engine: Engine, bound: socket.socket) -> AsyncIterator[Engine]:
    """The engine, with the socket closed again if it cannot be opened."""
    try:
        async with engine:
            yield engine
    finally:
        bound.close()
