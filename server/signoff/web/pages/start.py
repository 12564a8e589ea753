"""The page that starts a run: the form of a workflow's args, sent once however often its button is pressed."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.approvals.drafts import DraftView, start_key
from signoff.engine.starting import new_public_id
from signoff.people.permissions import require
from signoff.web import forms, say
from signoff.web.addresses import name_of, segment
from signoff.web.pages import AnyRequest, backend_of, badge_of, redirect, render, scope_of
from signoff.web.pages.approval import read_form
from signoff.workflow.definitions import Workflow
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, LimitExceeded, SignoffError

_RUN_ID: Final = re.compile(r"[0-9a-z]{26}")
_OPTIONS: Final = {
    "type": "object",
    "properties": {
        "run_at": {
            "title": "Start at",
            "description": "Left empty, it starts now.",
            "anyOf": [{"type": "string", "format": "date-time", "zone": "aware"}, {"type": "null"}],
            "default": None,
        },
        "idempotency_key": {
            "title": "Idempotency key",
            "description": "What the run is about, like an order's number. A second start with it leads to the first.",
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "default": None,
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
    },
}


@dataclass(slots=True)
class Start:
    """What is filled in to start a run. `nonce` becomes the run's id, so that one page starts one run."""

    workflow: Workflow[Any, Any]
    args: forms.Form
    options: forms.Form
    nonce: str
    errors: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.errors or any(form.errors or form.failed for form in (self.args, self.options)))

    @property
    def failures(self) -> list[Any]:
        return [*self.args.failures, *self.options.failures]

    @property
    def more(self) -> bool:
        """Whether to show what most starts leave as it is."""
        return bool(self.options.failed or any(item.text or item.children for item in self.options.top.children))

    def read(self, sent: forms.Sent) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(args, start options), or None with errors beside the fields."""
        args, options = self.args.read(sent), self.options.read(sent)
        if args is forms.MISSING or options is forms.MISSING:
            return None
        given = {key: value for key, value in options.items() if value}
        if "run_at" in given:
            try:
                given["run_at"] = datetime.fromisoformat(given["run_at"]).astimezone(UTC)
            except (ValueError, OverflowError):
                self.options.blame([FieldError(("run_at",), "Enter a date and a time")])
                return None
        if "idempotency_key" not in given:
            given["run_id"] = self.nonce
        return args, given

    def blame(self, error: SignoffError) -> None:
        fields = error.fields if isinstance(error, InvalidInput) else []
        self.args.blame(fields)
        self.errors += self.args.errors
        if not fields:
            self.errors.append(say.sentence(error.message))


def _start(request: AnyRequest, workflow: str, nonce: str = "") -> Start:
    backend = backend_of(request)
    known = backend.registry.get_workflow(workflow)
    return Start(
        known,
        forms.build(known.codec.args_schema(), decides=False),
        forms.build(_OPTIONS, prefix="o"),
        nonce if _RUN_ID.fullmatch(nonce) else new_public_id(backend.now()),
    )


@get("/workflows/{workflow:str}/start")
async def start_page(request: AnyRequest, workflow: FromPath[str]) -> Response[Any]:
    scope, name = scope_of(request), name_of(workflow)
    require(scope, "run.start")
    start = _start(request, name)
    draft = await backend_of(request).draft(scope, start_key(name))
    if draft is not None:
        start.args.restore(draft.data)
        start.options.restore(draft.data)
    return await _page(request, start, draft=draft)


@post("/workflows/{workflow:str}/start")
async def start_run(request: AnyRequest, workflow: FromPath[str]) -> Response[Any]:
    scope, name, backend = scope_of(request), name_of(workflow), backend_of(request)
    await backend.allow(scope, "run.start", name)
    sent = await read_form(request)
    start = _start(request, name, (sent.get("nonce") or [""])[-1])
    if any([form.edit(sent) for form in (start.args, start.options)]):  # noqa: C419  # both take over what was typed
        return await _again(request, start, sent, 200)
    read = start.read(sent)
    if read is None:
        return await _again(request, start, sent, 422)
    try:
        run, _ = await backend.start(scope, name, *read)
    except (InvalidInput, Conflict, LimitExceeded) as error:
        start.blame(error)
        if isinstance(error, Conflict) and error.context.get("run") == start.nonce:
            # The page was sent before, came back from the browser's history, and now says something else.
            start.nonce = new_public_id(backend.now())
            start.errors = ["This page started a run already. Send it again to start another one."]
        return await _again(request, start, sent, error.status)
    await backend.drop_draft(scope, start_key(name))
    return redirect(f"/runs/{segment(run)}")


async def keep(request: AnyRequest, workflow: str, sent: Mapping[str, Sequence[str]]) -> None:
    """What was typed, as the person's draft of this start; never its secrets."""
    scope = scope_of(request)
    require(scope, "run.start")
    start = _start(request, workflow)
    await backend_of(request).save_draft(
        scope, start_key(workflow), {**start.args.keeps(sent), **start.options.keeps(sent)}
    )


async def _again(request: AnyRequest, start: Start, sent: forms.Sent, http: int) -> Response[Any]:
    with contextlib.suppress(LimitExceeded):  # too much for a draft is still no reason not to show it
        await keep(request, start.workflow.name, sent)
    return await _page(request, start, http=http)


async def _page(request: AnyRequest, start: Start, *, http: int = 200, draft: DraftView | None = None) -> Response[Any]:
    about = inspect.getdoc(start.workflow.fn) or ""
    return render(
        request, "workflows/start.html", http=http, place="workflows", badge=await badge_of(request), start=start,
        about=about.partition("\n\n")[0], draft=draft, draft_key=start_key(start.workflow.name),
    )  # fmt: skip


HANDLERS = [start_page, start_run]
