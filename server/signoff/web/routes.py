"""What each route of the app needs: one row for each, which a test compares with the running app.

The rights themselves stand in `people.permissions`. Whoever adds a route adds its row here; the test fails without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from signoff.people.permissions import Action

# `public`: strangers too. `signed-in`: whoever has a session, or for the API a token.
Need = Action | Literal["public", "signed-in"]

# Method and path as the app's routes write it. Where one route carries several deeds, by its last parameter.
ROUTES: Final[Mapping[str, Need | Mapping[str, Need]]] = {
    # ways in and out
    "GET /sign-in": "public",
    "POST /sign-in": "public",
    "POST /sign-in/{provider}": "public",
    "GET /sign-in/{provider}/callback": "public",
    "POST /sign-out": "public",
    "GET /setup/{link}": "public",
    "POST /setup/{link}": "public",
    "POST /preferences/theme": "public",
    # for everybody
    "GET /": "signed-in",
    "GET /badge": "signed-in",
    "GET /keyboard": "signed-in",
    "GET /more": "signed-in",
    "GET /live": "signed-in",
    "POST /live/{stream_id}": "signed-in",
    "GET /{rest}": "public",  # nothing is there
    # approvals
    "GET /approvals": "approval.view",
    "GET /approvals/rows": "approval.view",
    "GET /approvals/{approval}": "approval.view",
    "GET /approvals/{approval}/state": "approval.view",
    "GET /approvals/{approval}/question.json": "approval.view",
    "POST /approvals/{approval}": "approval.decide",
    "GET /approvals/{approval}/{deed}": "approval.view",  # what it would do, and who may
    "POST /approvals/{approval}/{deed}": {
        "claim": "approval.claim",
        "release": "approval.claim",
        "comment": "approval.comment",
        "delegate": "approval.delegate",
        "reassign": "approval.decide",  # or approval.reassign, whoever it is put to
        "escalate": "approval.decide",  # or approval.escalate, whoever it is put to
        "extend": "approval.extend",  # or who may decide, where the question says so
        "add": "approval.add",
    },
    # runs
    "GET /runs": "run.view",
    "GET /runs/rows": "run.view",
    "GET /runs/{run}": "run.view",
    "GET /runs/{run}/live": "run.view",
    "GET /runs/{run}/steps/{no}": "run.view",
    "GET /runs/{run}/{action}": "run.view",  # what it would do
    "POST /runs/{run}/{action}": {
        "cancel": "run.control",
        "pause": "run.control",
        "resume": "run.control",
        "restart": "run.restart",
    },
    "GET /workflows": "run.view",
    "GET /workflows/{workflow}/start": "run.start",
    "POST /workflows/{workflow}/start": "run.start",
    # what is typed and not sent yet
    "POST /drafts/{draft}": "approval.view",  # of a start: run.start
    # people
    "GET /people": "people.view",
    "POST /people": "people.manage",
    "GET /people/add": "people.manage",
    "GET /people/{user}": "people.view",
    "POST /people/{user}/role": "people.manage",
    "POST /people/{user}/groups": "people.manage",
    "POST /people/{user}/link": "people.manage",
    "GET /people/{user}/deactivate": "people.manage",
    "POST /people/{user}/deactivate": "people.manage",
    "POST /people/{user}/activate": "people.manage",
    "GET /people/{user}/remove": "people.manage",
    "POST /people/{user}/remove": "people.manage",
    "GET /people/groups": "people.view",
    "POST /people/groups": "people.manage",
    "GET /people/groups/{group}": "people.view",
    "POST /people/groups/{group}/add": "people.manage",
    "POST /people/groups/{group}/remove": "people.manage",
    "GET /people/groups/{group}/delete": "people.manage",
    "POST /people/groups/{group}/delete": "people.manage",
    # the record
    "GET /record": "audit.view",
    "GET /record/ledger.jsonl": "ledger.export",
    "GET /record/ledger.csv": "ledger.export",
    "GET /record/audit": "audit.view",
    # settings
    "GET /settings": "signed-in",
    "POST /settings/sessions/{key}/revoke": "session.revoke",
    "POST /settings/sessions/revoke-others": "session.revoke",
    "POST /settings/password": "password.change",
    "GET /settings/tokens": "token.manage",
    "POST /settings/tokens": "token.manage",
    "GET /settings/tokens/{name}/revoke": "token.manage",
    "POST /settings/tokens/{name}/revoke": "token.manage",
    # tenants
    "POST /switch": "signed-in",  # into one's own
    "GET /settings/tenants": "tenant.manage",
    "POST /settings/tenants": "tenant.manage",
    "GET /settings/tenants/{tenant}/rename": "tenant.manage",
    "POST /settings/tenants/{tenant}/rename": "tenant.manage",
    # the API
    "POST /api/v1/runs": "run.start",
    "GET /api/v1/runs/{run}": "run.view",
    "POST /api/v1/runs/{run}/events/{event}": "run.send",
    "GET /api/v1/ledger": "ledger.export",
    "GET /api/v1/approvals": "approval.view",
    "GET /api/v1/approvals/{approval}": "approval.view",
    "POST /api/v1/approvals/{approval}/decide": "approval.decide",
    "POST /api/v1/approvals/{approval}/claim": "approval.claim",
    "POST /api/v1/approvals/{approval}/release": "approval.claim",
    "POST /api/v1/approvals/{approval}/reassign": "approval.decide",  # or approval.reassign, whoever it is put to
    "POST /api/v1/approvals/{approval}/delegate": "approval.delegate",
    "POST /api/v1/approvals/{approval}/escalate": "approval.decide",  # or approval.escalate, whoever it is put to
    "POST /api/v1/approvals/{approval}/extend": "approval.extend",  # or who may decide, where the question says so
    "POST /api/v1/approvals/{approval}/add": "approval.add",
    "POST /api/v1/approvals/{approval}/comments": "approval.comment",
    # what is no page
    "GET /api": "public",
    "GET /api/openapi.json": "public",
    "GET /api/{path}": "public",
    "GET /health": "public",
    "GET /static/{file_path}": "public",
    "HEAD /static/{file_path}": "public",
}
