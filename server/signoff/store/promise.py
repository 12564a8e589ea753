"""What a commit under way will bring, told within the process before it is done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Promise:
    """Kept when the commit is done, broken when it failed or nobody knows. Decided once; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: bool | None = None
        self._waiting: list[Callable[[bool], None]] = []

    @property
    def decided(self) -> bool:
        return self._kept is not None

    def decide(self, kept: bool) -> None:
        with self._lock:
            self._kept = kept
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            try:
                call(kept)
            except Exception:  # whoever commits must not fail for whoever waits
                logger.exception("what waited for a commit failed")

    def then(self, call: Callable[[bool], None]) -> None:
        """Call once it is decided, on the thread that decides; at once if it is."""
        with self._lock:
            kept = self._kept
            if kept is None:
                self._waiting.append(call)
        if kept is not None:
            call(kept)
