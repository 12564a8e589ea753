"""`signoff approvals ...`, in the process of the test; runs as the engine leaves them when they wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from signoff.approvals.questions import A
from signoff.cli.main import main
from signoff.people.audit import A as AUDIT
from signoff.store.tx import Tx
from tests.people.world import Asked, World, world

R = TypeVar("R")


class Shell:
    """Commands on one database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *args: str, ok: bool = True) -> Result:
        result = CliRunner().invoke(main, ["approvals", *args, "--database", self.url])
        assert (result.exit_code == 0) is ok, result.output
        return result

    def inside(self, call: Callable[[World], Awaitable[R]]) -> R:
        async def go() -> R:
            async with world(self.url) as here:
                return await call(here)

        return asyncio.run(go())

    def row(self, asked: Asked) -> Any:
        def read(tx: Tx) -> Any:
            return tx.conn.execute(sa.select(A).where(A.c.public_id == asked.approval)).one()

        return self.inside(lambda here: here.store.read(read))


@pytest.fixture
def shell(database_url: str) -> Shell:
    return Shell(database_url)


async def people_and_question(here: World) -> Asked:
    await here.add("ana@example.org", "approver", "finance")
    await here.add("carl@example.org")
    await here.add("omar@example.org", "operator")
    return await here.ask(to=[{"group": "finance"}], timeout=10.0**9, facts={"total": "12.00 EUR"})


def test_list_show_claim_comment_and_decide(shell: Shell) -> None:
    asked = shell.inside(people_and_question)
    assert asked.approval in shell.run("list", "--as", "Ana@example.org").output
    assert "Nothing there" in shell.run("list", "--as", "carl@example.org").output
    shell.run("claim", asked.approval, "--as", "ana@example.org")
    shell.run("comment", asked.approval, "looks right", "--as", "ana@example.org")
    shown = shell.run("show", asked.approval, "--as", "ana@example.org").output
    assert "total: 12.00 EUR" in shown
    assert "ana@example.org comment: looks right" in shown
    assert "you may not answer" not in shown
    assert "you may not answer" in shell.run("show", asked.approval, "--as", "carl@example.org").output
    refused = shell.run("decide", asked.approval, '{"approved": true}', "--as", "carl@example.org", ok=False)
    assert "you are not among them" in refused.output
    assert "Receipt" in shell.run("decide", asked.approval, '{"approved": true}', "--as", "ana@example.org").output
    row = shell.row(asked)
    assert (row.state, row.decided_by) == ("decided", "ana@example.org")
    shown = shell.run("show", asked.approval, "--as", "ana@example.org").output
    assert 'ana@example.org answered {"approved": true}, receipt 1' in shown

    def audited(tx: Tx) -> list[Any]:
        query = sa.select(AUDIT.c.action, AUDIT.c.actor, AUDIT.c.via, AUDIT.c.allowed, AUDIT.c.reason)
        return [tuple(found) for found in tx.conn.execute(query.where(AUDIT.c.via == "cli").order_by(AUDIT.c.id))]

    assert shell.inside(lambda here: here.store.read(audited))[:4] == [
        ("approval.claim", "ana@example.org", "cli", True, None),
        ("approval.comment", "ana@example.org", "cli", True, None),
        ("approval.decide", "carl@example.org", "cli", False, "not_eligible"),
        ("approval.decide", "ana@example.org", "cli", True, None),
    ]


def test_release_extend_add_and_who_may(shell: Shell) -> None:
    asked = shell.inside(people_and_question)
    before = shell.row(asked)
    shell.run("claim", asked.approval, "--as", "ana@example.org")
    shell.run("release", asked.approval, "--as", "omar@example.org", "--reason", "she is away")
    assert shell.row(asked).claimed_by is None
    why = ("--reason", "on a plane")
    assert "operator" in shell.run("extend", asked.approval, *why, "--as", "ana@example.org", ok=False).output
    shell.run("extend", asked.approval, "--hours", "2", *why, "--as", "omar@example.org")
    assert (shell.row(asked).timeout_at - before.timeout_at).total_seconds() == 7200
    shell.run("add", asked.approval, "--to", "carl@example.org", *why, "--as", "omar@example.org")
    shell.run("reassign", asked.approval, "--to", "group:none", *why, "--as", "omar@example.org", ok=False)
    notes = shell.run("show", asked.approval, "--as", "omar@example.org").output
    assert "release: she is away" in notes
    assert "add: on a plane" in notes
    nobody = shell.run("show", asked.approval, "--as", "zoe@example.org", ok=False)
    assert "no active user zoe@example.org" in nobody.output
