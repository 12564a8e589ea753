"""Old and new code of a workflow at work on one database, as during a rolling update."""

from __future__ import annotations

import asyncio

from signoff import Engine, Registry, Step, action, event, workflow

WAIT = 20
go = event("two/go", int)


def old_code() -> Registry:
    registry = Registry()

    @workflow("two/w", registry=registry)
    async def w(step: Step) -> str:
        await step.await_event(go)
        return "old"

    return registry


def new_code() -> Registry:
    registry = Registry()

    @action(name="two/prepare", registry=registry)
    async def prepare() -> None:
        pass

    @workflow("two/w", registry=registry)
    async def w(step: Step) -> str:
        await step.run_action(prepare)
        for _ in range(3):
            await step.await_event(go)
        return "new"

    return registry


async def test_a_run_that_old_code_cannot_go_on_with_is_left_to_new_code_that_is_there(postgres_url: str) -> None:
    """Whoever claims it after an event, the old worker tries it at most once, and the run is never left blocked."""
    async with Engine(postgres_url, registry=new_code(), migrate=True, grace=0) as new:
        run = await new.start_by_name("two/w")
        while not any(step.kind == "event" for step in await run.steps()):
            await asyncio.sleep(0.02)
        async with (
            Engine(postgres_url, registry=old_code(), grace=0) as old,
            Engine(postgres_url, worker=False) as door,
        ):
            await new.close()
            # only old code is there: it tries, and the run waits for other code
            await door.run(run.id).send(go, 1)
            while (await door.run(run.id).status()).status != "blocked":
                await asyncio.sleep(0.02)
            async with Engine(postgres_url, registry=new_code(), grace=0):
                for number in (2, 3):
                    await door.run(run.id).send(go, number)
                assert await asyncio.wait_for(door.run(run.id).result(), WAIT) == "new"
            assert old.worker is not None
            assert not old.worker.busy()


async def test_new_code_that_is_there_takes_at_once_what_old_code_cannot_go_on_with(postgres_url: str) -> None:
    async with (
        Engine(postgres_url, registry=new_code(), migrate=True, grace=0) as new,
        Engine(postgres_url, worker=False) as door,
    ):
        runs = [await new.start_by_name("two/w") for _ in range(10)]
        for run in runs:
            while not any(step.kind == "event" for step in await run.steps()):
                await asyncio.sleep(0.02)
        async with Engine(postgres_url, registry=old_code(), grace=0):
            for _ in range(3):
                for run in runs:
                    await door.run(run.id).send(go, 1)
                await asyncio.sleep(0)
            for run in runs:
                assert await asyncio.wait_for(door.run(run.id).result(), WAIT) == "new"
