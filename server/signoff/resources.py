"""Finds the files that ship with the package: templates, static files and migrations.

In a wheel they lie inside the package; in a checkout (and an editable install of it) at the top of the repository.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOTS = (_PACKAGE / "_data", _PACKAGE.parent.parent)


def _find(name: str) -> Path:
    for root in _ROOTS:
        if (folder := root / name).is_dir():
            return folder
    raise FileNotFoundError(f"signoff is installed without its {name!r} folder; install it again")


def templates_dir() -> Path:
    """The folder of Jinja templates."""
    return _find("templates")


def static_dir() -> Path:
    """The folder of files that the web app serves as they are; third-party ones in `vendor/`."""
    return _find("static")


def migrations_dir() -> Path:
    """The folder of Alembic migrations."""
    return _find("migrations")
