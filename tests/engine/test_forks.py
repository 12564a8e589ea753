"""Forks through the engine (X4): the kept part of a run, and what differs from there on."""

from __future__ import annotations

import json

import pytest

from signoff import InvalidInput, Registry, Step, workflow
from signoff.testing import TestEngine
from tests.engine.test_rounds import Counted


async def test_a_fork_begins_with_the_prefix_and_leaves_its_run_alone(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total.options(labels={"team": "a"}), 4)
    await t.result(run)
    before = (await run.status(), await run.steps())
    kit.calls.clear()
    fork = await run.fork(from_step=2)
    assert await t.result(fork) == 6
    assert kit.calls == [2, 3]
    assert (await run.status(), await run.steps()) == before
    view = await fork.status()
    assert (view.forked_from, view.labels) == (run.id, {"team": "a"})
    assert fork.id != run.id


async def test_a_fork_takes_changed_args_and_what_no_longer_fits_blocks(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)

    @workflow("scaled", registry=registry)
    async def scaled(step: Step, by: int, name: str = "x") -> str:
        n = await step.run_action(kit.add, 3)
        m = await step.run_action(kit.add, n * by)
        return f"{name}{m}"

    await t.open()
    run = await t.start(scaled, 2)
    assert await t.result(run) == "x6"
    kit.calls.clear()
    fork = await run.fork(from_step=1, args={"by": 5, "name": "y"}, run_id="again")
    assert await t.result(fork) == "y15"
    assert (fork.id, kit.calls) == ("again", [15])
    assert json.loads((await fork.status()).args or "") == {"by": 5, "name": "y"}
    with pytest.raises(InvalidInput):
        await run.fork(args={"by": "many"})
    kept = await run.fork(args={"by": 5})  # the second step was asked with other args
    await t.wait_for_status(kept, "blocked")


async def test_a_run_that_goes_on_can_be_forked(t: TestEngine, registry: Registry) -> None:
    kit = Counted(registry)
    await t.open()
    run = await t.start(kit.total, 2, pause=True)
    await t.advance(60)
    fork = await run.fork()
    await t.settle()
    assert (await run.status()).status == (await fork.status()).status == "sleeping"
    await t.advance(600)
    assert (await t.result(run), await t.result(fork)) == (1, 1)
    assert kit.calls == [0, 1]  # what the run had done holds for the fork too
