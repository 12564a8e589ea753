"""A table of notes, which steps write to in their transactions, so that tests see what was committed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Engine, Registry, mutation, query
from signoff.testing import TestEngine

TABLE = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.Text))


async def make_notes(engine: Engine | TestEngine) -> None:
    await engine.store.write(lambda tx: TABLE.create(tx.conn))


async def notes(engine: Engine | TestEngine) -> list[str]:
    """All texts, the oldest first."""
    texts = sa.select(TABLE.c.text).order_by(TABLE.c.id)
    return await engine.store.read(lambda tx: list(tx.conn.execute(texts).scalars()))


async def write_note(session: AsyncSession, text: str) -> None:
    await session.execute(sa.insert(TABLE).values(text=text))


def note_steps(registry: Registry) -> tuple[Any, Any, Any]:
    """(add(text), count(), fail(text)): fail writes its note and raises."""

    @mutation(name="add", registry=registry)
    async def add(session: AsyncSession, text: str) -> int:
        await write_note(session, text)
        return len(text)

    @query(name="count", registry=registry)
    async def count(session: AsyncSession) -> int:
        return int((await session.execute(sa.select(sa.func.count()).select_from(TABLE))).scalar_one())

    @mutation(name="fail", registry=registry)
    async def fail(session: AsyncSession, text: str) -> None:
        await write_note(session, text)
        raise LookupError(text)

    return add, count, fail
