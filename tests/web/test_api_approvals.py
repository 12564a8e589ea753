"""The REST surface of approvals, through real requests with tokens that act for people."""

from __future__ import annotations

from typing import Any

import pytest

from signoff.people import tokens
from tests.web.world import Site

YES = {"approved": True, "boxes": 2, "note": ""}


async def as_user(site: Site, email: str) -> dict[str, str]:
    """The header of a token that acts for somebody."""
    engine, role = site.engine, {"omar@example.org": "operator", "vera@example.org": "viewer"}.get(email, "approver")
    secret = await engine.store.write(
        tokens.create_token, engine.scope(), f"{email}-{id(object())}", role=role, email=email
    )
    return {"authorization": f"Bearer {secret}"}


async def test_list_look_claim_comment_and_decide(both_sites: Site) -> None:
    site = both_sites
    run, asked = await site.order("o-1")
    async with site.client(headers=await as_user(site, "ana@example.org")) as api:
        page = (await api.get("/api/v1/approvals")).json()
        assert [(row["id"], row["title"], row["mine"]) for row in page["rows"]] == [(asked, "Ship order o-1?", True)]
        assert page["after"] is None
        href = f"/api/v1/approvals/{asked}"
        look = (await api.get(href)).json()
        assert (look["run"], look["facts"]["total"], look["why_not"]) == (run.id, "12.00 EUR", None)
        assert "approved" in look["answer_schema"]["properties"]
        claimed = await api.post(f"{href}/claim", json={})
        assert (claimed.status_code, claimed.json()["notes"][0]["kind"]) == (200, "claim")
        said = await api.post(f"{href}/comments", json={"text": "weighs 2 kg"})
        assert [note["text"] for note in said.json()["notes"]] == [None, "weighs 2 kg"]
        wrong = await api.post(f"{href}/decide", json={"answer": {"approved": "perhaps"}})
        assert (wrong.status_code, wrong.json()["reason"]) == (422, "form")
        stale = await api.post(f"{href}/decide", json={"answer": YES, "revision": 7})
        assert (stale.status_code, stale.json()["reason"]) == (409, "revision")
        receipt = (await api.post(f"{href}/decide", json={"answer": YES, "revision": look["revision"]})).json()
        assert (receipt["person"], receipt["approval"]) == ("ana@example.org", asked)
        again = await api.post(f"{href}/decide", json={"answer": YES})
        assert (again.status_code, again.json()["reason"]) == (409, "already_decided")
        assert (await api.get("/api/v1/approvals")).json()["rows"] == []
        decided = (await api.get("/api/v1/approvals", params={"tab": "decided"})).json()
        assert [row["id"] for row in decided["rows"]] == [asked]
    assert await run.result(timeout=10) == "label of o-1"


@pytest.mark.parametrize(
    ("email", "deed", "body", "status", "reason"),
    [
        ("carl@example.org", "decide", {"answer": YES}, 403, "not_eligible"),
        ("carl@example.org", "claim", {}, 403, "not_eligible"),
        ("vera@example.org", "comments", {"text": "hm"}, 403, "role"),
        ("carl@example.org", "add", {"to": ["carl@example.org"], "reason": "me"}, 403, "role"),
        ("carl@example.org", "extend", {}, 403, "not_eligible"),
        ("omar@example.org", "reassign", {"to": ["nobody@example.org"], "reason": "x"}, 422, None),
        ("omar@example.org", "reassign", {"to": [{"group": "none"}], "reason": "x"}, 422, None),
        ("omar@example.org", "reassign", {"to": ["carl@example.org"], "reason": " "}, 422, None),
        ("omar@example.org", "escalate", {"reason": "late"}, 422, None),
        ("omar@example.org", "extend", {"by": -1}, 422, None),
    ],
)
async def test_refusals_are_problems_with_their_reason(
    site: Site, email: str, deed: str, body: dict[str, Any], status: int, reason: str | None
) -> None:
    _, asked = await site.order("o-2")
    async with site.client(headers=await as_user(site, email)) as api:
        answer = await api.post(f"/api/v1/approvals/{asked}/{deed}", json=body)
        assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text
        assert (await api.post(f"/api/v1/approvals/none/{deed}", json=body)).status_code == 404


async def test_an_operator_extends_and_adds_somebody(site: Site) -> None:
    _, asked = await site.order("o-3")
    async with site.client(headers=await as_user(site, "omar@example.org")) as api:
        href = f"/api/v1/approvals/{asked}"
        before = (await api.get(href)).json()
        after = (await api.post(f"{href}/extend", json={"by": 3600, "reason": "on a plane"})).json()
        assert after["timeout_at"] > before["timeout_at"]
        assert after["due_at"] > before["due_at"]
        added = (await api.post(f"{href}/add", json={"to": ["carl@example.org"], "reason": "knows it"})).json()
        assert [(note["kind"], note["text"]) for note in added["notes"]] == [
            ("extend", "on a plane"),
            ("add", "knows it"),
        ]
        listed = (await api.get("/api/v1/approvals", params={"tab": "all", "q": "o-3"})).json()
        assert [row["id"] for row in listed["rows"]] == [asked]


async def test_tabs_of_operators_and_strangers(site: Site) -> None:
    async with site.client(headers=await as_user(site, "ana@example.org")) as api:
        refused = await api.get("/api/v1/approvals", params={"tab": "stuck"})
        assert (refused.status_code, refused.json()["reason"]) == (403, "role")
        assert (await api.get("/api/v1/approvals", params={"tab": "nonsense"})).status_code == 422
    async with site.client() as api:
        assert (await api.get("/api/v1/approvals")).status_code == 401
