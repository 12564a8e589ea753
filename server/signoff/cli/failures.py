"""How a command ends: one clear message and an exit code, never a stack trace unless `--debug` asks for one."""

from __future__ import annotations

from enum import IntEnum

import click

from signoff.workflow.errors import RegistrationError, SignoffError


class Exit(IntEnum):
    """Exit codes, part of the command line's interface."""

    REFUSED = 1  # the command was understood and refused (not found, conflict), or `check` found runs that do not fit
    USAGE = 2  # wrong arguments, or a module that cannot be imported
    DATABASE = 3  # not reachable, not migrated, made by a newer release, or not writable
    ADDRESS = 4  # the host or port cannot be used
    OWNED = 5  # another process works on this SQLite file
    INTERNAL = 70  # a bug


class CommandFailed(click.ClickException):
    """Ends the command with `message` on standard error."""

    def __init__(self, message: str, exit_code: Exit = Exit.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)  # type: ignore[misc]  # click reads it from the instance


def as_failure(error: SignoffError) -> CommandFailed:
    """How a command ends with an error of Signoff's that reached it."""
    from signoff.store.errors import StoreError, UnsupportedDatabase, WorkerRefused

    if isinstance(error, WorkerRefused):
        code = Exit.OWNED
    elif isinstance(error, UnsupportedDatabase | RegistrationError):
        code = Exit.USAGE
    elif isinstance(error, StoreError):
        code = Exit.DATABASE
    else:
        code = Exit.REFUSED
    return CommandFailed(str(error), code)
