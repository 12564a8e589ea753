from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from signoff.people.identities import Arrival, I, admit
from signoff.people.sign_in import Visitor, visitor
from signoff.people.users import U
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused
from tests.people.world import World

NIA = Arrival(
    provider="example", issuer="https://id.example.org", subject="s-1", email="Nia@example.org", email_verified=True,
    name="Nia", role="approver", role_follows=True, groups=frozenset({"finance"}), managed=frozenset({"finance"}),
    trusted=False,
)  # fmt: skip


async def enter(here: World, arrival: Arrival = NIA) -> Visitor:
    return await here.store.write(admit, here.tenant_id, arrival, address="192.0.2.1", agent="test", old=None)


async def count(here: World, table: sa.Table) -> int:
    def counted(tx: Tx) -> int:
        return int(tx.conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())

    return await here.store.read(counted)


async def test_several_first_sign_ins_at_once_make_one_account(here: World) -> None:
    entered = await asyncio.gather(*(enter(here) for _ in range(5)))
    assert len({one.scope.person.user_id for one in entered if one.scope.person}) == 1
    assert (await count(here, U), await count(here, I)) == (1, 1)
    found = await visitor(here.store, entered[0].secret or "")
    assert found is not None
    assert found.scope.person is not None
    assert (found.scope.person.email, found.scope.person.groups) == ("nia@example.org", {"finance"})
    assert (found.session.provider, found.session.address) == ("example", "192.0.2.1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"email": None}, "no_email"),
        ({"email": "no address"}, "no_email"),
        ({"email_verified": False}, "email_unverified"),
        ({"email_verified": None}, "email_unverified"),
        ({"email_verified": False, "trusted": True}, "email_unverified"),
        ({"role": None}, "no_role"),
    ],
    ids=str,
)
async def test_a_refused_arrival_leaves_nothing(here: World, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as caught:
        await enter(here, replace(NIA, **changes))
    assert caught.value.reason == reason
    assert (await count(here, U), await count(here, I)) == (0, 0)


async def test_a_trusted_provider_may_say_nothing_of_whether_it_verified(here: World) -> None:
    await enter(here, replace(NIA, trusted=True, email_verified=None))
    assert await count(here, U) == 1


@pytest.mark.parametrize("said", [{"trusted": False}, {"email_verified": None, "trusted": True}], ids=str)
async def test_an_address_alone_takes_no_account_over(here: World, said: dict[str, Any]) -> None:
    await here.add("nia@example.org", "admin")
    with pytest.raises(Refused) as caught:
        await enter(here, replace(NIA, **said))
    assert caught.value.reason in ("account_exists", "email_unverified")
    assert await count(here, I) == 0


async def test_two_subjects_with_one_address_are_not_one_person(here: World) -> None:
    trusted = replace(NIA, trusted=True)
    await enter(here, trusted)
    with pytest.raises(Refused) as caught:
        await enter(here, replace(trusted, subject="s-2"))
    assert caught.value.reason == "account_exists"


async def test_subjects_of_two_issuers_are_two_people(here: World) -> None:
    one = await enter(here)
    other = await enter(here, replace(NIA, issuer="https://other.example.org", email="other@example.org"))
    assert one.scope.person != other.scope.person


async def test_whoever_loses_their_role_there_stays_out_here(here: World) -> None:
    await enter(here)
    with pytest.raises(Refused) as caught:
        await enter(here, replace(NIA, role=None))
    assert caught.value.reason == "no_role"
