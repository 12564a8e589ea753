"""Which questions stand in whose inbox, in what order, and that the badge counts them."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff import n_of
from signoff.approvals.decide import admit, decide_through
from signoff.approvals.inbox import Filters, badge, counts, inbox, tabs_of, watch, workflows
from signoff.approvals.questions import A
from signoff.engine.outcomes import R
from signoff.store.scope import Scope
from signoff.store.tables import Label, StartKey
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput, Refused
from signoff.workflow.registry import Registry
from tests.people.world import Asked, World

FINANCE = [{"group": "finance"}]


async def ids(here: World, scope: Scope, tab: str = "mine", filters: Filters | None = None, q: str = "") -> list[str]:
    return [row.id for row in (await here.store.read(inbox, scope, tab, filters or Filters(), q)).rows]


async def change(here: World, asked: Asked, **values: Any) -> None:
    await here.store.write(lambda tx: tx.conn.execute(sa.update(A).where(A.c.run_id == asked.run_id).values(**values)))


async def answer(here: World, scope: Scope, asked: Asked) -> None:
    await decide_through(
        here.store, scope, asked.approval, {"approved": True}, revision=1, via="page", registry=Registry()
    )


async def test_overdue_stands_before_due_soon_before_the_oldest_and_pages_turn(here: World) -> None:
    ana = await here.add("ana@example.org")
    wanted = []
    hour = 3600.0
    for due, place in ((None, 4), (72 * hour, 5), (2 * hour, 2), (None, 6), (hour / 2, 0), (23 * hour, 3), (hour, 1)):
        wanted.append((place, (await here.ask(due=due)).approval))
        here.clock.advance(timedelta(seconds=1))
    here.clock.advance(timedelta(hours=1))
    order = [approval for _, approval in sorted(wanted)]
    assert await ids(here, ana) == order
    seen, after = [], None
    while True:
        page = await here.store.read(inbox, ana, "mine", Filters(), "", after, 2)
        seen += [row.id for row in page.rows]
        # What becomes due while somebody turns pages moves nothing on them.
        here.clock.advance(timedelta(minutes=20))
        if (after := page.after) is None:
            break
    assert seen == order
    assert (await here.store.read(inbox, ana, "mine", Filters(), "", None, 7)).after is None
    huge = "9" * 40
    wrongs = (
        "x",
        "1-x",
        "1",
        f"1-1-{huge}-1",
        f"1-{huge}-1-1",
        f"1-1-1-{huge}",
        f"{huge}-1-1-1",
        "253402300799000000-1-1-1",
    )
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            await here.store.read(inbox, ana, "mine", Filters(), "", wrong)


async def test_mine_are_those_that_i_may_answer_and_the_badge_counts_them(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    vic = await here.add("vic@example.org", "viewer", "finance")
    omar = await here.add("omar@example.org", "operator")
    await here.add("lea@example.org", "approver", "legal")
    anyone, finance = await here.ask(), await here.ask(to=FINANCE)
    legal, me = await here.ask(to=[{"group": "legal"}]), await here.ask(to=[{"user": "ana@example.org"}])
    assert await ids(here, ana) == [anyone.approval, finance.approval, me.approval]
    everything = (await here.store.read(inbox, omar, "all")).rows
    assert [(row.id, row.mine) for row in everything] == [
        (anyone.approval, True), (finance.approval, False), (legal.approval, False), (me.approval, False)
    ]  # fmt: skip
    assert [await here.store.read(badge, who) for who in (ana, vic, omar)] == [3, 0, 1]
    assert await ids(here, vic) == []


async def test_what_somebody_else_works_on_or_i_must_not_answer_is_not_for_me(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    bob = await here.add("bob@example.org", "approver", "finance")
    claimed, own = await here.ask(to=FINANCE), await here.ask(to=FINANCE)
    await change(here, claimed, claimed_by="bob@example.org")
    await change(here, own, requester="ana@example.org", not_requester=True)
    assert await ids(here, ana) == []
    assert await ids(here, bob) == [claimed.approval, own.approval]
    assert await ids(here, ana, "groups") == [claimed.approval, own.approval]
    assert await ids(here, ana, "requested") == [own.approval]
    row = (await here.store.read(inbox, ana, "groups")).rows[0]
    assert (row.claimed_by, row.mine) == ("bob@example.org", False)
    for who in (ana, bob):
        for tab, number in (await here.store.read(counts, who)).items():
            assert number == len(await ids(here, who, tab)), tab
        assert await here.store.read(badge, who) == len(await ids(here, who))


async def test_the_inbox_and_the_gate_agree_about_everybody(here: World) -> None:
    """However many questions are put alike, under four eyes each has its own requester."""
    people = [await here.add(f"{name}@example.org", "approver", "finance") for name in ("ana", "bob", "cho")]
    people += [await here.add("eva@example.org", "approver", "legal"), await here.add("olga@example.org", "operator")]
    given: list[dict[str, str]] = [{"user": "eva@example.org"}]
    handed_on = {"kind": "delegate", "from": {"user": "ana@example.org"}, "to": given, "by": "ana@example.org"}
    two = n_of(2).to_json()
    for requester in ("ana@example.org", "Ana@Example.org", "eva@example.org", "rita@elsewhere.example", None):
        for changes in (None, json.dumps([handed_on])):
            for question in ({}, {"rule": two}, {"exclude": [{"user": "cho@example.org"}]}):
                asked = await here.ask(to=FINANCE, not_requester=True, **question)
                await change(here, asked, requester=requester, changes=changes)
                if question.get("rule") and requester is None:
                    await answer(here, people[1], asked)

    def may(tx: Tx, scope: Scope) -> list[str]:
        found = []
        for row in tx.conn.execute(sa.select(A).order_by(A.c.id)).all():
            with suppress(Refused):
                admit(tx, scope, tx.conn.execute(sa.select(R).where(R.c.id == row.run_id)).one(), row)
                found.append(row.public_id)
        return found

    for who in people:
        mine = await here.store.read(may, who)
        assert await ids(here, who) == mine
        assert await here.store.read(badge, who) == len(mine)
        for tab in ("groups", "requested"):
            rows = (await here.store.read(inbox, who, tab)).rows
            assert [row.id for row in rows if row.mine] == [row.id for row in rows if row.id in mine]


async def test_decided_are_my_own_answers_the_latest_first(here: World) -> None:
    ana, bob = await here.add("ana@example.org", name="Ana"), await here.add("bob@example.org")
    asked = [await here.ask() for _ in range(3)]
    await answer(here, ana, asked[0])
    here.clock.advance(timedelta(seconds=1))
    await answer(here, bob, asked[1])
    here.clock.advance(timedelta(seconds=1))
    await answer(here, ana, asked[2])
    assert await ids(here, ana, "decided") == [asked[2].approval, asked[0].approval]
    page = await here.store.read(inbox, ana, "decided", Filters(), "", None, 1)
    rest = await here.store.read(inbox, ana, "decided", Filters(), "", page.after, 1)
    assert [row.id for row in rest.rows] == [asked[0].approval]
    assert (rest.rows[0].state, rest.rows[0].decided_name) == ("decided", "Ana")


@pytest.mark.parametrize(("role", "more"), [("viewer", []), ("approver", []), ("operator", ["all", "stuck"])])
async def test_each_role_has_its_tabs(here: World, role: str, more: list[str]) -> None:
    who = await here.add("who@example.org", role)
    assert tabs_of(who) == ["mine", "groups", "requested", "decided", *more]
    assert set(await here.store.read(counts, who)) == set(tabs_of(who)) - {"decided"}
    for tab in {"all", "stuck"} - set(more):
        with pytest.raises(Refused, match="operators"):
            await here.store.read(inbox, who, tab)
    with pytest.raises(InvalidInput):
        await here.store.read(inbox, who, "nonsense")


async def test_what_nobody_can_answer_stands_on_top_for_operators(here: World) -> None:
    omar = await here.add("omar@example.org", "operator")
    first, stuck = await here.ask(due=60.0), await here.ask(to=FINANCE)
    await change(here, stuck, stuck="nobody")
    assert await ids(here, omar, "all") == [stuck.approval, first.approval]
    assert await ids(here, omar, "stuck") == [stuck.approval]


async def test_filters_and_search_narrow_a_tab(here: World) -> None:
    ana = await here.add("ana@example.org")
    late, soon = await here.ask(due=60.0), await here.ask(due=7200.0)
    plain = await here.ask(title="50% off für Straße_1?")
    here.clock.advance(timedelta(minutes=2))
    await change(here, plain, requester="carl@example.org", claimed_by="ana@example.org")
    (workflow,) = [row.workflow for row in (await here.store.read(inbox, ana)).rows if row.id == late.approval]
    for filters, found in (
        (Filters(due="overdue"), [late]), (Filters(due="soon"), [late, soon]), (Filters(workflow=workflow), [late]),
        (Filters(requester="carl@example.org"), [plain]), (Filters(claim="me"), [plain]),
        (Filters(claim="free"), [late, soon]), (Filters(due="overdue", claim="me"), []),
    ):  # fmt: skip
        assert await ids(here, ana, filters=filters) == [item.approval for item in found], filters
    key = StartKey(tenant_id=here.tenant_id, key="Invoice-77", run_id=soon.run_id, digest="x").model_dump()
    label = Label(run_id=plain.run_id, key="key", value="order 9").model_dump()
    await here.store.write(lambda tx: tx.conn.execute(sa.insert(StartKey), key))
    await here.store.write(lambda tx: tx.conn.execute(sa.insert(Label), label))
    for q, found in (
        ("STRAßE_1", [plain]), ("50% off", [plain]), ("%", [plain]), ("invoice", [soon]), ("carl", [plain]),
        (plain.run[:12], [plain]), ("order 7?", [late, soon]), ("order carl", [plain]), ("nowhere", []),
    ):  # fmt: skip
        assert await ids(here, ana, q=q) == [item.approval for item in found], q
    keys = {row.id: row.business_key for row in (await here.store.read(inbox, ana)).rows}
    assert keys == {late.approval: None, soon.approval: "Invoice-77", plain.approval: "order 9"}
    assert len(await here.store.read(workflows, ana, "mine")) == 3


async def test_what_is_over_is_shown_when_asked_for(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    rita = await here.add("rita@example.org", "viewer")
    answered, expired, waits = [await here.ask(to=FINANCE, timeout=timeout) for timeout in (None, 60.0, None)]
    await answer(here, ana, answered)
    here.clock.advance(timedelta(minutes=2))
    over = Filters(state="over")
    rows = (await here.store.read(inbox, rita, "requested", over)).rows
    assert [(row.id, row.state) for row in rows] == [(expired.approval, "expired"), (answered.approval, "decided")]
    assert await ids(here, rita, "requested") == [waits.approval]
    assert set(await ids(here, ana, "groups", over)) == {answered.approval, expired.approval}


async def test_a_list_that_is_looked_at_keeps_its_rows_and_counts_what_is_new(here: World) -> None:
    ana = await here.add("ana@example.org")
    first, second = await here.ask(), await here.ask()
    page = await here.store.read(inbox, ana)
    seen = [row.id for row in page.rows]
    await answer(here, ana, first)
    await here.ask(due=1.0)
    rows, fresh = await here.store.read(watch, ana, "mine", Filters(), "", seen, page.newest)
    assert [(row.id, row.state, row.mine) for row in rows] == [
        (first.approval, "decided", False), (second.approval, "open", True)
    ]  # fmt: skip
    assert fresh == 1
    # Below a full page there are others, which are not new.
    page = await here.store.read(inbox, ana, "mine", Filters(), "", None, 1)
    seen = [row.id for row in page.rows]
    assert (await here.store.read(watch, ana, "mine", Filters(), "", seen, page.newest))[1] == 0
    await here.ask()
    assert (await here.store.read(watch, ana, "mine", Filters(), "", seen, page.newest))[1] == 1


async def test_what_no_text_can_hold_is_found_nowhere(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    for odd in ("\x00", "a\x00b", "\ud800"):
        for filters, q in ((Filters(), odd), (Filters(workflow=odd), ""), (Filters(requester=odd), "")):
            assert await ids(here, ana, "mine", filters, q) == []
        rows, fresh = await here.store.read(watch, ana, "mine", Filters(), "", [odd, asked.approval], 0)
        assert ([row.id for row in rows], fresh) == ([asked.approval], 0)
