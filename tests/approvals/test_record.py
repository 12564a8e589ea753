"""The ledger is what was written, says where it is not, outlives runs, and can be taken along."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff import Engine, Step, ask, workflow
from signoff.approvals import ledger
from signoff.people.audit import AuditFilter, audit, audit_page
from signoff.people.canonical import content_hash
from signoff.people.chain import LEDGER, next_seal, seal_pending
from signoff.people.tenants import ensure_tenant
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused
from tests.people.world import World, world


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


def write(tx: Tx, tenant_id: int, *answers: Any) -> None:
    for answer in answers:
        content = {"ask": "pay", "title": "Pay?", "answer": answer, "comment": answer, "shown": "0" * 64, "revision": 1}
        ledger.append(tx, tenant_id=tenant_id, kind="decision", run="r", approval="ap", content=content,
                      actor="ana@example.org", via="page")  # fmt: skip


async def exported(here: World, form: ledger.Format, scope: Scope | None = None) -> str:
    return "".join([piece async for piece in await ledger.export(here.store, scope or here.embedded, form)])


async def sealed(here: World, *answers: Any) -> list[int]:
    await here.store.write(write, here.tenant_id, *answers)
    await here.store.write(seal_pending)
    ids = sa.select(LEDGER.c.id).where(LEDGER.c.tenant_id == here.tenant_id).order_by(LEDGER.c.seal_no)
    return await here.store.read(lambda tx: list(tx.conn.execute(ids).scalars()))


async def tamper(here: World, *statements: Any) -> None:
    await here.store.write(lambda tx: [tx.conn.execute(statement) for statement in statements] and None)


async def test_a_changed_row_is_named(here: World) -> None:
    ids = await sealed(here, 1, 2, 3)
    await tamper(here, sa.update(LEDGER).where(LEDGER.c.id == ids[1]).values(actor="eve@example.org"))
    found = await here.store.read(ledger.verify, here.embedded)
    assert (found.row, found.sealed, found.problem) == (ids[1], 1, f"row {ids[1]} is not what was written")


async def test_a_deleted_row_is_missed(here: World) -> None:
    ids = await sealed(here, 1, 2, 3)
    await tamper(here, sa.delete(LEDGER).where(LEDGER.c.id == ids[1]))
    found = await here.store.read(ledger.verify, here.embedded)
    assert (found.row, found.holds) == (ids[2], False)
    assert "rows are missing" in (found.problem or "")


async def test_the_last_row_is_missed_too(here: World) -> None:
    ids = await sealed(here, 1, 2)
    await tamper(here, sa.delete(LEDGER).where(LEDGER.c.id == ids[1]))
    found = await here.store.read(ledger.verify, here.embedded)
    assert (found.row, found.sealed, found.holds) == (None, 1, False)


@pytest.mark.parametrize("with_seals", [False, True])
async def test_rows_in_another_order_are_noticed(here: World, with_seals: bool) -> None:
    ids = await sealed(here, 1, 2, 3)
    rows = sa.select(LEDGER.c.id, LEDGER.c.seal_no, LEDGER.c.seal).where(LEDGER.c.id.in_(ids[1:]))
    one, two = await here.store.read(lambda tx: tx.conn.execute(rows.order_by(LEDGER.c.seal_no)).all())

    def move(row: int, no: int, seal: str) -> Any:
        return sa.update(LEDGER).where(LEDGER.c.id == row).values(seal_no=no, **({"seal": seal} if with_seals else {}))

    await tamper(here, move(one.id, 99, "x"), move(two.id, one.seal_no, one.seal), move(one.id, two.seal_no, two.seal))
    found = await here.store.read(ledger.verify, here.embedded)
    assert (found.row, found.sealed, found.problem) == (
        ids[2], 1, f"the seal of row {ids[2]} does not follow from the row before it"
    )  # fmt: skip


async def test_lines_hold_all_that_is_needed_to_verify_them_elsewhere(here: World) -> None:
    await sealed(here, *range(3))
    await here.store.write(write, await here.store.write(ensure_tenant, "other"), "not ours")
    seal = ""
    rows = [json.loads(line) for line in (await exported(here, "jsonl")).splitlines()]
    assert [row["content"]["answer"] for row in rows] == [0, 1, 2]
    for row in rows:
        text = json.dumps(row["content"], sort_keys=True, separators=(",", ":"))
        at = row["at"].replace("Z", "+00:00")
        hashed = {name: row[name] for name in ("kind", "run", "approval", "actor", "via")}
        assert row["content_hash"] == content_hash({**hashed, "tenant_id": here.tenant_id, "at": at, "content": text})
        seal = next_seal(seal, row["content_hash"])
        assert row["seal"] == seal


async def test_an_export_of_many_rows_comes_in_pieces_and_leaves_none_out(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BATCH", 4)
    await sealed(here, *range(10))
    await here.store.write(write, here.tenant_id, 10, 11)
    pieces = [piece async for piece in await ledger.export(here.store, here.embedded, "jsonl")]
    assert len(pieces) > 2
    assert [json.loads(line)["content"]["answer"] for line in "".join(pieces).splitlines()] == list(range(12))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1+1"])
async def test_a_spreadsheet_computes_nothing_of_what_people_wrote(here: World, text: str) -> None:
    await here.store.write(write, here.tenant_id, text)
    (row,) = csv.DictReader(io.StringIO(await exported(here, "csv"), newline=""))
    assert row["comment"] == row["answer"] == f"'{text}"
    assert not any(cell.lstrip()[:1] in ("=", "+", "-", "@") for cell in row.values())


async def test_a_table_keeps_commas_quotes_and_line_ends(here: World) -> None:
    await here.store.write(write, here.tenant_id, 'a "b", c\nd', {"approved": True})
    first, second = csv.DictReader(io.StringIO(await exported(here, "csv"), newline=""))
    assert first["comment"] == 'a "b", c\nd'
    assert json.loads(second["answer"]) == {"approved": True}
    assert first["title"] == "Pay?"


async def test_only_admins_export_and_it_is_on_record(here: World) -> None:
    operator, admin = await here.add("op@example.org", "operator"), await here.add("root@example.org", "admin")
    with pytest.raises(Refused):
        await ledger.export(here.store, operator, "csv")
    await exported(here, "csv", admin)
    rows = await here.store.read(audit_page, admin, AuditFilter(action="ledger"))
    assert [(row.actor, row.allowed, row.reason) for row in rows] == [
        ("root@example.org", True, None), ("op@example.org", False, "role")
    ]  # fmt: skip


async def test_the_audit_log_is_searched_by_person_action_target_time_and_refusal(here: World) -> None:
    ana = await here.add("ana@example.org", "admin")

    def fill(tx: Tx) -> None:
        audit(tx, ana, "run.cancel", "run_1%")
        audit(tx, ana, "run.pause", "run_2", allowed=False, reason="role")

    before = here.clock.now()
    here.clock.advance(timedelta(minutes=1))
    await here.store.write(fill)

    async def found(**wanted: Any) -> list[str]:
        return [row.action for row in await here.store.read(audit_page, ana, AuditFilter(**wanted))]

    assert await found(person="ANA@") == ["run.pause", "run.cancel"]
    assert await found(person="nobody") == []
    assert await found(action="run.c") == ["run.cancel"]
    assert await found(target="1%") == ["run.cancel"]
    assert await found(target="%") == ["run.cancel"]
    assert await found(refused_only=True) == ["run.pause"]
    assert await found(since=here.clock.now()) == ["run.pause", "run.cancel"]
    assert await found(until=here.clock.now()) == ["user.add"]
    assert await found(since=before, until=before) == []


pay = ask("record/pay", bool)


@workflow("record/pay")
async def pay_workflow(step: Step) -> bool:
    return await step.ask(pay, title="Pay?")


async def test_decisions_stay_when_runs_are_cleaned_up(database_url: str) -> None:
    async with Engine(database_url, workflows=[pay_workflow]) as engine:
        run = await engine.start(pay_workflow)
        await run.decide(pay, True, by="ana@example.org")
        assert await run.result(timeout=20) is True
        await run.cleanup()
        await engine.store.write(seal_pending)
        assert (await engine.store.read(ledger.verify, engine.scope())).holds
        lines = "".join([piece async for piece in await ledger.export(engine.store, engine.scope(), "jsonl")])
        (row,) = [json.loads(line) for line in lines.splitlines()]
        assert (row["run"], row["actor"], row["content"]["answer"]) == (run.id, "ana@example.org", True)
