"""The stream that tells open pages what changed."""

from __future__ import annotations

import json
from typing import cast

from litestar import Response, get, post
from litestar.params import FromPath
from sse_starlette import EventSourceResponse

from signoff.people.canonical import is_storable
from signoff.web.live import LiveHub
from signoff.web.pages import AnyRequest, caller_of, scope_of


def _hub(request: AnyRequest) -> LiveHub:
    return cast("LiveHub", request.app.state.live)


@get("/live", media_type="text/event-stream", include_in_schema=False)
async def stream(request: AnyRequest) -> EventSourceResponse:
    scope, hub = scope_of(request), _hub(request)
    topics = request.query_params.getall("topic", [])
    events = hub.serve(caller_of(request).secret or "", scope, topics)
    return EventSourceResponse(
        events, sep="\n", ping=15, shutdown_event=hub.shutdown, shutdown_grace_period=2,
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )  # fmt: skip


@post("/live/{stream_id:str}")
async def change_topics(request: AnyRequest, stream_id: FromPath[str]) -> Response[None]:
    scope_of(request)
    found = _hub(request).find(stream_id, caller_of(request).secret)
    if found is None:
        return Response(None, status_code=404)
    try:
        topics = json.loads(await request.body())
    except (ValueError, RecursionError):
        return Response(None, status_code=400)
    if not isinstance(topics, list) or not all(isinstance(topic, str) and is_storable(topic) for topic in topics):
        return Response(None, status_code=400)
    await _hub(request).subscribe(found, topics)
    return Response(None, status_code=204)


HANDLERS = [stream, change_topics]
