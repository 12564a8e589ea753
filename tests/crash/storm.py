"""The driver: starts the processes, kills and stalls them at random moments, and waits until every run is over."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from signoff import Engine
from signoff.people import groups, users
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from tests.crash.checks import Stall, connect
from tests.crash.feeder import CHIEF, PANEL
from tests.crash.flows import TABLES, TRACE
from tests.crash.processes import SCRIPT, Program

READY_LIMIT = 60.0  # seconds that a process may take to come up, on a machine that does other work as well
QUIET_LIMIT = 60.0  # seconds without any progress after which it is stuck
BLOCKED_LIMIT = 5.0  # the same when runs are blocked, which no run should be
STOP_LIMIT = 30.0  # seconds that a process may take to end by itself
LONG_STALL = 18.0  # longer than a worker may stand still before others take its runs over


@dataclass(frozen=True)
class Progress:
    runs: int
    open: int
    blocked: int
    outcomes: int


class CrashTestFailed(AssertionError):
    """What was found, one line each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass
class Storm:
    """One test: `kills` kills with whatever else happens between them.

    long_stall: whether one of several workers stands still for so long that the others take over. cuts: whether
    connections to PostgreSQL are cut as well.
    """

    url: str
    folder: Path
    seed: int
    kills: int
    say: Callable[[str], None] = lambda text: None
    counts: Counter[str] = field(default_factory=Counter)
    stalls: list[Stall] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.is_sqlite = self.url.startswith("sqlite")
        env = {TRACE: str(self.folder / "trace")}
        logs = ["--log-format", "json", "--log-level", "info"]
        database = ["tests.crash.flows", "--database", self.url]
        port = str(_free_port())
        serve = [str(SCRIPT), *logs, "serve", *database, "--port", port]
        work = [str(SCRIPT), *logs, "worker", *database]
        commands = {"server": (serve, '"serving"')}
        if not self.is_sqlite:
            commands |= {"worker-1": (work, '"working"'), "worker-2": (work, '"working"')}
        self.nodes = [
            Program(name, command, self.folder / f"{name}.log", env, ready)
            for name, (command, ready) in commands.items()
        ]
        feed = [sys.executable, "-m", "tests.crash.feeder", self.url, str(self.folder), str(self.seed)]
        self.feeder = Program("feeder", feed, self.folder / "feeder.log", env, "feeding")
        self.programs = [*self.nodes, self.feeder]

    def run(self) -> None:
        """Raises CrashTestFailed if a process dies by itself, or runs stay open. The books are not checked here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(prepare(self.url))
        try:
            for program in self.programs:
                program.start()
            self._until(lambda: all(program.is_ready() for program in self.programs), READY_LIMIT, "the first start")
            self._rage()
            self.say("the storm is over")
            self._settle()
            self._stop()
        finally:
            for program in self.programs:
                program.kill()
        (self.folder / "stalls").write_text("".join(f"{json.dumps(vars(stall))}\n" for stall in self.stalls))

    # -- what happens

    def _rage(self) -> None:
        """Kills are dealt out over the processes; everything else happens in between."""
        done = 0
        stood_still: Program | None = None
        until = 0.0
        while done < self.kills:
            self._pause(self.random.uniform(0.05, 0.9))
            if stood_still is not None and time.monotonic() >= until:
                self._go_on(stood_still)
                stood_still = None
            if (
                stood_still is None
                and not self.is_sqlite
                and done % 40 == 2
                and self.counts["long stalls"] <= done // 40
            ):
                stood_still, until = self.random.choice(self.nodes[1:]), time.monotonic() + LONG_STALL
                self.counts["long stalls"] += 1
                self._stall(stood_still)
            what = self.random.random()
            if what < 0.62:
                program = self.random.choice([one for one in self.nodes if one is not stood_still])
                self._kill(program)
                done += 1
            elif what < 0.74:
                self._kill(self.feeder)
                done += 1
            elif what < 0.92 or self.is_sqlite:
                program = self.random.choice([one for one in self.programs if one is not stood_still])
                self._stall(program)
                self._pause(self.random.uniform(0.05, 1.5))
                self._go_on(program)
            else:
                self._cut()
            if done and done % 25 == 0:
                self.say(f"{done} kills, {self._progress().runs} runs")
        if stood_still is not None:
            self._pause(max(0.0, until - time.monotonic()))
            self._go_on(stood_still)

    def _kill(self, program: Program) -> None:
        program.kill()
        self.counts[f"kills of {program.name}"] += 1
        if self.random.random() < 0.3:
            time.sleep(self.random.uniform(0, 0.5))
        program.start()
        if self.random.random() < 0.15:
            # while it starts or takes over
            self._pause(self.random.uniform(0.1, 1.2))
        else:
            self._until(program.is_ready, READY_LIMIT, f"the start of {program.name}")

    def _stall(self, program: Program) -> None:
        program.stall()
        self.stalls.append(Stall(program.name, program.pid, time.time()))
        self.counts["stalls"] += 1

    def _go_on(self, program: Program) -> None:
        for stall in self.stalls:
            if stall.pid == program.pid and stall.until is None:
                stall.until = time.time()
        program.go_on()

    def _cut(self) -> None:
        """One connection of ours, whichever, is gone."""
        with connect(self.url) as connection:
            pids = connection.execute(
                sa.text(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " ORDER BY pid"
                )
            ).scalars()
            found = list(pids)
            if found:
                connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": self.random.choice(found)})
                self.counts["cut connections"] += 1

    # -- how it ends

    def _settle(self) -> None:
        (self.folder / "stop").touch()
        last, quiet = self._progress(), 0.0
        while self.feeder.ended() != 0 or last.open:
            quiet += self._pause(0.25)
            now = self._progress()
            if now != last:
                last, quiet = now, 0.0
            if quiet > QUIET_LIMIT or (last.blocked and quiet > BLOCKED_LIMIT):
                raise CrashTestFailed(
                    [f"nothing moved for {quiet:.0f} s: {last.open} runs are open, {last.blocked} of them blocked"]
                )

    def _stop(self) -> None:
        """Asked to, processes end by themselves (one that is still starting may simply die)."""
        for program in self.nodes:
            self._until(program.is_ready, READY_LIMIT, f"the start of {program.name}")
            program.terminate()
        codes = {program.name: program.wait(STOP_LIMIT) for program in self.nodes}
        wrong = [f"{name} ended with {code} after SIGTERM" for name, code in codes.items() if code != 0]
        if wrong:
            raise CrashTestFailed(wrong)

    def _progress(self) -> Progress:
        with connect(self.url) as connection:
            row = connection.execute(
                sa.text(
                    "SELECT count(*), count(CASE WHEN state <> 'final' THEN 1 END),"
                    " count(blocked_reason), COALESCE(SUM(outcome_no), 0) FROM signoff_run"
                )
            ).one()
            return Progress(*map(int, row))

    def _pause(self, seconds: float) -> float:
        """How long it took, which is not much more: what stood still with all others took no time."""
        began = time.monotonic()
        time.sleep(seconds)
        self._look()
        return min(time.monotonic() - began, seconds + 1.0)

    def _look(self) -> None:
        """Nobody dies but by our hand."""
        for program in self.programs:
            code = program.ended()
            if code is not None and not (program is self.feeder and code == 0):
                raise CrashTestFailed([f"{program.name} died by itself with exit code {code}: see {program.log}"])

    def _until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        waited = 0.0
        while not condition():
            waited += self._pause(0.03)
            if waited > limit:
                raise CrashTestFailed([f"{what} took more than {limit:g} s"])


async def prepare(url: str) -> None:
    """Signoff's tables with the people, and our own."""
    async with Engine(url, migrate=True, worker=False) as engine:
        await engine.store.write(move_in, engine.scope())
    with connect(url) as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
        connection.commit()


def move_in(tx: Tx, scope: Scope) -> None:
    for person, role, group in (*((one, "approver", "panel") for one in PANEL), (CHIEF, "operator", "chiefs")):
        users.add_user(tx, scope, person, role=role)
        groups.add_to_group(tx, scope, group, person)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
