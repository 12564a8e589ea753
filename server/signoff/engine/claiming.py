"""Claiming: which runs a worker takes next, and what it hears about those it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from signoff.engine import limits
from signoff.engine.active import ActiveRun
from signoff.engine.advance import Record
from signoff.engine.claims import Claimed, claim, free_strays
from signoff.engine.driving import Driving
from signoff.engine.holding import RETRY_PAUSE
from signoff.engine.journal import Loaded, load
from signoff.engine.outcomes import Told
from signoff.store.promise import Promise
from signoff.store.tx import Notice
from signoff.workflow.kinds import OutcomeKind, StepKind

logger = structlog.get_logger(__name__)

CLAIM_BATCH = 200
ADOPTED = 64  # runs held, beyond which a run that is started here is left to whichever worker claims it
LOCKED_PAUSE = 0.003  # seconds before rows that somebody had locked are looked at again


class Claiming(Driving):
    """Takes runs that are ready or due, and hands what happened to them to their programs."""

    def _foretold(self, notices: Sequence[Notice], promise: Promise) -> None:
        """Programs go on while what they go on with is being committed; what they bring is written after that."""
        for notice in notices:
            if (run := self._go_on(notice, promise)) is not None:
                assert notice.data is not None
                notice.data["told"] = True
                self.pump(run)

    def _heard(self, notices: Sequence[Notice]) -> None:
        ready, told = 0, 0
        woken: dict[int, ActiveRun] = {}
        for notice in notices:
            if notice.kind == "run":
                if not notice.goes_on:
                    continue
                assert notice.data is not None
                if notice.data.get("told"):
                    told += notice.key in self.active or notice.key in self._cache  # else it was given up meanwhile
                elif (run := self._go_on(notice)) is not None:
                    told += 1
                    woken[run.id] = run
            elif notice.kind == "ready":
                ready += (notice.data or {}).get("begun", 1)
            elif notice.kind == "resync":
                ready = told + 1
                break
            elif notice.kind == "pool":
                self.executor.pool_changed(notice.key)
            elif notice.kind == "completion":
                self.completions.wake()
        if ready > told:
            self._claim_wanted.set()
        for run in woken.values():
            self.pump(run)

    @property
    def _shared(self) -> bool:
        """Whether other workers may claim runs of this database. A SQLite file has one worker."""
        return self.store.dialect.name != "sqlite"

    def _has_room(self, most: int) -> bool:
        """Whether runs that nobody has claimed may be driven at once.

        Where there are other workers the first advance is the claim: whoever commits first has the run. A claim of our
        own that is under way would overtake it.
        """
        return (
            len(self.active) < min(most, self.settings.max_active)
            and not (self._shared and self._claiming)
            and self.liveness.healthy
            and self.liveness.worker_id == self.id
            and not self.stopping
        )

    def _may_begin(self, loaded: Loaded) -> bool:
        """Whether a run that this process has just started is driven here and now. Bursts are left to all workers."""
        row = loaded.row
        most = ADOPTED if self._shared else self.settings.max_active
        return row.definition_id in self._known and row.id not in self.active and self._has_room(most)

    def _go_on(self, notice: Notice, promise: Promise | None = None) -> ActiveRun | None:
        """The run, taken into memory or with its news, which is to be pumped; None: it must be claimed."""
        assert notice.data is not None
        if (outcome := notice.data.get("outcome")) is not None:
            return self._tell(notice.key, outcome, promise)
        begun: Loaded = notice.data["begun"]
        if not self._may_begin(begun):
            return None
        run = ActiveRun(begun)
        run.adopted, run.promise = self.id if self._shared else None, promise
        self._add(run)
        return run

    def _tell(self, run_id: int | str, told: Told, promise: Promise | None) -> ActiveRun | None:
        """Hands an outcome that this process recorded straight to a program in memory; None: it must be claimed.

        A parked run whose program is kept here need not be claimed first.
        """
        run = self.active.get(int(run_id))
        parked = run is None
        if run is None:
            run = self._cache.get(int(run_id))
            if run is None or not self._has_room(self.settings.max_active):
                return None
        fits = (
            not (
                run.busy
                or run.load_again
                or run.drains
                or run.ending is not None
                or run.promise is not None
                or run.definition_id not in self._known
            )
            and (run.epoch, run.generation, run.requested) == (told.epoch, told.generation, told.requested)
            and told.no == run.outcome_no + 1
            and self.liveness.healthy
        )
        if not fits:
            run.stale = run.stale or (run.busy and promise is None)
            return None
        run.promise = promise
        if parked:
            del self._cache[run.id]
            self.active[run.id] = run
            run.closing = False
            run.adopted = self.id if self._shared else None
        run.outcome_no, run.outcome_at = told.no, told.at
        run.pending.append(Record(told.step_no, told.kind, told.at, told.value, told.error, no=told.no))
        return run

    async def _claim_loop(self) -> None:
        while True:
            await self._claim_wanted.wait()
            self._claim_wanted.clear()
            if self.stopping:
                return
            room = max(0, min(self.settings.max_active - len(self.active), CLAIM_BATCH))
            if not self.liveness.healthy or self.liveness.worker_id != self.id:
                self._call_later(0.05, self._claim_wanted.set)
                continue
            self._claiming = True
            try:
                claimed = await self._claim(room)
                if claimed.delayed:
                    await self.store.write(limits.admit_due, claimed.delayed)
                    self._claim_wanted.set()
            except Exception:  # the store is away: its callers hear of it, this loop goes on when it is back
                logger.exception("claiming runs failed; trying again")
                self._strays = True  # its commit may have happened all the same
                self._call_later(RETRY_PAUSE, self._claim_wanted.set)
                continue
            finally:
                self._claiming = False
            if not room:  # only news of those that are held
                self._call_later(0.05, self._claim_wanted.set)
            elif claimed.more:
                self._claim_wanted.set()
            elif claimed.skipped:
                self._call_later(LOCKED_PAUSE, self._claim_wanted.set)
            try:
                self._take(claimed)
            except Exception:  # whatever it is, the other runs go on
                logger.exception("claimed runs could not be taken; trying again")
                self._strays = True
                self._call_later(RETRY_PAUSE, self._claim_wanted.set)
            self.check_quiet()

    async def _claim(self, room: int) -> Claimed:
        in_memory = (*self._cache.values(), *self.active.values())
        known = {run.id: (run.generation, run.outcome_no, run.epoch) for run in in_memory}
        # what happens to a run while an advance of it is under way is looked at after that
        busy = [run.id for run in self.active.values() if run.busy and (run.adopted is not None or not self._shared)]
        held = [run.id for run in self.active.values() if not run.busy]
        if self.store.dialect.name != "sqlite" and self._strays:
            await self.store.write(free_strays, self.id, list(self.active))
            self._strays = False
        call = self.store.read if self.store.dialect.name == "sqlite" else self.store.write
        return await call(claim, self.id, list(self._known), known, held, busy, room)

    def _take(self, claimed: Claimed) -> None:
        if claimed.next_wake is not None:  # else what runs said that were let go meanwhile still holds
            self._wake_at(claimed.next_wake)
        for run_id in claimed.woken:
            if (run := self.active.get(run_id)) is not None and run.busy:
                run.stale = True
            else:
                self._claim_wanted.set()
        for loaded in claimed.loaded:
            run = self.active.get(loaded.row.id)
            if run is None:
                cached = self._cache.pop(loaded.row.id, None)
                if cached is not None and cached.knows(loaded.row):  # begun and let go while the claim was under way
                    self._resume(cached)
                    self.pump(cached)
                    continue
                if cached is not None:
                    self._forget(cached)
                self._begin(ActiveRun(loaded))
            elif run.busy:
                run.stale = True
            elif run.knows(loaded.row):
                self.pump(run)  # it was started or woken here while the claim was under way
            else:
                self._reload(run)  # it was let go and came back meanwhile
        for news in claimed.news:
            run = self.active.get(news.row.id)
            if run is not None and news.row.epoch != run.epoch and not run.busy:
                self._reload(run)  # a deadline was moved, or others had it meanwhile
                continue
            if run is not None:
                self._refresh(run, news.row, news.entries)
                continue
            run = self._cache.pop(news.row.id, None)
            if run is None:  # evicted between the question and the answer
                self._claim_wanted.set()
                self._reload_later(news.row.id)
                continue
            self._resume(run)
            self._refresh(run, news.row, news.entries)

    def _resume(self, run: ActiveRun) -> None:
        self.active[run.id] = run
        run.closing, run.forced = False, True

    def _add(self, run: ActiveRun) -> None:
        run.code_hash = self._known[run.definition_id].code_hash
        self.active[run.id] = run

    def _begin(self, run: ActiveRun) -> None:
        self._add(run)
        self.pump(run)

    def _refresh(self, run: ActiveRun, row: Any, entries: Sequence[Any]) -> None:
        """Something from outside happened to a run that is in memory."""
        if run.busy:
            run.stale = True  # the advance under way is refused if it must be; then look again
            return
        unblocked = (row.blocked_reason is None) != (run.blocked is None)
        if row.generation != run.generation or unblocked or not self._owns(row):
            self._reload(run)
            return
        if row.outcome_no <= run.outcome_no and row.requested == run.requested and row.epoch == run.epoch:
            if row.ready is not None and any(step.kind is StepKind.EVENT for step in run.open.values()):
                run.forced = True  # there may be an event that its sender could not judge
            self.pump(run)
            return
        if run.drains or (row.requested != run.requested and row.requested != "cancel") or row.ending is not None:
            self._reload(run)
            return
        known = run.outcome_no
        run.take_row(row)
        if run.replayer is not None:
            run.replayer.next_no = row.next_no  # a cancel request takes a number
        for entry in entries:
            if entry.outcome_no <= known:
                continue  # told already
            if entry.kind is StepKind.CANCEL:
                run.take_cancel(entry)
            kind = OutcomeKind.SUCCESS if entry.outcome_kind is None else entry.outcome_kind
            run.pending.append(
                Record(
                    entry.no,
                    kind,
                    entry.ended_at,
                    entry.value,
                    entry.error,
                    no=entry.outcome_no,
                    cancel_request=entry.kind is StepKind.CANCEL,
                )
            )
        run.forced = True
        self.pump(run)

    def _reload_later(self, run_id: int) -> None:
        async def again() -> None:
            loaded = (await self.store.read(load, [run_id])).get(run_id)
            if loaded is not None and run_id not in self.active and self._owns(loaded.row):
                self._begin(ActiveRun(loaded))

        self._loading += 1
        asyncio.create_task(again()).add_done_callback(self._loaded_later)

    def _loaded_later(self, task: asyncio.Task[None]) -> None:
        self._loading -= 1
        if not task.cancelled() and task.exception() is not None:
            self._claim_wanted.set()
