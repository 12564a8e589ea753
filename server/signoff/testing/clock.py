"""A clock that knows what waits for it, so that a test can move it from one due moment to the next."""

from __future__ import annotations

import asyncio
from datetime import datetime

from signoff.store.clock import ManualClock


class SteppedClock(ManualClock):
    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self._moments: dict[object, datetime] = {}

    async def wait_until(self, moment: datetime | None, wake: asyncio.Event) -> None:
        token = object()
        if moment is not None:
            self._moments[token] = moment
        try:
            await super().wait_until(moment, wake)
        finally:
            self._moments.pop(token, None)

    def next_due(self) -> datetime | None:
        """The earliest moment that anything waits for."""
        return min(self._moments.values(), default=None)
