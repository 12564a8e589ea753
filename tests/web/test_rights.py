"""Every route × role × tenant of a running app, compared with the one table that says who may do what."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, get_args

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from litestar.routes import HTTPRoute

from signoff.people import groups, sessions, tenants, tokens, users
from signoff.people.audit import A as AUDIT
from signoff.people.permissions import FIRST_TENANT_ONLY, LEAST_ROLE, Action
from signoff.store.scope import ROLES, Scope
from signoff.store.tx import Tx
from signoff.web.routes import ROUTES, Need
from tests.web.world import _HASH, PASSWORD, Site, csrf_of, running_site

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What a request must carry to come as far as the question who asks.
BODIES: dict[str, dict[str, Any]] = {
    "POST /people": {"email": "{new}@example.org", "role": "viewer"},
    "POST /people/{user}/role": {"role": "viewer"},
    "POST /people/groups": {"name": "{new}"},
    "POST /settings/tokens": {"name": "{new}", "role": "viewer"},
    "POST /settings/tenants": {"name": "{new}", "email": "{new}@example.org"},
    "POST /settings/tenants/{tenant}/rename": {"title": "{new}"},
    "POST /switch": {"tenant": "default"},
    "POST /api/v1/runs": {"workflow": "web/order", "args": {"order": "{new}"}},
    "POST /api/v1/runs/{run}/events/{event}": {"value": {"amount": 1}},
    "POST /api/v1/approvals/{approval}/decide": {"answer": {"approved": True, "boxes": 1}},
    "POST /api/v1/approvals/{approval}/reassign": {"to": ["admin@example.org"], "reason": "hers"},
    "POST /api/v1/approvals/{approval}/delegate": {"to": "admin@example.org", "reason": "away"},
    "POST /api/v1/approvals/{approval}/escalate": {"reason": "late"},
    "POST /api/v1/approvals/{approval}/extend": {"by": 60, "reason": "late"},
    "POST /api/v1/approvals/{approval}/add": {"to": ["admin@example.org"], "reason": "knows it"},
    "POST /api/v1/approvals/{approval}/comments": {"text": "hm"},
}
FIXED = {"link": "unknown", "provider": "unknown", "rest": "nowhere", "no": "0", "event": "web/payment",
         "stream_id": "unknown", "path": "unknown", "workflow": "web%2Forder", "file_path": "signoff.css"}  # fmt: skip
FRAGMENTS = {"GET /runs/{run}/steps/{no}"}  # without htmx they lead on to the page that holds them
OWNED = {"approval", "draft", "run", "user", "group", "key", "name"}  # parameters that name something of a tenant


@dataclass
class House:
    """The app with people of every role in one tenant, and another tenant beside it."""

    site: Site
    tenants: dict[str, int]
    pages: dict[str, httpx.AsyncClient] = field(default_factory=dict)  # by role; `stranger`, and an admin elsewhere
    csrf: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    read: int = 0  # of the audit log, the id of the last row that was looked at

    async def make(self, parameter: str, where: str, role: str) -> str:
        """A new thing of that kind in the tenant `own` or `other`."""
        store, scope, new = self.site.engine.store, Scope(self.tenants[where]), f"n-{secrets.token_hex(4)}"
        match parameter:
            case "approval" | "run":
                run, question = await self.site.order(new, tenant="default" if where == "own" else "other")
                return question if parameter == "approval" else run.id
            case "draft":
                return f"approval:{await self.make('approval', where, role)}"
            case "user":
                return str(await store.write(users.add_user, scope, f"{new}@example.org"))
            case "group":
                return await store.write(groups.make_group, scope, new)
            case "tenant":
                await store.write(tenants.add_tenant, self.site.engine.scope(), new)
                return new
            case "name":
                await store.write(tokens.create_token, scope, new, role="viewer")
                return new
            case "key":
                email = f"{role if where == 'own' and role in ROLES else 'other'}@example.org"
                person = await store.read(users.find_person, self.tenants[where], email=email)
                assert person is None or person.user_id is not None
                user_id = person.user_id if person is not None else 0
                _, view = await store.write(sessions.open_session, user_id=user_id, tenant_id=scope.tenant_id)
                return view.key
        raise KeyError(f"{parameter} is a new parameter of a path: say here what it names")

    async def ask(self, route: str, deed: str, role: str, where: str) -> str:
        """What became of one request: `sign-in`, `role`, `missing`, or `through` and the status."""
        method, template = route.split(" ")
        names = re.findall(r"{(\w+)}", template)
        filled = {name: FIXED[name] for name in names if name in FIXED} | {
            "action": deed or "cancel",
            "deed": deed or "reassign",
        }
        for name in names:
            if name not in filled:
                filled[name] = await self.make(name, where, role)
        path = re.sub(r"{(\w+)}", lambda match: filled[match[1]], template)
        new = f"n-{secrets.token_hex(4)}"
        body = _filled(BODIES.get(route, {}), new)
        client, options = self.pages[role], {"headers": {"hx-request": "true"} if route in FRAGMENTS else {}}
        if template.startswith("/api/"):
            client = self.pages["program"]
            options["headers"] = {"authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}
            if method != "GET":
                options["json"] = body
        elif method != "GET":
            options["data"] = {"csrf": self.csrf[role], **body}
        async with client.stream(method, path, **options) as answer:
            text = "" if template == "/live" and answer.status_code == 200 else (await answer.aread()).decode()
        led = answer.headers.get("location", "")
        if answer.status_code == 401 or (answer.status_code == 303 and led.startswith("/sign-in")):
            return "sign-in"
        if answer.status_code == 403:
            return "role" if "needs the role" in text else f"refused: {text[-400:]}"
        if answer.status_code >= 500:
            return f"broken: {answer.status_code}"
        return "missing" if answer.status_code == 404 else f"through {answer.status_code}"

    async def refusals(self) -> list[sa.Row[Any]]:
        """What the audit log has of refusals since this was asked last."""
        query = sa.select(AUDIT).where(AUDIT.c.id > self.read, AUDIT.c.allowed.is_(False)).order_by(AUDIT.c.id)
        rows = await self.site.engine.store.read(lambda tx: list(tx.conn.execute(query)))
        self.read = rows[-1].id if rows else self.read
        return rows


def _filled(body: Mapping[str, Any], new: str) -> dict[str, Any]:
    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        return value.replace("{new}", new) if isinstance(value, str) else value

    return {key: fill(value) for key, value in body.items()}


@pytest_asyncio.fixture(loop_scope="session")
async def house(sqlite_url: str) -> AsyncIterator[House]:
    async with running_site(sqlite_url) as site, AsyncExitStack() as stack:
        store = site.engine.store
        other = await store.write(tenants.ensure_tenant, "other")
        made = House(site, {"own": site.engine.scope().tenant_id, "other": other})

        def people(tx: Tx) -> None:
            own = site.engine.scope()
            for role in ROLES:
                users.add_user(tx, own, f"{role}@example.org", role=role, password_hash=_HASH)
                groups.add_to_group(tx, own, "finance", f"{role}@example.org")
                made.tokens[role] = tokens.create_token(
                    tx, own, f"walk-{role}-{tx.now}", role=role, email=f"{role}@example.org"
                )
            users.add_user(tx, Scope(other), "other@example.org", role="admin", password_hash=_HASH)

        await store.write(people)
        for role in ("stranger", "program", "other", *ROLES):
            client = made.pages[role] = await stack.enter_async_context(site.client())
            made.csrf[role] = csrf_of((await client.get("/sign-in")).text)
            if role in ("other", *ROLES):
                data = {"email": f"{role}@example.org", "password": PASSWORD, "csrf": made.csrf[role], "next": "/more"}
                assert (await client.post("/sign-in", data=data)).status_code == 303
                made.csrf[role] = csrf_of((await client.get("/more")).text)
        yield made


def expected(need: Need, role: str, where: str, owned: bool) -> set[str]:
    if need == "public":
        return {"through", "missing", "sign-in"}  # the sign-in page says itself what does not fit
    if role == "stranger":
        return {"sign-in"}
    allowed = need == "signed-in" or ROLES.index(role) >= ROLES.index(LEAST_ROLE[need])
    if where == "other" and owned:
        return {"missing"} if allowed else {"missing", "role"}
    if need == "signed-in":
        return {"through", "missing"}
    return {"through"} if allowed else {"role"}


async def test_every_route_stands_in_the_table_and_no_row_is_left_over(house: House) -> None:
    routes = {
        f"{method} {route.path_format}"
        for route in house.site.app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - {"OPTIONS"}
    }
    assert routes == set(ROUTES)


@pytest.mark.timeout(400)  # every route, role and tenant
async def test_every_route_lets_in_whom_the_table_says_and_nobody_of_another_tenant(house: House) -> None:
    """And each refusal of somebody who is known leaves one row in the audit log; strangers leave none."""
    wrong = []
    for route, needs in sorted(ROUTES.items(), key=lambda item: item[0] == "POST /sign-out"):
        owned = bool(OWNED & set(re.findall(r"{(\w+)}", route)))
        for deed, need in needs.items() if isinstance(needs, Mapping) else [("", needs)]:
            for role in ("stranger", *ROLES):
                for where in ("own", "other") if owned else ("own",):
                    found = await house.ask(route, deed, role, where)
                    wanted = expected(need, role, where, owned)
                    if found.split(" ")[0] not in wanted:
                        wrong.append(f"{route} {deed} as {role} in {where}: {found}, wanted {' or '.join(wanted)}")
                    told = [(row.actor, row.reason) for row in await house.refusals()]
                    row = [(f"{role}@example.org", "role")] * (found == "role")
                    if need != "public" and found in ("role", "sign-in") and told != row:
                        wrong.append(f"{route} {deed} as {role} in {where}: {found}, and the audit log has {told}")
    assert not wrong, "\n".join(wrong)


async def test_what_reaches_beyond_a_tenant_is_for_the_first_one_only(house: House) -> None:
    """An admin of another tenant makes none, and reads of none."""
    routes = [route for route, need in ROUTES.items() if isinstance(need, str) and need in FIRST_TENANT_ONLY]
    assert len(routes) >= 4
    assert {route: await house.ask(route, "", "other", "own") for route in routes} == dict.fromkeys(routes, "role")


async def test_forged_posts_of_who_is_signed_in_are_on_record_and_those_of_strangers_are_not(house: House) -> None:
    viewer, stranger = house.pages["viewer"], house.pages["stranger"]
    elsewhere = {"sec-fetch-site": "cross-site"}
    for client in (stranger, viewer):
        assert (await client.post("/settings/password", data={"csrf": "no"})).status_code == 403
        assert (await client.post("/people", data={}, headers=elsewhere)).status_code == 403
        assert (await client.post("/setup/a-secret", data={})).status_code == 403
    assert [(row.actor, row.via, row.action, row.target, row.reason) for row in await house.refusals()] == [
        ("viewer@example.org", "page", "request", "POST /settings/password", "page_too_old"),
        ("viewer@example.org", "page", "request", "POST /people", "another_site"),
        ("viewer@example.org", "page", "request", "POST /setup/...", "page_too_old"),
    ]
    page = (await house.pages["admin"].get("/record/audit?refused=yes")).text
    assert "POST /settings/password" in page
    assert "From a page of another session" in page


async def test_rows_name_rights_that_exist() -> None:
    needs = {need for row in ROUTES.values() for need in (row.values() if isinstance(row, Mapping) else [row])}
    assert needs <= {*get_args(Action), "public", "signed-in"}
