from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals.ledger import append, verify
from signoff.people.audit import A as AUDIT
from signoff.people.audit import audit
from signoff.people.chain import LEDGER, C, seal_pending, verify_chain
from signoff.people.tenants import ensure_tenant
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused
from tests.people.world import World


def write_rows(tx: Tx, tenant_id: int, count: int) -> None:
    for i in range(count):
        audit(tx, Scope(tenant_id), "test", f"row {i}", detail={"i": i})
        append(
            tx, tenant_id=tenant_id, kind="decision", run="r", approval=f"ap_{i}", content={"answer": i}, actor="ana"
        )


def change(tx: Tx, statement: Any) -> int:
    return tx.conn.execute(statement).rowcount


async def test_rows_are_sealed_in_order_and_the_chain_holds(here: World) -> None:
    other = await here.store.write(ensure_tenant, "other")
    await here.store.write(write_rows, here.tenant_id, 5)
    await here.store.write(write_rows, other, 2)
    assert await here.store.write(seal_pending, 3) == 10
    assert await here.store.write(seal_pending) == 4
    await here.store.write(write_rows, here.tenant_id, 1)
    for name in ("ledger", "audit"):
        found = await here.store.read(verify_chain, here.tenant_id, name)
        assert (found.sealed, found.unsealed, found.problem) == (5, 1, None)
        found = await here.store.read(verify_chain, other, name)
        assert (found.sealed, found.unsealed, found.problem) == (2, 0, None)


async def test_an_empty_chain_holds(here: World) -> None:
    assert (await here.store.read(verify_chain, here.tenant_id, "ledger")).holds


@pytest.mark.parametrize("table", [LEDGER, AUDIT], ids=["ledger", "audit"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "unsealed"])
async def test_a_changed_row_is_found(here: World, table: sa.Table, sealed: bool) -> None:
    await here.store.write(write_rows, here.tenant_id, 3)
    if sealed:
        await here.store.write(seal_pending)
    column = "content" if table is LEDGER else "detail"
    row_id = 2
    await here.store.write(change, sa.update(table).where(table.c.id == row_id).values({column: '{"answer":true}'}))
    found = await here.store.read(verify_chain, here.tenant_id, "ledger" if table is LEDGER else "audit")
    assert found.problem == "row 2 is not what was written"


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        (1, "between seals 0 and 2 rows are missing"),
        (2, "between seals 1 and 3 rows are missing"),
        (3, "rows after seal 2 are missing, or the head of the chain was changed"),
    ],
)
async def test_a_removed_row_is_missed_wherever_it_stood(here: World, which: int, problem: str) -> None:
    await here.store.write(write_rows, here.tenant_id, 3)
    await here.store.write(seal_pending)
    await here.store.write(change, sa.delete(LEDGER).where(LEDGER.c.seal_no == which))
    assert (await here.store.read(verify, here.embedded)).problem == problem


async def test_a_row_that_was_changed_with_its_hash_breaks_the_seals(here: World) -> None:
    from signoff.people.chain import CHAINS, row_hash

    await here.store.write(write_rows, here.tenant_id, 3)
    await here.store.write(seal_pending)

    def forge(tx: Tx) -> None:
        row = dict(tx.conn.execute(sa.select(LEDGER).where(LEDGER.c.seal_no == 2)).mappings().one()) | {"actor": "eve"}
        values = {"actor": "eve", "content_hash": row_hash(CHAINS[0], row)}
        tx.conn.execute(sa.update(LEDGER).where(LEDGER.c.seal_no == 2).values(values))

    await here.store.write(forge)
    found = await here.store.read(verify, here.embedded)
    assert found.problem is not None
    assert found.problem.startswith("the seal of row")


async def test_the_tail_is_not_cut_off_unseen_by_moving_the_head_alone(here: World) -> None:
    await here.store.write(write_rows, here.tenant_id, 2)
    await here.store.write(seal_pending)
    await here.store.write(change, sa.update(C).where(C.c.name == "ledger").values(no=1))
    assert not (await here.store.read(verify, here.embedded)).holds


async def test_several_sealers_at_once_make_one_chain(here: World) -> None:
    await here.store.write(write_rows, here.tenant_id, 20)
    await asyncio.gather(*(here.store.write(seal_pending, 7) for _ in range(8)))
    while await here.store.write(seal_pending, 7):
        pass
    found = await here.store.read(verify, here.embedded)
    assert (found.sealed, found.problem) == (20, None)


async def test_only_admins_verify(here: World) -> None:
    with pytest.raises(Refused):
        await here.store.read(verify, await here.add("op@example.org", "operator"))
