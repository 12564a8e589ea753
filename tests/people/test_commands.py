from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from signoff.approvals.ledger import append
from signoff.cli.main import main
from signoff.people.chain import LEDGER
from signoff.people.sign_in import set_up, sign_in
from signoff.people.tenants import tenant_id
from signoff.people.tokens import scope_for_token
from signoff.store.store import Store
from signoff.store.tx import Tx


@pytest.fixture
def run(database_url: str) -> Runner:
    return Runner(database_url)


class Runner:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, args, input=stdin, env={"SIGNOFF_DATABASE": self.url})

    def ok(self, *args: str, stdin: str | None = None) -> str:
        result = self(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout


def test_people_are_added_grouped_and_listed(run: Runner) -> None:
    run.ok("users", "add", "root@example.org", "--role", "admin", "--name", "Root")
    run.ok("users", "add", "ana@example.org", "--group", "finance", "--password-stdin", stdin="correct horse battery\n")
    run.ok("groups", "add", "legal", "ana@example.org", "root@example.org")
    run.ok("groups", "remove", "legal", "root@example.org")
    assert run("groups", "make", "legal").exit_code == 1
    run.ok("users", "set-role", "ana@example.org", "operator")
    assert run.ok("users", "list") == (
        "ana@example.org  operator  -  groups: finance, legal\n"
        "root@example.org  admin  Root  groups: -  (no password)\n"
    )
    assert run.ok("groups", "list") == "finance: ana@example.org\nlegal: ana@example.org\n"
    run.ok("users", "deactivate", "ana@example.org")
    assert "(deactivated)" in run.ok("users", "list")
    run.ok("users", "activate", "ana@example.org")


def test_an_empty_database_says_what_to_do(run: Runner) -> None:
    assert "signoff users add EMAIL --role admin" in run.ok("users", "list")
    assert "signoff groups add" in run.ok("groups", "list")
    assert "signoff tokens create" in run.ok("tokens", "list")


def test_a_person_without_a_password_gets_a_link(run: Runner) -> None:
    out = run.ok("users", "add", "ana@example.org", "--url", "https://signoff.example.org/")
    link = out.strip().splitlines()[-1]
    assert link.startswith("https://signoff.example.org/setup/")
    again = run.ok("users", "setup-link", "ana@example.org", "--url", "https://signoff.example.org").strip()
    secret = again.removeprefix("https://signoff.example.org/setup/")

    async def enter() -> str:
        async with await Store.open(run.url) as store:
            await set_up(store, secret, "correct horse battery")
            return (await sign_in(store, "ana@example.org", "correct horse battery", address="x")).scope.actor

    assert asyncio.run(enter()) == "ana@example.org"


def test_the_set_up_link_is_for_the_first_admin_only(run: Runner) -> None:
    assert "/setup/" in run.ok("users", "setup-link")
    run.ok("users", "add", "root@example.org", "--role", "admin")
    assert run("users", "setup-link").exit_code == 1


def test_a_password_is_set_from_standard_input(run: Runner) -> None:
    run.ok("users", "add", "ana@example.org")
    assert run("users", "set-password", "ana@example.org", stdin="correct horse battery\n").exit_code == 1
    run.ok("users", "set-password", "ana@example.org", "--password-stdin", stdin="correct horse battery\n")
    short = run("users", "set-password", "ana@example.org", "--password-stdin", stdin="short\n")
    assert short.exit_code != 0
    assert "10 to 256 characters" in short.output


def test_tokens_are_made_listed_and_revoked(run: Runner) -> None:
    made = run("tokens", "create", "ci", "--role", "operator", "--days", "30")
    secret = made.stdout.strip()

    async def role() -> str | None:
        async with await Store.open(run.url) as store:
            scope = await store.read(scope_for_token, secret)
            return scope.person.role if scope and scope.person else None

    assert asyncio.run(role()) == "operator"
    assert "ci  operator" in run.ok("tokens", "list")
    assert secret not in run.ok("tokens", "list")
    run.ok("tokens", "revoke", "ci")
    assert asyncio.run(role()) is None
    assert "revoked" in run.ok("tokens", "list")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("users", "add", "no address"), 1, "is not an e-mail address"),
        (("users", "add", "ana@example.org", "--role", "boss"), 2, "is not one of"),
        (("users", "set-role", "eve@example.org", "admin"), 1, "There is no user eve@example.org"),
        (("users", "list", "--tenant", "nowhere"), 1, "There is no tenant 'nowhere'"),
        (("groups", "add", "finance", "eve@example.org"), 1, "There is no user eve@example.org"),
        (("groups", "add", "finance"), 2, "Missing argument"),
        (("tokens", "revoke", "ci"), 1, "There is no token 'ci'"),
        (("tokens", "create", "ci", "--user", "eve@example.org"), 1, "There is no user eve@example.org"),
        (("tokens", "create", "ci", "--days", "0"), 2, "0 is not in the range"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run: Runner, args: tuple[str, ...], code: int, words: str) -> None:
    run.ok("users", "add", "ana@example.org")
    result = run(*args)
    assert (result.exit_code, words in result.output, "Traceback" in result.output) == (code, True, False)
    assert "eve" not in run.ok("users", "list")


def test_a_database_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = Runner("postgresql://nobody@127.0.0.1:1/none")("users", "list")
    assert result.exit_code == 3
    assert "Traceback" not in result.output
    assert Runner("mysql://x/y")("users", "list").exit_code != 0


def test_the_record_is_listed_verified_and_exported(run: Runner) -> None:
    run.ok("users", "add", "ana@example.org")
    run.ok("users", "set-role", "ana@example.org", "operator")
    lines = run.ok("audit", "list", "--action", "user.set_role").splitlines()
    assert len(lines) == 1
    assert lines[0].endswith('system  cli  user.set_role  ana@example.org  {"from":"approver","to":"operator"}')
    first = json.loads(run.ok("audit", "list", "--json", "--limit", "1").splitlines()[0])
    assert (first["action"], first["detail"]["to"], first["via"]) == ("user.set_role", "operator", "cli")
    assert "user.add" in run.ok("audit", "list", "--before", str(first["id"]))
    assert "Nothing is on record" in run.ok("audit", "list", "--refused")
    assert "as it was written" in run.ok("audit", "verify")
    assert run.ok("ledger", "verify") == "The ledger is as it was written: 0 rows sealed.\n"

    async def tamper() -> None:
        async with await Store.open(run.url) as store:
            await store.write(write_ledger_row)
            await store.write(lambda tx: tx.conn.execute(sa.update(LEDGER).values(actor="eve")).rowcount)

    asyncio.run(tamper())
    row = json.loads(run.ok("ledger", "export"))
    assert (row["actor"], row["content"]) == ("eve", {"answer": 1})
    assert run.ok("ledger", "export", "--format", "csv").startswith("id,at,kind,")
    broken = run("ledger", "verify")
    assert broken.exit_code == 1
    assert f"row {row['id']} is not what was written" in broken.output


def write_ledger_row(tx: Tx) -> int:
    return append(tx, tenant_id=tenant_id(tx), kind="decision", run="r", approval="a", content={"answer": 1})


def test_a_tenant_is_a_world_of_its_own(run: Runner) -> None:
    run.ok("users", "add", "ana@example.org")
    assert "--tenant wholesale" in run.ok("tenants", "add", "wholesale")
    run.ok("users", "add", "bob@example.org", "--role", "admin", "--tenant", "wholesale")
    assert run.ok("tenants", "list") == "default  1 person\nwholesale  1 person\n"
    assert "ana@example.org" not in run.ok("users", "list", "--tenant", "wholesale")
    again = run("tenants", "add", "wholesale")
    assert again.exit_code == 1
    assert "There is a tenant 'wholesale' already" in again.output
    assert run("tenants", "add", "").exit_code == 1
    assert run("users", "list", "--tenant", "retail").exit_code == 1


def test_a_tenant_has_a_title_and_a_first_admin(run: Runner) -> None:
    run.ok("users", "add", "ana@example.org", "--role", "admin")
    made = run.ok("tenants", "add", "wholesale", "--title", "Wholesale & Co", "--admin", "Bob@example.org")
    assert "Made wholesale, with bob@example.org as its admin." in made
    assert "/setup/" in made
    assert "/setup/" not in run.ok("tenants", "add", "retail", "--admin", "ana@example.org")  # can sign in already
    run.ok("tenants", "rename", "retail", "Retail")
    listed = run.ok("tenants", "list")
    assert listed == 'default  1 person\nretail  "Retail"  1 person\nwholesale  "Wholesale & Co"  1 person\n'
    taken = run("tenants", "rename", "retail", "wholesale & CO")
    assert (taken.exit_code, "called 'wholesale & CO' already" in taken.output) == (1, True)
    assert run("users", "remove", "ana@example.org", "--tenant", "retail").exit_code == 1  # the last admin
    run.ok("users", "set-role", "bob@example.org", "admin", "--tenant", "wholesale")
    asked = run("users", "add", "bob@example.org", "--role", "admin", "--tenant", "retail")
    assert asked.exit_code == 1
    assert "An admin of another tenant made it, and may know its password" in asked.output
    assert "--existing" in asked.output
    assert "bob@" not in run.ok("users", "list", "--tenant", "retail")
    run.ok("users", "add", "bob@example.org", "--role", "admin", "--tenant", "retail", "--existing")
    assert "ana@example.org belongs to retail no more." in run.ok(
        "users", "remove", "ana@example.org", "--tenant", "retail"
    )
    assert "ana@example.org" not in run.ok("users", "list", "--tenant", "retail")


def test_a_group_is_deleted_after_a_question(run: Runner, tmp_path: Path) -> None:
    run.ok("users", "add", "ana@example.org", "--group", "finance")
    kept = run("groups", "delete", "finance", stdin="n\n")
    assert kept.exit_code == 1
    assert "0 open questions name it; 0 of them nobody could answer then." in kept.output
    settings = tmp_path / "oidc.json"
    provider = {"id": "example", "name": "Example", "issuer": "https://id.example.org", "client_id": "signoff"}
    settings.write_text(json.dumps({"provider": [{**provider, "groups": {"fin": "finance"}}]}))
    refused = run("groups", "delete", "finance", "--yes", "--oidc", str(settings))
    assert refused.exit_code == 1
    assert "Example would make finance again" in refused.output
    assert run.ok("groups", "delete", "finance", "--yes") == "Deleted finance, which had 1 member.\n"
    assert run("groups", "delete", "finance", "--yes").exit_code == 1
    assert "groups: -" in run.ok("users", "list")
