"""Tells open pages what changed: streams of (topic, version), never of content.

A page fetches the fragments that it may see; on (re)connecting it refreshes them all, so that nothing is missed and no
log of events is needed. One stream per browser serves all its tabs, and its topics are changed by POST.
Topics: `runs`, `run:<id>`, `approvals`, `approval:<id>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import structlog

if TYPE_CHECKING:
    from signoff.store.scope import Scope
    from signoff.store.tx import Notice
    from signoff.web.backend import Backend
    from signoff.web.fragments import Fragments

MAX_TOPICS = 200
PAUSE = 0.1  # seconds between two rounds of telling: what changes faster is told once
BEAT = 15.0  # seconds after which a silent stream says that it lives, and its session is looked at again
_REMEMBERED = 10_000

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Stream:
    """One browser's stream. `keys` leads from what notices name to the topics as the browser knows them."""

    secret: str
    scope: Scope
    keys: dict[tuple[str, Any], set[str]] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    doubted: bool = False  # the person's rights, or the session itself, may have changed
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))

    def tell(self, topics: Iterable[str]) -> None:
        self.pending.update(topics)
        if self.pending:
            self.wake.set()

    def doubt(self) -> None:
        self.doubted = True
        self.wake.set()

    def all_topics(self) -> set[str]:
        return set().union(*self.keys.values()) if self.keys else set()


class LiveHub:
    """Belongs to the app's loop, between `start` and `stop`."""

    def __init__(self, backend: Backend, fragments: Fragments) -> None:
        self.backend = backend
        self.fragments = fragments
        self.streams: dict[str, Stream] = {}
        self.version = 0
        # given to each response, so that streams end well when the server stops
        self.shutdown = anyio.Event()
        self._runs: set[Any] = set()
        self._tenants: set[Any] = set()
        self._users: set[Any] = set()
        self._everything = False
        self._wake = asyncio.Event()
        self._tenant_of: dict[Any, int | None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Any = None

    async def start(self) -> None:
        self._unsubscribe = self.backend.subscribe(self._notice)
        self._tasks = [
            asyncio.create_task(self._tell_all(), name="signoff-live"),
            asyncio.create_task(self._end_streams(), name="signoff-live-end"),
        ]

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self.shutdown.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_streams(self) -> None:
        """A server that stops waits for its streams: they are woken to see it."""
        await self.shutdown.wait()
        for stream in list(self.streams.values()):
            stream.wake.set()

    def _notice(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            if notice.kind == "run":
                self._runs.add(notice.key)
            elif notice.kind == "approvals":
                self._tenants.add(notice.key)
            elif notice.kind == "rights":
                self._users.add(notice.key)
            elif notice.kind == "resync":
                self._everything = True
        if self._runs or self._tenants or self._users or self._everything:
            self._wake.set()

    async def _tell_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            runs, tenants, users, everything = self._runs, self._tenants, self._users, self._everything
            self._runs, self._tenants, self._users, self._everything = set(), set(), set(), False
            for stream in list(self.streams.values()):
                if everything or (stream.scope.person is not None and stream.scope.person.user_id in users):
                    stream.doubt()
            try:
                await self._tell(runs, tenants, everything)
            except Exception:  # a page that misses a change is reloaded by hand; a dead teller would silence all
                log.exception("telling live pages failed")
            await asyncio.sleep(PAUSE)

    async def _tell(self, runs: set[Any], tenants: set[Any], everything: bool) -> None:
        self.version += 1
        self.fragments.forget(None if everything else runs)
        if not self.streams:
            return
        changed: set[tuple[str, Any]] = {("run", run) for run in runs} | {("approvals", tenant) for tenant in tenants}
        if runs and any(key[0] == "runs" for stream in self.streams.values() for key in stream.keys):
            changed |= {("runs", tenant) for tenant in await self._tenants_of(runs)}
        for stream in list(self.streams.values()):
            if everything:
                stream.tell(stream.all_topics())
            else:
                for key in stream.keys.keys() & changed:
                    stream.tell(stream.keys[key])

    async def _tenants_of(self, runs: set[Any]) -> set[int]:
        unknown = [run for run in runs if run not in self._tenant_of]
        if unknown:
            if len(self._tenant_of) > _REMEMBERED:
                self._tenant_of.clear()
            self._tenant_of.update(await self.backend.tenants_of_runs(unknown))
        return {tenant for run in runs if (tenant := self._tenant_of.get(run)) is not None}

    async def subscribe(self, stream: Stream, topics: Sequence[str]) -> None:
        """Replaces the stream's topics by those of the given ones that its person may see."""
        keys: dict[tuple[str, Any], set[str]] = {}
        for topic in list(dict.fromkeys(topics))[:MAX_TOPICS]:
            for key in await self.backend.watch(stream.scope, topic):
                keys.setdefault(key, set()).add(topic)
        stream.keys = keys

    def find(self, stream_id: str, secret: str | None) -> Stream | None:
        """Another session's stream is not found."""
        stream = self.streams.get(stream_id)
        return stream if stream is not None and stream.secret == secret else None

    async def serve(self, secret: str, scope: Scope, topics: Sequence[str]) -> AsyncIterator[dict[str, str]]:
        """The events of one stream, until the browser leaves, the session ends, or the server stops."""
        stream = Stream(secret, scope)
        self.streams[stream.id] = stream
        try:
            await self.subscribe(stream, topics)
            yield {"event": "hello", "data": json.dumps({"stream": stream.id})}
            loop = asyncio.get_running_loop()
            checked = loop.time()
            while not self.shutdown.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stream.wake.wait(), BEAT)
                if stream.doubted or loop.time() - checked >= BEAT:
                    stream.doubted = False
                    checked = loop.time()
                    now = await self.backend.present(secret)
                    if now is None:
                        yield {"event": "gone", "data": "{}"}
                        return
                    if now != stream.scope:
                        stream.scope = now
                        topics = sorted(stream.all_topics())
                        await self.subscribe(stream, topics)
                        stream.tell(topics)  # also those that may not be seen any more: their parts go
                stream.wake.clear()
                told, stream.pending = stream.pending, set()
                if told:
                    yield {"event": "topics", "data": json.dumps(dict.fromkeys(sorted(told), self.version))}
                else:
                    yield {"event": "beat", "data": "{}"}
        finally:
            self.streams.pop(stream.id, None)
