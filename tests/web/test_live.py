"""Streams say what changed, to whom it concerns, and end with the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from signoff.people import users
from signoff.web import live
from tests.web.world import Site, csrf_of, eventually


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


async def until(stream: AsyncIterator[tuple[str, Any]], wanted: str) -> Any:
    async with asyncio.timeout(15):
        async for name, data in stream:
            if name == wanted:
                return data
    raise AssertionError(f"the stream ended before {wanted!r}")


async def test_a_change_is_told_by_topic_and_version_and_nothing_else(both_sites: Site) -> None:
    site = both_sites
    run, _ = await site.order("o-1")
    other, _ = await site.order("o-2")
    async with (
        site.signed_in("vera@example.org") as client,
        client.stream("GET", f"/live?topic=run:{run.id}") as answer,
    ):
        stream = events(answer)
        assert set(await until(stream, "hello")) == {"stream"}
        await other.pause()
        await run.pause()
        told = await until(stream, "topics")
        assert set(told) == {f"run:{run.id}"}
        assert all(isinstance(version, int) for version in told.values())


async def test_topics_are_changed_by_post(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client, client.stream("GET", "/live?topic=runs") as answer:
        stream = events(answer)
        name = (await until(stream, "hello"))["stream"]
        headers = {"x-csrf-token": csrf_of((await client.get("/runs")).text)}
        changed = await client.post(f"/live/{name}", json=["approvals", "nonsense:1"], headers=headers)
        assert changed.status_code == 204
        await site.order("o-1")
        assert set(await until(stream, "topics")) == {"approvals"}
        for odd in ('{"no": "list"}', "[" * 100_000, r'["run:\ud800"]', "NaN", "[1]"):
            assert (await client.post(f"/live/{name}", content=odd, headers=headers)).status_code == 400, odd[:20]
        async with site.signed_in("ada@example.org") as other:
            headers = {"x-csrf-token": csrf_of((await other.get("/runs")).text)}
            assert (await other.post(f"/live/{name}", json=["runs"], headers=headers)).status_code == 404


async def test_a_stranger_gets_no_stream(site: Site) -> None:
    async with site.client() as client:
        assert (await client.get("/live?topic=runs")).status_code == 401


async def test_an_unknown_run_is_watched_in_vain(site: Site) -> None:
    async with site.signed_in("vera@example.org") as client, client.stream("GET", "/live?topic=run:none") as answer:
        stream = events(answer)
        await until(stream, "hello")
        (found,) = _streams(site)
        assert found.keys == {}


async def test_a_session_that_ended_ends_its_streams(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BEAT", 0.05)
    async with site.signed_in("ana@example.org") as client, client.stream("GET", "/live?topic=runs") as answer:
        stream = events(answer)
        await until(stream, "hello")
        page = await client.get("/runs")
        await client.post("/sign-out", data={"csrf": csrf_of(page.text)})
        await until(stream, "gone")


async def test_a_changed_role_ends_no_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BEAT", 0.05)
    async with site.signed_in("carl@example.org") as client, client.stream("GET", "/live?topic=runs") as answer:
        stream = events(answer)
        await until(stream, "hello")
        before = dict(client.cookies)
        await site.engine.store.write(users.set_role, site.engine.scope(), "carl@example.org", "operator")
        for _ in range(3):
            await until(stream, "beat")
        assert "Operator" in (await client.get("/runs")).text
        assert dict(client.cookies) != before, "a role that changed gives the session a new id"
        assert (await client.get("/runs")).status_code == 200
        await until(stream, "gone")


async def test_who_leaves_is_forgotten(site: Site) -> None:
    async with site.signed_in("ana@example.org") as client:
        async with client.stream("GET", "/live?topic=runs") as answer:
            await until(events(answer), "hello")
            assert len(_streams(site)) == 1

        async def none_left() -> bool:
            return not _streams(site)

        await eventually(none_left)


def _streams(site: Site) -> list[live.Stream]:
    hub: live.LiveHub = site.app.state.live
    return list(hub.streams.values())
