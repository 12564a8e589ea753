"""The decision ledger: a row for each answer and each question that ended without one. Append-only, outlives runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from signoff.people.audit import audit
from signoff.people.canonical import canonical
from signoff.people.chain import CHAINS, LEDGER, Verification, row_hash, verify_chain
from signoff.people.permissions import require
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tables import Approval
from signoff.store.tx import Tx
from signoff.workflow.errors import Refused

A = Approval.__table__

BATCH: Final = 500  # rows in one read of an export
Format = Literal["jsonl", "csv"]

_CHAIN: Final = next(chain for chain in CHAINS if chain.name == "ledger")


def append(
    tx: Tx,
    *,
    tenant_id: int,
    kind: str,
    run: str,
    approval: str,
    content: dict[str, Any],
    actor: str | None = None,
    via: str | None = None,
) -> int:
    """Write a row and return its id. `kind`: decision, kept, lapsed, expired, closed; run and approval by public id."""
    row = {
        "tenant_id": tenant_id,
        "at": tx.now,
        "kind": kind,
        "run": run,
        "approval": approval,
        "actor": actor,
        "via": via,
        "content": canonical(content),
    }
    return int(
        tx.conn.execute(
            sa.insert(LEDGER).values(**row, content_hash=row_hash(_CHAIN, row)).returning(LEDGER.c.id)
        ).scalar_one()
    )


def verify(tx: Tx, scope: Scope) -> Verification:
    """Whether the tenant's ledger is what was written, with nothing changed, moved or missing. Needs `audit.view`."""
    require(scope, "audit.view")
    return verify_chain(tx, scope.tenant_id, "ledger")


@dataclass(frozen=True, slots=True)
class LedgerView:
    """One row. `content` says what was asked and shown (by hash), and what was answered; `seal_no` is its place.

    `label` is no part of it: what people pressed for the option that the content names, while the question has it.
    """

    id: int
    at: datetime
    kind: str
    run: str
    approval: str
    actor: str | None
    via: str | None
    content: dict[str, Any]
    content_hash: str
    seal_no: int | None
    seal: str | None
    label: str | None = None


_COLUMNS: Final = tuple(LEDGER.c[name] for name in LedgerView.__slots__ if name != "label")


def ledger_page(tx: Tx, scope: Scope, *, before: int | None = None, limit: int = 50) -> list[LedgerView]:
    """The newest rows first; `before` is the id to go on from. Needs `audit.view`."""
    require(scope, "audit.view")
    query = sa.select(*_COLUMNS).where(LEDGER.c.tenant_id == scope.tenant_id)
    if before is not None:
        query = query.where(LEDGER.c.id < before)
    return _views(tx, scope, query.order_by(LEDGER.c.id.desc()).limit(limit))


def counts(tx: Tx, scope: Scope) -> tuple[int, int]:
    """How many rows the tenant's ledger has, and how many of them wait for their seal. Needs `audit.view`."""
    require(scope, "audit.view")
    query = sa.select(sa.func.count(), sa.func.count().filter(LEDGER.c.seal_no.is_(None)))
    rows, unsealed = tx.conn.execute(query.where(LEDGER.c.tenant_id == scope.tenant_id)).one()
    return int(rows), int(unsealed)


async def export(store: Store, scope: Scope, form: Format) -> AsyncIterator[str]:
    """The tenant's whole ledger as text, piece by piece, in the order of its seals; an audit row says who took it.

    Needs `ledger.export`: `Refused` comes from this call, before the first piece.
    """
    detail = {"format": form}
    try:
        require(scope, "ledger.export")
    except Refused as refusal:
        await store.write(audit, scope, "ledger.export", "ledger", allowed=False, reason=refusal.reason, detail=detail)
        refusal.recorded = True
        raise
    await store.write(audit, scope, "ledger.export", "ledger", detail=detail)
    return _pieces(store, scope, form)


async def _pieces(store: Store, scope: Scope, form: Format) -> AsyncIterator[str]:
    write = _as_csv if form == "csv" else _as_lines
    if form == "csv":
        yield _csv_line(CSV_COLUMNS)
    after: int | None = 0
    while after is not None:
        rows, after = await store.read(_rows_after, scope, after)
        if rows:
            yield write(rows)


def _rows_after(tx: Tx, scope: Scope, after: int) -> tuple[list[LedgerView], int | None]:
    """Sealed rows in their order, which has no gaps; with the last of them, in one look, those that wait for a seal."""
    ours = sa.select(*_COLUMNS).where(LEDGER.c.tenant_id == scope.tenant_id)
    sealed = ours.where(LEDGER.c.seal_no > after).order_by(LEDGER.c.seal_no)
    rows = _views(tx, scope, sealed.limit(BATCH))
    if len(rows) == BATCH:
        return rows, rows[-1].seal_no
    rows += _views(tx, scope, ours.where(LEDGER.c.seal_no.is_(None)).order_by(LEDGER.c.id))
    return rows, None


def _views(tx: Tx, scope: Scope, query: sa.Select[Any]) -> list[LedgerView]:
    rows = [_view(row) for row in tx.conn.execute(query)]
    chose = sorted({row.approval for row in rows if row.content.get("option")})
    labels: dict[tuple[str, str], str] = {}
    for start in range(0, len(chose), BATCH):
        some = sa.and_(A.c.tenant_id == scope.tenant_id, A.c.public_id.in_(chose[start : start + BATCH]))
        for public_id, options in tx.conn.execute(sa.select(A.c.public_id, A.c.options).where(some)):
            labels |= {(public_id, one["name"]): one["label"] for one in json.loads(options or "[]")}
    return [replace(row, label=labels.get((row.approval, str(row.content.get("option"))))) for row in rows]


def _view(row: sa.Row[Any]) -> LedgerView:
    try:
        content = json.loads(row.content)
    except ValueError:
        content = row.content  # was tampered with; `verify` says so, and an export still shows what stands there
    content = content if isinstance(content, dict) else {"content": content}
    return LedgerView(**{**dict(row._mapping), "content": content})


def _as_lines(rows: Iterable[LedgerView]) -> str:
    def plain(row: LedgerView) -> dict[str, Any]:
        return {name: getattr(row, name) for name in LedgerView.__slots__} | {"at": _moment(row.at)}

    return "".join(json.dumps(plain(row), ensure_ascii=False) + "\n" for row in rows)


# What a person looks for in a spreadsheet; the rest of the content stands in the last column.
_CONTENT: Final = ("ask", "title", "option", "answer", "comment", "on_behalf_of", "revision", "shown")
CSV_COLUMNS: Final = (
    "id", "at", "kind", "run", "approval", "actor", "via", *_CONTENT, "content", "content_hash", "seal_no", "seal",
    "label",
)  # fmt: skip


def _as_csv(rows: Iterable[LedgerView]) -> str:
    lines = []
    for row in rows:
        cells = {name: getattr(row, name) for name in LedgerView.__slots__} | {"at": _moment(row.at)}
        cells |= {name: row.content.get(name) for name in _CONTENT} | {"content": canonical(row.content)}
        lines.append(_csv_line(_cell(cells[name]) for name in CSV_COLUMNS))
    return "".join(lines)


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(list(cells))
    return line.getvalue()


# What makes a spreadsheet take a cell for a formula, with the full-width forms that some of them take as well.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def _cell(value: Any) -> str:
    """A value as text that no spreadsheet computes: what could be a formula begins with an apostrophe."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
