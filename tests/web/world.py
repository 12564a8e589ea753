"""A running site for tests: an engine with a worker, the app under a real server, and people who sign in."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import httpx
import uvicorn
from litestar import Litestar
from pydantic import BaseModel, Field
from sse_starlette.sse import AppStatus

from signoff import Retry, Step, action, ask, attempt, event, group, workflow
from signoff.people import groups, tokens, users
from signoff.people.passwords import hash_password
from signoff.runtime.engine import Engine
from signoff.runtime.handles import Run
from signoff.web.app import create_app
from tests.web import desk
from tests.web.kinds import Kinds

PASSWORD = "correct horse battery"
_HASH = hash_password(PASSWORD)


class Ship(BaseModel):
    approved: bool
    boxes: int = Field(ge=1, le=20)
    note: str = Field(default="", title="Note for the warehouse")


class Address(BaseModel):
    street: str
    city: str


class Everything(BaseModel):
    sure: bool
    carrier: Literal["dhl", "ups"]
    boxes: int = Field(ge=1, le=20)
    weight: float
    price: Decimal
    ship_on: date
    pick_up: datetime
    reason: str
    tags: list[str] = []
    address: Address | None = None
    nickname: str | None = None


class Payment(BaseModel):
    amount: int


class Gate:
    """Lets a test decide when an action goes on."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()


GATES: dict[str, Gate] = {}

ship = ask("web/ship", Ship)
everything = ask("web/everything", Everything)
all_kinds = ask("web/kinds", Kinds)
payment = event("web/payment", Payment)


@action(name="web/label", retry=Retry(max_attempts=2, initial=0.01))
async def make_label(order: str) -> str:
    if order == "broken":
        raise ValueError("the printer is out of paper")
    attempt.current().progress(0.4, "printing")
    gate = GATES.get(order)
    if gate is not None:
        await gate.opened.wait()
    return f"label of {order}"


@workflow("web/order", events=[payment])
async def order_workflow(step: Step, order: str) -> str:
    answer = await step.ask(
        ship,
        title=f"Ship order {order}?",
        body="Paid **by invoice**. <script>alert(1)</script>",
        facts={"order": order, "total": "12.00 EUR", "pieces": 3},
        to=group("finance"),
        due=timedelta(hours=4),
        timeout=timedelta(days=2),
    )
    if not answer.approved:
        return "rejected"
    return await step.run_action(make_label, order)


@workflow("web/paid", events=[payment])
async def paid_workflow(step: Step) -> int:
    return (await step.await_event(payment)).amount


@workflow("web/kinds")
async def kinds_workflow(step: Step) -> Kinds:
    """Asks with every kind of field."""
    return await step.ask(all_kinds, title="One of each kind", to=group("finance"))


@workflow("web/start")
async def started_workflow(step: Step, order: str, boxes: int = 3, *, kinds: Kinds | None = None) -> str:
    """Started from its page.

    What stands here is not shown.
    """
    return f"{order} {boxes}"


@workflow("web/form")
async def form_workflow(step: Step) -> Everything:
    return await step.ask(everything, title="Fill everything in", to=group("finance"))


WORKFLOWS = [order_workflow, paid_workflow, form_workflow, kinds_workflow, started_workflow]

PEOPLE = {
    "ana@example.org": ("Ana Moreno", "approver", "finance"),
    "omar@example.org": ("Omar Lind", "operator", None),
    "ada@example.org": ("Ada Admin", "admin", "finance"),
    "vera@example.org": ("Vera Viewer", "viewer", None),
    "carl@example.org": ("Carl Clerk", "approver", None),
}


@dataclass
class Site:
    engine: Engine
    address: str
    app: Litestar
    tokens: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=self.address, timeout=20, **options) as client:
            yield client

    @asynccontextmanager
    async def signed_in(self, email: str) -> AsyncIterator[httpx.AsyncClient]:
        async with self.client() as client:
            page = await client.get("/sign-in")
            answer = await client.post(
                "/sign-in", data={"email": email, "password": PASSWORD, "csrf": csrf_of(page.text), "next": "/runs"}
            )
            assert (answer.status_code, answer.headers["location"]) == (303, "/runs"), answer.text
            yield client

    def bearer(self, role: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[role]}"}

    async def order(self, name: str, **options: Any) -> tuple[Run[str], str]:
        """A run that waits for an answer, and the id of its question."""
        run = await self.engine.start(order_workflow.options(**options), name)
        return run, await self.question(run)

    async def question(self, run: Run[Any]) -> str:
        async def asked() -> str | None:
            found = [item.id for item in await run.approvals() if item.state == "open"]
            return found[0] if found else None

        return await eventually(asked)


async def eventually(look: Callable[[], Any], within: float = 15.0) -> Any:
    """What `look` gives once it is true; for states that come from a worker or another process."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        found = await look()
        if found:
            return found
        assert asyncio.get_running_loop().time() < deadline, f"it did not come true within {within} s"
        await asyncio.sleep(0.02)


def csrf_of(html: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', html)
    assert found is not None, html[:500]
    return found[1]


@asynccontextmanager
async def running_site(url: str, port: int = 0, **options: Any) -> AsyncIterator[Site]:
    AppStatus.should_exit = False  # of the process; a server that stopped before would end our streams
    async with Engine(url, workflows=[*WORKFLOWS, *desk.WORKFLOWS]) as engine:
        await engine.store.write(_people, engine)
        made = {role: await engine.store.write(_token, engine, role) for role in ("viewer", "operator")}
        listener = socket.create_server(("127.0.0.1", port))
        app = create_app(engine, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=2))
        server.capture_signals = _no_signals  # type: ignore[method-assign]  # the test runner's own stay in place
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:

            async def started() -> bool:
                return server.started

            await eventually(started)
            yield Site(engine, f"http://127.0.0.1:{listener.getsockname()[1]}", app, made)
        finally:
            app.state.live.shutdown.set()
            server.should_exit = True
            await serving
            listener.close()


def _no_signals() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _people(tx: Any, engine: Engine) -> None:
    scope = engine.scope()
    for email, (name, role, member_of) in PEOPLE.items():
        if not users.exists(tx, email):
            users.add_user(tx, scope, email, name=name, role=role, password_hash=_HASH)
            if member_of is not None:
                groups.add_to_group(tx, scope, member_of, email)


def _token(tx: Any, engine: Engine, role: str) -> Any:
    return tokens.create_token(tx, engine.scope(), f"{role}-{id(engine)}", role=role)
