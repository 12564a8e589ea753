"""The command line."""

from __future__ import annotations

from signoff.cli.main import main

__all__ = ["main"]
