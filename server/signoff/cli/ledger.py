"""`signoff ledger` and `signoff audit`: what is on record, and whether it is as it was written."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import click

from signoff.approvals import ledger as ledger_of
from signoff.cli.failures import CommandFailed
from signoff.cli.options import database_option, run_async, tenant_option
from signoff.cli.people import run_use_case
from signoff.people.audit import AuditFilter, AuditView, audit_page
from signoff.people.chain import Verification, verify_chain
from signoff.people.tenants import tenant_id
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tx import Tx


@click.group()
def ledger() -> None:
    """The decision ledger: who decided what, sealed into a chain."""


@ledger.command("verify")
@tenant_option
@database_option
@run_async
async def verify(tenant: str, database: str) -> None:
    """Recompute every hash of the ledger; ends with 1 and names the first row that is not as it was written."""
    _tell(await run_use_case(database, tenant, ledger_of.verify))


@ledger.command("export")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@tenant_option
@database_option
@run_async
async def export(form: ledger_of.Format, tenant: str, database: str) -> None:
    """Write the whole ledger to standard output, in the order of its seals."""
    async with await Store.open(database) as store:
        scope = Scope(await store.read(tenant_id, tenant), via="cli")
        out = sys.stdout.buffer  # as bytes: a CSV's line ends stay as they are
        async for piece in await ledger_of.export(store, scope, form):
            out.write(piece.encode())
        out.flush()


@click.group()
def audit() -> None:
    """The audit log: what else was done, and what was refused."""


@audit.command("list")
@click.option("--person", default="", metavar="TEXT", help="Part of an address or a token's name.")
@click.option("--action", default="", metavar="TEXT", help="How the action begins: user, run.cancel, sign_in.")
@click.option("--target", default="", metavar="TEXT", help="Part of what it was done to.")
@click.option("--since", type=click.DateTime(), help="From this moment on, UTC.")
@click.option("--until", type=click.DateTime(), help="Before this moment, UTC.")
@click.option("--refused", is_flag=True, help="Only what was refused.")
@click.option("--before", type=int, metavar="ID", help="Go on below this row.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@tenant_option
@database_option
@run_async
async def list_(
    person: str,
    action: str,
    target: str,
    since: datetime | None,
    until: datetime | None,
    refused: bool,
    before: int | None,
    limit: int,
    as_json: bool,
    tenant: str,
    database: str,
) -> None:
    """List the audit log, the newest first."""
    wanted = AuditFilter(person, action, target, _utc(since), _utc(until), refused)
    rows = await run_use_case(database, tenant, audit_page, wanted, before=before, limit=limit)
    for row in rows:
        click.echo(_as_json(row) if as_json else _as_line(row))
    if not rows and not as_json:
        click.echo("Nothing is on record that fits.")
    elif len(rows) == limit:
        click.echo(f"There is more: --before {rows[-1].id}", err=True)


@audit.command("verify")
@tenant_option
@database_option
@run_async
async def verify_audit(tenant: str, database: str) -> None:
    """Recompute every hash of the audit log; ends with 1 and names the first row that is not as it was written."""
    _tell(await run_use_case(database, tenant, _verify_audit))


def _verify_audit(tx: Tx, scope: Scope) -> Verification:
    return verify_chain(tx, scope.tenant_id, "audit")


def _tell(found: Verification) -> None:
    if not found.holds:
        raise CommandFailed(f"The {found.name} is not as it was written: {found.problem}.")
    waiting = f", {found.unsealed} wait for their seal" if found.unsealed else ""
    rows = "1 row" if found.sealed == 1 else f"{found.sealed} rows"
    click.echo(f"The {found.name} is as it was written: {rows} sealed{waiting}.")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def _as_line(row: AuditView) -> str:
    refused = "" if row.allowed else f"  REFUSED ({row.reason})"
    line = f"{row.id}  {row.at:%Y-%m-%d %H:%M:%S}  {row.actor or 'system'}  {row.via or '-'}  {row.action}"
    return f"{line}  {row.target or '-'}{refused}" + (f"  {row.detail}" if row.detail else "")


def _as_json(row: AuditView) -> str:
    plain = {name: getattr(row, name) for name in AuditView.__slots__} | {"at": row.at.isoformat()}
    plain["detail"] = None if row.detail is None else json.loads(row.detail)
    return json.dumps(plain, ensure_ascii=False)
