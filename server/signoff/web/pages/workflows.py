"""What can be run here; and on phones, the rest of the places."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from litestar import Response, get
from litestar.params import FromPath

from signoff.people.permissions import may, require
from signoff.web.pages import AnyRequest, backend_of, badge_of, render, scope_of
from signoff.workflow.errors import NotFound


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    version: int
    about: str


@get("/workflows")
async def workflows_page(request: AnyRequest) -> Response[Any]:
    scope = scope_of(request)
    require(scope, "run.view")
    known = [
        Known(item.name, item.version, (inspect.getdoc(item.fn) or "").split("\n")[0])
        for item in sorted(backend_of(request).registry.workflows(), key=lambda item: (item.name, -item.version))
    ]
    return render(
        request, "workflows/list.html", place="workflows", badge=await badge_of(request), workflows=known,
        may_start=may(scope, "run.start"), latest={item.name: item.version for item in reversed(known)},
    )  # fmt: skip


@get("/more")
async def more_page(request: AnyRequest) -> Response[Any]:
    scope_of(request)
    return render(request, "more.html", place="more", badge=await badge_of(request))


@get("/{rest:path}")
async def nowhere(request: AnyRequest, rest: FromPath[PurePath]) -> Response[Any]:
    """A route of its own, so that whoever is lost is still known and finds the way back."""
    raise NotFound(f"there is nothing at {rest}")


HANDLERS = [workflows_page, more_page, nowhere]
