"""What goes before a change of people and what follows: they wait for each other; open pages look again, and questions
who can still answer them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from signoff.store.tables import Tenant
from signoff.store.tx import Tx

T = Tenant.__table__

# Floors above register here what has to happen in the same transaction: called with (tx, tenant id).
Hook = Callable[[Tx, int], None]
_hooks: Final[list[Hook]] = []


def on_people_changed(hook: Hook) -> None:
    """Have `hook` called whenever memberships, roles, groups or accounts of a tenant change. Idempotent."""
    if hook not in _hooks:
        _hooks.append(hook)


def one_at_a_time(tx: Tx) -> None:
    """Wait until nobody else is making an account, member, group, token or tenant, or taking one away: of two who make
    the same at once the second one sees what the first one made. Whoever locks a tenant besides does that before.
    """
    first = sa.select(sa.func.min(T.c.id)).scalar_subquery()
    tx.conn.execute(tx.dialect.lock(sa.select(T.c.id).where(T.c.id == first)))


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
