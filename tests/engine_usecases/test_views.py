from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from signoff.engine import control, events, pools, starting, views
from signoff.engine.ending import finalize
from signoff.engine.outcomes import R, lock_run
from signoff.engine.pools import PoolLimits
from signoff.engine.starting import Started, StartSpec
from signoff.engine.status import Status
from signoff.engine.views import Progress, RunFilter
from signoff.engine.views.runs import conditions
from signoff.store.store import Scope, Store, Tx
from signoff.store.tables import Approval, Attempt, Completion, LogLine, Tenant
from signoff.workflow.errors import InvalidInput, NotFound
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind
from tests.engine_usecases.support import OTHER_TENANT, TENANT, Database, statements_of

Result = TypeVar("Result")


async def _finish(db: Database, run: Started, kind: ResultKind = ResultKind.COMPLETED, value: str = "1") -> None:
    def finish(tx: Tx) -> None:
        row = lock_run(tx, run.run_id)
        assert row is not None
        error = None if kind is ResultKind.COMPLETED else ErrorInfo("ValueError", "no good")
        finalize(tx, row, kind, value if error is None else None, error)

    await db.store.write(finish)


async def _counted(db: Database, use_case: Callable[..., Result], *args: Any) -> tuple[int, Result]:
    statements, result = await db.store.write(statements_of, use_case, TENANT, *args)
    return len(statements), result


async def test_a_run_shows_what_it_waits_for(db: Database) -> None:
    now = db.clock.now()
    parent = await db.start()
    run = await db.do(starting.start, StartSpec(workflow="order", args='{"n": 1}', parent_id=parent.run_id))
    await db.activate(run, started_at=now, activity="running", wake_at=now + timedelta(hours=1))
    await db.store.write(pools.declare, "mail", PoolLimits(1))
    await db.ask(run, "sleep", "nap", due_at=now + timedelta(hours=1))
    await db.wait_for(run, "paid", timeout=60)
    ask = await db.ask(run, "ask", "order/ship")
    child_no = await db.ask(run, "child", "kid")
    child = await db.do(starting.start, StartSpec(workflow="order", parent_id=run.run_id, parent_no=child_no))
    waits = await db.ask(run, "action", "send", options={"pool": "mail"}, started=True)
    runs = await db.ask(
        run, "action", "post", options={"pool": "mail"}, started=True, progress='{"fraction": 0.5, "text": "half"}'
    )
    await db.ask(run, "action", "later", due_at=now + timedelta(hours=2))
    await db.ask(run, "marker", "new")

    def fill(tx: Tx) -> None:
        approval = {
            "tenant_id": 1, "public_id": "q1", "run_id": run.run_id, "step_no": ask, "ask": "order/ship", "title": "?",
            "facts": "{}", "schema": "{}", "to": '[{"group": "finance"}]', "content_hash": "", "created_at": tx.now,
        }  # fmt: skip
        tx.conn.execute(sa.insert(Approval.__table__).values(**approval))
        tx.conn.execute(
            sa.text("UPDATE signoff_step SET child_id = :child WHERE run_id = :run AND no = :no"),
            {"child": child.run_id, "run": run.run_id, "no": child_no},
        )
        assert pools.acquire(tx, "mail", [pools.Wanted(run.run_id, runs)], 1).places

    await db.store.write(fill)
    view = await db.view(run)
    assert (view.id, view.workflow, view.version, view.parent) == (run.public_id, "order", 1, parent.public_id)
    wakes = now + timedelta(seconds=60)
    assert (view.status, view.args, view.started_at, view.next_wake_at) == (Status.RUNNING, '{"n": 1}', now, wakes)
    assert [(item.kind, item.name, item.step_no) for item in view.awaiting] == [
        ("sleep", "nap", 0),
        ("event", "paid", 1),
        ("ask", "order/ship", 2),
        ("child", "kid", 3),
        ("pool", "mail", waits),
    ]
    nap, paid, question, kid, _ = view.awaiting
    assert (nap.due_at, paid.due_at) == (now + timedelta(hours=1), now + timedelta(seconds=60))
    assert (question.who, question.approval_id, question.since) == (({"group": "finance"},), "q1", now)
    assert kid.child_run == child.public_id
    assert [(step.name, step.progress) for step in view.running] == [("post", Progress(0.5, "half"))]
    states = {step.name: step.state for step in (await db.steps(run)).values()}
    assert states == {
        "nap": "open", "paid": "open", "order/ship": "open", "kid": "open", "send": "open", "post": "running",
        "later": "delayed",
    }  # fmt: skip


async def test_the_version_of_a_run_only_grows(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    seen = [(await db.view(run)).version_no]
    await db.wait_for(run, "paid")
    await db.do(events.send, run.public_id, "paid", "1")
    seen.append((await db.view(run)).version_no)
    await db.do(control.pause, run.public_id)
    seen.append((await db.view(run)).version_no)
    await _finish(db, run)
    seen.append((await db.view(run)).version_no)
    assert seen == sorted(set(seen))


async def test_attempts_and_back_off_are_shown(db: Database) -> None:
    now = db.clock.now()
    run = await db.start()
    await db.activate(run, activity="sleeping")
    next_at = now + timedelta(seconds=30)
    no = await db.ask(run, "action", "label", started=True, attempts=1, due_at=next_at)
    lost = await db.ask(run, "action", "lost", started=True, lost=1)

    def fill(tx: Tx) -> None:
        row = {"run_id": run.run_id, "step_no": no, "number": 1, "started_at": now, "ended_at": now}
        error = json.dumps(ErrorInfo("IOError", "no paper").to_json())
        tx.conn.execute(sa.insert(Attempt.__table__).values(**row, error=error, next_at=next_at))

    await db.store.write(fill)
    steps = await db.steps(run)
    assert (steps[no].state, steps[no].due_at, steps[no].attempts) == ("backoff", next_at, 1)
    (attempt,) = steps[no].attempt_rows
    assert (attempt.number, attempt.error.message, attempt.next_at) == (1, "no paper", next_at)
    assert (steps[lost].state, steps[lost].lost, steps[lost].attempt_rows) == ("open", 1, ())


async def test_results_and_errors_of_steps_and_runs(db: Database) -> None:
    large = json.dumps("x" * 10_000)
    run = await db.start(args=large)
    await db.activate(run)
    good = await db.ask(run, "action", "a", args=large)
    await db.end_step(run, good, value=large)
    bad = await db.ask(run, "action", "b")
    await db.end_step(run, bad, OutcomeKind.FAILURE)
    steps = await db.steps(run)
    assert (steps[good].args, steps[good].result, steps[good].error) == (large, large, None)
    assert steps[bad].result is None
    assert steps[bad].error == ErrorInfo("ValueError", "no good")
    await _finish(db, run, value=large)
    view = await db.view(run)
    assert (view.status, view.args, view.result, view.awaiting, view.running) == ("completed", large, large, (), ())
    failed = await db.start()
    await _finish(db, failed, ResultKind.FAILED)
    shown = await db.view(failed)
    assert (shown.status, shown.result, shown.error) == ("failed", None, ErrorInfo("ValueError", "no good"))
    blocked = await db.start()
    await db.activate(blocked, blocked_reason='{"code": "mismatch"}')
    assert (await db.view(blocked)).blocked == {"code": "mismatch"}


async def test_sensitive_values_are_shown_to_nobody(db: Database) -> None:
    hidden = '"[redacted]"'
    run = await db.start(args='"secret"', options={"sensitive": True})
    await db.activate(run)
    no = await db.ask(run, "action", "a", args='"secret"', options={"sensitive": True})
    open_no = await db.ask(run, "action", "b", args='"secret"', options={"sensitive": True}, started=True)
    await db.end_step(run, no, value='"secret"')
    await db.do(events.send, run.public_id, "paid", '"secret"', sensitive=True)
    await _finish(db, run, value='"secret"')
    view, steps = await db.view(run), await db.steps(run)
    (event,) = await db.store.read(views.events_view, TENANT, run.public_id)
    assert (view.args, view.result, event.value) == (hidden, hidden, hidden)
    assert (steps[no].args, steps[no].result, steps[open_no].args) == (hidden, hidden, hidden)
    assert "secret" not in repr((view, steps, event))


@pytest.mark.parametrize("run", ["nothing", "foreign", "no\0thing"])
async def test_unknown_and_foreign_runs_look_the_same(db: Database, run: str) -> None:
    started = await db.store.write(starting.start, OTHER_TENANT, StartSpec(workflow="order"))
    public_id = started.public_id if run == "foreign" else run
    for view in (views.run_view, views.steps_view, views.events_view, views.logs_view, views.rounds_view):
        with pytest.raises(NotFound) as caught:
            await db.store.read(view, TENANT, public_id)
        assert str(caught.value) == f"there is no run {public_id!r}"
    with pytest.raises(NotFound):
        await db.store.write(events.send, TENANT, public_id, "paid", "1")
    # the engine itself sees all
    assert (await db.store.read(views.run_view, Scope.system, started.public_id)).id == started.public_id


async def test_logs_go_on_after_the_last_line_seen(db: Database) -> None:
    run, other = await db.start(), await db.start()

    def fill(tx: Tx) -> None:
        rows = [
            {"run_id": item.run_id, "at": tx.now, "level": "info", "message": f"{n}", "data": '{"n": 1}'}
            for n in range(5)
            for item in (run, other)
        ]
        tx.conn.execute(sa.insert(LogLine.__table__), rows)

    await db.store.write(fill)
    first = await db.store.read(lambda tx: views.logs_view(tx, TENANT, run.public_id, limit=2))
    rest = await db.store.read(lambda tx: views.logs_view(tx, TENANT, run.public_id, after=first[-1].id))
    assert [line.message for line in (*first, *rest)] == ["0", "1", "2", "3", "4"]
    assert first[0].data == {"n": 1}


async def test_steps_come_in_pieces(db: Database) -> None:
    run = await db.start()
    await db.activate(run)
    for n in range(5):
        await db.ask(run, "action", f"s{n}", attempts=1)
    first = await db.store.read(lambda tx: views.steps_view(tx, TENANT, run.public_id, limit=2))
    rest = await db.store.read(lambda tx: views.steps_view(tx, TENANT, run.public_id, after=first[-1].no))
    assert [step.no for step in (*first, *rest)] == [0, 1, 2, 3, 4]


async def test_a_view_costs_the_same_however_much_it_shows(db: Database) -> None:
    large = json.dumps("x" * 10_000)
    few, many = await db.start(args=large), await db.start(args=large)
    for run, count in ((few, 1), (many, 20)):
        await db.activate(run, activity="running")
        for _ in range(count):
            no = await db.ask(run, "action", "a", args=large, attempts=1, options={"pool": "mail"})
            await db.end_step(run, no, value=large)
            await db.ask(run, "action", "a", args=large, options={"pool": "mail"})
            await db.ask(run, "ask", "q")
            await db.ask(run, "child", "c")
            await db.do(events.send, run.public_id, "paid", large)
    for view in (views.run_view, views.steps_view, views.events_view):
        cost, _ = await _counted(db, view, few.public_id)
        assert (await _counted(db, view, many.public_id))[0] == cost <= 6, view
    await db.do(starting.start_many, [StartSpec(workflow="order", parent_id=few.run_id)] * 30)
    assert (await _counted(db, views.page, RunFilter()))[0] == 1


async def test_lists_are_paged_and_newest_first(db: Database) -> None:
    await db.store.write(
        lambda tx: tx.conn.execute(sa.insert(Tenant.__table__).values(id=7, name="seven", created_at=tx.now))
    )
    seven = Scope(7)
    ids = []
    for n in range(7):
        ids.append(
            (await db.store.write(starting.start, seven, StartSpec(workflow="order", labels={"n": str(n)}))).public_id
        )
        await db.start()
    found, after = [], None
    while True:
        page = await db.store.read(views.page, seven, RunFilter(), after, 3)
        found += page.items
        if page.next is None:
            break
        after = page.next
    assert [run.id for run in found] == ids[::-1]
    assert {run.tenant for run in found} == {"seven"}
    assert found[0].labels == {"n": "6"}
    with pytest.raises(InvalidInput):
        await db.store.read(views.page, seven, RunFilter(), "x", 3)


async def test_lists_are_filtered(db: Database) -> None:
    await db.define("refund", 1)
    await db.define("refund", 2)
    begin = db.clock.now()
    done = await db.start(labels={"team": "a", "kind": "x"}, run_id="mine_1")
    await _finish(db, done)
    db.clock.advance(timedelta(hours=1))
    waiting = await db.start(labels={"team": "a"})
    await db.activate(waiting)
    old = await db.start("refund", version=1)
    new = await db.start("refund", labels={"team": "b"})
    child = await db.do(starting.start, StartSpec(workflow="order", parent_id=new.run_id, parent_no=0))
    await db.store.write(starting.start, OTHER_TENANT, StartSpec(workflow="order", labels={"team": "a"}))

    async def found(**given: Any) -> list[Started]:
        page = await db.store.read(views.page, TENANT, RunFilter(**given))
        known = {run.public_id: run for run in (done, waiting, old, new, child)}
        return [known[item.id] for item in page.items]

    assert await found() == [child, new, old, waiting, done]
    assert await found(status=[Status.COMPLETED]) == [done]
    assert await found(status=["waiting", "queued"]) == [child, new, old, waiting]
    assert await found(status=["waiting", "completed"]) == [waiting, done]
    assert await found(workflow="refund") == [new, old]
    assert await found(workflow="refund", version=1) == [old]
    assert await found(workflow="nothing") == []
    assert await found(labels={"team": "a"}) == [waiting, done]
    assert await found(labels={"team": "a", "kind": "x"}) == [done]
    assert await found(created_after=begin + timedelta(minutes=1)) == [child, new, old, waiting]
    assert await found(created_before=begin + timedelta(minutes=1)) == [done]
    assert await found(parent=new.public_id) == [child]
    assert await found(text="mine_") == [done]
    assert await found(text="mine%") == []
    assert await found(text="FUND") == [new, old]
    for odd in (
        {"text": "\0"},
        {"workflow": "re\0fund"},
        {"parent": "\0"},
        {"labels": {"\0": "a"}},
        {"labels": {"team": "\0"}},
    ):
        assert await found(**odd) == []
    for nowhere in ("x", "-1", "9" * 30, "9" * 5000):
        with pytest.raises(InvalidInput):
            await db.store.read(views.page, TENANT, RunFilter(), nowhere)


async def test_a_completion_that_did_not_succeed_is_shown(db: Database) -> None:
    run = await db.start(on_complete={"name": "tell", "context": None})
    await _finish(db, run)

    def fail(tx: Tx) -> None:
        table = Completion.__table__
        error = json.dumps(ErrorInfo("IOError", "no line").to_json())
        tx.conn.execute(sa.update(table).values(attempts=2, error=error, next_at=tx.now))

    await db.store.write(fail)
    completion = (await db.view(run)).completion
    assert completion is not None
    assert (completion.done, completion.attempts) == (False, 2)
    assert completion.error is not None
    assert completion.error["message"] == "no line"
    assert (await db.view(run)).status == "completed"


async def test_lists_of_open_runs_do_not_look_at_those_that_are_over(sqlite_url: str) -> None:
    """On SQLite, whose planner is the one that needs help: the partial index of open runs serves the list."""
    async with await Store.open(sqlite_url) as store:
        select = (
            sa.select(R.c.id)
            .where(R.c.tenant_id == 1, *conditions(TENANT, RunFilter(status=[Status.WAITING, Status.QUEUED])))
            .order_by(R.c.id.desc())
            .limit(50)
        )

        def plan(tx: Tx) -> str:
            text = select.compile(tx.conn, compile_kwargs={"render_postcompile": True})
            parameters = [text.params[name] for name in text.positiontup or ()]
            return " ".join(str(row) for row in tx.execute_raw(f"EXPLAIN QUERY PLAN {text}", parameters))

        assert "ix_signoff_run_open" in await store.read(plan)
