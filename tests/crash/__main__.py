"""`python -m tests.crash [--seed S] [--kills N] [--database sqlite|postgresql]`: the long crash test."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.verdict import run_storm
from tests.support.postgres import running_postgres

KILLS = 300  # of each database


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat what an earlier test did; random without it")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"of each database; {KILLS} without it")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="only this one")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    failed = False
    for database in [given.database] if given.database else ["sqlite", "postgresql"]:
        began = time.monotonic()
        print(f"{database}: seed {seed}, {given.kills} kills", flush=True)
        folder = Path(tempfile.mkdtemp(prefix=f"signoff-crash-{database}-"))
        with database_url(database, folder) as url:
            faults = run_storm(url, folder, seed, given.kills, lambda text: print(f"    {text}", flush=True))
        print(f"{database}: {f'{len(faults)} FAULTS' if faults else 'all is well'}, {time.monotonic() - began:.0f} s")
        if faults:
            failed = True
            again = f"python -m tests.crash --database {database} --seed {seed} --kills {given.kills}"
            print(f"Logs, trace and journals are in {folder}. Again: {again}")
        else:
            shutil.rmtree(folder)
    return 1 if failed else 0


@contextmanager
def database_url(database: str, folder: Path) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder / 'signoff.db'}"
        return
    with running_postgres() as server:
        yield server.url(server.create())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that all it started ends too
    sys.exit(main())
