"""The loop's side of the store: results and notices come back to it, from whatever thread, in one call per batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from signoff.store.tx import Notice

logger = logging.getLogger(__name__)

Callback = Callable[[Sequence[Notice]], None]


class Hub:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._callbacks: list[Callback] = []

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def post(self, call: Callable[[], None]) -> None:
        """Run on the loop's thread; from any thread. After the loop has ended nobody is left to tell."""
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def publish(self, notices: Sequence[Notice]) -> None:
        """On the loop's thread: call the subscribers. One that fails does not keep the others from hearing."""
        if not notices:
            return
        for callback in tuple(self._callbacks):
            try:
                callback(notices)
            except Exception:  # whoever wrote must not fail for whoever listens
                logger.exception("a subscriber to notices failed")

    def publish_soon(self, notices: Sequence[Notice]) -> None:
        """From any thread."""
        if not notices:
            return
        if threading.get_ident() == self._thread:
            self.publish(notices)
        else:
            self.post(lambda: self.publish(notices))
