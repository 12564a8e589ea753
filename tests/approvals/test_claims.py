"""Claims, and the thread that tells of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.approvals import claims, thread
from signoff.approvals.doors import through
from signoff.approvals.questions import A
from signoff.people import tokens
from signoff.people.audit import A as AUDIT
from signoff.people.groups import remove_from_group
from signoff.people.users import remove_user, set_active, set_role
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import InvalidInput, NotFound, Refused
from tests.people.world import Asked, World, token_scope

FINANCE = [{"group": "finance"}]


async def claim(here: World, scope: Scope, asked: Asked, **options: Any) -> None:
    await through(here.store, "approval.claim", claims.claim, scope, asked.approval, via="page", **options)


async def release(here: World, scope: Scope, asked: Asked) -> None:
    await through(here.store, "approval.release", claims.release, scope, asked.approval, via="page")


async def claimed_by(here: World, asked: Asked) -> str | None:
    query = sa.select(A.c.claimed_by).where(A.c.public_id == asked.approval)
    return await here.store.read(lambda tx: tx.conn.execute(query).scalar_one())


async def told(here: World, scope: Scope, asked: Asked) -> list[tuple[str, str | None]]:
    found = await here.store.read(thread.notes, scope, asked.approval)
    return [(item.kind, item.actor) for item in found]


async def refusals(here: World) -> list[tuple[str, str]]:
    def read(tx: Tx) -> list[tuple[str, str]]:
        query = sa.select(AUDIT.c.action, AUDIT.c.reason).where(AUDIT.c.allowed.is_(False)).order_by(AUDIT.c.id)
        return [(row.action, row.reason) for row in tx.conn.execute(query)]

    return await here.store.read(read)


async def test_of_two_who_claim_at_once_one_has_it_and_the_other_hears_who(here: World) -> None:
    ana, bob = (
        await here.add("ana@example.org", "approver", "finance"),
        await here.add("bob@example.org", "admin", "finance"),
    )
    asked = await here.ask(to=FINANCE)
    results = await asyncio.gather(claim(here, ana, asked), claim(here, bob, asked), return_exceptions=True)
    (lost,) = [error for error in results if error is not None]
    assert isinstance(lost, Refused)
    winner = await claimed_by(here, asked)
    assert (lost.reason, lost.context["by"]) == ("claim", winner)
    assert winner in str(lost)
    assert await told(here, ana, asked) == [("claim", winner)]
    assert await refusals(here) == [("approval.claim", "claim")]


async def test_claiming_twice_is_once_and_releasing_gives_it_to_the_next(here: World) -> None:
    ana, bob = await here.add("ana@example.org"), await here.add("bob@example.org")
    asked = await here.ask()
    await claim(here, ana, asked)
    await claim(here, ana, asked)
    with pytest.raises(Refused) as caught:
        await release(here, bob, asked)
    assert caught.value.reason == "claim"
    await release(here, ana, asked)
    await release(here, ana, asked)
    await claim(here, bob, asked)
    assert await told(here, ana, asked) == [
        ("claim", "ana@example.org"),
        ("release", "ana@example.org"),
        ("claim", "bob@example.org"),
    ]


@pytest.mark.parametrize("loss", ["group", "role", "account", "left"])
async def test_a_claim_ends_with_the_right_to_answer(here: World, loss: str) -> None:
    ana = await here.add("ana@example.org", "approver", "finance")
    bob = await here.add("bob@example.org", "approver", "finance")
    asked = await here.ask(to=FINANCE)
    await claim(here, ana, asked)
    if loss == "group":
        await here.store.write(remove_from_group, here.embedded, "finance", "ana@example.org")
    elif loss == "role":
        await here.store.write(set_role, here.embedded, "ana@example.org", "viewer")
    elif loss == "account":
        await here.store.write(set_active, here.embedded, "ana@example.org", False)
    else:
        await here.store.write(remove_user, here.embedded, "ana@example.org")
    assert await claimed_by(here, asked) is None
    await claim(here, bob, asked)
    assert await claimed_by(here, asked) == "bob@example.org"


async def test_a_claim_of_a_token_ends_when_it_is_revoked_and_does_not_count_when_it_has_expired(here: World) -> None:
    bob, asked = await here.add("bob@example.org"), await here.ask()
    for name, lifetime in (("ci", None), ("short", timedelta(days=1))):
        secret = await here.store.write(
            tokens.create_token, here.embedded, name, role="approver", lifetime=lifetime
        )  # fmt: skip
        program = await here.store.read(tokens.scope_for_token, secret)
        assert program is not None
        await claim(here, program, asked)
        with pytest.raises(Refused):
            await claim(here, bob, asked)
        if lifetime is None:
            await here.store.write(tokens.revoke_token, here.embedded, name)
            assert await claimed_by(here, asked) is None
        else:
            here.clock.advance(lifetime)
    await claim(here, bob, asked)
    assert await claimed_by(here, asked) == "bob@example.org"


async def test_operators_release_and_take_over(here: World) -> None:
    ana, bob = await here.add("ana@example.org"), await here.add("bob@example.org")
    root = await here.add("root@example.org", "operator")
    asked = await here.ask()
    await claim(here, ana, asked)
    with pytest.raises(Refused):
        await claim(here, bob, asked, take_over=True)
    with pytest.raises(Refused):
        await claim(here, root, asked)
    await claim(here, root, asked, take_over=True)
    assert await claimed_by(here, asked) == "root@example.org"
    await release(here, root, asked)
    await claim(here, ana, asked)
    await release(here, root, asked)
    assert await claimed_by(here, asked) is None
    found = await here.store.read(thread.notes, root, asked.approval)
    assert [(item.kind, item.data) for item in found[1:]] == [
        ("claim", {"from": "ana@example.org"}),
        ("release", {}),
        ("claim", {}),
        ("release", {"of": "ana@example.org"}),
    ]


async def test_who_may_not_answer_does_not_claim(here: World) -> None:
    viewer, carl = await here.add("vera@example.org", "viewer"), await here.add("carl@example.org")
    asked = await here.ask(to=FINANCE)
    for scope, reason in ((viewer, "role"), (carl, "not_eligible"), (token_scope(here.tenant_id), "not_eligible")):
        with pytest.raises(Refused) as caught:
            await claim(here, scope, asked)
        assert caught.value.reason == reason
    with pytest.raises(NotFound):
        await claim(here, Scope(here.tenant_id + 1, carl.person), asked)
    assert await refusals(here) == [
        ("approval.claim", "role"),
        ("approval.claim", "not_eligible"),
        ("approval.claim", "not_eligible"),
        ("approval.claim", "wrong_tenant"),
    ]


async def test_a_question_that_says_so_is_not_claimed(here: World) -> None:
    ana, asked = await here.add("ana@example.org"), await here.ask()
    await here.store.write(lambda tx: tx.conn.execute(sa.update(A).values(claim="none")))
    with pytest.raises(Refused) as caught:
        await claim(here, ana, asked)
    assert caught.value.reason == "claim"


async def test_comments_stay_in_order_and_say_something(here: World) -> None:
    ana, vera = await here.add("ana@example.org", name="Ana"), await here.add("vera@example.org", "viewer")
    asked = await here.ask()
    for text in ("  is this the right amount?  ", "yes\x00"):
        await through(here.store, "approval.comment", thread.comment, ana, asked.approval, text, via="api")
    found = await here.store.read(thread.notes, vera, asked.approval)
    assert [(item.text, item.name, item.via) for item in found] == [
        ("is this the right amount?", "Ana", "api"),
        ("yes\ufffd", "Ana", "api"),
    ]
    for text in ("   ", "x" * 10_001):
        with pytest.raises(InvalidInput):
            await here.store.write(thread.comment, ana, asked.approval, text, via="api")
    with pytest.raises(Refused):
        await here.store.write(thread.comment, vera, asked.approval, "me too", via="api")
    with pytest.raises(NotFound):
        await here.store.read(thread.notes, Scope(here.tenant_id + 1), asked.approval)
