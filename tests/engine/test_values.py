"""Values come back equal and of their type, wherever they travel: args, results, events, children, after replay."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pydantic import BaseModel, SecretStr
from sqlalchemy.ext.asyncio import AsyncSession

from signoff import Registry, Step, StepFailed, action, event, mutation, query, workflow
from tests.engine.conftest import EngineMaker
from tests.engine.test_replay_of_runs import waits

WAIT = 8


class Color(Enum):
    RED = 1
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: Decimal
    at: datetime


class Line(BaseModel):
    name: str
    points: tuple[Point, ...]
    tags: set[str] = set()


LINE = Line(name="l", points=(Point(Decimal(1), datetime(1999, 1, 1, tzinfo=UTC)),), tags={"b", "a"})


@dataclass
class Everything:
    price: Decimal = Decimal("12345678901234567890.1200")
    raw: bytes = b"\x00\xff'\"\n"
    moment: datetime = datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    day: date = date(2024, 2, 29)
    clock: time = time(23, 59, 59, 1)
    duration: timedelta = timedelta(days=-3, microseconds=7)
    ident: UUID = field(default_factory=lambda: UUID(int=7))
    numbers: frozenset[int] = frozenset({3, 1, 2})
    pair: tuple[int, str] = (1, "x")
    colors: list[Color] = field(default_factory=lambda: [Color.RED, Color.BLUE])
    point: Point = Point(Decimal("0.10"), datetime(2026, 1, 1, tzinfo=UTC))
    line: Line = field(default_factory=lambda: LINE)
    big: int = 2**200 + 1
    infinite: float = -math.inf
    keyed: dict[int, list[Decimal]] = field(default_factory=lambda: {1: [Decimal("1.0")], -2: []})
    nothing: None = None
    union: int | str | None = "5"
    text: str = "\u2028 \U0001f600 \\u0041 \x7f ñ"
    long: str = "ü" * 20_000


def same(one: Everything, other: Any) -> bool:
    """Equal, and each field of its type; not by repr, which shows equal sets in different orders."""
    if type(other) is not Everything or one != other:
        return False
    fields = [(getattr(one, item.name), getattr(other, item.name)) for item in dataclass_fields(one)]
    exact = (str(one.price), one.moment.utcoffset(), one.point, str(one.keyed))
    return all(type(left) is type(right) for left, right in fields) and exact == (
        str(other.price), other.moment.utcoffset(), other.point, str(other.keyed),
    )  # fmt: skip


async def test_values_of_all_kinds_travel_everywhere(open_engine: EngineMaker, registry: Registry) -> None:
    go = event("go", Everything, registry=registry)
    seen: list[tuple[str, bool]] = []
    there = Everything()

    @action(name="act", registry=registry)
    async def act(value: Everything) -> Everything:
        seen.append(("act", same(there, value)))
        return value

    @action(name="sync", registry=registry)
    def sync(value: Everything) -> Everything:
        seen.append(("sync", same(there, value)))
        return value

    @mutation(name="write", registry=registry)
    async def write(session: AsyncSession, value: Everything) -> Everything:
        await session.execute(sa.text("SELECT 1"))
        seen.append(("write", same(there, value)))
        return value

    @query(name="read", registry=registry)
    async def read(session: AsyncSession, value: Everything) -> Everything:
        seen.append(("read", same(there, value)))
        return value

    @workflow("child", registry=registry)
    async def child(step: Step, value: Everything) -> Everything:
        return value

    @workflow("w", registry=registry)
    async def w(step: Step, value: Everything) -> Everything:
        values = [
            value,
            await step.run_action(act, value),
            await step.run_action(sync, value=value),
            await step.run_mutation(write, value),
            await step.run_mutation(write.options(inline=True), value),
            await step.run_query(read, value),
            await step.run_workflow(child, value),
            await step.await_event(go),
        ]
        await step.await_event(go)
        assert all(same(there, item) for item in values)
        return values[-1]

    engine = await open_engine(registry)
    run = await engine.start(w, there)
    await run.send(go, there)
    async for _ in run.subscribe():
        if len(await run.steps()) == 8 and (await run.status()).status == "waiting":
            break
    await engine.close()
    engine = await open_engine(registry)
    typed = engine.run(run.id, w)
    await typed.send(go, there)
    assert same(there, await typed.result(timeout=WAIT))
    assert len(seen) == 5
    assert all(equal for _, equal in seen)


async def test_nan_and_secrets_survive_a_replay(open_engine: EngineMaker, registry: Registry) -> None:
    go = event("go", int, registry=registry)

    @action(name="act", registry=registry)
    async def act() -> tuple[float, SecretStr]:
        return math.nan, SecretStr("hush")

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[Any]:
        number, secret = await step.run_action(act)
        await step.await_event(go)
        return [math.isnan(number), secret.get_secret_value() == "hush", str(secret)]

    engine = await open_engine(registry)
    run = await engine.start(w)
    await waits(run)
    await engine.close()
    engine = await open_engine(registry)
    run = engine.run(run.id)
    await run.send(go, 1)
    assert await run.result(timeout=WAIT) == [True, True, "**********"]
    assert "hush" not in repr(await run.steps())


@pytest.mark.parametrize("inline", [False, True])
async def test_what_cannot_be_stored_fails_the_step_and_names_the_field(
    open_engine: EngineMaker, registry: Registry, inline: bool
) -> None:
    @mutation(name="give", registry=registry)
    async def give(session: AsyncSession) -> dict[str, Any]:
        return {"fine": 1, "bad": object()}

    @action(name="untyped", registry=registry)
    async def untyped():  # type: ignore[no-untyped-def]  # what a test of untyped results needs
        return {"inner": [1, {2, 3}]}

    @action(name="wrong", registry=registry)
    async def wrong() -> dict[str, int]:
        return {"a": "x"}  # type: ignore[dict-item]  # wrong on purpose

    @workflow("w", registry=registry)
    async def w(step: Step) -> list[str]:
        results = await asyncio.gather(
            step.run_mutation(give.options(inline=inline)),
            step.run_action(untyped),
            step.run_action(wrong),
            return_exceptions=True,
        )
        return [f"{type(item) is StepFailed} {item}" for item in results]

    engine = await open_engine(registry)
    result = await (await engine.start(w)).result(timeout=WAIT)
    assert [text.split()[0] for text in result] == ["True"] * 3
    assert "bad" in result[0]
    assert "inner" in result[1]
    assert "a" in result[2]


async def test_the_handler_gets_copies_that_nobody_else_has(open_engine: EngineMaker, registry: Registry) -> None:
    kept: list[Any] = []

    @action(name="act", registry=registry)
    async def act(value: list[int]) -> list[int]:
        kept.append(value)
        return value

    @workflow("w", registry=registry)
    async def w(step: Step, value: list[int]) -> list[Any]:
        first = await step.run_action(act, value)
        first.append(4)
        value.append(5)
        return [first, await step.run_action(act, first), value]

    engine = await open_engine(registry)
    assert await (await engine.start(w, [1])).result(timeout=WAIT) == [[1, 4], [1, 4], [1, 5]]
    assert kept == [[1], [1, 4]]
