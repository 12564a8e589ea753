"""What follows when somebody's rights change: open pages look again, and questions who can still answer them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from signoff.store.tx import Tx

# Floors above register here what has to happen in the same transaction: called with (tx, tenant id).
Hook = Callable[[Tx, int], None]
_hooks: Final[list[Hook]] = []


def on_people_changed(hook: Hook) -> None:
    """Have `hook` called whenever memberships, roles, groups or accounts of a tenant change. Idempotent."""
    if hook not in _hooks:
        _hooks.append(hook)


def people_changed(tx: Tx, tenant_id: int, user_id: int | None = None) -> None:
    """To be called in the transaction that changed who may do what; `user_id`: whose rights they are."""
    for hook in _hooks:
        hook(tx, tenant_id)
    tx.notify("approvals", tenant_id)
    tx.notify("people", tenant_id)
    if user_id is not None:
        rights_changed(tx, user_id)


def rights_changed(tx: Tx, user_id: int) -> None:
    """Open streams of this user look again at once whether their session still holds, and what it may see."""
    tx.notify("rights", user_id)
