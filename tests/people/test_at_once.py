"""Several who make the same at once: one makes it, and the others read what is there already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from signoff.people.groups import add_to_group, list_groups, make_group
from signoff.people.tenants import add_tenant
from signoff.people.tokens import create_token
from signoff.people.users import add_user
from signoff.workflow.errors import Conflict
from tests.people.world import World

AT_ONCE = 6


async def told(here: World, use_case: Callable[..., Any], *args: Any, **options: Any) -> list[type[Any]]:
    writes = (here.store.write(use_case, here.embedded, *args, **options) for _ in range(AT_ONCE))
    found = await asyncio.gather(*writes, return_exceptions=True)
    return sorted((type(one) for one in found if isinstance(one, BaseException)), key=str)


@pytest.mark.parametrize(
    ("use_case", "name", "options"),
    [(add_user, "new@example.org", {}), (make_group, "legal", {}), (create_token, "ci", {"role": "viewer"}),
     (add_tenant, "wholesale", {})],
)  # fmt: skip
async def test_of_several_who_make_the_same_one_makes_it(
    here: World, use_case: Callable[..., Any], name: str, options: dict[str, Any]
) -> None:
    assert await told(here, use_case, name, **options) == [Conflict] * (AT_ONCE - 1)


async def test_a_member_is_added_by_several_at_once(here: World) -> None:
    await here.add("ana@example.org")
    assert await told(here, add_to_group, "legal", "ana@example.org") == [], "the group is made by the first"
    (group,) = await here.store.read(list_groups, here.embedded)
    assert (group.name, group.members) == ("legal", ("ana@example.org",))
