"""`signoff demo`: the example shop on a local port."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import structlog

from signoff.cli.options import run_async
from signoff.cli.serve import opened
from signoff.cli.serving import address_of, bind, serve_app
from signoff.demo.people import ANA, OMAR, ensure_people, passwords_file
from signoff.demo.seed import seed
from signoff.runtime.engine import Engine
from signoff.web.app import create_app

logger = structlog.get_logger("signoff.demo")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--database", default="sqlite:///signoff-demo.db", show_default=True, metavar="URL")
@run_async
async def demo(host: str, port: int, database: str) -> None:
    """Serve an example shop whose orders a person approves. It keeps its database, and goes on where it was."""
    from signoff.demo import workflows  # registers them in this command only

    bound = bind(host, port)
    async with opened(Engine(database, workflows=workflows.ALL, migrate=True), bound) as engine:
        file = passwords_file(database)
        passwords = await ensure_people(engine, file)
        seeding = asyncio.create_task(seed(engine), name="signoff-demo-seed")
        seeding.add_done_callback(_seeded)
        try:
            await serve_app(create_app(engine), bound, ready=lambda: _greet(address_of(bound, host), passwords, file))
        finally:
            seeding.cancel()
            await asyncio.gather(seeding, return_exceptions=True)


def _seeded(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the example orders could not be made", exc_info=error)


def _greet(address: str, passwords: dict[str, str], file: Path) -> None:
    click.echo(
        f"""
Signoff's example shop is open at {address}

  1. Sign in as {ANA.email}, password {passwords[ANA.email]}: she approves orders for Finance.
  2. Open "Ship order o-1001 to Lisbon?", say yes, and watch the run go live to its end.
  3. In another browser, sign in as {OMAR.email}, password {passwords[OMAR.email]}: he looks after all runs.
  4. In the middle of it: kill -9 {os.getpid()}, start the demo again, and see it go on where it was.

The passwords are kept in {file}. Press Ctrl+C to stop.
"""
    )
