"""A store with people in it, and a run that waits for an answer, for tests below the floor of the engine's doors."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from signoff.approvals.questions import A, ApprovalQuestions
from signoff.engine.outcomes import R, S
from signoff.people.groups import add_to_group
from signoff.people.tenants import ensure_tenant
from signoff.people.users import add_user, clean_email, find_person
from signoff.replay.messages import AskDetail
from signoff.store.clock import ManualClock
from signoff.store.scope import Person, Scope
from signoff.store.store import Store
from signoff.store.tables import Definition
from signoff.store.tx import Tx

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SHIP_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string", "default": ""}},
    "required": ["approved"],
}


@dataclass
class World:
    """A tenant with an admin and people to be added."""

    store: Store
    clock: ManualClock
    tenant_id: int
    embedded: Scope  # code inside the process

    async def add(self, email: str, role: str = "approver", *groups: str, name: str = "") -> Scope:
        """Add a user and return what they may do."""
        await self.store.write(add_user, self.embedded, email, name=name, role=role)
        for group in groups:
            await self.store.write(add_to_group, self.embedded, group, email)
        return await self.scope(email)

    async def scope(self, email: str) -> Scope:
        person = await self.store.read(find_person, self.tenant_id, email=clean_email(email))
        assert person is not None
        return Scope(self.tenant_id, person)

    async def ask(self, **question: Any) -> Asked:
        return await self.store.write(ask_in_new_run, self.tenant_id, question)


@dataclass(frozen=True)
class Asked:
    run_id: int
    run: str
    approval: str


@asynccontextmanager
async def world(url: str) -> AsyncIterator[World]:
    clock = ManualClock(START)
    async with await Store.open(url, clock=clock) as store:
        tenant_id = await store.write(ensure_tenant)
        yield World(store, clock, tenant_id, Scope(tenant_id))


def token_scope(tenant_id: int, role: str = "approver") -> Scope:
    return Scope(tenant_id, Person("token:ci", "ci", role))


def ask_in_new_run(tx: Tx, tenant_id: int, question: dict[str, Any]) -> Asked:
    """A run as the engine leaves it when its handler awaits one ask step: number 0, asked at the start."""
    definition_id = tx.conn.execute(
        sa.insert(Definition.__table__)
        .values(tenant_id=0, name=uuid.uuid4().hex, version=1, bundle="", kind="workflow")
        .returning(Definition.__table__.c.id)
    ).scalar_one()
    timeout = question.pop("timeout", None)
    detail = AskDetail(
        question.pop("ask", "order/ship"),
        {"title": "Ship order 7?", "body": None, "facts": {}, "to": [], "schema": SHIP_SCHEMA, **question},
        timeout,
    )
    public_id = uuid.uuid4().hex
    run = tx.conn.execute(
        sa.insert(R)
        .values(
            tenant_id=tenant_id,
            public_id=public_id,
            definition_id=definition_id,
            state="active",
            activity="waiting",
            driven_no=0,
            next_no=1,
            created_at=tx.now,
            requester="rita@example.org",
        )
        .returning(R)
    ).one()
    ApprovalQuestions().open(tx, run, 0, detail, tx.now)
    approval = tx.conn.execute(sa.select(A).where(A.c.run_id == run.id)).one()
    tx.conn.execute(
        sa.insert(S).values(
            run_id=run.id, no=0, kind="ask", name=detail.ask, asked_at=tx.now, due_at=approval.timeout_at
        )
    )
    tx.conn.execute(sa.update(R).where(R.c.id == run.id).values(wake_at=approval.timeout_at))
    return Asked(run.id, public_id, approval.public_id)
