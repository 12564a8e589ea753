"""What is typed into forms is kept while it is typed, and can be discarded."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.params import FromPath

from signoff.approvals.drafts import approval_key, start_key
from signoff.web.addresses import local, name_of
from signoff.web.pages import AnyRequest, backend_of, redirect, scope_of, start
from signoff.web.pages import approval as approvals
from signoff.workflow.errors import NotFound


@post("/drafts/{draft:str}")
async def save_draft(request: AnyRequest, draft: FromPath[str]) -> Response[Any]:
    """Keeps what was typed, as the browser sends it, under the key that the form's page names; or discards it."""
    scope, key = scope_of(request), name_of(draft)
    sent = await approvals.read_form(request)
    kind, _, name = key.partition(":")
    if sent.get("discard"):
        await backend_of(request).drop_draft(scope, key)
        return redirect(local(sent["discard"][-1]))
    if key == approval_key(name):
        await approvals.keep(request, await backend_of(request).approval(scope, name), sent)
    elif key == start_key(name):
        await start.keep(request, name, sent)
    else:
        raise NotFound(f"there is no draft of {kind}")
    return Response(b"", status_code=204)


HANDLERS = [save_draft]
