"""`signoff run` and `signoff events`: start, look at and steer runs from a shell."""

from __future__ import annotations

import json
from typing import Any

import click

from signoff.cli.modules import import_modules
from signoff.cli.options import database_option, run_async, tenant_option
from signoff.engine.views import RunView
from signoff.runtime.engine import Engine

module_option = click.option(
    "--module", "modules", multiple=True, metavar="MODULE", help="Import it, so that args are checked against the code."
)


def parse_value(text: str) -> Any:
    """JSON where it is JSON, else the text itself, so that plain words need no quotes inside quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_args(pairs: tuple[str, ...]) -> dict[str, Any]:
    args = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise click.UsageError(f"{pair!r} is no argument; write name=value")
        args[name] = parse_value(text)
    return args


@click.group()
def run() -> None:
    """Start, show and cancel runs."""


@run.command()
@click.argument("workflow")
@click.argument("args", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--key", help="Idempotency key: the same start again gives the same run.")
@click.option("--version", "version_", type=int, help="Version of the workflow; otherwise the highest.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE")
@module_option
@tenant_option
@database_option
@run_async
async def start(
    workflow: str,
    args: tuple[str, ...],
    key: str | None,
    version_: int | None,
    labels: tuple[str, ...],
    modules: tuple[str, ...],
    tenant: str,
    database: str,
) -> None:
    """Start a run and print its id. A server or worker executes it."""
    import_modules(modules)
    named = {name: str(value) for name, value in parse_args(labels).items()}
    async with Engine(database, worker=False) as engine:
        started = await engine.start_by_name(
            workflow,
            parse_args(args),
            scope=await engine.scope_of(tenant),
            idempotency_key=key,
            version=version_,
            labels=named,
        )
    click.echo(started.id)


@run.command()
@click.argument("run_id")
@tenant_option
@database_option
@run_async
async def show(run_id: str, tenant: str, database: str) -> None:
    """Print what a run does, waits for, or how it ended."""
    async with Engine(database, worker=False) as engine:
        handle = engine.run(run_id, scope=await engine.scope_of(tenant))
        view, steps = await handle.status(), await handle.steps()
    _print_run(view)
    for step in steps:
        retired = " (retired)" if step.retired_in is not None else ""
        tries = f", {step.attempts} failed" if step.attempts else ""
        click.echo(f"  {step.no:>4}  {step.kind:<9} {step.name}  {step.state}{tries}{retired}")


def _print_run(view: RunView) -> None:
    click.echo(f"{view.id}  {view.workflow} version {view.version}  {view.status}")
    for item in view.awaiting:
        until = f", until {item.due_at:%Y-%m-%d %H:%M:%S} UTC" if item.due_at else ""
        click.echo(f"  waits for {item.kind} {item.name}{until}")
    if view.result is not None:
        click.echo(f"  result {view.result}")
    if view.error is not None:
        click.echo(f"  {view.error.type}: {view.error.message}")
    if view.blocked is not None:
        click.echo(f"  blocked: {view.blocked.get('message', '')}")
    if view.hint is not None:
        click.echo(f"  stands still: {view.hint}")


@run.command()
@click.argument("run_id")
@click.option("--reason")
@click.option("--compensate", is_flag=True, help="Undo what the run did, where its steps say how.")
@tenant_option
@database_option
@run_async
async def cancel(run_id: str, reason: str | None, compensate: bool, tenant: str, database: str) -> None:
    """Ask a run to end."""
    async with Engine(database, worker=False) as engine:
        handle = engine.run(run_id, scope=await engine.scope_of(tenant))
        click.echo(await handle.cancel(reason=reason, compensate=compensate, actor="cli"))


@click.group()
def events() -> None:
    """Send events to runs."""


@events.command()
@click.argument("run_id")
@click.argument("event")
@click.argument("value", default="null")
@click.option("--key", help="Idempotency key: the same event again is sent once.")
@module_option
@tenant_option
@database_option
@run_async
async def send(
    run_id: str, event: str, value: str, key: str | None, modules: tuple[str, ...], tenant: str, database: str
) -> None:
    """Send EVENT with VALUE (JSON, or plain text) to a run."""
    import_modules(modules)
    async with Engine(database, worker=False) as engine:
        handle = engine.run(run_id, scope=await engine.scope_of(tenant))
        sent = await handle.send(event, parse_value(value), idempotency_key=key, sender="cli", channel="cli")
    click.echo(f"{sent.id}  {sent.name}  {sent.state}")
