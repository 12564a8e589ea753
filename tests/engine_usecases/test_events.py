from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.engine import control, events, views
from signoff.engine.ending import finalize
from signoff.engine.outcomes import S, lock_run
from signoff.engine.sending import Send, send_together
from signoff.engine.starting import Started
from signoff.engine.views import EventView
from signoff.replay.messages import EventDetail
from signoff.store.store import Scope, Tx
from signoff.store.tables import Approval
from signoff.store.tx import Notice
from signoff.workflow.definitions import event
from signoff.workflow.errors import Conflict, InvalidInput, LimitExceeded, NeedsDecision, NotFound, SignoffError
from signoff.workflow.kinds import OutcomeKind, ResultKind
from signoff.workflow.registry import Registry
from tests.engine_usecases.support import OTHER_TENANT, TENANT, Database


async def _step(db: Database, run: Started, no: int) -> Any:
    select = sa.select(S).where(S.c.run_id == run.run_id, S.c.no == no)
    return await db.store.read(lambda tx: tx.conn.execute(select).one())


async def _send(db: Database, run: Started, name: str, value: str = "1", **given: Any) -> EventView:
    return await db.do(events.send, run.public_id, name, value, **given)


async def _events(db: Database, run: Started) -> list[tuple[str, str | None, str]]:
    shown = await db.store.read(views.events_view, TENANT, run.public_id)
    return [(event.name, event.value, event.state) for event in shown]


async def test_an_event_wakes_its_wait_in_the_same_transaction(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid")
    sent = await _send(db, run, "paid", '{"amount": 12}', sender="bank", channel="webhook")
    assert (sent.state, sent.consumed_by, sent.sent_at) == ("consumed", no, db.clock.now())
    step, row = await _step(db, run, no), await db.row(run)
    assert (step.outcome_no, step.outcome_kind, row.outcome_no, row.ready) == (1, "success", 1, 0)
    assert json.loads(step.value) == {
        "name": "paid", "value": {"amount": 12}, "id": sent.id, "sender": "bank", "channel": "webhook",
        "sent_at": db.clock.now().isoformat(),
    }  # fmt: skip


async def test_events_of_a_name_are_handed_out_in_order_of_sending(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    for n in range(12):
        await _send(db, run, "paid", str(n))
    await _send(db, run, "other", "99")
    got = []
    for _ in range(12):
        no = await db.wait_for(run, "paid")
        taken = await db.store.write(events.take_buffered, run.run_id, no, EventDetail(("paid",)))
        assert taken is not None
        got.append(json.loads(taken.value or "")["value"])
        await db.end_step(run, no)
    assert got == list(range(12))
    assert await db.store.write(events.take_buffered, run.run_id, 12, EventDetail(("paid",))) is None
    assert [event for event in await _events(db, run) if event[2] == "buffered"] == [("other", "99", "buffered")]


async def test_of_several_names_the_earliest_sent_wins_and_the_others_stay(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    for name in ("c", "b", "a"):
        await _send(db, run, name)
    taken = await db.store.write(events.take_buffered, run.run_id, 0, EventDetail(("a", "b")))
    assert taken is not None
    assert json.loads(taken.value or "")["name"] == "b"
    assert [name for name, _, state in await _events(db, run) if state == "buffered"] == ["c", "a"]


async def test_two_waits_for_one_name_are_served_in_the_order_in_which_they_were_asked(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    first, second = await db.wait_for(run, "paid"), await db.wait_for(run, "paid")
    assert (await _send(db, run, "paid")).consumed_by == first
    assert (await _send(db, run, "paid")).consumed_by == second
    assert (await _send(db, run, "paid")).state == "buffered"


async def test_sends_at_once_are_each_handed_to_one_wait(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    waits = [await db.wait_for(run, "paid") for _ in range(5)]
    sent = await asyncio.gather(*(_send(db, run, "paid", str(n)) for n in range(8)))
    assert sorted(event.consumed_by for event in sent if event.consumed_by is not None) == waits
    assert (await db.row(run)).outcome_no == 5


async def test_an_event_reached_by_id(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    made = await db.do(events.create_event, run.public_id, "paid")
    assert (made.state, made.by_id) == ("created", True)
    no = await db.wait_for(run, event_id=made.id)
    assert (await _send(db, run, "paid")).state == "buffered"  # named events do not reach it
    assert (await _send(db, run, made.id, "2", by_id=True)).consumed_by == no
    assert json.loads((await _step(db, run, no)).value)["value"] == 2
    with pytest.raises(Conflict, match="answered already"):
        await _send(db, run, made.id, "3", by_id=True)
    with pytest.raises(NotFound):
        await _send(db, run, "nothing", by_id=True)
    with pytest.raises(Conflict):
        await db.do(events.create_event, run.public_id, "paid", event_id=made.id)


@pytest.mark.parametrize("case", ["unknown", "consumed", "awaited", "foreign"])
async def test_a_wait_for_a_wrong_id_fails_at_once(db: Database, case: str) -> None:
    run = await db.start()
    await db.activate(run)
    made = await db.do(events.create_event, run.public_id, "paid")
    event_id = "nothing" if case == "unknown" else made.id
    if case in ("consumed", "awaited"):
        await db.wait_for(run, event_id=made.id)
    if case == "consumed":
        await _send(db, run, made.id, by_id=True)
    if case == "foreign":
        other = await db.start()
        event_id = (await db.do(events.create_event, other.public_id, "paid")).id
    taken = await db.store.write(events.take_buffered, run.run_id, 5, EventDetail((), event_id))
    assert taken is not None
    assert taken.kind is OutcomeKind.FAILURE
    assert taken.error is not None
    assert (taken.error.type, taken.error.data["code"]) == ("EventError", "unknown" if case == "foreign" else case)


async def test_an_error_event_fails_its_wait(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid")
    sent = await _send(db, run, "paid", '{"message": "card refused", "data": {"code": 5}}', is_error=True)
    step = await _step(db, run, no)
    assert step.outcome_kind == "failure"
    data = {"event": "paid", "id": sent.id, "data": {"code": 5}}
    assert json.loads(step.value) == {"type": "EventError", "message": "card refused", "data": data}


async def test_an_event_after_the_deadline_goes_to_the_next_wait(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid", timeout=60)
    db.clock.advance(timedelta(seconds=61))
    assert (await _send(db, run, "paid")).state == "buffered"
    step = await _step(db, run, no)
    assert (step.outcome_kind, step.ended_at) == ("timeout", db.clock.now() - timedelta(seconds=1))
    assert await db.store.write(events.take_buffered, run.run_id, 1, EventDetail(("paid",))) is not None


async def test_a_misfit_is_set_aside_and_the_wait_goes_on(db: Database) -> None:
    def misfit(name: str, text: str) -> dict[str, Any] | None:
        return None if text.isdigit() else {"message": "no number", "errors": []}

    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid")
    assert (await _send(db, run, "paid", '"x"', misfit=misfit)).state == "set_aside"
    assert (await _step(db, run, no)).outcome_no is None
    assert (await _send(db, run, "paid", "7", misfit=misfit)).consumed_by == no
    await _send(db, run, "paid", '"y"')
    await _send(db, run, "paid", "8")
    taken = await db.store.write(events.take_buffered, run.run_id, 1, EventDetail(("paid",)), misfit=misfit)
    assert taken is not None
    assert json.loads(taken.value or "")["value"] == 8
    shown = await db.store.read(views.events_view, TENANT, run.public_id)
    assert [(event.value, event.problem is not None) for event in shown if event.state == "set_aside"] == [
        ('"x"', True),
        ('"y"', True),
    ]
    made = await db.do(events.create_event, run.public_id, "paid")
    with pytest.raises(InvalidInput):  # by id it would be lost
        await _send(db, run, made.id, '"z"', by_id=True, misfit=misfit)


async def test_a_key_gives_the_first_event_also_after_the_end(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await db.wait_for(run, "paid")
    first = await _send(db, run, "paid", "1", idempotency_key="k")
    assert first.state == "consumed"
    await db.store.write(_finish, run)
    assert await _send(db, run, "paid", "1", idempotency_key="k") == first
    with pytest.raises(Conflict) as caught:
        await _send(db, run, "paid", "2", idempotency_key="k")
    assert (caught.value.run, caught.value.event, caught.value.key) == (run.public_id, "paid", "k")
    assert len(await _events(db, run)) == 1


def _finish(tx: Tx, run: Started) -> None:
    row = lock_run(tx, run.run_id)
    assert row is not None
    finalize(tx, row, ResultKind.COMPLETED, "1")


async def test_a_run_that_takes_no_events_says_why(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    await db.ask(run, "sleep")
    await db.do(control.cancel, run.public_id)
    with pytest.raises(Conflict) as canceling:
        await _send(db, run, "paid")
    assert (canceling.value.state, canceling.value.event, canceling.value.run) == ("canceling", "paid", run.public_id)
    await db.store.write(_finish, run)
    with pytest.raises(Conflict) as final:
        await db.do(events.create_event, run.public_id, "paid")
    assert final.value.state == "completed"
    with pytest.raises(NotFound):
        await db.do(events.send, "nothing", "paid", "1")
    with pytest.raises(NotFound):
        await db.store.write(events.send, OTHER_TENANT, run.public_id, "paid", "1")
    assert await db.count("signoff_event") == 0


async def test_only_declared_events_are_taken(db: Database) -> None:
    await db.define("strict", events=["paid"])
    run = await db.start("strict")
    assert (await _send(db, run, "paid")).state == "buffered"
    with pytest.raises(InvalidInput, match="declares no event 'other'; declared: paid"):
        await _send(db, run, "other")
    with pytest.raises(InvalidInput):
        await db.do(events.create_event, run.public_id, "other")
    await db.define("deaf", events=[])
    with pytest.raises(InvalidInput, match="declared: none"):
        await _send(db, await db.start("deaf"), "paid")


async def test_only_a_decision_answers_a_question(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.ask(run, "ask", "renamed", options={"ask": "order/ship"})

    def add_approval(tx: Tx) -> None:
        row = {
            "tenant_id": 1, "public_id": "q1", "run_id": run.run_id, "step_no": no, "ask": "order/ship", "title": "?",
            "facts": "{}", "schema": "{}", "to": "[]", "content_hash": "", "created_at": tx.now,
        }  # fmt: skip
        tx.conn.execute(sa.insert(Approval.__table__).values(**row))

    await db.store.write(add_approval)
    for name in ("order/ship", "renamed"):
        with pytest.raises(NeedsDecision):
            await _send(db, run, name)
    with pytest.raises(NeedsDecision):
        await _send(db, run, "q1", by_id=True)
    assert (await _step(db, run, no)).outcome_no is None


async def test_an_event_above_the_limit_is_refused(db: Database) -> None:
    await db.define("small", max_value_bytes=100)
    run = await db.start("small")
    with pytest.raises(LimitExceeded):
        await _send(db, run, "paid", '"' + "x" * 100 + '"')
    assert await _events(db, run) == []


async def test_a_large_and_a_secret_event(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid")
    text = json.dumps("x" * 20_000)
    sent = await _send(db, run, "paid", text, sensitive=True)
    assert sent.value == '"[redacted]"'
    step = (await db.steps(run))[no]
    assert step.result is not None
    assert json.loads(step.result)["value"] == "x" * 20_000


async def test_a_refused_send_leaves_no_outcome(db: Database) -> None:
    """What is recorded of due timers goes with the refusal: the worker records them itself."""
    run = await db.start()
    await db.activate(run)
    no = await db.wait_for(run, "paid", timeout=1)
    db.clock.advance(timedelta(seconds=2))
    with pytest.raises(InvalidInput):
        await _send(db, run, "")
    assert (await _step(db, run, no)).outcome_no is None


def test_the_registry_says_what_does_not_fit() -> None:
    registry = Registry()
    event("paid", int, registry=registry)
    misfit = events.misfit_by(registry)
    assert misfit("paid", "12") is None
    assert misfit("unknown", '"x"') is None
    problem = misfit("paid", '"x"')
    assert problem is not None
    assert problem["errors"]


async def _situations(db: Database) -> list[Send]:
    """Sends of every kind to runs in every state, several to some of them, in the order in which they are to count."""
    sends: list[Send] = []

    async def run(*names: str, timeout: float | None = None, tenant_of: Any = TENANT, **columns: Any) -> Started:
        started = await db.start()
        await db.activate(started, **columns)
        if names:
            await db.wait_for(started, *names, timeout=timeout)
        return started

    def send(to: Started | str, name: str = "paid", value: str = "1", scope: Scope = TENANT, **options: Any) -> None:
        sends.append(Send(scope, to if isinstance(to, str) else to.public_id, name, value, options))

    waits = await run("paid")
    send(waits, value="1")
    send(waits, value="2")  # buffered behind it
    send(await run("paid"), value='{"amount": 12}', sender="bank", channel="webhook", sensitive=True)
    twice = await run("paid")
    await db.wait_for(twice, "paid")
    for n in range(3):
        send(twice, value=str(n))
    send(await run("paid", "canceled"), "canceled", '"no"', is_error=True)
    send(await run())  # nothing awaits it
    send(await run("other"))
    send("unknown")
    send("with\0nul")
    send(await run("paid"), scope=OTHER_TENANT)
    send(await run("paid", state="final", result_kind="success"))
    send(await run("paid", requested="cancel"))
    keyed = await run("paid")
    send(keyed, idempotency_key="k")
    send(keyed, idempotency_key="k")  # the same
    send(keyed, value="2", idempotency_key="k")
    by_id = await run()
    made = await db.do(events.create_event, by_id.public_id, "paid")
    await db.wait_for(by_id, event_id=made.id)
    send(by_id, made.id, by_id=True)
    send(await run("paid"), value='"' + "x" * 9000 + '"')
    send(await run("paid"), value='"' + "x" * 900 + '"', max_bytes=100)
    send(await run("paid", timeout=60))
    send(await run("paid", timeout=5))  # over when it is sent
    send(await run("paid"), known=False)
    send(await run("paid"), value='"wrong"', misfit=lambda name, text: {"message": "no", "errors": []})
    asked = await run("paid")
    await db.ask(asked, "ask", "approve")
    send(asked, "approve")
    send(asked, "paid")
    before = await run("paid")
    await db.do(events.send, before.public_id, "other", "0")
    send(before, "paid")
    kept = await run()
    await db.do(events.send, kept.public_id, "paid", "0")
    await db.wait_for(kept, "paid")
    send(kept, "paid")  # is sent after the one that is kept
    return sends


def _told(result: EventView | BaseException) -> Any:
    if isinstance(result, EventView):
        return result.state, result.name, result.value, result.consumed_by, result.sender, result.problem
    return type(result).__name__


async def _state(db: Database, sends: list[Send]) -> list[Any]:
    """What became of the runs, but for what differs from one event to the next."""
    state = []
    for public_id in dict.fromkeys(send.run for send in sends if "\0" not in send.run and send.run != "unknown"):
        row = await db.row(public_id)
        steps = await db.store.read(views.steps_view, TENANT, public_id)
        shown = await db.store.read(views.events_view, TENANT, public_id)
        ids = {event.id: f"event {n}" for n, event in enumerate(shown)}

        def plain(text: str | None, ids: dict[str, str] = ids) -> str | None:
            for event_id, name in ids.items():
                text = text.replace(event_id, name) if text is not None else None
            return text

        state.append(
            (
                (row.outcome_no, row.outcome_at, row.touch_no, row.ready, row.wake_at),
                [(step.no, step.state, step.ended_at, plain(step.result), plain(str(step.error))) for step in steps],
                [(e.name, e.value, e.state, e.consumed_by, e.sender, e.channel, e.is_error, e.sent_at) for e in shown],
            )
        )
    return state


async def test_what_is_sent_together_does_what_each_would_by_itself(db: Database) -> None:
    singly, together = await _situations(db), await _situations(db)
    assert len(singly) == len(together) > 25
    db.clock.advance(timedelta(seconds=10))
    alone: list[EventView | BaseException] = []
    woken: list[list[Notice]] = [[], []]

    def noted(tx: Tx, call: Callable[[Tx], Any], kept: list[Notice]) -> Any:
        result = call(tx)
        kept += [notice for notice in tx.notices if notice.goes_on]
        return result

    for send in singly:
        try:
            alone.append(await db.store.write(noted, send, woken[0]))
        except SignoffError as error:
            alone.append(error)
    shared = await db.store.write(noted, lambda tx: send_together(tx, together), woken[1])
    # a run that is not there is looked for once more, by a commit that may wait
    late = [n for n, result in enumerate(shared) if result is None]
    assert {together[n].run for n in late} <= {"unknown"} | {
        send.run for send in together if send.scope is OTHER_TENANT
    }
    assert late
    told = [result if result is not None else NotFound("") for result in shared]
    assert [_told(result) for result in told] == [_told(result) for result in alone]
    assert await _state(db, together) == await _state(db, singly)
    assert len(woken[0]) == len(woken[1]) > 10
