from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals.questions import A, question_hash
from signoff.approvals.sealer import Sealer
from signoff.engine import questions
from signoff.engine.outcomes import lock_run, record_due
from signoff.people.audit import audit
from signoff.people.chain import LEDGER, Verification, has_pending, verify_chain
from signoff.store.store import Notice
from signoff.store.tx import Tx
from tests.people.world import World


def ledger(tx: Tx) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in tx.conn.execute(sa.select(LEDGER)).mappings()]


async def test_closing_is_in_the_ledger_and_happens_once(here: World) -> None:
    asked = await here.ask()
    for _ in range(2):
        await here.store.write(questions.close_questions, asked.run_id, [0], "canceled", here.clock.now())
    (row,) = await here.store.read(ledger)
    assert (row["kind"], row["run"], row["approval"], row["actor"]) == ("closed", asked.run, asked.approval, None)
    assert json.loads(row["content"])["reason"] == "canceled"


async def test_a_due_deadline_expires_the_question_in_the_engine_s_transaction(here: World) -> None:
    asked = await here.ask(timeout=60.0)

    def due(tx: Tx) -> str:
        run = lock_run(tx, asked.run_id)
        assert run is not None
        record_due(tx, run)
        return str(tx.conn.execute(sa.select(A.c.state)).scalar_one())

    assert await here.store.write(due) == "open"
    from datetime import timedelta

    here.clock.advance(timedelta(seconds=60))
    assert await here.store.write(due) == "expired"
    assert [row["kind"] for row in await here.store.read(ledger)] == ["expired"]


async def test_opening_and_closing_are_noticed(here: World) -> None:
    seen: list[Notice] = []
    stop = here.store.subscribe(seen.extend)
    asked = await here.ask()
    await here.store.write(questions.close_questions, asked.run_id, [0], "canceled", here.clock.now())
    await asyncio.sleep(0)
    stop()
    assert [notice.key for notice in seen if notice.kind == "approvals"] == [here.tenant_id] * 2


def test_the_hash_of_a_question_is_that_of_all_that_is_shown() -> None:
    shown: dict[str, Any] = {"ask": "a", "title": "t", "body": "b", "facts": {"x": 1, "y": [1.5]}, "schema": {}}
    same = shown | {"facts": {"y": [1.5], "x": 1}}
    assert question_hash(**shown) == question_hash(**same)
    for key in shown:
        assert question_hash(**(shown | {key: "other"})) != question_hash(**shown)


@pytest.mark.parametrize("server", [1, 3])
async def test_sealers_seal_what_is_written_while_they_run(here: World, server: int) -> None:
    sealers = [Sealer(here.store) for _ in range(server)]
    for sealer in sealers:
        await sealer.start()
    try:
        asked = await here.ask()
        await here.store.write(audit, here.embedded, "test")
        await here.store.write(questions.close_questions, asked.run_id, [0], "canceled", here.clock.now())
        async with asyncio.timeout(30):
            while await here.store.read(has_pending):
                await asyncio.sleep(0.02)
    finally:
        for sealer in sealers:
            await sealer.stop()
    found: Verification = await here.store.read(verify_chain, here.tenant_id, "ledger")
    assert (found.sealed, found.unsealed, found.problem) == (1, 0, None)
