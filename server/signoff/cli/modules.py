"""Imports an author's modules, so that their definitions register themselves."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from signoff.cli.failures import CommandFailed, Exit


def import_modules(names: Iterable[str]) -> None:
    """Import each of `shop.workflows` or `shop/workflows.py`; raises CommandFailed, naming the line that failed."""
    _add_to_path(Path.cwd())
    for name in names:
        _import(_dotted(name))


def _dotted(name: str) -> str:
    if not name.endswith(".py"):
        return name
    file = Path(name).resolve()
    if not file.is_file():
        raise CommandFailed(f"There is no file {name}.", Exit.USAGE)
    # Inside a package the module needs its dotted name, or its relative imports would not work.
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _add_to_path(folder)
    return ".".join(parts)


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise CommandFailed(
                f"There is no module {module!r}. Name it as Python imports it (shop.workflows) or as a file "
                f"(shop/workflows.py), seen from {Path.cwd()}.",
                Exit.USAGE,
            ) from error
        raise _refused(module, error) from error
    except KeyboardInterrupt:
        raise
    # An author's module can raise anything, SystemExit included; the command line reports it as its own.
    except (Exception, SystemExit) as error:
        raise _refused(module, error) from error


def _refused(module: str, error: BaseException) -> CommandFailed:
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return CommandFailed(f"The module {module!r} cannot be imported: {what}{_place(error)}", Exit.USAGE)


def _place(error: BaseException) -> str:
    """Where the author's own code raised: the last line that belongs neither to the import system nor to Signoff."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    ours = str(Path(__file__).resolve().parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", ours)) and "importlib" not in frame.filename
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
