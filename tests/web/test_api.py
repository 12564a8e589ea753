"""The REST surface: tokens, problems, and the three things it does, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.world import Site, eventually

START = {"workflow": "web/paid"}


async def test_start_look_send_and_see_the_result(both_sites: Site) -> None:
    site = both_sites
    async with site.client(headers=site.bearer("operator")) as api:
        started = await api.post("/api/v1/runs", json={**START, "labels": {"shop": "a/b"}, "run_id": "shop/1"})
        assert started.status_code == 201
        href = started.headers["location"]
        assert started.json() == {"id": "shop/1", "existing": False, "href": href}

        async def waits() -> dict[str, Any] | None:
            body: dict[str, Any] = (await api.get(href)).json()
            return body if body["awaiting"] else None

        body = await eventually(waits)
        assert (body["status"], body["awaiting"][0]["name"]) == ("waiting", "web/payment")
        assert body["labels"] == {"shop": "a/b"}
        assert body["requester"] is not None
        sent = await api.post(f"{href}/events/web/payment", json={"value": {"amount": 7}, "idempotency_key": "k"})
        assert sent.status_code == 202
        again = await api.post(f"{href}/events/web%2Fpayment", json={"value": {"amount": 7}, "idempotency_key": "k"})
        assert again.json()["id"] == sent.json()["id"]

        async def done() -> dict[str, Any] | None:
            body: dict[str, Any] = (await api.get(href)).json()
            return body if body["status"] == "completed" else None

        assert (await eventually(done))["result"] == 7


async def test_a_key_gives_the_same_run_and_another_start_a_conflict(site: Site) -> None:
    async with site.client(headers=site.bearer("operator")) as api:
        body = {"workflow": "web/order", "args": {"order": "o-1"}, "idempotency_key": "k"}
        first = await api.post("/api/v1/runs", json=body)
        second = await api.post("/api/v1/runs", json=body)
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.json() == {**first.json(), "existing": True}
        other = await api.post("/api/v1/runs", json={**body, "args": {"order": "o-2"}})
        assert (other.status_code, other.json()["type"]) == (409, "conflict")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic eDp5"}])
async def test_without_a_valid_token_nothing_is_told(site: Site, headers: dict[str, str]) -> None:
    async with site.client(headers=headers) as api:
        for answer in (await api.post("/api/v1/runs", json=START), await api.get("/api/v1/runs/x")):
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_browsers_cookie_is_no_token(site: Site) -> None:
    async with site.signed_in("ada@example.org") as browser:
        assert (await browser.post("/api/v1/runs", json=START)).status_code == 401


async def test_a_role_that_may_not_is_refused(site: Site) -> None:
    async with site.client(headers=site.bearer("viewer")) as api:
        answer = await api.post("/api/v1/runs", json=START)
        assert (answer.status_code, answer.json()["type"]) == (403, "refused")


async def test_bad_input_is_named_field_by_field_and_leaves_nothing(site: Site) -> None:
    async with site.client(headers=site.bearer("operator")) as api:
        wrong = await api.post("/api/v1/runs", json={"workflow": "web/order", "args": {"order": 5, "extra": 1}})
        assert wrong.status_code == 422
        problem = wrong.json()
        assert problem["type"] == "invalid_input"
        assert any("order" in error["loc"] for error in problem["errors"])
        unknown = await api.post("/api/v1/runs", json={"workflow": "web/none"})
        assert (unknown.status_code, unknown.json()["type"]) == (404, "not_found")
        shape = await api.post("/api/v1/runs", json={"workflow": 5, "surplus": True})
        assert shape.status_code == 422
        assert shape.headers["content-type"] == "application/problem+json"
        assert (await api.post("/api/v1/runs", content=b"{")).status_code in (400, 422)
        for body in (b"", b"null", b"[]", b'"x"'):
            none = (await api.post("/api/v1/runs", content=body, headers={"content-type": "application/json"})).json()
            assert (none["status"], none["type"]) == (422, "invalid_input")
            assert none["detail"].startswith("Send a JSON object with workflow; version, args, ")
            assert none["errors"] == [{"loc": [], "message": none["detail"]}]
        # from Python 3.14 on the stack is the limit, not a count of calls
        deep = await api.post("/api/v1/runs", content=b"[" * 200_000 + b"]" * 200_000)
        assert (deep.status_code, deep.json()["detail"]) == (400, "The JSON is nested too deeply")
        both = await api.post("/api/v1/runs", json={**START, "run_at": "2030-01-01T00:00:00Z", "run_after": 3})
        assert both.status_code == 422
    assert (await site.engine.runs()).items == ()


async def test_events_that_do_not_fit_are_refused(site: Site) -> None:
    run, _ = await site.order("o-1")
    async with site.client(headers=site.bearer("operator")) as api:
        at = f"/api/v1/runs/{run.id}/events"
        assert (await api.post(f"{at}/web/payment", json={"value": {"amount": "x"}})).status_code == 422
        assert (await api.post(f"{at}/undeclared", json={"value": 1})).status_code == 422
        assert (await api.post(f"{at}/web/payment", json={"value": 1, "error": "no"})).status_code == 422
        ask = await api.post(f"{at}/web/ship", json={"value": {"approved": True, "boxes": 1}})
        assert ask.status_code in (409, 422)
        assert (
            await api.post("/api/v1/runs/none/events/web/payment", json={"value": {"amount": 1}})
        ).status_code == 404


async def test_unknown_places_and_methods_are_problems_too(site: Site) -> None:
    async with site.client(headers=site.bearer("operator")) as api:
        for answer in (
            await api.get("/api/v1/nothing"),
            await api.delete("/api/v1/runs"),
            await api.get("/api/v1/runs/x"),
        ):
            assert answer.status_code in (404, 405)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == answer.status_code


async def test_a_body_above_the_limit_is_refused(site: Site) -> None:
    async with site.client(headers=site.bearer("operator")) as api:
        answer = await api.post("/api/v1/runs", json={**START, "args": {"x": "y" * 17_000_000}})
        assert answer.status_code == 413
        assert "16 MiB" in answer.json()["detail"]
        assert answer.headers["content-type"] == "application/problem+json"


async def test_the_schema_describes_it_and_no_pages(site: Site) -> None:
    async with site.client() as client:
        schema = (await client.get("/api/openapi.json")).json()
        assert all(path.startswith("/api/v1/") for path in schema["paths"])
        assert {
            "/api/v1/runs", "/api/v1/runs/{run}", "/api/v1/runs/{run}/events/{event}", "/api/v1/approvals/{approval}",
        } <= set(schema["paths"])  # fmt: skip
        assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
        assert "409" in schema["paths"]["/api/v1/runs"]["post"]["responses"]


async def test_health(site: Site) -> None:
    async with site.client() as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
