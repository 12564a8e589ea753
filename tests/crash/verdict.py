"""A storm and then the books: what both the command and the tests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.crash.answers import chain_faults
from tests.crash.checks import Books
from tests.crash.storm import CrashTestFailed, Storm

SHOWN_FAULTS = 20
SHOWN_RUNS = 3


def run_storm(url: str, folder: Path, seed: int, kills: int, say: Callable[[str], None]) -> list[str]:
    """Returns what is wrong, one line each, after saying it with the journals of the runs it is about."""
    storm = Storm(url, folder, seed, kills, say)
    ended = CrashTestFailed([])
    try:
        storm.run()
    except CrashTestFailed as failure:
        ended = failure
    books = Books(url, folder, storm.stalls)
    faults = ended.faults
    if faults:
        books.suspect_open_runs()
    else:
        faults = books.check() + asyncio.run(chain_faults(url))
    say(", ".join(f"{count} {what}" for what, count in sorted(storm.counts.items())))
    say(books.summary())
    for fault in faults[:SHOWN_FAULTS]:
        say(f"FAULT {fault}")
    journals = [books.journal_of(run_id) for run_id in sorted(books.suspects)]
    for journal in journals[:SHOWN_RUNS]:
        say(journal)
    if faults:
        say(f"seed {seed}; {len(faults)} faults; every journal is in {folder / 'journals'}")
        (folder / "journals").write_text("\n\n".join([*faults, *journals]))
    return faults
