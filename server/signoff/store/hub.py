"""The loop's side of the store: results and notices come back to it, from whatever thread, in one call per batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from signoff.store.promise import Promise
from signoff.store.tx import RESYNC, Notice

logger = logging.getLogger(__name__)

Callback = Callable[[Sequence[Notice]], None]
Early = Callable[[Sequence[Notice], Promise], None]


LATE = 5.0  # seconds after which a commit whose answer was lost has happened or never will


class Hub:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._callbacks: list[Callback] = []
        self._early: list[Early] = []
        self._herald: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run_herald, name="signoff-herald", daemon=True).start()

    def subscribe(self, callback: Callback, early: Early | None = None) -> Callable[[], None]:
        self._callbacks.append(callback)
        if early is not None:
            self._early.append(early)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
            if early in self._early:
                self._early.remove(early)

        return unsubscribe

    def post(self, call: Callable[[], None]) -> None:
        """Run on the loop's thread; from any thread. After the loop has ended nobody is left to tell."""
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def foretell(self, notices: Sequence[Notice]) -> Promise | None:
        """From any thread, just before a commit: what programs may go on with meanwhile. The caller decides it."""
        news = [notice for notice in notices if notice.goes_on] if self._early else []
        if not news:
            return None
        promise = Promise()

        def tell() -> None:
            if promise.decided:  # all hear of it anyway
                return
            for callback in tuple(self._early):
                try:
                    callback(news, promise)
                except Exception:  # they hear of it again after the commit
                    logger.exception("a subscriber to what is being committed failed")

        self._herald.put(tell)
        return promise

    def _run_herald(self) -> None:
        # Waking the loop gives the interpreter away, and the commit would begin after what the loop does with it. A
        # thread that waits for a queue is woken without that: it comes to its turn once the commit has begun.
        while (call := self._herald.get()) is not None:
            self.post(call)

    def close(self) -> None:
        """Once nothing commits any more."""
        self._herald.put(None)

    def publish(self, notices: Sequence[Notice]) -> None:
        """On the loop's thread: call the subscribers. One that fails does not keep the others from hearing."""
        if not notices:
            return
        for callback in tuple(self._callbacks):
            try:
                callback(notices)
            except Exception:  # whoever wrote must not fail for whoever listens
                logger.exception("a subscriber to notices failed")

    def resync(self) -> None:
        """From any thread: nobody knows whether a commit happened, or whether it is still to come."""

        def look() -> None:
            self.publish([RESYNC])
            self.loop.call_later(LATE, self.publish, [RESYNC])

        self.post(look)

    def publish_soon(self, notices: Sequence[Notice]) -> None:
        """From any thread."""
        if not notices:
            return
        if threading.get_ident() == self._thread:
            self.publish(notices)
        else:
            self.post(lambda: self.publish(notices))
