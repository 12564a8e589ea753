"""`signoff`: the command line as a whole."""

from __future__ import annotations

import traceback
from importlib import import_module, metadata
from typing import Any

import click

from signoff.cli.failures import CommandFailed, Exit, as_failure
from signoff.workflow.errors import SignoffError

# Loaded when used, so that `signoff --help` does not wait for a web framework.
_COMMANDS = {
    "serve": "signoff.cli.serve:serve",
    "worker": "signoff.cli.serve:worker",
    "demo": "signoff.cli.demo:demo",
    "run": "signoff.cli.runs:run",
    "events": "signoff.cli.runs:events",
    "approvals": "signoff.cli.approvals:approvals",
    "tenants": "signoff.cli.tenants:tenants",
    "users": "signoff.cli.users:users",
    "groups": "signoff.cli.users:groups",
    "tokens": "signoff.cli.tokens:tokens",
    "ledger": "signoff.cli.ledger:ledger",
    "audit": "signoff.cli.ledger:audit",
    "check": "signoff.cli.check:check",
    "migrate": "signoff.cli.migrate:migrate",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Turn what goes wrong into one message and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt) as error:
            if ctx.params.get("debug") and error.__cause__ is not None:
                traceback.print_exception(error)
            raise
        except SignoffError as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            raise as_failure(error) from error
        except Exception as error:  # a bug: said so, with the way to see more
            if ctx.params.get("debug"):
                raise
            message = f"Unexpected {type(error).__name__}: {error}\nRun it again as `signoff --debug ...` to see where."
            raise CommandFailed(message, Exit.INTERNAL) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, envvar="SIGNOFF_DEBUG", help="Show stack traces and debug logs.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    envvar="SIGNOFF_LOG_FORMAT",
    show_default=True,
    help="Logs on standard error; auto: console on a terminal, else JSON lines.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    envvar="SIGNOFF_LOG_LEVEL",
    show_default=True,
)
@click.version_option(metadata.version("signoff"), prog_name="signoff")
def main(debug: bool, log_format: str, log_level: str) -> None:
    """Long-running work that people have a say in.

    Exit codes: 0 done, 1 refused (not found, conflict, runs that do not fit), 2 wrong usage or a module that cannot be
    imported, 3 the database cannot be used, 4 the address cannot be used, 5 another process works on this SQLite file,
    70 a bug.
    """
    from signoff.cli.logs import configure_logs

    configure_logs(log_format, "debug" if debug else log_level)  # type: ignore[arg-type]  # click checked the choice
