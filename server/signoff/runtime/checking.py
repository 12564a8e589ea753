"""Replays open runs against the code that is here, without writing anything: what would block after a deployment?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
import structlog

from signoff.engine.active import ActiveRun
from signoff.engine.definitions import D
from signoff.engine.driver import Driver
from signoff.engine.journal import Loaded, load
from signoff.engine.outcomes import R
from signoff.engine.programs import Known, make_replayer
from signoff.engine.settings import EngineSettings
from signoff.engine.status import OPEN
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.errors import BlockedError, SignoffError
from signoff.workflow.registry import Registry

BATCH = 50

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """`problem` is what would block the run with this code, as it would be stored; None: it fits."""

    run: str
    workflow: str
    version: int
    problem: dict[str, Any] | None


async def check_runs(store: Store, registry: Registry, settings: EngineSettings) -> AsyncIterator[CheckedRun]:
    """Every run that has begun and is not final, oldest first."""
    driver = Driver(settings.handler_limit)
    after = 0
    try:
        while batch := await store.read(_read_batch, after):
            for loaded, kind, name, version in batch:
                after = loaded.row.id
                check = partial(_problem, loaded, kind, name, version, registry, settings)
                problem = await _driven(driver, check, settings.handler_limit)
                yield CheckedRun(loaded.row.public_id, name, version, problem)
    finally:
        driver.stop()


def _read_batch(tx: Tx, after: int) -> list[tuple[Loaded, str, str, int]]:
    query = (
        sa.select(R, D.c.kind, D.c.name, D.c.version)
        .join(D, D.c.id == R.c.definition_id)
        .where(OPEN, R.c.next_no > 0, R.c.id > after)
        .order_by(R.c.id)
        .limit(BATCH)
    )
    rows = tx.conn.execute(query).all()
    loaded = load(tx, [row.id for row in rows])
    return [(loaded[row.id], row.kind, row.name, row.version) for row in rows]


def _problem(
    loaded: Loaded, kind: str, name: str, version: int, registry: Registry, settings: EngineSettings
) -> dict[str, Any] | None:
    definition: Any = registry.find_function(name) if kind == "function" else registry.find_workflow(name, version)
    if definition is None:
        return {"code": "no_code", "message": f"no module defines {kind} {name!r} version {version}"}
    known = Known(loaded.row.definition_id, kind, name, version, "", definition)
    try:
        replayer = make_replayer(ActiveRun(loaded), known, registry, settings)
        try:
            replayer.catch_up()
        finally:
            replayer.close()
    except BlockedError as error:
        return error.to_reason()
    except SignoffError as error:  # a compensation that is not registered
        return {"code": error.code, "message": str(error)}
    return None


async def _driven(driver: Driver, check: Callable[[], dict[str, Any] | None], limit: float) -> dict[str, Any] | None:
    """On the thread that is made for handlers: one that computes for ever is stopped, and named."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any] | None] = loop.create_future()

    def put(problem: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(_answer, answer, problem)

    def job() -> None:
        try:
            problem = check()
        except Exception as error:
            logger.exception("a run could not be checked")
            problem = {"code": "broken", "message": f"{type(error).__name__}: {error}"}
        put(problem)

    def overran(line: str) -> None:
        put({"code": "stuck", "message": f"the handler computes for over {limit:g} s without awaiting, at {line}"})

    driver.submit(job, overran)
    return await answer


def _answer(answer: asyncio.Future[dict[str, Any] | None], problem: dict[str, Any] | None) -> None:
    if not answer.done():
        answer.set_result(problem)
