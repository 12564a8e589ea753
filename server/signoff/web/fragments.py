"""Fragments that many people look at: rendered once for a version and for all who have the same rights.

A version lasts until streams are told of the next one, and never for long, because words about time are in it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

MOST = 200  # that are kept at once
LARGEST = 256 * 1024  # characters; what is larger is shared only while it is being made
LONGEST = 5.0  # seconds
_REMEMBERED = 10_000

Topic = tuple[str, int]  # ("run", its key) or ("runs", the tenant's)
_Key = tuple[Topic, Hashable]


class Rendering(NamedTuple):
    """`shared` False: something in it is for the one who asked, and others must not see it."""

    content: Markup
    shared: bool = True


@dataclass(slots=True)
class _Kept:
    task: asyncio.Future[Rendering]
    since: float


class Fragments:
    """Belongs to the app's loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._personal: OrderedDict[_Key, None] = OrderedDict()
        self._keys: dict[tuple[int, str], int] = {}

    async def get(self, topic: Topic, variant: Hashable, make: Callable[[], Awaitable[Rendering]]) -> Markup:
        """The fragment as it is kept, or as somebody is just making it, or else made now.

        `variant` must name all that the fragment depends on beside the topic's state, above all the viewer's rights.
        """
        key, now = (topic, variant), asyncio.get_running_loop().time()
        if key in self._personal:  # very likely it still is: nobody waits for another's
            return self._noted(key, await make())
        kept = self._kept.get(key)
        mine = kept is None or now - kept.since > LONGEST
        if kept is None or mine:
            kept = self._kept[key] = _Kept(asyncio.ensure_future(make()), now)
            kept.task.add_done_callback(lambda task: self._made(key, task))
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        rendering = await asyncio.shield(kept.task)  # it goes on for the others when this one leaves
        return rendering.content if rendering.shared or mine else self._noted(key, await make())

    def _noted(self, key: _Key, rendering: Rendering) -> Markup:
        if rendering.shared:
            self._personal.pop(key, None)
        else:
            self._personal[key] = None
            while len(self._personal) > MOST:
                self._personal.popitem(last=False)
        return rendering.content

    def _made(self, key: _Key, task: asyncio.Future[Rendering]) -> None:
        """What failed, or is not for others, is not kept."""
        if not task.cancelled() and task.exception() is None:
            rendering = task.result()
            if len(self._noted(key, rendering)) <= LARGEST and rendering.shared:
                return
        kept = self._kept.get(key)
        if kept is not None and kept.task is task:
            del self._kept[key]

    def forget(self, runs: Iterable[Any] | None) -> None:
        """These runs have another version now (None: everything has). Before anybody is told of it."""
        if runs is None:
            self._kept.clear()
            return
        changed = {("run", run) for run in runs}
        if changed:
            for key in [key for key in self._kept if key[0] in changed or key[0][0] == "runs"]:
                del self._kept[key]

    # -- which run a name in an address means

    def key_of(self, tenant_id: int, name: str) -> int | None:
        """None: nobody has looked yet."""
        return self._keys.get((tenant_id, name))

    def learn(self, tenant_id: int, name: str, key: int) -> None:
        if len(self._keys) >= _REMEMBERED:
            self._keys.clear()
        self._keys[tenant_id, name] = key
