"""`python -m tests.bench [--only N ...] [--quick] [--database ...]`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench import disk, works
from tests.bench.databases import disk_folder, fresh
from tests.bench.plan import DATABASES, WORKS, Database, Work
from tests.bench.report import HEADINGS, Row, machine, number, table
from tests.bench.sides import DBOS, SIDES, SIGNOFF, Side, SideFailed
from tests.support.postgres import PostgresServer, running_postgres

DISK_SECONDS = 1.0  # of each look at the disk; there is one in every repeat
Measured = dict[str, list[float]]


def main() -> int:
    given = arguments()
    databases: Sequence[Database] = [given.database] if given.database else DATABASES
    chosen = [work for work in WORKS if not given.only or work.number in given.only]
    sides = [side for side in SIDES if not given.side or side.name.lower() == given.side]
    print(machine(), flush=True)
    failures: list[str] = []
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres()) if "postgresql" in databases else None
        show_disk(databases, server, given.quick)
        for work in chosen:
            print(f"\n({work.number}) {work.title.format(n=work.sized(given.quick))}", flush=True)
            rows: list[Row] = []
            for database in databases:
                repeats = given.repeats or (1 if given.quick else work.repeats)
                rows += measure(work, database, server, sides, given.quick, repeats, failures)
            print(table([row.cells() for row in rows], HEADINGS), flush=True)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", type=int, action="append", metavar="N", help="a work, 1 to 6; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repeat: to see that it works")
    parser.add_argument("--database", choices=DATABASES)
    parser.add_argument("--side", choices=[side.name.lower() for side in SIDES], help="measure only this side")
    parser.add_argument("--repeats", type=int, metavar="N")
    return parser.parse_args()


def measure(
    work: Work,
    database: Database,
    server: PostgresServer | None,
    sides: Sequence[Side],
    quick: bool,
    repeats: int,
    failures: list[str],
) -> list[Row]:
    """Both sides in turn, so that what the machine does meanwhile falls on both."""
    found: dict[str, Measured] = {side.name: defaultdict(list) for side in SIDES}
    broken: set[str] = set()
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            if side.name in broken:
                continue
            began = time.perf_counter()
            try:
                with fresh(database, server) as place:
                    figures = works.measure(work, side, place, work.sized(quick))
            except SideFailed as error:
                failures.append(f"({work.number}) {work.name}, {database}: {error}")
                broken.add(side.name)
                continue
            for key, value in figures.items():
                found[side.name][key].append(value)
            shown = "  ".join(f"{key} {number(value)}" for key, value in figures.items())
            took = time.perf_counter() - began
            print(f"    {database} {repeat + 1}/{repeats} {side.name}: {shown}  ({took:.1f} s)", flush=True)
    return [
        Row(work, database, figure, found[SIGNOFF.name][figure.key], found[DBOS.name][figure.key])
        for figure in work.figures
    ]


def show_disk(databases: Sequence[Database], server: PostgresServer | None, quick: bool) -> None:
    """What durable commits cost here, without anybody's engine."""
    seconds, rows = DISK_SECONDS / (4 if quick else 1), []
    rates: Measured = defaultdict(list)
    for _ in range(1 if quick else 3):
        with TemporaryDirectory(dir=disk_folder()) as folder:
            rates["fdatasync of 4 KiB appended"].append(disk.fsync_rate(Path(folder), seconds))
            if "sqlite" in databases:
                rates["SQLite, one row a commit (WAL, FULL)"].append(disk.sqlite_rate(Path(folder), seconds))
        if server is not None:
            with fresh("postgresql", server) as place:
                rates["PostgreSQL, one row a commit"].append(disk.postgres_rate(place.url, seconds))
    for label, values in rates.items():
        rows.append((label, number(median(values))))
    print(table(rows, ("one after the other on this disk", "/s")), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that all it started ends too
    sys.exit(main())
