"""What a process may set once, because all of it is there to run an engine."""

from __future__ import annotations

import gc


def settle_process() -> None:
    """For a process that mostly runs an engine, once all is imported; `signoff serve` and `signoff worker` do it.

    What was imported stays for ever, so the collector need not look at it again, nor so often at what is new. Holds for
    the whole process, so an engine leaves it to the program that embeds it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
