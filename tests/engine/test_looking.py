"""Looking at runs: what a status tells (Q1), and live changes (Q3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from signoff import NotFound, Registry, Retry, RunFailed, Step, action, ask, attempt, event, group, workflow
from signoff.engine.pools import PoolLimits
from signoff.people.tenants import ensure_tenant
from signoff.runtime.handles import Run
from signoff.runtime.subscription import (
    AttemptEnded,
    Change,
    EventChanged,
    Logged,
    Progressed,
    RunChanged,
    StepChanged,
)
from signoff.testing import TestEngine

WAIT = 15


async def test_a_status_tells_what_is_awaited_since_when_and_who_may_act(t: TestEngine, registry: Registry) -> None:
    question = ask("question", bool, registry=registry)
    number = event("number", int, registry=registry)
    began = asyncio.Event()

    @action(name="pooled", pool="narrow", registry=registry)
    async def pooled() -> None:
        began.set()
        await asyncio.sleep(WAIT)

    @workflow("child", registry=registry)
    async def child(step: Step) -> None:
        await step.sleep(3600)

    @workflow("waits", registry=registry)
    async def waits(step: Step) -> None:
        await step.sleep(60)
        await asyncio.gather(
            step.ask(question, title="May I?", to=group("finance"), timeout=timedelta(hours=1)),
            step.await_event(number, timeout=600),
            step.first_event(event("a", int, registry=Registry()), event("b", int, registry=Registry())),
            step.sleep(300, name="nap"),
            step.run_workflow(child),
            step.run_action(pooled),
        )

    await t.open()
    await t.set_pool("narrow", PoolLimits(max_parallel=0))
    run = await t.start(waits)
    start = t.now()
    view = await t.wait_for_status(run, "sleeping")
    assert (view.next_wake_at, view.generation, view.result, view.error) == (
        start + timedelta(seconds=60),
        1,
        None,
        None,
    )
    await t.advance(60)
    await t.settle()
    view = await run.status()
    asked = {(item.kind, item.name): item for item in view.awaiting}
    assert set(asked) == {
        ("ask", "question"), ("event", "number"), ("event", "a | b"), ("sleep", "nap"), ("child", "child"),
        ("pool", "narrow"),
    }  # fmt: skip
    assert {item.since for item in view.awaiting} == {t.now()}
    approval, waiting = asked["ask", "question"], asked["event", "number"]
    assert (approval.who, approval.due_at) == (({"group": "finance"},), t.now() + timedelta(hours=1))
    assert approval.approval_id == (await run.approvals())[0].id
    assert waiting.due_at == t.now() + timedelta(minutes=10)
    assert asked["child", "child"].child_run == (await t.runs(parent=run.id)).items[0].id
    assert view.next_wake_at == t.now() + timedelta(seconds=300)
    await run.cancel()


async def test_a_status_tells_of_running_steps_with_progress_and_of_the_end(t: TestEngine, registry: Registry) -> None:
    halfway, go_on = asyncio.Event(), asyncio.Event()

    @action(name="work", registry=registry)
    async def work(fail: bool) -> int:
        attempt.current().progress(0.5, "halfway")
        halfway.set()
        await go_on.wait()
        if fail:
            raise ValueError("broken")
        return 3

    @workflow("w", registry=registry)
    async def w(step: Step, fail: bool) -> int:
        return await step.run_action(work, fail)

    await t.open()
    for fail in (False, True):
        halfway.clear()
        go_on.clear()
        run = await t.start(w, fail)
        async with asyncio.timeout(WAIT):
            async for change in run.subscribe():
                if isinstance(change, Progressed):
                    break
        # whoever comes later is told how far it is as well, and does not wait for the next progress
        async with asyncio.timeout(WAIT):
            async for change in run.subscribe():
                if isinstance(change, Progressed):
                    break
        view = await run.status()
        assert view.status == "running"
        (running,) = view.running
        assert running.progress is not None
        assert (running.name, running.progress.fraction, running.progress.text) == ("work", 0.5, "halfway")
        go_on.set()
        if fail:
            with pytest.raises(RunFailed):
                await run.result(timeout=WAIT)
        else:
            await run.result(timeout=WAIT)
        view = await run.status()
        assert (view.status, view.result, view.error is not None) == (
            ("failed", None, True) if fail else ("completed", "3", False)
        )
        assert (view.running, view.awaiting) == ((), ())


async def test_unknown_and_foreign_ids_are_not_found_whatever_is_asked(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.await_event(number)

    await t.open()
    await t.store.write(ensure_tenant, "other")
    foreign = await t.start(w.options(tenant="other"))
    for run in (t.run("unknown"), t.run(foreign.id)):
        for asked in (
            run.status, run.steps, run.events, run.logs, run.approvals, run.result, run.cancel, run.pause, run.resume,
            run.restart, run.fork, run.cleanup, run.retry_on_complete,
        ):  # fmt: skip
            with pytest.raises(NotFound) as not_found:
                await asked()
            assert not_found.value.run == run.id
        with pytest.raises(NotFound):
            async for _ in run.subscribe():
                pass
    assert [item.result for item in await t.cleanup([foreign.id])] == ["not_found"]
    assert (await t.runs()).items == ()
    await foreign.send(number, 1)
    assert await t.result(foreign) == 1


class Watcher:
    """Collects what a subscription yields."""

    def __init__(self, run: Run[Any]) -> None:
        self.changes: list[Change] = []
        self._run = run
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async for change in self._run.subscribe():
            self.changes.append(change)

    async def until(self, kind: type[Change], holds: Any = lambda change: True) -> None:
        async with asyncio.timeout(WAIT):
            while not any(isinstance(change, kind) and holds(change) for change in self.changes):
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        await asyncio.wait_for(self._task, WAIT)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_subscriber_hears_of_runs_steps_attempts_progress_logs_and_events(
    t: TestEngine, registry: Registry
) -> None:
    number = event("number", int, registry=registry)
    go_on = asyncio.Event()

    @action(name="work", retry=Retry(initial=10, jitter=False), registry=registry)
    async def work() -> int:
        await go_on.wait()
        current = attempt.current()
        current.log("trying", number=current.number)
        current.progress(0.1 * current.number)
        if current.number == 1:
            raise ValueError("again")
        return 1

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        step.log("began")
        await step.run_action(work)
        return await step.await_event(number)

    await t.open()
    run = await t.start(w)
    watcher = Watcher(run)
    await watcher.until(StepChanged)
    go_on.set()
    await watcher.until(AttemptEnded, lambda change: change.step.attempts == 1)
    await t.advance(10)
    await watcher.until(RunChanged, lambda change: change.run.status == "waiting")
    await run.send(number, 5)
    await watcher.end()
    kinds = {type(change) for change in watcher.changes}
    assert kinds >= {RunChanged, StepChanged, AttemptEnded, Logged, EventChanged}
    assert {line.line.message for line in watcher.changes if isinstance(line, Logged)} == {"began", "trying"}
    versions = [change.version for change in watcher.changes]
    assert versions == sorted(versions)
    last = [change for change in watcher.changes if isinstance(change, RunChanged)][-1]
    assert (last.run.status, last.run.result) == ("completed", "5")
    # what a subscriber was told is what there is
    told = {change.step.no: change.step for change in watcher.changes if isinstance(change, StepChanged)}
    assert list(told.values()) == await run.steps()


async def test_the_version_grows_on_across_restarts_and_who_reconnects_misses_nothing_final(
    t: TestEngine, registry: Registry
) -> None:
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        first = await step.await_event(number)
        return first + await step.await_event(number)

    await t.open()
    run = await t.start(w)
    watcher = Watcher(run)
    await watcher.until(RunChanged, lambda change: change.run.status == "waiting")
    await watcher.stop()
    seen = watcher.changes[-1].version
    await run.send(number, 1)  # while nobody watches
    await t.settle()
    await t.restart()
    again = Watcher(run)
    await again.until(StepChanged, lambda change: (change.step.no, change.step.state) == (0, "success"))
    assert again.changes[0].version > seen
    seen = again.changes[-1].version
    await again.stop()
    await run.send(number, 2)
    await t.result(run)
    await t.restart()
    late = Watcher(run)
    await late.end()  # of a run that is over a subscription ends by itself
    last = late.changes[-1]
    assert isinstance(last, RunChanged)
    assert last.version > seen
    assert (last.run.status, last.run.result) == ("completed", "3")
    await run.restart(from_step=1)
    assert (await run.status()).version_no > last.version


async def test_many_subscribers_hear_of_the_end(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("w", registry=registry)
    async def w(step: Step) -> int:
        return await step.await_event(number)

    await t.open()
    runs = [await t.start(w) for _ in range(5)]
    watchers = [Watcher(run) for run in runs for _ in range(4)]
    results = [asyncio.create_task(run.result(timeout=WAIT)) for run in runs for _ in range(4)]
    await t.settle()
    for n, run in enumerate(runs):
        await run.send(number, n)
    assert await asyncio.gather(*results) == [n for n in range(5) for _ in range(4)]
    for watcher in watchers:
        await watcher.end()
        last = watcher.changes[-1]
        assert isinstance(last, RunChanged)
        assert last.run.status == "completed"
