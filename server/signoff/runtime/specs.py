"""What a start is, as the store takes it: made from a typed call, or from a name and plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from signoff.engine.starting import StartSpec
from signoff.workflow.definitions import Call, Mutation, StepFunction, Workflow
from signoff.workflow.errors import InvalidInput
from signoff.workflow.options import StartOptions
from signoff.workflow.registry import Registry

_EMPTY = StartOptions()
FUNCTION_VERSION = 0  # of enqueued functions, so that a workflow may have the same name


def options_of(call: Call[Any]) -> StartOptions:
    """The start options that the call's definition carries; an enqueued function has those of a step instead."""
    target = call.target
    return (target.given or _EMPTY) if isinstance(target, Workflow) else _EMPTY


def spec_of(registry: Registry, call: Call[Any], max_value_bytes: int) -> StartSpec:
    """A typed call as a start; InvalidInput for args that do not fit. `max_value_bytes` where the code sets none."""
    target = call.target
    if isinstance(target, Workflow):
        options = target.given or _EMPTY
        # a run goes to the highest version unless told otherwise, so its args are checked against that one
        latest = registry.find_workflow(target.name, options.version) or target
        return _workflow_spec(latest, latest.codec.encode_call(call.args, call.kwargs), options, max_value_bytes)
    return function_spec(target, call.encode(), _EMPTY, max_value_bytes)


def spec_by_name(
    registry: Registry, name: str, args: Mapping[str, Any], options: StartOptions, max_value_bytes: int
) -> StartSpec:
    """A start from outside: args are plain JSON by parameter name. A workflow without code here is taken unchecked."""
    text = json.dumps(dict(args)) if args else None
    workflow = registry.find_workflow(name, options.version)
    if workflow is None:
        return _plain_spec(name, text, options, max_value_bytes)
    return _workflow_spec(workflow, workflow.codec.check_call(text), options, max_value_bytes)


def _workflow_spec(
    workflow: Workflow[Any, Any], args: str | None, options: StartOptions, max_value_bytes: int
) -> StartSpec:
    settings = workflow.settings
    return _plain_spec(
        workflow.name,
        args,
        options,
        settings.max_value_bytes or max_value_bytes,
        retention=settings.retention.to_json() if settings.retention is not None else None,
        on_complete=settings.on_complete,
        sensitive=workflow.sensitive,
    )


def _plain_spec(
    name: str,
    args: str | None,
    options: StartOptions,
    max_value_bytes: int,
    *,
    retention: Mapping[str, float] | None = None,
    on_complete: Mutation[..., Any] | None = None,
    sensitive: bool = False,
) -> StartSpec:
    mutation = options.on_complete or on_complete
    return StartSpec(
        workflow=name,
        version=options.version,
        args=args,
        idempotency_key=options.idempotency_key,
        run_id=options.run_id,
        run_at=options.run_at,
        run_after=options.run_after,
        priority=options.priority,
        labels=options.labels,
        retention=options.retention.to_json() if options.retention is not None else retention,
        requester=options.requester,
        on_complete=_on_complete(mutation, options.on_complete_context) if mutation is not None else None,
        options={"sensitive": True} if sensitive else {},
        max_value_bytes=max_value_bytes,
    )


def _on_complete(mutation: Mutation[..., Any], context: Any) -> dict[str, Any]:
    """Name and context as JSON text. The context is checked now, because later nobody is there to be told."""
    parameters = list(mutation.codec.parameters.values())
    if len(parameters) > 3:  # run id, result kind, value, context
        return {"name": mutation.name, "context": parameters[3].encode(context)}
    if context is not None:
        raise InvalidInput(f"on_complete {mutation.name!r} takes no context as its fourth parameter")
    return {"name": mutation.name}


def function_spec(
    function: StepFunction[Any, Any], args: str | None, start: StartOptions, max_value_bytes: int
) -> StartSpec:
    """One function as a run of one step; a delay among the function's own options counts if `start` has none."""
    options = function.defaults.merge(function.given)
    if options.inline:
        raise InvalidInput(f"{function.name!r} is enqueued, which has no transaction for inline=True to be part of")
    record = options.to_record() or {}
    step = {key: value for key, value in record.items() if key not in ("run_at", "run_after")}
    if start.run_at is None and start.run_after is None:
        start = replace(start, run_at=options.run_at, run_after=options.run_after)
    spec = _plain_spec(function.name, args, replace(start, version=FUNCTION_VERSION), max_value_bytes)
    secret = {"sensitive": True} if function.sensitive else {}
    return replace(spec, options=secret | ({"step": step} if step else {}))
