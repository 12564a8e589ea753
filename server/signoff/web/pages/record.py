"""The record, for admins: the decision ledger with its seals, and the audit log of everything else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from litestar import Response, get
from litestar.response import Stream

from signoff.approvals import ledger
from signoff.people.audit import AuditFilter, audit_page
from signoff.people.chain import Verification
from signoff.people.permissions import require
from signoff.web import say
from signoff.web.pages import AnyRequest, backend_of, badge_of, render, scope_of

ROWS = 50
AT_ONCE = 2_000  # rows that are verified whenever somebody looks; more only when asked for
KINDS = {"decision": "Decided", "kept": "Kept", "lapsed": "Lapsed", "expired": "Expired", "closed": "Closed"}
REASONS = {
    "role": "The role does not allow it",
    "another_site": "Sent by another site",
    "page_too_old": "From a page of another session",
    "bad_credentials": "Wrong password",
}
MEDIA: dict[ledger.Format, str] = {"jsonl": "application/jsonl", "csv": "text/csv"}


def _before(request: AnyRequest) -> int | None:
    text = request.query_params.get("before", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None


@get("/record")
async def ledger_page(request: AnyRequest) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    rows = await backend.look(ledger.ledger_page, scope, before=_before(request), limit=ROWS + 1)
    total, unsealed = await backend.look(ledger.counts, scope)
    seal: Verification | None = None
    if total <= AT_ONCE or request.query_params.get("verify") == "yes":
        seal = await backend.look(ledger.verify, scope)
    return render(
        request, "record/ledger.html", place="record", badge=await badge_of(request), rows=rows[:ROWS], kinds=KINDS,
        older=f"/record?before={rows[ROWS - 1].id}" if len(rows) > ROWS else None, total=total, unsealed=unsealed,
        seal=seal, newest=_before(request) is None,
    )  # fmt: skip


async def _download(request: AnyRequest, form: ledger.Format) -> Response[Any]:
    pieces = await ledger.export(backend_of(request).store, scope_of(request), form)
    return download(pieces, form)


def download(pieces: Any, form: ledger.Format) -> Stream:
    """An export as a file; it is sent while it is read, and never held as a whole."""
    headers = {"content-disposition": f'attachment; filename="signoff-ledger.{form}"'}
    return Stream(pieces, media_type=f"{MEDIA[form]}; charset=utf-8", headers=headers)


@get("/record/ledger.jsonl")
async def ledger_lines(request: AnyRequest) -> Response[Any]:
    return await _download(request, "jsonl")


@get("/record/ledger.csv")
async def ledger_csv(request: AnyRequest) -> Response[Any]:
    return await _download(request, "csv")


# -- audit


def _day(text: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        return None


@get("/record/audit")
async def audit_log(request: AnyRequest) -> Response[Any]:
    scope, query = scope_of(request), request.query_params
    require(scope, "audit.view")
    typed = {name: query.get(name, "").strip()[:300] for name in ("person", "action", "target", "since", "until")}
    refused = query.get("refused", "") == "yes"
    until = _day(typed["until"])
    try:
        end = until + timedelta(days=1) if until else None
    except OverflowError:
        end = None
    wanted = AuditFilter(typed["person"], typed["action"], typed["target"], _day(typed["since"]), end, refused)
    rows = await backend_of(request).look(audit_page, scope, wanted, before=_before(request), limit=ROWS + 1)
    kept = {name: text for name, text in typed.items() if text} | ({"refused": "yes"} if refused else {})
    older = f"/record/audit?{urlencode(kept | {'before': rows[ROWS - 1].id})}" if len(rows) > ROWS else None
    return render(
        request, "record/audit.html", place="record", badge=await badge_of(request), rows=rows[:ROWS], typed=typed,
        refused=refused, filtered=bool(kept), older=older, details=_details,
        why=lambda reason: REASONS.get(reason) or say.words(reason),
    )  # fmt: skip


def _details(text: str | None) -> str:
    """The detail of a row in words: `from approver, to admin`."""
    if not text:
        return ""
    found = json.loads(text)
    if not isinstance(found, dict):
        return text
    return ", ".join(f"{key} {_told(value)}" for key, value in found.items() if value is not None)


def _told(value: Any) -> str:
    """A value of a detail; people and groups as what they are: `ana@example.org and group finance`."""
    if isinstance(value, list):
        return say.listed([_told(item) for item in value], "and")
    if isinstance(value, dict):
        return ", ".join(str(item) if kind == "user" else f"{kind} {_told(item)}" for kind, item in value.items())
    return str(value)


HANDLERS = [ledger_page, ledger_lines, ledger_csv, audit_log]
