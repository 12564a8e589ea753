from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.people.tenants import ensure_tenant
from signoff.people.tokens import T, create_token, list_tokens, revoke_token, scope_for_token
from signoff.people.users import set_active, set_role
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused
from tests.people.world import World


async def test_a_token_acts_as_itself(here: World) -> None:
    secret = await here.store.write(create_token, here.embedded, "ci", role="operator")
    scope = await here.store.read(scope_for_token, secret)
    assert scope is not None
    assert scope.tenant_id == here.tenant_id
    assert scope.person is not None
    assert (scope.person.actor, scope.person.role, scope.person.user_id) == ("token:ci", "operator", None)


async def test_only_the_hash_is_stored(here: World) -> None:
    secret = await here.store.write(create_token, here.embedded, "ci", role="operator")

    def stored(tx: Tx) -> str:
        return str(tx.conn.execute(sa.select(T)).all())

    assert secret not in await here.store.read(stored)
    assert secret.removeprefix("signoff_") not in await here.store.read(stored)


@pytest.mark.parametrize("wrong", ["", "signoff_", "signoff_x", "token:ci", "\x00", "\ud800"])
async def test_other_texts_are_nobody(here: World, wrong: str) -> None:
    await here.store.write(create_token, here.embedded, "ci", role="operator")
    assert await here.store.read(scope_for_token, wrong) is None


async def test_a_token_ends_by_time_and_by_hand(here: World) -> None:
    short = await here.store.write(create_token, here.embedded, "a", role="viewer", lifetime=timedelta(days=1))
    long = await here.store.write(create_token, here.embedded, "b", role="viewer")
    here.clock.advance(timedelta(days=1))
    assert await here.store.read(scope_for_token, short) is None
    assert await here.store.read(scope_for_token, long) is not None
    await here.store.write(revoke_token, here.embedded, "b")
    assert await here.store.read(scope_for_token, long) is None
    with pytest.raises(NotFound):
        await here.store.write(revoke_token, here.embedded, "b")
    # an ended name is free again
    await here.store.write(create_token, here.embedded, "a", role="viewer")
    await here.store.write(create_token, here.embedded, "b", role="viewer")
    assert [token.name for token in await here.store.read(list_tokens, here.embedded)] == ["b", "a", "b", "a"]


async def test_tokens_are_listed_in_parts_with_whom_they_act_for(here: World) -> None:
    await here.add("ana@example.org")
    for name in ("a", "b", "c"):
        await here.store.write(create_token, here.embedded, name, role="viewer", email="ana@example.org")
    await here.store.write(revoke_token, here.embedded, "b")

    async def names(**part: Any) -> list[str]:
        return [token.name for token in await here.store.read(list_tokens, here.embedded, **part)]

    assert (await names(usable=True), await names(usable=False)) == (["c", "a"], ["b"])
    assert (await names(name="a"), await names(name="\0"), await names(limit=1)) == (["a"], [], ["c"])
    newest, *_ = await here.store.read(list_tokens, here.embedded)
    assert newest.email == "ana@example.org"
    assert await names(before=newest.id) == ["b", "a"]


async def test_names_are_clear_and_unique(here: World) -> None:
    await here.store.write(create_token, here.embedded, "ci", role="viewer")
    with pytest.raises(Conflict):
        await here.store.write(create_token, here.embedded, " ci ", role="viewer")
    for bad in ("", "a\nb", "x" * 257):
        with pytest.raises(InvalidInput):
            await here.store.write(create_token, here.embedded, bad, role="viewer")


async def test_a_person_s_token_never_has_more_than_the_person(here: World) -> None:
    await here.add("ana@example.org", "operator", "finance")
    secret = await here.store.write(create_token, here.embedded, "a", role="approver", email="ana@example.org")
    scope = await here.store.read(scope_for_token, secret)
    assert scope is not None
    assert scope.person is not None
    assert (scope.person.actor, scope.person.role) == ("ana@example.org", "approver")
    assert scope.person.groups == {"finance"}
    await here.store.write(set_role, here.embedded, "ana@example.org", "viewer")
    scope = await here.store.read(scope_for_token, secret)
    assert scope is not None
    assert scope.person is not None
    assert scope.person.role == "viewer"
    await here.store.write(set_active, here.embedded, "ana@example.org", False)
    assert await here.store.read(scope_for_token, secret) is None
    with pytest.raises(NotFound):
        await here.store.write(create_token, here.embedded, "b", role="viewer", email="ana@example.org")


async def test_only_admins_handle_tokens_and_only_their_tenant_s(here: World) -> None:
    operator = await here.add("op@example.org", "operator")
    for use_case, *args in ((list_tokens,), (revoke_token, "ci")):
        with pytest.raises(Refused):
            await here.store.write(use_case, operator, *args)  # type: ignore[arg-type]  # several signatures
    with pytest.raises(Refused):
        await here.store.write(create_token, operator, "ci", role="viewer")
    await here.store.write(create_token, here.embedded, "ci", role="viewer")
    other = Scope(await here.store.write(ensure_tenant, "other"))
    assert await here.store.read(list_tokens, other) == []
    with pytest.raises(NotFound):
        await here.store.write(revoke_token, other, "ci")
