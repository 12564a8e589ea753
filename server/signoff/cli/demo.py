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
from signoff.demo.people import ANA, BEN, OMAR, SAM, DemoPerson, ensure_people, passwords_file
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
    """Serve an example shop that asks people before things happen. It keeps its database, and goes on where it was."""
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
    def who(person: DemoPerson) -> str:
        return f"{person.email} (password {passwords[person.email]})"

    click.echo(
        f"""
Signoff's example shop is open at {address}

  1. Sign in as {who(ANA)}, say yes to "Ship order o-1001 to Lisbon?", and watch its run.
  2. Pay the penetration test: she, {who(BEN)} and {who(SAM)} say yes.
  3. Look after it all as {who(OMAR)}: runs and their restart, People, the Record.
  4. In the middle of it: kill -9 {os.getpid()}, start the demo again, and see it go on where it was.

Her inbox holds a post to review, a form with every kind of field, and an agent that asks before it acts, too.
The passwords are kept in {file}. Press Ctrl+C to stop.
"""
    )
