from __future__ import annotations

import typing

import pytest

from signoff.people.permissions import LEAST_ROLE, Action, may, require
from signoff.store.scope import ROLES, Person, Scope
from signoff.workflow.errors import Refused


def test_the_table_knows_every_action_and_only_roles() -> None:
    assert set(LEAST_ROLE) == set(typing.get_args(Action))
    assert set(LEAST_ROLE.values()) <= set(ROLES)


@pytest.mark.parametrize("action", typing.get_args(Action))
@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_what_roles_below_it_may(role: str, action: Action) -> None:
    scope = Scope(1, Person("ana@example.org", "", role))
    allowed = ROLES.index(role) >= ROLES.index(LEAST_ROLE[action])
    assert may(scope, action) is allowed
    if allowed:
        require(scope, action)
        return
    with pytest.raises(Refused) as caught:
        require(scope, action)
    assert caught.value.reason == "role"
    assert caught.value.to_problem()["needs"] == LEAST_ROLE[action]
    assert caught.value.to_problem()["status"] == 403


def test_a_role_that_does_not_exist_may_nothing() -> None:
    assert not any(may(Scope(1, Person("x@example.org", "", "boss")), action) for action in LEAST_ROLE)
