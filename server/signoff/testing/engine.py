"""The engine of a test."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from signoff.approvals.decide import Receipt
from signoff.engine.settings import EngineSettings
from signoff.engine.views import RunView, StepView
from signoff.people import groups as people_groups
from signoff.people import users
from signoff.runtime.engine import Engine
from signoff.runtime.handles import Run
from signoff.store.store import Tx
from signoff.testing.clock import SteppedClock
from signoff.testing.people import Answer, Race, find_address, race
from signoff.testing.replacements import UNSET, Replacements
from signoff.workflow.definitions import Ask, StepFunction, Workflow
from signoff.workflow.errors import SignoffError
from signoff.workflow.registry import Registry

R = TypeVar("R")
T = TypeVar("T")

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)  # a Monday morning
FINAL = frozenset({"completed", "failed", "canceled"})
# Turns of the event loop in which a waiter that was just woken begins to wait again.
TURNS = 25


class CannotCome(SignoffError):
    """What a test waits for cannot come any more, or not without time passing or something from outside."""

    code = "cannot_come"


class TestEngine(Engine):
    """`Engine` on a database in memory, with a clock that stands still until `advance()`.

    Every advance of a run is replayed and compared (`check=False` turns that off). `database` names another database;
    it is kept.
    """

    __test__ = False  # for pytest, which takes every class called Test... for tests

    def __init__(
        self,
        *,
        workflows: Iterable[Workflow[Any, Any]] | None = None,
        registry: Registry | None = None,
        start: datetime = START,
        check: bool = True,
        settings: EngineSettings | None = None,
        database: str | None = None,
        migrate: bool = True,
    ) -> None:
        self._folder: Path | None = None
        if database is None:
            # a file, because SQLite's memory would not outlive restart()
            memory = Path("/dev/shm")
            self._folder = Path(tempfile.mkdtemp(prefix="signoff-test-", dir=memory if memory.is_dir() else None))
            database = f"sqlite:///{self._folder / 'signoff.db'}"
        self.clock = SteppedClock(start)
        self.replacements = Replacements()
        super().__init__(
            database,
            workflows=workflows,
            registry=registry,
            migrate=migrate,
            clock=self.clock,
            settings=replace(settings or EngineSettings(), check_replay=check),
            replacements=self.replacements,
        )

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def restart(self) -> None:
        """End the engine as a shutdown does and open it again on the same database; handles and replacements hold."""
        await self.close(grace=0)
        await self.open()

    # -- time

    def now(self) -> datetime:
        return self.clock.now()

    async def advance(self, by: timedelta | float) -> None:
        """Let time pass (a timedelta, or seconds). What falls due on the way fires in order, each at its own moment."""
        target = self.now() + (by if isinstance(by, timedelta) else timedelta(seconds=by))
        await self.settle()
        while (moment := self.clock.next_due()) is not None and moment <= target:
            # what was due before it was asked for fires now; time never goes back
            self.clock.move_to(max(moment, self.now()))
            await self.settle()
        self.clock.move_to(target)
        await self.settle()

    async def settle(self) -> None:
        """Return when nothing can happen without time passing or something from outside."""
        await _turns()
        if self.worker is not None:
            await self.worker.settled()
            await _turns()
            await self.worker.settled()
        await self.clerk.settled()

    # -- steps

    def replace(
        self,
        step: str | StepFunction[Any, Any],
        *,
        value: Any = UNSET,
        errors: int | Exception | Sequence[Exception] = (),
        timeouts: int = 0,
        ordinal: int | None = None,
        run: Run[Any] | str | None = None,
    ) -> None:
        """Replace a step's function: the first attempts fail with `errors` (how many, or the exceptions), the next
        `timeouts` time out, and those after return `value`, or are the real function's without one.

        ordinal counts a run's uses of the step's name from 0; without it every use is replaced, and without `run` in
        every run.
        """
        name = step if isinstance(step, str) else step.step_name
        run_id = run.id if isinstance(run, Run) else run
        self.replacements.add(name, value=value, errors=errors, timeouts=timeouts, ordinal=ordinal, run=run_id)

    # -- waiting

    async def wait_for_status(self, run: Run[Any], *statuses: str) -> RunView:
        """Wait until the run shows one of the statuses; CannotCome when nothing goes on that could lead there."""

        def reached(view: RunView) -> RunView | None:
            return view if view.status in statuses else None

        return await self._wait_for(run, lambda view, _steps: reached(view), " or ".join(statuses))

    async def wait_for_step(
        self, run: Run[Any], step: str | StepFunction[Any, Any], *states: str, ordinal: int = 0
    ) -> StepView:
        """Wait until the step was asked for and shows one of `states` (open, running, backoff, delayed, success,
        failure, timeout, canceled; none: any). CannotCome when nothing goes on that could lead there.
        """
        name = step if isinstance(step, str) else step.step_name

        def reached(_view: RunView, steps: Sequence[StepView]) -> StepView | None:
            named = [item for item in steps if item.name == name and item.retired_in is None]
            found = named[ordinal] if ordinal < len(named) else None
            return found if found is not None and (not states or found.state in states) else None

        what = f"step {name!r}" + (f" in {' or '.join(states)}" if states else "")
        return await self._wait_for(run, reached, what)

    async def result(self, run: Run[R]) -> R:
        """The run's result; CannotCome instead of waiting for ever."""
        await self.wait_for_status(run, *FINAL, "blocked")
        return await run.result(timeout=10)

    async def _wait_for(
        self, run: Run[Any], reached: Callable[[RunView, Sequence[StepView]], T | None], what: str
    ) -> T:
        settling: asyncio.Task[None] | None = None
        key = await run.key()
        try:
            with self.watcher.changes(key) as changed:
                while True:
                    changed.clear()
                    quiet = settling is not None and settling.done()
                    view, steps = await run.status(), await run.steps()
                    found = reached(view, steps)
                    if found is not None:
                        return found
                    if view.status in FINAL or quiet:
                        raise CannotCome(_explain(view, what), run=run.id, state=view.status)
                    settling = settling or asyncio.create_task(self.settle())
                    change = asyncio.create_task(changed.wait())
                    await asyncio.wait({settling, change}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
        finally:
            if settling is not None:
                settling.cancel()

    # -- people

    async def add_person(
        self, email: str, *, name: str = "", role: str = "approver", groups: Iterable[str] = ()
    ) -> str:
        """Somebody of the default tenant who may answer; returns the e-mail address."""

        def add(tx: Tx) -> None:
            users.add_user(tx, self.scope(), email, name=name, role=role)
            for group in groups:
                people_groups.add_to_group(tx, self.scope(), group, email)

        await self.store.write(add)
        return email

    async def approve(
        self,
        run: Run[Any],
        answer: Any = None,
        *,
        as_user: str,
        option: str | None = None,
        comment: str | None = None,
        ask: Ask[Any] | str | None = None,
    ) -> Receipt:
        """Answer the run's open question as somebody: an address, or its part before the @ where one person has it.

        `option` is the one that is chosen, where the question has options; `ask` says which question is meant when
        several are open. The answer goes through the same gate as in the browser: Refused says why somebody may not.
        """
        await self.settle()
        name = await self._asked(run, ask)
        email = await self._address(as_user)
        receipt = await run.decide(name, answer, by=email, option=option, comment=comment)
        await self.settle()
        return receipt

    async def race(self, run: Run[Any], *answers: Answer, ask: Ask[Any] | str | None = None) -> Race:
        """Several people answer at the same moment; whose answers were taken, and why the others' were not."""
        await self.settle()
        name = await self._asked(run, ask)
        result = await race(run, name, [(await self._address(given.as_user), given) for given in answers])
        await self.settle()
        return result

    async def _asked(self, run: Run[Any], ask: Ask[Any] | str | None) -> str:
        if ask is not None:
            return ask if isinstance(ask, str) else ask.name
        asked = {approval.ask for approval in await run.approvals() if approval.state == "open"}
        if len(asked) != 1:
            found = ", ".join(sorted(asked)) or "none"
            raise CannotCome(f"say with ask= which question is answered; open ones: {found}", run=run.id)
        return asked.pop()

    async def _address(self, name: str) -> str:
        return await self.store.read(find_address, self.scope().tenant_id, name)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _explain(view: RunView, what: str) -> str:
    told = f"run {view.id} is {view.status} and will not come to {what}"
    if view.status in FINAL:
        return told if view.error is None else f"{told}: {view.error.type}: {view.error.message}"
    waits = ", ".join(f"{item.kind} {item.name!r}" for item in view.awaiting)
    return f"{told} without time passing or something from outside" + (f"; it waits for {waits}" if waits else "")
