"""A handle of one run: everything that can be asked of it and done to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession

from signoff.approvals.decide import Receipt, decide_embedded_through
from signoff.approvals.views import ApprovalView, approvals_of_run
from signoff.engine import cleanup, completion, control, events, lookup, rounds, views
from signoff.engine.definitions import definition_by_id
from signoff.engine.sending import Send
from signoff.engine.views import EventView, LogView, RunView, StepView
from signoff.runtime.specs import FUNCTION_VERSION
from signoff.runtime.subscription import Change, subscribe
from signoff.runtime.watcher import Ending
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.workflow.codec import Codec, encode
from signoff.workflow.definitions import Ask, Event
from signoff.workflow.errors import NotFound, RunBlocked, RunCanceled, RunFailed
from signoff.workflow.kinds import ErrorInfo, ResultKind

if TYPE_CHECKING:
    from signoff.runtime.engine import Engine

R = TypeVar("R")
T = TypeVar("T")

StepRef = int | str | tuple[str, int]
AskAgain = bool | Sequence[int]


class Run(Generic[R]):
    """One run. Cheap to make; nothing is read before it is asked for.

    Every method raises NotFound when the run does not exist, or belongs to another tenant. `existing` is True when a
    start found the run that the same start had made before.
    """

    def __init__(
        self,
        engine: Engine,
        scope: Scope,
        run_id: str,
        *,
        key: int | None = None,
        existing: bool = False,
        codec: Codec | None = None,
    ) -> None:
        self.id = run_id
        self.existing = existing
        self._engine = engine
        self._scope = scope
        self._key = key
        self._codec = codec

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    # -- looking

    async def status(self) -> RunView:
        """What the run does, waits for and who may act, or how it ended."""
        return await self._engine.store.read(views.run_view, self._scope, self.id)

    async def result(self, *, timeout: float | timedelta | None = None) -> R:
        """Wait for the end and return the result.

        Raises RunFailed, RunCanceled, RunBlocked (it cannot go on with the code that is there; it may be waited for
        again), and TimeoutError after `timeout` (seconds), which tells if the run stands still, and why; the run is not
        touched by that. One that no worker has the code of is waited for: a worker may come. StoreClosed if the engine
        is closed meanwhile.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        key = await self.key()
        try:
            async with asyncio.timeout(seconds):
                ending = await self._engine.watcher.ending(key)
        except TimeoutError:
            view = await self.status()
            still = view.hint or (view.blocked or {}).get("message")
            why = f": {still}" if still else ""
            raise TimeoutError(f"run {self.id} has not ended after {seconds} seconds{why}") from None
        if ending is None:
            raise NotFound(f"run {self.id!r} was cleaned up", run=self.id)
        return self._unpack(ending)

    def _unpack(self, ending: Ending) -> R:
        if ending.result_kind == ResultKind.COMPLETED:
            codec = self._find_codec(ending.workflow, ending.version)
            if codec is None:
                plain: Any = json.loads(ending.value) if ending.value is not None else None
                return plain  # type: ignore[no-any-return]  # nobody here knows its type
            return codec.decode_result(ending.value)  # type: ignore[no-any-return]  # R is what the codec was made from
        if ending.result_kind == ResultKind.CANCELED:
            raise RunCanceled(run=self.id)
        if ending.blocked is not None:
            blocked = json.loads(ending.blocked)
            raise RunBlocked(f"run {self.id} is blocked: {blocked.get('message', '')}", run=self.id, blocked=blocked)
        error = ErrorInfo.from_json(json.loads(ending.error)) if ending.error else ErrorInfo("RunFailed", "")
        raise RunFailed(error, run=self.id)

    async def steps(self) -> list[StepView]:
        """The journal, in the order in which steps were asked for, retired ones included."""
        return list(await self._engine.store.read(views.steps_view, self._scope, self.id))

    async def events(self) -> list[EventView]:
        """Every event sent to or made for the run, with what became of it."""
        return list(await self._engine.store.read(views.events_view, self._scope, self.id))

    async def logs(self, *, after: int = 0) -> list[LogView]:
        """Lines of `step.log` and `attempt.log`; `after` the id of the last one seen."""
        return list(await self._engine.store.read(views.logs_view, self._scope, self.id, after=after))

    async def approvals(self) -> list[ApprovalView]:
        """Every question that the run put to people, open or not."""
        return list(await self._engine.store.read(approvals_of_run, self._scope, self.id))

    async def subscribe(self) -> AsyncIterator[Change]:
        """The run as it is now, then every change until it is final."""
        key = await self.key()
        engine = self._engine
        async for change in subscribe(engine.store, engine.watcher, self._scope, key, self.id):
            yield change

    # -- events and answers

    @overload
    async def send(
        self,
        event: Event[T],
        value: T,
        *,
        id: str | None = None,
        idempotency_key: str | None = None,
        sender: str | None = None,
        channel: str | None = None,
        session: AsyncSession | None = None,
    ) -> EventView: ...
    @overload
    async def send(
        self,
        event: str,
        value: Any = None,
        *,
        id: str | None = None,
        idempotency_key: str | None = None,
        sender: str | None = None,
        channel: str | None = None,
        session: AsyncSession | None = None,
    ) -> EventView: ...
    async def send(
        self,
        event: Event[Any] | str,
        value: Any = None,
        *,
        id: str | None = None,
        idempotency_key: str | None = None,
        sender: str | None = None,
        channel: str | None = None,
        session: AsyncSession | None = None,
    ) -> EventView:
        """Send an event; it waits in the run until a step awaits it. With `id=`, the one that `create_event` made.

        An event given by its name takes plain JSON, as it comes from outside. Raises InvalidInput (the value does not
        fit, or the event is not declared), Conflict (the run takes no events any more, or the key was used for another
        value), LimitExceeded.
        """
        declared = self._engine.registry.find_event(event) if isinstance(event, str) else event
        return await self._send(
            event, _encode(declared, value, plain=isinstance(event, str)), declared, id, session,
            idempotency_key=idempotency_key, sender=sender, channel=channel,
        )  # fmt: skip

    async def send_error(
        self,
        event: Event[Any] | str,
        message: str,
        *,
        data: Any = None,
        id: str | None = None,
        idempotency_key: str | None = None,
        sender: str | None = None,
        channel: str | None = None,
        session: AsyncSession | None = None,
    ) -> EventView:
        """Report a failure instead of a value: the wait raises EventError. `data` is plain JSON."""
        text = json.dumps(message if data is None else {"message": message, "data": data})
        declared = self._engine.registry.find_event(event) if isinstance(event, str) else event
        return await self._send(
            event, text, declared, id, session,
            is_error=True, idempotency_key=idempotency_key, sender=sender, channel=channel,
        )  # fmt: skip

    async def _send(
        self,
        event: Event[Any] | str,
        text: str,
        declared: Event[Any] | None,
        id: str | None,
        session: AsyncSession | None,
        **given: Any,
    ) -> EventView:
        name = event if isinstance(event, str) else event.name
        options = {
            "by_id": id is not None,
            "sensitive": declared.sensitive if declared is not None else False,
            "misfit": events.misfit_by(self._engine.registry),
            "known": declared is not None,
            "max_bytes": self._engine.value_limit,
            **given,
        }
        send = Send(self._scope, self.id, name if id is None else id, text, options)
        return await self._engine.send(send, session)

    async def create_event(
        self,
        event: Event[Any] | str,
        *,
        id: str | None = None,
        channel: str | None = None,
        session: AsyncSession | None = None,
    ) -> EventView:
        """Make an event that only its id reaches, for `step.await_event(id=...)`; sent by `send(..., id=...)`."""
        name = event if isinstance(event, str) else event.name
        return await self._engine.write(
            session, events.create_event, self._scope, self.id, name, event_id=id, channel=channel
        )

    @overload
    async def decide(
        self, ask: Ask[T], answer: T, *, by: str, option: str | None = None, comment: str | None = None
    ) -> Receipt: ...
    @overload
    async def decide(self, ask: Ask[Any], *, by: str, option: str, comment: str | None = None) -> Receipt: ...
    @overload
    async def decide(
        self, ask: str, answer: Any = None, *, by: str, option: str | None = None, comment: str | None = None
    ) -> Receipt: ...
    async def decide(
        self,
        ask: Ask[Any] | str,
        answer: Any = None,
        *,
        by: str,
        option: str | None = None,
        comment: str | None = None,
    ) -> Receipt:
        """Answer the open question of this name as the person with the e-mail address `by`, who must be allowed to.

        `option` names the one that is chosen, where the question has options; one that stands for a value takes no
        answer. Raises Refused, whose `reason` says why not, and NotFound when the run asks no such question.
        """
        engine = self._engine
        name = ask if isinstance(ask, str) else ask.name
        return await decide_embedded_through(
            engine.store, self._scope, self.id, name, answer,
            by=by, option=option, comment=comment, registry=engine.registry,
        )  # fmt: skip

    # -- control

    async def cancel(
        self,
        *,
        reason: str | None = None,
        compensate: bool = False,
        actor: str | None = None,
        session: AsyncSession | None = None,
    ) -> str:
        """Ask the run to end; returns its status. Does nothing to a final run. `compensate` undoes what it did."""
        return await self._engine.write(
            session, control.cancel, self._scope, self.id,
            reason=reason, actor=actor, compensate=compensate,
            grace=self._engine.settings.cancel_grace,
        )  # fmt: skip

    async def pause(self, *, children: bool = False) -> str:
        """Let running steps end and start no new ones; returns the status. `children` pauses its child runs too."""
        return await self._engine.store.write(control.pause, self._scope, self.id, children=children)

    async def resume(self, *, children: bool = False) -> str:
        """Undo `pause`; returns the status."""
        return await self._engine.store.write(control.resume, self._scope, self.id, children=children)

    async def restart(
        self,
        *,
        from_step: StepRef | None = None,
        from_failed: bool = False,
        version: int | None = None,
        events: Literal["keep", "drop"] = "keep",
        ask_again: AskAgain = False,
        reason: str | None = None,
        actor: str | None = None,
        session: AsyncSession | None = None,
    ) -> int:
        """Run again, keeping the steps before the cut; returns the new generation.

        from_step: a journal number, a step's name (its last use), or (name, ordinal). Without it everything is kept
        but the step whose error ended the run and what a cancel ended. Answers of people behind the cut are kept where
        the same question is asked again; ask_again: True, or the numbers of the steps to be asked again all the same.
        Raises Conflict for a run that goes on.
        """
        return await self._engine.write(
            session, rounds.restart, self._scope, self.id,
            from_step=from_step, from_failed=from_failed, version=version, events=events, ask_again=ask_again,
            reason=reason, actor=actor,
        )  # fmt: skip

    async def fork(
        self,
        *,
        from_step: StepRef | None = None,
        args: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        version: int | None = None,
        ask_again: AskAgain = False,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Run[R]:
        """A new run that begins with the steps before the cut, with other `args` (by parameter name) if given.

        Answers of people behind the cut are kept as `restart` keeps them.
        """
        text = await self._changed_args(args) if args is not None else None
        started = await self._engine.store.write(
            rounds.fork, self._scope, self.id,
            from_step=from_step, args=text, run_id=run_id, version=version, ask_again=ask_again, reason=reason,
            actor=actor,
        )  # fmt: skip
        return Run(self._engine, self._scope, started.public_id, key=started.run_id, codec=self._codec)

    async def retry_on_complete(self, *, session: AsyncSession | None = None) -> None:
        """Try an on_complete that failed again now; does nothing if it succeeded."""
        await self._engine.write(session, completion.retry_completion, self._scope, self.id)

    async def cleanup(self, *, session: AsyncSession | None = None) -> None:
        """Delete the final run with its journal, events, logs and children; decisions and audit stay.

        Raises Conflict for a run that is not final.
        """
        await self._engine.write(session, cleanup.cleanup, self._scope, self.id)

    # -- what is looked up once

    async def key(self) -> int:
        """The run's number inside the store."""
        if self._key is None:
            self._key = await self._engine.store.read(_key_of, self._scope, self.id)
        return self._key

    async def _get_codec(self) -> Codec | None:
        """Of the version that the run stays on, which need not be the one that the caller named."""
        return self._find_codec(*await self._engine.store.read(_definition_of, self._scope, self.id))

    def _find_codec(self, name: str, version: int) -> Codec | None:
        registry = self._engine.registry
        found: Any = (
            registry.find_function(name) if version == FUNCTION_VERSION else registry.find_workflow(name, version)
        )
        return found.codec if found is not None else self._codec

    async def _changed_args(self, args: Mapping[str, Any]) -> str | None:
        codec = await self._get_codec()
        if codec is None:
            return json.dumps(dict(args))
        former = await self._engine.store.read(_args_of, self._scope, self.id)
        changed = codec.decode_arguments(former) | dict(args)
        return codec.encode_call((), changed)


def _encode(event: Event[Any] | None, value: Any, *, plain: bool) -> str:
    """The payload as JSON text; InvalidInput with the fields that do not fit. `plain`: it is JSON, not of the type."""
    if event is None:
        return encode(value)
    return event.codec.check(encode(value)) if plain else event.codec.encode(value)


def _key_of(tx: Tx, scope: Scope, run: str) -> int:
    return int(lookup.find_run(tx, scope, run).id)


def _definition_of(tx: Tx, scope: Scope, run: str) -> tuple[str, int]:
    known = definition_by_id(tx, lookup.find_run(tx, scope, run).definition_id)
    return known.name, known.version


def _args_of(tx: Tx, scope: Scope, run: str) -> str | None:
    stored: str | None = lookup.find_run(tx, scope, run).args
    return payloads.get(tx, stored) if stored is not None else None
