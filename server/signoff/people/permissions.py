"""Who may do what: one table from action to the least role, and the one place that asks it.

Roles are per tenant and ordered: viewer < approver < operator < admin.
"""

from __future__ import annotations

from typing import Final, Literal

from signoff.store.scope import ROLES, Scope
from signoff.workflow.errors import Refused

Role = Literal["viewer", "approver", "operator", "admin"]

Action = Literal[
    "run.view",
    "approval.view",
    "approval.decide",
    "approval.claim",
    "approval.comment",
    "approval.delegate",
    "approval.reassign",
    "approval.extend",
    "approval.escalate",
    "approval.add",
    "run.start",
    "run.send",
    "run.control",
    "run.restart",
    "run.cleanup",
    "pool.change",
    "people.view",
    "people.manage",
    "tenant.manage",
    "token.manage",
    "session.revoke",
    "password.change",
    "audit.view",
    "ledger.export",
]

LEAST_ROLE: Final[dict[Action, Role]] = {
    "run.view": "viewer",
    "approval.view": "viewer",
    "approval.decide": "approver",
    "approval.claim": "approver",  # and release; operators release anybody's
    "approval.comment": "approver",
    "approval.delegate": "approver",  # of those who may decide
    "approval.reassign": "operator",  # or whoever may decide: `approvals` says so of the particular question
    "approval.extend": "operator",  # or whoever may decide, where the question allows it
    "approval.escalate": "operator",  # or whoever may decide
    "approval.add": "operator",
    "run.start": "operator",
    "run.send": "operator",
    "run.control": "operator",  # cancel, pause, resume
    "run.restart": "admin",  # restart, fork
    "run.cleanup": "admin",
    "pool.change": "admin",
    "people.view": "admin",
    "people.manage": "admin",
    "tenant.manage": "admin",
    "token.manage": "admin",
    "session.revoke": "viewer",  # their own
    "password.change": "viewer",  # their own
    "audit.view": "admin",
    "ledger.export": "admin",
}

# What reaches beyond a tenant is for the first tenant's people only. Which one that is the database knows:
# `people.tenants.require_first` asks.
FIRST_TENANT_ONLY: Final[frozenset[Action]] = frozenset({"tenant.manage"})


def actions_of(role: Role) -> frozenset[Action]:
    """All that a role may do."""
    return frozenset(action for action, least in LEAST_ROLE.items() if ROLES.index(role) >= ROLES.index(least))


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
    needed = least if least == ROLES[-1] else f"{least} or above"
    raise Refused("role", f"This needs the role {needed}, and yours is {held}", action=action, needs=least)
