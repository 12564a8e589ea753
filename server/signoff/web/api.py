"""The REST surface: start a run, look at one, send it an event. Bearer tokens; problems as RFC 9457 documents."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any

from litestar import Request, Response, Router, get, post
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import NotAuthorizedException
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from pydantic import BaseModel, ConfigDict, Field

from signoff.engine.views import Awaited, EventView, RunView, StepView
from signoff.store.scope import Scope
from signoff.web import api_approvals
from signoff.web.addresses import name_of, segment
from signoff.web.backend import Backend
from signoff.workflow.errors import InvalidInput

ApiRequest = Request[Scope, str, State]


class Problem(BaseModel):
    """A problem document (RFC 9457). `type` is a fixed word; further members name run, step, event, fields."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str


class StartBody(BaseModel):
    """A run to start. `args` by parameter name, as plain JSON."""

    model_config = ConfigDict(extra="forbid")
    workflow: Annotated[str, Field(min_length=1, max_length=256)]
    version: int | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    run_id: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    run_at: datetime | None = None
    run_after: Annotated[float | None, Field(description="Seconds from now; not together with run_at.")] = None
    priority: Annotated[int | None, Field(ge=-(2**31), lt=2**31)] = None
    labels: dict[str, str] = Field(default_factory=dict)


class StartedBody(BaseModel):
    """`existing`: this start had been made before, by its key or run id."""

    id: str
    existing: bool
    href: str


class EventBody(BaseModel):
    """A message to a run; with `error`, the wait raises with that message instead of getting the value."""

    model_config = ConfigDict(extra="forbid")
    value: Any = None
    error: str | None = None
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=256)] = None


class ErrorBody(BaseModel):
    type: str
    message: str
    data: Any = None
    step_no: int | None = None


class AwaitedBody(BaseModel):
    """What the run waits for, since when and until when; for a question, who may answer it."""

    kind: str
    name: str
    step_no: int
    since: datetime
    due_at: datetime | None
    who: list[Any]
    approval: str | None
    child_run: str | None


class RunningBody(BaseModel):
    step_no: int
    kind: str
    name: str
    since: datetime
    progress: float | None
    progress_text: str | None


class RunBody(BaseModel):
    """A run as it is now. `version_no` only grows. `hint`: why it stands still although nothing is wrong with it."""

    id: str
    workflow: str
    version: int
    status: str
    generation: int
    priority: int
    labels: dict[str, str]
    requester: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_wake_at: datetime | None
    awaiting: list[AwaitedBody]
    running: list[RunningBody]
    result: Any
    error: ErrorBody | None
    blocked: dict[str, Any] | None
    hint: str | None
    version_no: int


class SentBody(BaseModel):
    id: str
    run: str
    name: str
    state: str
    sent_at: datetime | None


def _run_body(view: RunView) -> RunBody:
    def awaited(item: Awaited) -> AwaitedBody:
        return AwaitedBody(
            kind=item.kind, name=item.name, step_no=item.step_no, since=item.since, due_at=item.due_at,
            who=list(item.who), approval=item.approval_id, child_run=item.child_run,
        )  # fmt: skip

    def running(step: StepView) -> RunningBody:
        progress = step.progress
        return RunningBody(
            step_no=step.no, kind=step.kind, name=step.name, since=step.asked_at,
            progress=progress.fraction if progress else None, progress_text=progress.text if progress else None,
        )  # fmt: skip

    error = view.error
    return RunBody(
        id=view.id, workflow=view.workflow, version=view.version, status=str(view.status), generation=view.generation,
        priority=view.priority, labels=dict(view.labels), requester=view.requester, parent=view.parent,
        created_at=view.created_at, started_at=view.started_at, ended_at=view.ended_at, next_wake_at=view.next_wake_at,
        awaiting=[awaited(item) for item in view.awaiting], running=[running(step) for step in view.running],
        result=None if view.result is None else json.loads(view.result),
        error=None if error is None else ErrorBody(
            type=error.type, message=error.message, data=error.data, step_no=error.step_no
        ),
        blocked=dict(view.blocked) if view.blocked is not None else None, hint=view.hint, version_no=view.version_no,
    )  # fmt: skip


async def bearer(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Only a token counts here; cookies that a browser sends along are not looked at."""
    kind, _space, token = connection.headers.get("authorization", "").partition(" ")
    backend: Backend = connection.app.state.backend
    scope = await backend.scope_for_token(token.strip()) if kind.lower() == "bearer" and token.strip() else None
    if scope is None:
        raise NotAuthorizedException(
            "Send a valid token as `Authorization: Bearer ...`; `signoff tokens create` makes one.",
            headers={"www-authenticate": 'Bearer realm="signoff"'},
        )
    connection.scope["user"] = replace(scope, via="api")


def backend_of(request: ApiRequest) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


PROBLEMS = {
    status: ResponseSpec(Problem, description=text, media_type="application/problem+json")
    for status, text in {
        400: "Not JSON", 401: "No valid token", 403: "The token's role may not do this", 404: "Unknown, or not yours",
        409: "Contradicts what is stored", 413: "Too large", 422: "Does not fit; `errors` lists fields", 429: "A limit",
    }.items()
}  # fmt: skip


@post("/runs", responses=PROBLEMS, summary="Start a run", operation_id="startRun")
async def start_run(request: ApiRequest, data: JSONBody[StartBody]) -> Response[StartedBody]:
    """Returns once the run is durable: 201, or 200 when this start had been made before."""
    run, existing = await backend_of(request).start(
        request.user, data.workflow, data.args, data.model_dump(
            exclude={"workflow", "args"}, exclude_none=True, exclude_defaults=True
        ),
    )  # fmt: skip
    href = f"/api/v1/runs/{segment(run)}"
    body = StartedBody(id=run, existing=existing, href=href)
    return Response(body, status_code=200 if existing else 201, headers={"location": href})


@get("/runs/{run:str}", responses=PROBLEMS, summary="Look at a run", operation_id="getRun")
async def get_run(request: ApiRequest, run: FromPath[str]) -> RunBody:
    """Status, what is awaited and who may act, what runs, and the result or error."""
    return _run_body(await backend_of(request).run(request.user, name_of(run)))


@post("/runs/{run:str}/events/{event:path}", responses=PROBLEMS, summary="Send an event", operation_id="sendEvent")
async def send_event(
    request: ApiRequest, run: FromPath[str], event: FromPath[PurePath], data: JSONBody[EventBody]
) -> Response[SentBody]:
    """Stored and the run woken in one transaction; with an idempotency key the same event is sent once."""
    name = name_of(event)
    if data.error is not None and data.value is not None:
        raise InvalidInput("give either value or error, not both", run=name_of(run), event=name)
    sent = await backend_of(request).send(
        request.user, name_of(run), name, data.error if data.error is not None else data.value,
        idempotency_key=data.idempotency_key, is_error=data.error is not None, channel="api",
    )  # fmt: skip
    return Response(_sent(sent), status_code=202)


def _sent(view: EventView) -> SentBody:
    return SentBody(id=view.id, run=view.run, name=view.name, state=view.state, sent_at=view.sent_at)


HANDLERS = [start_run, get_run, send_event]


def router(*more: Any) -> Router:
    """The API of these modules' handlers and of `more`."""
    runs = Router("", route_handlers=HANDLERS, tags=["runs"])
    approvals = Router("", route_handlers=api_approvals.HANDLERS, tags=["approvals"])
    return Router("/api/v1", route_handlers=[runs, approvals, *more], guards=[bearer], include_in_schema=True,
                  security=[{"bearer": []}])  # fmt: skip
