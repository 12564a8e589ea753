"""Advances with an author's code inside their transaction: inline steps and on_complete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from signoff.engine.active import ActiveRun
from signoff.engine.advance import Advance, Applied, Record, holds
from signoff.engine.building import Builder
from signoff.engine.completion import complete_inside
from signoff.engine.execution import Stale
from signoff.replay.messages import NewStep
from signoff.store.errors import TransactionConflict, translate
from signoff.store.session import AuthorSession
from signoff.workflow.errors import BlockedError
from signoff.workflow.failures import error_info
from signoff.workflow.kinds import OutcomeKind, StepKind

if TYPE_CHECKING:
    from signoff.engine.worker import Worker


async def commit_alone(worker: Worker, run: ActiveRun, builder: Builder) -> tuple[Advance, Applied]:
    """Executes the inline steps, drives on, and writes all of it in one transaction."""
    try:
        async with worker.store.session() as session:
            if not await session.run(holds, builder.advance.run_id, builder.advance.fence):
                raise Stale
            while builder.inline:
                record = await _inline(worker, run, session, builder.inline.pop(0))
                await worker.drive_on(partial(builder.take, record))
            if not builder.advance.columns:
                await worker.drive_on(builder.done)
            advance = builder.advance
            (applied,) = await session.run(worker.apply, [advance])
            if not applied.ok:
                raise Stale
            if advance.finished is not None and run.options.get("on_complete"):
                await complete_inside(worker, session, run.id, run.generation)
    except Stale:
        return builder.advance, Applied(False)
    except BlockedError as error:  # what the handler did after an inline step does not match
        builder.block(error)
        await worker.drive_on(builder.done)
        (applied,) = await worker.store.write(worker.apply, [builder.advance])
        return builder.advance, applied
    return advance, applied


async def _inline(worker: Worker, run: ActiveRun, session: AuthorSession, new: NewStep) -> Record:
    """One inline query or mutation in a savepoint: its error undoes only itself."""
    ask = new.ask
    now = worker.store.clock.now()
    try:
        replaced = worker.executor.replacement(run, ask.name, ask.ordinal, 1)
        if replaced is not None:
            if replaced.error is not None or replaced.timeout:
                raise replaced.error or TimeoutError(f"{ask.name!r} timed out")
            return Record(new.no, OutcomeKind.SUCCESS, now, worker.executor.encode(run, ask, replaced.value))
        args, kwargs = ask.fn.codec.decode_call(ask.args)
        async with session.begin_nested() as savepoint:
            value = await ask.fn.fn(session, *args, **kwargs)
            await session.flush()
            text = worker.executor.encode(run, ask, value)
            if ask.kind is StepKind.QUERY:
                await savepoint.rollback()  # a query only reads
    except Exception as error:  # an author's function: whatever it raises is the step's end
        if isinstance(translate(error), TransactionConflict):
            raise  # no fault of the step: all of it is done again
        return Record(new.no, OutcomeKind.FAILURE, now, error=error_info(error))
    return Record(new.no, OutcomeKind.SUCCESS, now, text)
