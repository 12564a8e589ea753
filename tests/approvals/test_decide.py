from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from signoff.approvals.decide import D, Receipt, decide_embedded_through, decide_through
from signoff.approvals.ledger import verify
from signoff.approvals.questions import A, ApprovalQuestions
from signoff.engine.outcomes import R, S
from signoff.people.audit import A as AUDIT
from signoff.people.chain import LEDGER
from signoff.people.groups import remove_from_group
from signoff.people.tenants import ensure_tenant
from signoff.people.users import set_active, set_role
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.definitions import ask
from signoff.workflow.errors import NotFound, Refused, SignoffError
from signoff.workflow.registry import Registry
from tests.people.world import Asked, World, token_scope

YES = {"approved": True, "note": "good"}
NO_TYPES = Registry()


def rows(tx: Tx, table: sa.Table) -> list[Any]:
    return [dict(row) for row in tx.conn.execute(sa.select(table).order_by(table.c.id)).mappings()]


async def answer(here: World, scope: Scope, asked: Asked, given: Any = YES, **options: Any) -> Receipt:
    options = {"revision": 1, "via": "page", "registry": NO_TYPES} | options
    return await decide_through(here.store, scope, asked.approval, given, **options)


async def refused(here: World, scope: Scope, asked: Asked, given: Any = YES, **options: Any) -> str:
    """The reason, which must stand in the audit log, with nothing else changed."""
    before = await here.store.read(everything)
    with pytest.raises((Refused, NotFound)):
        await answer(here, scope, asked, given, **options)
    assert await here.store.read(everything) == before
    row = (await here.store.read(rows, AUDIT))[-1]
    assert (row["action"], row["target"], row["allowed"]) == ("approval.decide", asked.approval, False)
    assert row["via"] == options.get("via", "page")
    assert row["tenant_id"] == scope.tenant_id
    return str(row["reason"])


def everything(tx: Tx) -> list[Any]:
    tables = (A, D, LEDGER, R)
    return [rows(tx, table) for table in tables] + [
        [dict(row) for row in tx.conn.execute(sa.select(S).order_by(S.c.run_id, S.c.no)).mappings()]
    ]


async def test_an_answer_is_recorded_for_run_ledger_and_approval_at_once(here: World) -> None:
    ana = await here.add("ana@example.org", "approver", "finance", name="Ana")
    asked = await here.ask(to=[{"group": "finance"}])
    receipt = await answer(here, ana, asked, comment="  looked at it  ")

    def stored(tx: Tx) -> tuple[Any, ...]:
        step = tx.conn.execute(sa.select(S).where(S.c.run_id == asked.run_id)).one()
        run = tx.conn.execute(sa.select(R).where(R.c.id == asked.run_id)).one()
        return step, run, rows(tx, A)[0], rows(tx, D), rows(tx, LEDGER)

    step, run, approval, decisions, ledger = await here.store.read(stored)
    assert (step.outcome_no, step.outcome_kind, json.loads(step.value)) == (1, "success", YES)
    assert (run.outcome_no, run.ready) == (1, 0)
    assert (approval["state"], approval["decided_by"], json.loads(approval["answer"])) == (
        "decided",
        "ana@example.org",
        YES,
    )
    assert [(row["person"], row["via"], row["comment"], row["revision"]) for row in decisions] == [
        ("ana@example.org", "page", "looked at it", 1)
    ]
    assert receipt.decision_id == decisions[0]["id"]
    assert receipt.ledger_id == decisions[0]["ledger_id"] == ledger[0]["id"]
    assert (receipt.run, receipt.approval, receipt.person) == (asked.run, asked.approval, "ana@example.org")
    assert receipt.effect == "The run goes on"
    content = json.loads(ledger[0]["content"])
    assert content["shown"] == approval["content_hash"]
    assert (content["answer"], content["comment"]) == (YES, "looked at it")


async def test_an_empty_to_is_every_approver(here: World) -> None:
    bob = await here.add("bob@example.org")
    assert (await answer(here, bob, await here.ask())).person == "bob@example.org"


async def test_users_are_named_in_any_case_and_roles_mean_at_least(here: World) -> None:
    ana, root = await here.add("ana@example.org"), await here.add("root@example.org", "admin")
    named = await here.ask(to=[{"user": "Ana@Example.org"}])
    assert await refused(here, root, named) == "not_eligible"
    await answer(here, ana, named)
    operators = await here.ask(to=[{"role": "operator"}])
    assert await refused(here, ana, operators) == "not_eligible"
    await answer(here, root, operators)


async def test_another_tenants_approval_is_not_found(here: World) -> None:
    asked = await here.ask()
    elsewhere = await here.store.write(ensure_tenant, "elsewhere")
    stranger = Scope(elsewhere, Person("token:x", "x", "admin"))
    assert await refused(here, stranger, asked) == "wrong_tenant"
    unknown = Asked(0, "", "ap_unknown")
    assert await refused(here, stranger, unknown) == "not_found"
    problems = []
    for one in (asked, unknown):
        with pytest.raises(NotFound) as caught:
            await answer(here, stranger, one)
        problems.append(caught.value.to_problem() | {"approval": "", "detail": ""})
    assert problems[0] == problems[1]


async def test_a_viewer_does_not_answer(here: World) -> None:
    vic = await here.add("vic@example.org", "viewer")
    assert await refused(here, vic, await here.ask(to=[{"user": "vic@example.org"}])) == "role"


async def test_rights_count_as_they_are_when_the_answer_comes(here: World) -> None:
    stale = await here.add("ana@example.org", "approver", "finance")
    asked = await here.ask(to=[{"group": "finance"}])
    await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    assert await refused(here, stale, asked) == "not_eligible"
    await here.store.write(set_role, here.embedded, "ana@example.org", "viewer")
    assert await refused(here, stale, asked) == "role"
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    assert await refused(here, stale, asked) == "not_member"


async def test_code_without_a_person_answers_nothing(here: World) -> None:
    assert await refused(here, here.embedded, await here.ask()) == "not_member"


async def test_a_token_answers_what_is_put_to_every_approver_and_no_group_s(here: World) -> None:
    token = token_scope(here.tenant_id)
    assert await refused(here, token, await here.ask(to=[{"group": "finance"}]), via="api") == "not_eligible"
    assert (await answer(here, token, await here.ask(), via="api")).person == "token:ci"


async def test_a_closed_question_says_why(here: World) -> None:
    ana = await here.add("ana@example.org")
    for reason in ("canceled", "retired", "run_over"):
        asked = await here.ask()
        await here.store.write(ApprovalQuestions().close, asked.run_id, [0], reason, here.clock.now())
        assert await refused(here, ana, asked) == "closed"


async def test_a_run_that_is_over_takes_no_answer(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    await change_run(here.store, asked, state="final", result_kind="canceled")
    assert await refused(here, ana, asked) == "closed"


async def test_a_step_that_ended_takes_no_answer_even_while_its_approval_looks_open(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()

    def cancel(tx: Tx) -> None:
        tx.conn.execute(sa.update(S).where(S.c.run_id == asked.run_id).values(outcome_no=1, outcome_kind="canceled"))

    await here.store.write(cancel)
    assert await refused(here, ana, asked) == "closed"


@pytest.mark.parametrize(("asked_after", "reason"), [(0, "closed"), (1, None)])
async def test_of_a_canceling_run_only_what_it_asked_since_is_answered(
    here: World, asked_after: int, reason: str | None
) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    await change_run(here.store, asked, requested="cancel", outcome_no=1)

    def cancel(tx: Tx) -> None:
        tx.conn.execute(sa.update(S).where(S.c.run_id == asked.run_id).values(asked_after=asked_after))
        row = {"run_id": asked.run_id, "no": 1, "kind": "cancel", "name": "cancel", "asked_at": tx.now}
        tx.conn.execute(sa.insert(S).values(**row, outcome_no=1, outcome_kind="canceled", ended_at=tx.now))

    await here.store.write(cancel)
    if reason is None:
        await answer(here, ana, asked)
    else:
        assert await refused(here, ana, asked) == reason


async def test_the_deadline_counts_even_before_anyone_recorded_it(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask(timeout=60.0)
    here.clock.advance(timedelta(seconds=60))
    assert await refused(here, ana, asked) == "deadline"
    await here.store.write(ApprovalQuestions().close, asked.run_id, [0], "expired", here.clock.now())
    assert await refused(here, ana, asked) == "deadline"


async def test_an_answer_just_in_time_counts(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask(timeout=60.0)
    here.clock.advance(timedelta(seconds=59))
    await answer(here, ana, asked)


async def test_a_stale_page_does_not_answer_a_changed_question(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    assert await refused(here, ana, asked, revision=2) == "revision"
    await answer(here, ana, asked, revision=1)


async def test_a_second_answer_is_told_of_the_first(here: World) -> None:
    ana, bob = await here.add("ana@example.org"), await here.add("bob@example.org")
    asked = await here.ask()
    await answer(here, ana, asked)
    assert await refused(here, bob, asked) == "already_decided"
    assert await refused(here, ana, asked) == "already_decided"
    await change_run(here.store, asked, state="final", result_kind="completed")
    with pytest.raises(Refused, match=r"^ana@example.org answered this question at 2026-03-02 09:00 UTC$") as caught:
        await answer(here, bob, asked)
    assert caught.value.to_problem()["status"] == 409


async def test_of_many_at_once_exactly_one_is_told_yes(here: World) -> None:
    people = [await here.add(f"p{i}@example.org") for i in range(8)]
    asked = await here.ask()
    told = await asyncio.gather(
        *(answer(here, person, asked, {"approved": i % 2 == 0}) for i, person in enumerate(people)),
        return_exceptions=True,
    )
    won = [receipt for receipt in told if isinstance(receipt, Receipt)]
    lost = [error.reason for error in told if isinstance(error, Refused)]
    assert len(won) == 1
    assert lost == ["already_decided"] * 7
    stored = await here.store.read(everything)
    assert [row["person"] for row in stored[1]] == [won[0].person]
    assert stored[0][0]["decided_by"] == won[0].person
    assert stored[4][0]["outcome_no"] == 1
    assert len(stored[2]) == 1


async def test_the_form_is_checked_field_by_field_without_the_author_s_code(here: World) -> None:
    ana = await here.add("ana@example.org")
    asked = await here.ask()
    assert await refused(here, ana, asked, {"note": 3}) == "form"
    with pytest.raises(Refused) as caught:
        await answer(here, ana, asked, {"note": 3})
    assert {field.loc for field in caught.value.fields} == {("approved",), ("note",)}
    assert caught.value.to_problem()["status"] == 422


class Ship(BaseModel):
    approved: bool
    carrier: Literal["post", "courier"] = "post"
    parcels: int = Field(default=1, ge=1)


async def test_the_form_is_checked_by_the_author_s_type_where_it_is_known(here: World) -> None:
    registry = Registry()
    ship = ask("order/ship", Ship, registry=registry)
    ana = await here.add("ana@example.org")
    asked = await here.ask(schema=ship.codec.json_schema())
    assert await refused(here, ana, asked, {"carrier": "pigeon", "parcels": 0}, registry=registry) == "form"
    with pytest.raises(Refused) as caught:
        await answer(here, ana, asked, {"carrier": "pigeon", "parcels": 0}, registry=registry)
    assert {field.loc for field in caught.value.fields} == {("approved",), ("carrier",), ("parcels",)}
    await answer(here, ana, asked, {"approved": "yes"}, registry=registry)
    stored = await here.store.read(everything)
    # What the handler decodes is the valid value, defaults and all.
    assert ship.codec.decode(stored[4][0]["value"]) == Ship(approved=True)


async def test_the_journals_own_form_does_not_come_from_outside(here: World) -> None:
    ana = await here.add("ana@example.org")
    assert await refused(here, ana, await here.ask(schema={}), {"$py": {"$decimal": "1"}}) == "form"


async def test_texts_that_a_database_cannot_hold_do_no_harm(here: World) -> None:
    ana = await here.add("ana@example.org", name="A\x00na\ud800")
    asked = await here.ask(title="Ship\x00 \ud800?", body="\x00", facts={"x": "\x00\ud800"})
    odd = Asked(0, "", "ap_\x00\ud800")
    with pytest.raises(NotFound):
        await answer(here, ana, odd)
    with pytest.raises(NotFound):
        await embedded(here, Asked(0, "\x00", ""), "ana@example.org")
    await answer(here, ana, asked, {"approved": True, "note": "\x00\ud800"}, comment="a\x00b\ud800")
    stored = await here.store.read(everything)
    assert json.loads(stored[4][0]["value"])["note"] == "\x00\ud800"
    assert stored[1][0]["comment"] == "a\ufffdb?"
    assert (await here.store.read(verify, here.embedded)).holds


async def test_too_long_a_comment_is_refused(here: World) -> None:
    ana = await here.add("ana@example.org")
    assert await refused(here, ana, await here.ask(), comment="x" * 10_001) == "form"


async def test_answers_of_sensitive_questions_stay_out_of_the_ledger(here: World) -> None:
    ana = await here.add("ana@example.org")
    schema = {
        "type": "object",
        "properties": {"pin": {"type": "string", "format": "password", "writeOnly": True}, "why": {"type": "string"}},
    }
    await answer(here, ana, await here.ask(sensitive=True))
    await answer(here, ana, await here.ask(schema=schema), {"pin": "sesame", "why": "asked"})
    ledger = [json.loads(row["content"])["answer"] for row in await here.store.read(rows, LEDGER)]
    assert ledger == ["[redacted]", {"pin": "[redacted]", "why": "asked"}]


class Login(BaseModel):
    pin: SecretStr = Field(alias="PIN")
    amount: Decimal
    when: date

    model_config = ConfigDict(populate_by_name=True)


@pytest.mark.parametrize("how", ["json", "json by field name", "typed"])
async def test_secrets_reach_the_run_and_nobody_else(here: World, how: str) -> None:
    registry = Registry()
    login = ask("login", Login, registry=registry)
    ana = await here.add("ana@example.org")
    asked = await here.ask(ask="login", schema=login.codec.json_schema())
    value = Login(PIN=SecretStr("sesame"), amount=Decimal("1.50"), when=date(2026, 1, 31))
    if how == "typed":
        await decide_embedded_through(
            here.store, here.embedded, asked.run, "login", value, by="ana@example.org", registry=registry
        )
    else:
        name = "PIN" if how == "json" else "pin"
        given = {name: "sesame", "amount": "1.50", "when": "2026-01-31"}
        await answer(here, ana, asked, given, registry=registry)
    stored = await here.store.read(everything)
    assert login.codec.decode(stored[4][0]["value"]) == value
    record = json.loads(stored[2][0]["content"])
    assert record["answer"] == {"PIN": "[redacted]", "amount": "1.50", "when": "2026-01-31"}
    assert "sesame" not in str(stored[2]) + str(await here.store.read(rows, AUDIT))


async def test_a_value_of_another_type_is_refused_from_code_too(here: World) -> None:
    registry = Registry()
    ask("order/ship", Ship, registry=registry)
    await here.add("ana@example.org")
    asked = await here.ask()
    for wrong in ({"approved": "perhaps"}, object(), date(2026, 1, 31)):
        with pytest.raises(Refused) as caught:
            await decide_embedded_through(
                here.store, here.embedded, asked.run, "order/ship", wrong, by="ana@example.org", registry=registry
            )
        assert caught.value.reason == "form"


async def test_paused_and_blocked_runs_take_answers(here: World) -> None:
    ana = await here.add("ana@example.org")
    paused, blocked = await here.ask(), await here.ask()
    await change_run(here.store, paused, requested="pause")
    await change_run(here.store, blocked, blocked_reason="{}")
    assert "paused" in (await answer(here, ana, paused)).effect
    assert "blocked" in (await answer(here, ana, blocked)).effect


async def embedded(here: World, asked: Asked, by: str, ask_name: str = "order/ship") -> Receipt:
    return await decide_embedded_through(
        here.store, here.embedded, asked.run, ask_name, YES, by=by, registry=NO_TYPES, wait=0
    )


async def test_embedded_code_answers_in_the_name_of_a_member_under_all_rules(here: World) -> None:
    await here.add("ana@example.org", "approver", "finance")
    await here.add("vic@example.org", "viewer")
    asked = await here.ask(to=[{"group": "finance"}])
    with pytest.raises(Refused) as caught:
        await embedded(here, asked, "vic@example.org")
    assert caught.value.reason == "role"
    assert (await embedded(here, asked, "Ana@example.org ")).person == "ana@example.org"
    assert (await here.store.read(rows, D))[0]["via"] == "embedded"


@pytest.mark.parametrize(
    ("to", "taken"),
    [
        ([], True),
        ([{"user": "guest@example.org"}], True),
        ([{"group": "finance"}], False),
        ([{"role": "approver"}], False),
        ([{"user": "ana@example.org"}], False),
    ],
)
async def test_embedded_code_speaks_for_a_stranger_only_where_nobody_else_is_meant(
    here: World, to: list[dict[str, str]], taken: bool
) -> None:
    asked = await here.ask(to=to)
    if taken:
        assert (await embedded(here, asked, "guest@example.org")).person == "guest@example.org"
        return
    with pytest.raises(Refused) as caught:
        await embedded(here, asked, "guest@example.org")
    assert caught.value.reason == "not_member"
    last = (await here.store.read(rows, AUDIT))[-1]
    assert (last["target"], last["reason"]) == (asked.approval, "not_member")
    assert json.loads(last["detail"]) == {"by": "guest@example.org"}


async def test_embedded_code_does_not_revive_a_deactivated_account(here: World) -> None:
    await here.add("ana@example.org")
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    with pytest.raises(Refused) as caught:
        await embedded(here, await here.ask(), "ana@example.org")
    assert caught.value.reason == "not_member"


async def test_embedded_code_names_what_is_not_there(here: World) -> None:
    asked = await here.ask()
    with pytest.raises(NotFound, match="has asked no question 'order/other'"):
        await embedded(here, asked, "ana@example.org", "order/other")


async def test_embedded_code_waits_for_a_question_that_is_coming(here: World) -> None:
    await here.add("ana@example.org")
    asked = await here.ask()
    await change_run(here.store, asked, driven_no=-1)
    hidden = await here.store.write(take_away, asked)
    calls = decide_embedded_through(
        here.store, here.embedded, asked.run, "order/ship", YES, by="ana@example.org", registry=NO_TYPES, wait=60
    )
    waiting = asyncio.create_task(calls)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    await here.store.write(put_back, here.tenant_id, hidden)
    assert (await asyncio.wait_for(waiting, 30)).approval == asked.approval


async def test_embedded_code_does_not_wait_for_what_cannot_come(here: World) -> None:
    await here.add("ana@example.org")
    asked = await here.ask()
    await answer(here, await here.scope("ana@example.org"), asked)
    await change_run(here.store, asked, driven_no=1)
    over = await here.ask()
    await here.store.write(take_away, over)
    await change_run(here.store, over, state="final", result_kind="completed")
    for which, reason in ((asked, "already_decided"), (over, None)):
        with pytest.raises((Refused, NotFound)) as caught:
            async with asyncio.timeout(30):
                await decide_embedded_through(
                    here.store, here.embedded, which.run, "order/ship", YES, by="ana@example.org", wait=60
                )
        assert getattr(caught.value, "reason", None) == reason


def take_away(tx: Tx, asked: Asked) -> dict[str, Any]:
    row = tx.conn.execute(sa.delete(A).where(A.c.run_id == asked.run_id).returning(A)).mappings().one()
    return {str(key): value for key, value in row.items()}


def put_back(tx: Tx, tenant_id: int, approval: dict[str, Any]) -> None:
    tx.conn.execute(sa.insert(A).values(**approval))
    tx.notify("approvals", tenant_id)


async def test_an_answer_can_join_a_transaction_that_is_rolled_back(here: World) -> None:
    from signoff.approvals.decide import decide

    ana = await here.add("ana@example.org")
    asked = await here.ask()

    def twice(tx: Tx) -> None:
        decide(tx, ana, asked.approval, YES, revision=1, via="api", registry=NO_TYPES)
        raise SignoffError("no")

    before = await here.store.read(everything)
    with pytest.raises(SignoffError, match="no"):
        await here.store.write(twice)
    assert await here.store.read(everything) == before


async def change_run(store: Store, asked: Asked, **values: Any) -> None:
    def change(tx: Tx) -> None:
        tx.conn.execute(sa.update(R).where(R.c.id == asked.run_id).values(**values))

    await store.write(change)
