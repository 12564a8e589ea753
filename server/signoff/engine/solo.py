"""Advances with an author's code inside their transaction: inline steps and on_complete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

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
from signoff.workflow.options import EMPTY

if TYPE_CHECKING:
    from signoff.engine.worker import Worker


class _Spoilt(Exception):
    """An inline step ended the transaction that it was a part of."""


async def commit_alone(worker: Worker, run: ActiveRun, builder: Builder) -> tuple[Advance, Applied]:
    """Executes the inline steps, drives on, and writes all of it in one transaction."""
    refused = Applied(False)
    try:
        async with worker.store.session() as session:
            if not await session.run(holds, builder.advance.run_id, builder.advance.fence):
                raise Stale
            while builder.inline:
                new = builder.inline.pop(0)
                if new.no not in run.open:
                    continue  # canceled before its turn came
                record = await _inline(worker, run, session, new)
                builder.now = max(builder.now, record.at)  # what is asked after it is asked now
                await worker.drive_on(partial(builder.take, record))
            if not builder.advance.columns:
                await worker.drive_on(builder.done)
            advance = builder.advance
            (applied,) = await session.run(worker.apply, [advance])
            if not applied.ok:
                refused = applied
                raise Stale
            if advance.finished is not None and run.options.get("on_complete"):
                await complete_inside(worker, session, run.id, run.generation)
    except (Stale, _Spoilt):
        return builder.advance, refused
    except BlockedError as error:  # what the handler did after an inline step does not match
        worker.spoilers.pop(run.id, None)
        builder.block(error)
        await worker.drive_on(builder.done)
        (applied,) = await worker.store.write(worker.apply, [builder.advance])
        return builder.advance, applied
    worker.spoilers.pop(run.id, None)
    return advance, applied


async def _inline(worker: Worker, run: ActiveRun, session: AuthorSession, new: NewStep) -> Record:
    """One inline query or mutation in a savepoint: its error, or its timeout, undoes only itself.

    A statement that is canceled under way takes the connection and so the whole advance with it. The advance is then
    done once more, with this failure in the place of the step.
    """
    ask = new.ask
    clock = worker.store.clock
    known = worker.spoilers.get(run.id, {})
    this = (run.generation, ask.name, ask.ordinal)
    if this in known:
        return Record(new.no, OutcomeKind.FAILURE, clock.now(), error=known[this])
    options = ask.options or EMPTY
    limits = [limit for limit in (options.timeout, options.schedule_to_close) if limit is not None]
    try:
        replaced = worker.executor.replacement(run, ask.name, ask.ordinal, 1)
        if replaced is not None:
            if replaced.error is not None or replaced.timeout:
                raise replaced.error or TimeoutError(f"{ask.name!r} timed out")
            return Record(new.no, OutcomeKind.SUCCESS, clock.now(), worker.executor.encode(run, ask, replaced.value))
        args, kwargs = ask.fn.codec.decode_call(ask.args)
        async with session.begin_nested() as savepoint:
            value = await worker.executor.in_time(
                min(limits, default=None), repr(ask.name), ask.fn.fn(session, *args, **kwargs)
            )
            await session.flush()
            text = worker.executor.encode(run, ask, value)
            if ask.kind is StepKind.QUERY:
                await savepoint.rollback()  # a query only reads
    except Exception as error:  # an author's function: whatever it raises is the step's end
        trouble, stands = translate(error), await _stands(session)
        if isinstance(trouble, TransactionConflict) or (trouble is not None and trouble.transient and not stands):
            raise  # no fault of the step: all of it is done again
        if not stands:
            worker.spoilers.setdefault(run.id, {})[this] = error_info(error)
            raise _Spoilt from error
        return Record(new.no, OutcomeKind.FAILURE, clock.now(), error=error_info(error))
    return Record(new.no, OutcomeKind.SUCCESS, clock.now(), text)


async def _stands(session: AuthorSession) -> bool:
    """Whether the session still has the transaction that it began."""
    try:
        return not (await session.connection()).invalidated
    except SQLAlchemyError:
        return False
