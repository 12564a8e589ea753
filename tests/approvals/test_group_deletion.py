"""A group is deleted while questions name it: what is open is marked, what is decided stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals.decide import decide
from signoff.approvals.naming import questions_naming
from signoff.approvals.questions import A
from signoff.people.audit import AuditFilter, audit_page
from signoff.people.chain import LEDGER as L
from signoff.people.groups import add_to_group, delete_group, list_groups
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound, Refused
from signoff.workflow.rules import any_of
from signoff.workflow.selectors import group, user
from tests.people.world import World


def put_to(*those: Any) -> list[dict[str, str]]:
    return [one.to_json() for one in those]


async def test_what_is_open_is_marked_at_once_and_what_is_decided_stays(here: World) -> None:
    admin = await here.add("root@example.org", "admin")
    ana = await here.add("ana@example.org", "approver", "finance")
    decided = await here.ask(to=put_to(group("finance")), title="decided")
    await here.store.write(decide, ana, decided.approval, {"approved": True}, revision=1, via="page")
    only = await here.ask(to=put_to(group("finance")), title="only theirs")
    shared = await here.ask(to=put_to(group("finance"), user("root@example.org")), title="shared")
    ruled = await here.ask(rule=any_of(group("finance")).to_json(), title="by rule")
    without = await here.ask(to=put_to(group("Finance")), exclude=put_to(group("finance")), title="without them")
    frozen = await here.ask(to=put_to(group("finance")), members="as_asked", title="as asked")
    await here.ask(to=put_to(user("root@example.org")), title="not concerned")

    named = await here.store.read(questions_naming, admin, "finance")
    assert (named.asked, named.excluding, named.stuck) == (4, 1, 2)
    assert [title for _, title in named.some] == ["only theirs", "shared", "by rule", "without them", "as asked"]

    ledger = await here.store.read(rows, L)
    assert await here.store.write(delete_group, admin, "finance") == 1
    stuck = {row.public_id: row.stuck for row in await here.store.read(rows, A)}
    marked = {one.approval: stuck[one.approval] for one in (only, ruled, shared, frozen)}
    assert list(marked.values()) == ["nobody", "nobody", None, None]
    assert stuck[without.approval] == "nobody"  # as before: nobody was in Finance
    assert await here.store.read(rows, L) == ledger
    assert [row.to for row in await here.store.read(rows, A) if row.public_id == decided.approval] == [
        '[{"group":"finance"}]'
    ]
    (row,) = await here.store.read(audit_page, admin, AuditFilter(action="group.delete"))
    assert (row.target, row.detail) == ("finance", '{"members":1}')

    # a group of that name stands in its place
    await here.store.write(add_to_group, admin, "finance", "ana@example.org")
    assert not [row for row in await here.store.read(rows, A) if row.public_id == only.approval and row.stuck]


async def test_only_admins_delete_groups_and_only_their_own(here: World) -> None:
    ana = await here.add("ana@example.org", "operator", "finance")
    for use_case in (delete_group, questions_naming):
        with pytest.raises(Refused):
            await here.store.write(use_case, ana, "finance")
    for name in ("nothing", "", "a\x00b"):
        with pytest.raises(NotFound):
            await here.store.write(delete_group, here.embedded, name)
    assert [one.name for one in await here.store.read(list_groups, here.embedded)] == ["finance"]


def rows(tx: Tx, table: Any) -> list[Any]:
    return list(tx.conn.execute(sa.select(table).order_by(table.c.id)))
