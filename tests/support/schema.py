"""Our tables, put into a database once per test process; each test gets a copy."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect


def migrate(url: str) -> None:
    """Bring the database at `url` up to date, by the same function that `signoff migrate` uses."""
    if importlib.util.find_spec("signoff.store.migrate") is None:
        return
    from signoff.store.migrate import migrate as upgrade

    done = upgrade(url)
    if inspect.iscoroutine(done):
        asyncio.run(done)
