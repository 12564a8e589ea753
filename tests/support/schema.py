"""Our tables, put into a database once per test process; each test gets a copy."""

from __future__ import annotations

import asyncio
import inspect


def migrate(url: str) -> None:
    """Bring the database at `url` up to date, by the same function that `signoff migrate` uses."""
    from signoff import store

    upgrade = getattr(store, "migrate", None)
    if upgrade is None:
        return
    done = upgrade(url)
    if inspect.iscoroutine(done):
        asyncio.run(done)
