"""Which program a run executes: a workflow's coroutine, one enqueued function, or the compensations of its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from signoff.engine.active import ActiveRun
from signoff.engine.settings import EngineSettings
from signoff.replay.compensation import Compensate, CompensationProgram
from signoff.replay.messages import AskStep, Command, Finish, Host, Outcome, Program, RunInfo
from signoff.replay.program import CoroutineProgram
from signoff.replay.replayer import Replayer
from signoff.workflow.definitions import Compensation
from signoff.workflow.errors import NotFound
from signoff.workflow.kinds import ErrorInfo, OutcomeKind, ResultKind
from signoff.workflow.options import StepOptions
from signoff.workflow.registry import Registry


@dataclass(frozen=True, slots=True)
class Known:
    """A definition that this worker has the code of."""

    id: int
    kind: str  # workflow, function
    name: str
    version: int
    code_hash: str
    definition: Any  # Workflow or StepFunction

    @property
    def max_value_bytes(self) -> int | None:
        """As its workflow says; None: as the engine's settings say."""
        limit: int | None = self.definition.settings.max_value_bytes if self.kind == "workflow" else None
        return limit


def seed_of(public_id: str, seeds: dict[int, str], generation: int) -> str:
    """The seed of `step.random` in a generation; the first one's needs no row."""
    return seeds.get(generation) or hashlib.sha256(f"{public_id}:{generation}".encode()).hexdigest()


def make_replayer(run: ActiveRun, known: Known, registry: Registry, settings: EngineSettings) -> Replayer:
    """A replayer over the journal that `run` was loaded with."""
    entries = run.entries or []
    run.entries = None  # read once; from here on the program is the memory of the past
    driven_no = run.driven_no
    next_no = run.next_no
    start_no = 0
    make: Callable[[Host], Program]
    if run.ending is not None:
        first = run.ending["from_no"]
        entries = [entry for entry in entries if entry.no >= first]
        driven_no = driven_no if entries else -1
        start_no = run.ending["start_no"]
        plan = compensation_plan(run, registry, first)
        args: str | None = None

        def make(host: Host) -> Program:
            return CompensationProgram(plan)

    elif known.kind == "function":
        args = run.args
        given = StepOptions.from_record(run.options.get("step"), known.definition.defaults)
        options = StepOptions.resolve(given, engine=StepOptions(retry=settings.retry, timeout=settings.timeout))
        if known.definition.sensitive:
            options = replace(options, sensitive=True)

        def make(host: Host) -> Program:
            return FunctionProgram(known.definition, options)

    else:
        args = run.args
        info = RunInfo(
            id=run.public_id,
            workflow=known.name,
            version=known.version,
            tenant=run.info_tenant,
            created_at=run.created_at,
            requester=run.row.requester,
            parent=run.info_parent,
            labels=json.loads(run.row.labels) if run.row.labels else {},
            generation=run.generation,
        )
        public_id, seeds = run.public_id, run.seeds
        defaults = StepOptions(retry=settings.retry, timeout=settings.timeout)

        def make(host: Host) -> Program:
            return CoroutineProgram(
                known.definition,
                info,
                host,
                seeds=lambda generation: seed_of(public_id, seeds, generation),
                defaults=defaults,
                max_value_bytes=settings.max_value_bytes,
            )

    return Replayer(
        make,
        args,
        entries,
        driven_no=driven_no,
        next_no=next_no,
        generation=run.generation,
        start_no=start_no,
        check=settings.check_replay,
    )


# an attempt of a canceled step may have done its work all the same
_TOLD: dict[OutcomeKind | None, Literal["success", "failure", "unknown"]] = {
    OutcomeKind.SUCCESS: "success",
    OutcomeKind.FAILURE: "failure",
}


def compensation_plan(run: ActiveRun, registry: Registry, first: int) -> list[Compensate]:
    """What is to be undone, newest first: started steps that have a compensation, whatever came of them."""
    assert run.ending is not None
    plan = []
    for item in sorted(run.compensables.values(), key=lambda item: item.no, reverse=True):
        if item.no >= first or not item.started:
            continue
        fn = registry.find_function(item.fn)
        if fn is None:
            raise NotFound(f"compensation {item.fn!r} of step {item.no} is not registered here", run=run.public_id)
        result = json.loads(item.value) if item.outcome is OutcomeKind.SUCCESS and item.value is not None else None
        args = json.loads(item.args) if item.args else {}
        told = Compensation(args, _TOLD.get(item.outcome, "unknown"), result, run.ending["cause"])
        on_error: Literal["stop", "continue"] = "continue" if item.on_error == "continue" else "stop"
        call = fn.codec.encode_call((told,), {})
        plan.append(Compensate(fn=fn, args=call, name=fn.name, on_error=on_error, sensitive=item.sensitive))
    return plan


class FunctionProgram:
    """The program of `engine.enqueue`: ask for the one step, end as it ends."""

    def __init__(self, fn: Any, options: StepOptions) -> None:
        self._fn, self._options = fn, options

    def start(self, args: str | None) -> Sequence[Command]:
        fn = self._fn
        return (AskStep(0, fn.kind, fn.name, 0, args, self._options, fn=fn, normalize=fn.codec.normalize),)

    def feed(self, outcome: Outcome) -> Sequence[Command]:
        if outcome.index is None or outcome.kind is OutcomeKind.CANCELED:
            return (Finish(ResultKind.CANCELED),)
        if outcome.kind is OutcomeKind.SUCCESS:
            return (Finish(ResultKind.COMPLETED, outcome.value),)
        return (Finish(ResultKind.FAILED, error=outcome.error or ErrorInfo("StepFailed", self._fn.name)),)

    def close(self) -> None:
        return None
