"""Who may do what: one table from action to the least role, and the one place that asks it.

Roles are per tenant and ordered: viewer < approver < operator < admin.
"""

from __future__ import annotations

from typing import Final, Literal

from signoff.store.scope import Scope
from signoff.workflow.errors import Refused

Role = Literal["viewer", "approver", "operator", "admin"]

Action = Literal[
    "run.view",
    "approval.view",
    "approval.decide",
    "run.start",
    "run.send",
    "run.control",
    "run.restart",
    "run.cleanup",
    "pool.change",
    "people.view",
    "people.manage",
    "token.manage",
    "audit.view",
]

LEAST_ROLE: Final[dict[Action, Role]] = {
    "run.view": "viewer",
    "approval.view": "viewer",
    "approval.decide": "approver",
    "run.start": "operator",
    "run.send": "operator",
    "run.control": "operator",  # cancel, pause, resume
    "run.restart": "admin",  # restart, fork
    "run.cleanup": "admin",
    "pool.change": "admin",
    "people.view": "admin",
    "people.manage": "admin",
    "token.manage": "admin",
    "audit.view": "admin",
}


def may(scope: Scope, action: Action) -> bool:
    """Whether the scope's person has the role that the action asks for.

    A scope without a person is code inside the process or on the server's command line, and always may: doors to the
    outside build scopes from a session or token only, never by hand.
    """
    return scope.person is None or scope.person.role_at_least(LEAST_ROLE[action])


def require(scope: Scope, action: Action) -> None:
    """Raise `Refused` with reason `role` unless the scope may do it."""
    if may(scope, action):
        return
    least, held = LEAST_ROLE[action], scope.person.role if scope.person else None
    raise Refused("role", f"This needs the role {least} or above, and yours is {held}", action=action, needs=least)
