"""`signoff approvals`: look at questions and answer them from a shell, in a person's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

import click

from signoff.approvals import changes, claims, doors, thread
from signoff.approvals.decide import decide_through
from signoff.approvals.inbox import TABS, Tab, inbox
from signoff.approvals.views import ApprovalView, approval_view
from signoff.cli.modules import import_modules
from signoff.cli.options import database_option, run_async, tenant_option
from signoff.cli.runs import module_option, parse_value
from signoff.people.tenants import tenant_id
from signoff.people.users import clean_email, find_person
from signoff.store.scope import Scope
from signoff.store.store import Store
from signoff.store.tx import Tx
from signoff.workflow.errors import NotFound
from signoff.workflow.registry import default_registry

P = ParamSpec("P")
R = TypeVar("R")
VIA = "cli"

as_option = click.option(
    "--as", "email", required=True, metavar="EMAIL", envvar="SIGNOFF_AS", help="In whose name.  [env: SIGNOFF_AS]"
)
reason_option = click.option("--reason", required=True, help="Why; everybody who sees the question can read it.")
to_option = click.option(
    "--to", "to", multiple=True, required=True, metavar="EMAIL|group:NAME|role:NAME", help="May be given several times."
)


@click.group()
def approvals() -> None:
    """Look at questions, answer them, and say who should."""


async def _scope(store: Store, tenant: str, email: str) -> Scope:
    """What the person may do, as they are now. Who can open the database may speak in anybody's name."""

    def find(tx: Tx) -> Scope:
        number = tenant_id(tx, tenant)
        person = find_person(tx, number, email=clean_email(email))
        if person is None:
            raise NotFound(f"There is no active user {email} here", user=email)
        return Scope(number, person)

    return await store.read(find)


async def _do(
    database: str,
    tenant: str,
    email: str,
    action: str,
    use_case: Callable[Concatenate[Tx, Scope, str, P], R],
    approval: str,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    async with await Store.open(database) as store:
        scope = await _scope(store, tenant, email)
        return await doors.through(store, f"approval.{action}", use_case, scope, approval, *args, **kwargs)


def _selector(text: str) -> dict[str, str] | str:
    kind, sign, name = text.partition(":")
    return {kind: name} if sign and kind in ("group", "role", "user") else text


@approvals.command("list")
@click.option("--tab", type=click.Choice(TABS), default="mine", show_default=True)
@click.option("--search", "q", default="", metavar="TEXT")
@as_option
@tenant_option
@database_option
@run_async
async def list_(tab: Tab, q: str, email: str, tenant: str, database: str) -> None:
    """List questions: those for the person, or those of another tab of their inbox."""
    async with await Store.open(database) as store:
        scope, after, empty = await _scope(store, tenant, email), None, True
        while True:
            page = await store.read(inbox, scope, tab, q=q, after=after)
            for row in page.rows:
                empty = False
                notes = [f"due {row.due_at:%Y-%m-%d %H:%M} UTC"] if row.due_at else []
                notes += [row.progress] if row.progress else []
                notes += [f"claimed by {row.claimed_by}"] if row.claimed_by else []
                notes += ["nobody can answer it"] if row.stuck else []
                click.echo(f"{row.id}  {row.title}  {row.state}" + (f"  ({', '.join(notes)})" if notes else ""))
            if (after := page.after) is None:
                break
    if empty:
        click.echo("Nothing there.")


@approvals.command()
@click.argument("approval")
@as_option
@tenant_option
@database_option
@run_async
async def show(approval: str, email: str, tenant: str, database: str) -> None:
    """Print a question with its facts, its decisions and its thread."""
    async with await Store.open(database) as store:
        scope = await _scope(store, tenant, email)
        view = await store.read(approval_view, scope, approval)
    _print(view)


def _print(view: ApprovalView) -> None:
    click.echo(f"{view.id}  {view.title}  {view.state}, revision {view.revision}")
    click.echo(f"  asked by run {view.run} ({view.workflow}), put to {view.who}")
    for label, moment in (("due", view.due_at), ("ends", view.timeout_at), ("over since", view.closed_at)):
        if moment is not None:
            click.echo(f"  {label} {moment:%Y-%m-%d %H:%M:%S} UTC")
    for name, fact in view.facts.items():
        click.echo(f"  {name}: {fact}")
    for one in view.decisions:
        said = one.option or json.dumps(one.answer, ensure_ascii=False)
        behalf = f" on behalf of {one.on_behalf_of}" if one.on_behalf_of else ""
        more = (f": {one.comment}" if one.comment else "") + (" (lapsed)" if one.lapsed else "")
        click.echo(f"  {one.at:%Y-%m-%d %H:%M} {one.person}{behalf} answered {said}, receipt {one.ledger_id}{more}")
    for note in view.notes:
        text = f": {note.text}" if note.text else ""
        click.echo(f"  {note.at:%Y-%m-%d %H:%M} {note.actor or 'the server'} {note.kind}{text}")
    if view.why_not is not None:
        click.echo(f"  you may not answer: {view.why_not.text}")


@approvals.command()
@click.argument("approval")
@click.argument("answer", default="null")
@click.option("--option", help="The one that is chosen, where the question has options.")
@click.option("--comment")
@click.option("--revision", type=int, help="Of the question as you saw it; refused if it changed since.")
@module_option
@as_option
@tenant_option
@database_option
@run_async
async def decide(
    approval: str,
    answer: str,
    option: str | None,
    comment: str | None,
    revision: int | None,
    modules: tuple[str, ...],
    email: str,
    tenant: str,
    database: str,
) -> None:
    """Answer a question. ANSWER is JSON, for example '{"approved": true}'."""
    import_modules(modules)
    async with await Store.open(database) as store:
        scope = await _scope(store, tenant, email)
        receipt = await decide_through(
            store, scope, approval, parse_value(answer),
            revision=revision, via=VIA, comment=comment, registry=default_registry if modules else None, option=option,
        )  # fmt: skip
    click.echo(f"Receipt {receipt.ledger_id}: {receipt.effect}")


@approvals.command()
@click.argument("approval")
@click.option("--take-over", is_flag=True, help="As an operator, from whoever claimed it.")
@as_option
@tenant_option
@database_option
@run_async
async def claim(approval: str, take_over: bool, email: str, tenant: str, database: str) -> None:
    """Say that the person is at it, so that others need not be."""
    await _do(database, tenant, email, "claim", claims.claim, approval, via=VIA, take_over=take_over)
    click.echo(f"{clean_email(email)} has it.")


@approvals.command()
@click.argument("approval")
@click.option("--reason", default="")
@as_option
@tenant_option
@database_option
@run_async
async def release(approval: str, reason: str, email: str, tenant: str, database: str) -> None:
    """Give up a claim; operators give up anybody's."""
    await _do(database, tenant, email, "release", claims.release, approval, via=VIA, reason=reason)
    click.echo("Nobody has it.")


@approvals.command()
@click.argument("approval")
@to_option
@click.option("--from", "from_", metavar="EMAIL|group:NAME|role:NAME", help="Only what was put to them.")
@reason_option
@as_option
@tenant_option
@database_option
@run_async
async def reassign(
    approval: str, to: tuple[str, ...], from_: str | None, reason: str, email: str, tenant: str, database: str
) -> None:
    """Put a question to others."""
    source = None if from_ is None else _selector(from_)
    targets = [_selector(item) for item in to]
    await _do(
        database, tenant, email, "reassign", changes.reassign, approval, targets, via=VIA, reason=reason, from_=source
    )
    click.echo("It is put to them.")


@approvals.command()
@click.argument("approval")
@click.option("--to", "to", required=True, metavar="EMAIL")
@reason_option
@as_option
@tenant_option
@database_option
@run_async
async def delegate(approval: str, to: str, reason: str, email: str, tenant: str, database: str) -> None:
    """Let somebody else answer in the person's place."""
    await _do(database, tenant, email, "delegate", changes.delegate, approval, to, via=VIA, reason=reason)
    click.echo(f"{clean_email(to)} answers in the place of {clean_email(email)}.")


@approvals.command()
@click.argument("approval")
@to_option
@reason_option
@as_option
@tenant_option
@database_option
@run_async
async def add(approval: str, to: tuple[str, ...], reason: str, email: str, tenant: str, database: str) -> None:
    """Let others answer besides."""
    targets = [_selector(item) for item in to]
    await _do(database, tenant, email, "add", changes.add, approval, targets, via=VIA, reason=reason)
    click.echo("They may answer it too.")


@approvals.command()
@click.argument("approval")
@reason_option
@as_option
@tenant_option
@database_option
@run_async
async def escalate(approval: str, reason: str, email: str, tenant: str, database: str) -> None:
    """Ask now those whom the question names for that."""
    await _do(database, tenant, email, "escalate", changes.escalate, approval, via=VIA, reason=reason)
    click.echo("It is escalated.")


@approvals.command()
@click.argument("approval")
@click.option("--hours", type=float, help="By how much; without it, what the question allows.")
@click.option("--reason", default="")
@as_option
@tenant_option
@database_option
@run_async
async def extend(approval: str, hours: float | None, reason: str, email: str, tenant: str, database: str) -> None:
    """Move the deadline."""
    by = None if hours is None else timedelta(hours=hours)
    await _do(database, tenant, email, "extend", changes.extend, approval, via=VIA, reason=reason, by=by)
    click.echo("The deadline is moved.")


@approvals.command()
@click.argument("approval")
@click.argument("text")
@as_option
@tenant_option
@database_option
@run_async
async def comment(approval: str, text: str, email: str, tenant: str, database: str) -> None:
    """Write into the question's thread."""
    await _do(database, tenant, email, "comment", thread.comment, approval, text, via=VIA)
    click.echo("It stands in the thread.")
