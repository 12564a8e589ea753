"""Events through the engine: order, ids, misfits, errors, deadlines, and what nobody took (E1 to E4, E7, E8)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from signoff import Conflict, Engine, EventError, EventTimeout, InvalidInput, Registry, Step, event, workflow
from signoff.runtime.handles import Run
from signoff.testing import TestEngine
from tests.engine.conftest import EngineMaker

WAIT = 15


class Payment(BaseModel):
    amount: int
    currency: str = "EUR"


async def states(run: Run[Any]) -> list[tuple[str, str]]:
    return [(item.value or "", item.state) for item in await run.events()]


async def test_more_than_ten_events_come_in_order_before_the_wait_and_across_restarts(
    t: TestEngine, registry: Registry
) -> None:
    number = event("number", int, registry=registry)

    @workflow("takes-all", registry=registry)
    async def takes_all(step: Step) -> list[int]:
        taken = [await step.await_event(number) for _ in range(13)]
        await step.sleep(60)
        return taken + [await step.await_event(number) for _ in range(12)]

    await t.open()
    run = await t.start(takes_all.options(run_after=60))
    for n in range(12):
        await run.send(number, n)
    await t.restart()
    await t.advance(60)
    assert [state for _, state in await states(run)] == ["consumed"] * 12
    for n in range(12, 20):
        await run.send(number, n)
    await t.restart()
    for n in range(20, 25):
        await run.send(number, n)
    await t.advance(60)
    assert await t.result(run) == list(range(25))
    assert [item.consumed_by for item in await run.events()] == [*range(13), *range(14, 26)]


async def test_one_event_goes_to_one_wait(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("three", registry=registry)
    async def three(step: Step) -> list[int]:
        return list(await asyncio.gather(*(step.await_event(number) for _ in range(3))))

    await t.open()
    run = await t.start(three)
    await t.wait_for_status(run, "waiting")
    for n in range(2):
        await run.send(number, n)
        await t.settle()
    assert [item.state for item in await run.steps()] == ["success", "success", "open"]
    await run.send(number, 2)
    assert await t.result(run) == [0, 1, 2]


async def test_an_event_by_id_reaches_only_the_wait_for_that_id(t: TestEngine, registry: Registry) -> None:
    link = event("link", str, registry=registry)

    @workflow("by-id", registry=registry)
    async def by_id(step: Step) -> list[str]:
        named = step.await_event(link)
        first, second = await asyncio.gather(step.await_event(link, id="one"), step.await_event(link, id="two"))
        return [first, second, await named]

    await t.open()
    run = await t.start(by_id.options(run_after=60))
    assert [(await run.create_event(link, id=name)).id for name in ("one", "two")] == ["one", "two"]
    await t.advance(60)
    await run.send(link, "2", id="two")
    await t.settle()
    assert [item.state for item in await run.steps()] == ["open", "open", "success"]
    await run.send(link, "by name")
    await run.send(link, "1", id="one")
    assert await t.result(run) == ["1", "2", "by name"]
    other = await t.start(by_id.options(run_after=60))
    with pytest.raises(Conflict, match="there is an event with the id"):
        await other.create_event(link, id="one")


async def test_wrong_ids_raise_at_once_where_the_handler_can_catch_them(t: TestEngine, registry: Registry) -> None:
    link = event("link", str, registry=registry)

    @workflow("foreign", registry=registry)
    async def foreign(step: Step) -> None:
        await step.await_event(link)

    @workflow("catches", registry=registry)
    async def catches(step: Step) -> list[str]:
        told = []
        for wrong in ("unknown", "of-another"):
            try:
                await step.await_event(link, id=wrong)
            except EventError as error:
                told.append(str(error))
        first = step.await_event(link, id="mine")
        try:
            await step.await_event(link, id="mine")
        except EventError as error:
            told.append(str(error))
        told.append(await first)
        try:
            await step.await_event(link, id="mine")
        except EventError as error:
            told.append(str(error))
        return told

    await t.open()
    other = await t.start(foreign)
    await other.create_event(link, id="of-another")
    run = await t.start(catches.options(run_after=60))
    await run.create_event(link, id="mine")
    await t.advance(60)
    await t.wait_for_status(run, "waiting")
    await run.send(link, "value", id="mine")
    unknown, of_another, awaited, value, consumed = await t.result(run)
    assert "no event with the id 'unknown'" in unknown
    assert "no event with the id 'of-another'" in of_another
    assert "awaited already" in awaited
    assert value == "value"
    assert "earlier wait" in consumed


async def test_an_envelope_tells_who_sent_what_and_when(t: TestEngine, registry: Registry) -> None:
    payment = event("payment", Payment, registry=registry)

    @workflow("envelope", registry=registry)
    async def envelope(step: Step) -> list[Any]:
        got = await step.await_event(payment, envelope=True)
        return [got.value.amount, got.name, got.id, got.sender, got.channel, got.sent_at.isoformat()]

    await t.open()
    run = await t.start(envelope)
    sent_at = t.now()
    sent = await run.send(payment, Payment(amount=3), sender="bank", channel="webhook")
    await t.advance(60)
    assert await t.result(run) == [3, "payment", sent.id, "bank", "webhook", sent_at.isoformat()]
    (listed,) = await run.events()
    assert (listed.sender, listed.channel, listed.sent_at, listed.state) == ("bank", "webhook", sent_at, "consumed")


async def test_a_payload_that_does_not_fit_is_refused_at_the_sender(t: TestEngine, registry: Registry) -> None:
    payment = event("payment", Payment, registry=registry)

    @workflow("pays", registry=registry)
    async def pays(step: Step) -> int:
        return (await step.await_event(payment)).amount

    await t.open()
    run = await t.start(pays)
    await t.wait_for_status(run, "waiting")
    for declared in ("payment", payment):
        with pytest.raises(InvalidInput) as refused:
            await run.send(declared, {"amount": "many", "currency": 5})
        assert {field.loc[-1] for field in refused.value.fields} == {"amount", "currency"}
    assert await run.events() == []
    await run.send("payment", {"amount": 5})
    assert await t.result(run) == 5


@pytest.mark.parametrize("when", ["before the wait", "during the wait"])
async def test_what_does_not_fit_the_wait_is_set_aside_and_the_wait_goes_on(
    database_url: str, t: TestEngine, registry: Registry, when: str
) -> None:
    """The sender does not know the schema: another process, without the code."""
    payment = event("payment", Payment, registry=registry)

    @workflow("pays", registry=registry)
    async def pays(step: Step) -> int:
        await step.sleep(60)
        return (await step.await_event(payment)).amount

    await t.open()
    run = await t.start(pays)
    if when == "during the wait":
        await t.advance(60)
        await t.wait_for_status(run, "waiting")
    async with Engine(database_url, registry=Registry(), worker=False, clock=t.clock) as stranger:
        from_outside = stranger.run(run.id)
        await from_outside.send("payment", "nonsense")
        await from_outside.send("payment", {"amount": 4, "currency": "USD"})
    async with asyncio.timeout(WAIT):  # another process's write is noticed within moments, not at once
        while [item.state for item in await run.events()] != ["set_aside", "consumed"]:
            await t.advance(60)
            await asyncio.sleep(0.01)
    assert await t.result(run) == 4
    (misfit, _) = await run.events()
    assert misfit.problem is not None
    assert misfit.problem["errors"]


async def test_an_error_event_raises_at_the_wait(t: TestEngine, registry: Registry) -> None:
    payment = event("payment", Payment, registry=registry)

    @workflow("pays", registry=registry)
    async def pays(step: Step) -> list[Any]:
        try:
            await step.await_event(payment)
        except EventError as error:
            return [str(error), error.data]
        return []

    await t.open()
    run = await t.start(pays)
    await run.send_error(payment, "card refused", data={"code": 51})
    message, data = await t.result(run)
    assert "card refused" in message
    assert data["data"] == {"code": 51} if "data" in data else data == {"code": 51}


async def test_without_a_timeout_a_wait_lasts_for_years_and_with_one_it_ends(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("patient", registry=registry)
    async def patient(step: Step) -> int:
        return await step.await_event(number)

    @workflow("hasty", registry=registry)
    async def hasty(step: Step) -> list[Any]:
        seen: list[Any] = [await step.await_event(number, timeout=timedelta(days=3), default=None)]
        try:
            await step.await_event(number, timeout=5)
        except EventTimeout as error:
            seen += [isinstance(error, TimeoutError), (step.now() - step.run.created_at).total_seconds()]
        return seen

    await t.open()
    waits, ends = await t.start(patient), await t.start(hasty)
    await t.advance(timedelta(days=365 * 30))
    assert (await waits.status()).status == "waiting"
    assert await t.result(ends) == [None, True, 3 * 86400 + 5]
    await waits.send(number, 1)
    assert await t.result(waits) == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("knows", [True, False])
async def test_of_event_and_deadline_the_first_wins_also_while_no_worker_looks(
    database_url: str, t: TestEngine, registry: Registry, late: bool, knows: bool
) -> None:
    """Also if the sender does not know the schema."""
    number = event("number", int, registry=registry)

    @workflow("races", registry=registry)
    async def races(step: Step) -> list[Any]:
        first = await step.await_event(number, timeout=60, default="expired")
        at = (step.now() - step.run.created_at).total_seconds()
        return [first, at, await step.await_event(number, timeout=600, default="nothing")]

    await t.open()
    run = await t.start(races)
    await t.wait_for_status(run, "waiting")
    await t.close(grace=0)
    t.clock.advance(timedelta(seconds=61 if late else 59))
    async with Engine(database_url, registry=registry if knows else Registry(), worker=False, clock=t.clock) as sender:
        await sender.run(run.id).send("number", 7)
    t.clock.advance(timedelta(seconds=30))
    await t.open()
    await t.advance(timedelta(hours=1))
    # a wait that had expired leaves the event to the next one
    assert await t.result(run) == (["expired", 60, 7] if late else [7, 59, "nothing"])


@pytest.mark.parametrize("fits", [True, False])
async def test_an_event_that_nobody_could_judge_in_time_is_judged_before_what_came_later(
    database_url: str, t: TestEngine, registry: Registry, fits: bool
) -> None:
    number = event("number", int, registry=registry)

    @workflow("races", registry=registry)
    async def races(step: Step) -> list[Any]:
        first = await step.await_event(number, timeout=60, default="expired")
        return [first, await step.await_event(number), await step.await_event(number)]

    @workflow("beside", registry=registry)
    async def beside(step: Step) -> str:
        """The timer is another step's."""
        got = step.await_event(number)
        try:
            async with asyncio.timeout(60):
                return f"event {await got}"
        except TimeoutError:
            return "timeout"

    await t.open()
    run, other = await t.start(races), await t.start(beside)
    for waiting in (run, other):
        await t.wait_for_status(waiting, "waiting")
    await t.close(grace=0)
    t.clock.advance(timedelta(seconds=59))
    async with (
        Engine(database_url, registry=Registry(), worker=False, clock=t.clock) as stranger,
        Engine(database_url, registry=registry, worker=False, clock=t.clock) as sender,
    ):
        for waiting in (run, other):
            await stranger.run(waiting.id).send("number", 7 if fits else "seven")
        t.clock.advance(timedelta(seconds=11))
        await stranger.run(run.id).send("number", 8)
        await sender.run(run.id).send(number, 9)
        if not fits:
            await sender.run(run.id).send(number, 10)
    await t.open()
    assert await t.result(run) == ([7, 8, 9] if fits else ["expired", 8, 9])
    assert await t.result(other) == ("event 7" if fits else "timeout")
    left = [] if fits else [('"seven"', "set_aside"), ("10", "buffered")]
    assert [shown for shown in await states(run) if shown[1] != "consumed"] == left


async def test_a_late_sender_finds_the_wait_expired_although_a_worker_runs(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("races", registry=registry)
    async def races(step: Step) -> list[Any]:
        first = await step.await_event(number, timeout=60, default="expired")
        return [first, await step.await_event(number)]

    await t.open()
    runs = [await t.start(races) for _ in range(5)]
    for run in runs:
        await t.wait_for_status(run, "waiting")
    t.clock.advance(timedelta(seconds=60))  # from here on the timer is due: sender and worker race to record it
    await asyncio.gather(*(run.send(number, 7) for run in runs))
    assert [await t.result(run) for run in runs] == [["expired", 7]] * 5


async def test_unconsumed_events_are_listed(t: TestEngine, registry: Registry) -> None:
    number = event("number", int, registry=registry)

    @workflow("one", registry=registry)
    async def one(step: Step) -> int:
        return await step.await_event(number)

    await t.open()
    run = await t.start(one.options(run_after=60))
    for n in (1, 2):
        await run.send(number, n, channel="test")
    await run.create_event(number, id="later")
    await t.advance(60)
    assert await t.result(run) == 1
    listed = [(item.id if item.by_id else item.value, item.state) for item in await run.events()]
    assert listed == [("1", "consumed"), ("2", "buffered"), ("later", "created")]


async def test_events_are_handed_over_exactly_once_whenever_the_engine_ends(
    open_engine: EngineMaker, registry: Registry
) -> None:
    number = event("number", int, registry=registry)

    @workflow("collects", registry=registry)
    async def collects(step: Step, count: int) -> list[int]:
        return [await step.await_event(number) for _ in range(count)]

    engine = await open_engine(registry)
    run = await engine.start(collects, 12)
    for n in range(12):
        await run.send(number, n)
        if n % 3 == 2:  # whatever was under way
            await engine.close(grace=0)
            engine = await open_engine(registry)
            run = engine.run(run.id)
    assert await run.result(timeout=WAIT) == list(range(12))
    assert [item.consumed_by for item in await run.events()] == list(range(12))
