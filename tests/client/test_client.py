"""The client against a real server: what it asks for, and what it raises."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
import uvicorn

from signoff import Conflict, Engine, InvalidInput, NotFound, Refused
from signoff.client import ApiError, Client
from signoff.people.tokens import create_token
from signoff.web.app import create_app
from tests.runtime import shop

SECONDS = 20


@pytest_asyncio.fixture
async def engine(sqlite_url: str) -> AsyncIterator[Engine]:
    async with Engine(sqlite_url, registry=shop.registry) as engine:
        yield engine


@pytest_asyncio.fixture
async def address(engine: Engine) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(create_app(engine), log_config=None, access_log=False))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server._serve([bound]))  # serve() would take the signals of the tests' process
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        await serving


async def token(engine: Engine, role: str) -> str:
    return await engine.store.write(create_token, engine.scope(), role, role=role)


@pytest_asyncio.fixture
async def client(engine: Engine, address: str) -> AsyncIterator[Client]:
    async with Client(address, token=await token(engine, "operator")) as client:
        yield client


async def test_start_look_and_wait(client: Client) -> None:
    started = await client.start("shop/double", {"number": 4}, idempotency_key="k", labels={"lot": "a"})
    assert not started.existing
    run = await client.wait(started.id, timeout=SECONDS)
    assert (run.status, run.result, run.labels) == ("completed", 8, {"lot": "a"})
    again = await client.start("shop/double", {"number": 4}, idempotency_key="k", labels={"lot": "a"})
    assert (again.id, again.existing) == (started.id, True)
    with pytest.raises(Conflict):
        await client.start("shop/double", {"number": 5}, idempotency_key="k")


async def test_events(client: Client) -> None:
    started = await client.start("shop/wait")
    with pytest.raises(InvalidInput) as wrong:
        await client.send(started.id, "shop/payment", {"amount": "a lot"})
    assert [field.loc for field in wrong.value.fields] == [("amount",)]
    sent = await client.send(started.id, "shop/payment", {"amount": 3}, idempotency_key="p")
    again = await client.send(started.id, "shop/payment", {"amount": 3}, idempotency_key="p")
    assert again.id == sent.id
    assert (await client.wait(started.id, timeout=SECONDS)).result == 3


async def test_an_error_event_fails_the_wait(client: Client) -> None:
    started = await client.start("shop/wait")
    await client.send_error(started.id, "shop/payment", "declined")
    run = await client.wait(started.id, timeout=SECONDS)
    assert run.status == "failed"
    assert run.error
    assert "declined" in run.error.message


async def test_problems_are_typed(client: Client, engine: Engine, address: str) -> None:
    with pytest.raises(NotFound):
        await client.run("nobody/at/all")
    with pytest.raises(NotFound):
        await client.start("shop/nothing")
    with pytest.raises(InvalidInput) as wrong:
        await client.start("shop/double", {"number": "x"})
    assert [field.loc for field in wrong.value.fields] == [("number",)]
    with pytest.raises(TimeoutError):
        await client.wait((await client.start("shop/wait")).id, timeout=0.05)
    async with Client(address, token="wrong") as stranger:
        with pytest.raises(ApiError) as refused:
            await stranger.run("x")
        assert refused.value.http_status == 401
    async with Client(address, token=await token(engine, "viewer")) as viewer:
        with pytest.raises(Refused):
            await viewer.start("shop/double", {"number": 1})


async def test_approvals(client: Client, engine: Engine, address: str) -> None:
    started = await client.start("shop/ask")
    async with asyncio.timeout(SECONDS):
        while not (page := await client.approvals("all")).rows:
            await asyncio.sleep(0.02)
    (row,) = page.rows
    assert (row.title, row.run, page.after) == ("Ship it?", started.id, None)
    assert (await client.claim(row.id)).claimed_by == "token:operator"
    assert (await client.extend(row.id, by=60)).timeout_at == row.timeout_at + timedelta(seconds=60)
    assert [note.text for note in (await client.comment(row.id, "hm")).notes] == [None, None, "hm"]
    with pytest.raises(NotFound):
        await client.approval("ap_none")
    async with Client(address, token=await token(engine, "approver")) as other:
        with pytest.raises(Refused) as refused:
            await other.claim(row.id)
        assert refused.value.reason == "claim"
        with pytest.raises(InvalidInput):
            await client.reassign(row.id, [{"user": "nobody@example.org"}], reason="x")
    await client.release(row.id)
    receipt = await client.decide(row.id, {"approved": True, "note": "ok"}, comment="fine", revision=row.revision)
    assert (receipt.person, receipt.complete) == ("token:operator", True)
    assert (await client.wait(started.id, timeout=SECONDS)).result is True
    assert (await client.approval(row.id)).state == "decided"
