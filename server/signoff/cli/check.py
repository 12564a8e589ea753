"""`signoff check`: would open runs go on with this code?"""

from __future__ import annotations

import json

import click

from signoff.cli.failures import CommandFailed, Exit
from signoff.cli.modules import import_modules
from signoff.cli.options import database_option, required_modules_argument, run_async
from signoff.engine.settings import EngineSettings
from signoff.runtime.checking import CheckedRun, check_runs
from signoff.store.store import Store
from signoff.workflow.registry import default_registry


@click.command()
@required_modules_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each run.")
@database_option
@run_async
async def check(modules: tuple[str, ...], as_json: bool, database: str) -> None:
    """Replay all open runs against the code of MODULEs, writing nothing. Ends with 1 if any would be blocked."""
    import_modules(modules)
    fits, problems = 0, 0
    async with await Store.open(database, migrate=False) as store:
        async for checked in check_runs(store, default_registry, EngineSettings()):
            if as_json:
                click.echo(json.dumps({"run": checked.run, "workflow": checked.workflow, "problem": checked.problem}))
            if checked.problem is None:
                fits += 1
                continue
            problems += 1
            if not as_json:
                _print(checked)
    told = f"{fits} open {'run fits' if fits == 1 else 'runs fit'}, {problems} would be blocked."
    if problems:
        raise CommandFailed(told, Exit.REFUSED)
    click.echo(told, err=as_json)


def _print(checked: CheckedRun) -> None:
    problem = checked.problem or {}
    click.echo(f"{checked.run}  {checked.workflow} version {checked.version}: {problem.get('message', '')}")
    for side in ("recorded", "expected"):
        if side in problem:
            click.echo(f"    {side}: {json.dumps(problem[side])}")
