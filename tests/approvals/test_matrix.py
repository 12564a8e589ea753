"""Every door × every rule of the gate: each cell refuses with the same reason and the same audit row, or lets in.

The doors are the page as a browser with scripts sends it, the page without scripts, the HTTP API, the command line and
the embedded call. A rule is what stands in the way of somebody's answer; `RULES` says for each what the gate calls it.
Cells that cannot exist are named in `IMPOSSIBLE`, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from click.testing import CliRunner
from pydantic import BaseModel, Field

from signoff import Engine, NotFound, Refused, Registry, Step, ask, group, n_of, user, workflow
from signoff.approvals import claims
from signoff.approvals.questions import A
from signoff.cli.main import main
from signoff.engine.outcomes import R, S
from signoff.people import groups, sessions, tenants, tokens, users
from signoff.people.audit import A as AUDIT
from signoff.people.chain import LEDGER
from signoff.people.users import find_person
from signoff.runtime.handles import Run
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web.app import create_app
from signoff.web.security import mask
from tests.support.stock import Stock

pytestmark = pytest.mark.asyncio(loop_scope="module")

registry = Registry()


class Ship(BaseModel):
    approved: bool
    boxes: int = Field(ge=1, le=20)


ship = ask("matrix/ship", Ship, registry=registry)
FINANCE = group("finance")
QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"to": FINANCE},
    "excluding": {"to": FINANCE, "exclude": user("xan@example.org")},
    "four eyes": {"to": FINANCE, "not_requester": True},
    "to be claimed": {"to": FINANCE, "claim": "required"},
    "with a deadline": {"to": FINANCE, "timeout": timedelta(days=3)},
    "of two": {"rule": n_of(2, FINANCE)},
}


@workflow("matrix/ask", registry=registry)
async def asks(step: Step, question: str) -> bool:
    answer = await step.ask(ship, title=f"Ship, {question}?", **QUESTIONS[question])
    return isinstance(answer, list) or answer.approved


# -- rules


@dataclass(frozen=True)
class Rule:
    """What stands in the way: who answers, which question, what happened to it before, and what the gate calls it."""

    reason: str  # empty: nothing
    who: str = "ana@example.org"
    question: str = "plain"
    before: Callable[[House, Cell], Awaitable[None]] | None = None
    boxes: str = "2"
    revision: int = 1

    @property
    def answer(self) -> dict[str, Any]:
        return {"approved": True, "boxes": int(self.boxes) if self.boxes else ""}


@dataclass(frozen=True)
class Cell:
    run: Run[bool]
    approval: str


async def ben_claims(house: House, cell: Cell) -> None:
    await house.engine.store.write(claims.claim, await house.scope("ben@example.org"), cell.approval, via="page")


async def ben_answers(house: House, cell: Cell) -> None:
    await cell.run.decide(ship, Ship(approved=True, boxes=1), by="ben@example.org")


async def ana_answers(house: House, cell: Cell) -> None:
    await cell.run.decide(ship, Ship(approved=True, boxes=1), by="ana@example.org")


async def the_time_passes(house: House, cell: Cell) -> None:
    """The deadline was a minute ago, and no worker noticed yet: the doors have clocks that no test moves."""

    def move(tx: Tx) -> None:
        late = tx.now - timedelta(minutes=1)
        row = tx.conn.execute(sa.select(A).where(A.c.public_id == cell.approval)).one()
        tx.conn.execute(sa.update(A).where(A.c.id == row.id).values(timeout_at=late))
        tx.conn.execute(sa.update(S).where(S.c.run_id == row.run_id, S.c.no == row.step_no).values(due_at=late))
        tx.conn.execute(sa.update(R).where(R.c.id == row.run_id).values(wake_at=late))

    await house.engine.store.write(move)


async def the_run_ends(house: House, cell: Cell) -> None:
    await cell.run.cancel(reason="not needed")
    await house.until(cell, "closed")


RULES: Final = {
    "allowed": Rule(""),
    "claimed by oneself": Rule("", question="to be claimed", before=lambda house, cell: house.claim(cell)),
    "tenant": Rule("wrong_tenant", who="otto@example.org"),
    "role": Rule("role", who="vic@example.org"),
    "eligibility": Rule("not_eligible", who="eva@example.org"),
    "exclusion": Rule("excluded", who="xan@example.org", question="excluding"),
    "self": Rule("own_request", who="rita@example.org", question="four eyes"),
    "run over": Rule("closed", before=the_run_ends),
    "deadline": Rule("deadline", question="with a deadline", before=the_time_passes),
    "revision": Rule("revision", revision=7),
    "already decided": Rule("already_decided", before=ben_answers),
    "decided by oneself": Rule("voted", question="of two", before=ana_answers),
    "claim": Rule("claim", before=ben_claims),
    "to be claimed first": Rule("claim", question="to be claimed"),
    "form": Rule("form", boxes="99"),
    "a form that is not filled in": Rule("form", boxes=""),
}


# -- doors


@dataclass(frozen=True)
class Told:
    """What the door said: its own sign of yes or no, and the reason where it gives one."""

    taken: bool
    reason: str | None  # None: pages say it in words


@dataclass
class House:
    engine: Engine
    url: str
    http: httpx.AsyncClient
    other: int
    cookies: dict[str, tuple[str, str]] = field(default_factory=dict)  # by person: session secret, csrf secret
    tokens: dict[str, str] = field(default_factory=dict)

    def tenant(self, who: str) -> int:
        return self.other if who == "otto@example.org" else self.engine.scope().tenant_id

    async def scope(self, who: str) -> Scope:
        person = await self.engine.store.read(find_person, self.tenant(who), email=who)
        assert person is not None
        return Scope(self.tenant(who), person)

    async def claim(self, cell: Cell) -> None:
        await self.engine.store.write(claims.claim, await self.scope("ana@example.org"), cell.approval, via="page")

    async def ask(self, question: str) -> Cell:
        run = await self.engine.start(asks.options(requester="rita@example.org"), question)
        cell = Cell(run, "")
        return Cell(run, await self.until(cell, "open"))

    async def until(self, cell: Cell, state: str) -> str:
        """The id of the run's question, once it is in that state."""
        async with asyncio.timeout(20):
            async for _ in cell.run.subscribe():
                found = [item.id for item in await cell.run.approvals() if item.state == state]
                if found:
                    return found[0]
        found = [item.id for item in await cell.run.approvals() if item.state == state]
        return found[0]

    async def page(self, rule: Rule, cell: Cell, headers: dict[str, str], data: dict[str, str]) -> Told:
        secret, _ = self.cookies[rule.who]
        form = {"revision": str(rule.revision), "f.approved": "true", "f.boxes": rule.boxes, **data}
        answer = await self.http.post(
            f"/approvals/{cell.approval}", data=form, headers={"cookie": f"signoff-80={secret}", **headers}
        )
        if answer.status_code == 303:
            return Told(True, None)
        expected = 404 if rule.reason == "wrong_tenant" else Refused(rule.reason).to_problem()["status"]
        assert answer.status_code == expected, answer.text
        if rule.boxes and rule.reason not in ("wrong_tenant", "role"):
            assert f'value="{rule.boxes}"' in answer.text, "what was typed is still there"
        return Told(False, None)


async def with_scripts(house: House, rule: Rule, cell: Cell) -> Told:
    """htmx asks with its header; the token against forgery comes in one too."""
    token = mask(house.cookies[rule.who][1])
    headers = {"hx-request": "true", "x-csrf-token": token, "sec-fetch-site": "same-origin", "origin": "http://signoff"}
    return await house.page(rule, cell, headers, {})


async def without_scripts(house: House, rule: Rule, cell: Cell) -> Told:
    return await house.page(rule, cell, {}, {"csrf": mask(house.cookies[rule.who][1])})


async def api(house: House, rule: Rule, cell: Cell) -> Told:
    answer = await house.http.post(
        f"/api/v1/approvals/{cell.approval}/decide",
        json={"answer": rule.answer, "revision": rule.revision},
        headers={"authorization": f"Bearer {house.tokens[rule.who]}"},
    )
    if answer.status_code == 200:
        return Told(True, None)
    problem = answer.json()
    # to another tenant it is as if there were no such question
    reason = "wrong_tenant" if answer.status_code == 404 and "reason" not in problem else problem["reason"]
    return Told(False, reason)


async def command_line(house: House, rule: Rule, cell: Cell) -> Told:
    command = [
        "approvals", "decide", cell.approval, json.dumps(rule.answer),
        "--as", rule.who, "--revision", str(rule.revision), "--database", house.url,
        "--tenant", "other" if house.tenant(rule.who) == house.other else tenants.DEFAULT_TENANT,
    ]  # fmt: skip
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code == (1 if rule.reason else 0), result.output
    return Told(result.exit_code == 0, None)


async def embedded(house: House, rule: Rule, cell: Cell) -> Told:
    try:
        await cell.run.decide(ship.name, rule.answer, by=rule.who)
    except Refused as refusal:
        return Told(False, refusal.reason)
    return Told(True, None)


DOORS: Final = {
    "page": (with_scripts, "page"),
    "page without scripts": (without_scripts, "page"),
    "api": (api, "api"),
    "command line": (command_line, "cli"),
    "embedded": (embedded, "embedded"),
}
IMPOSSIBLE: Final = {
    ("embedded", "revision"): "code was shown nothing, so there is no revision that it could have seen",
    ("embedded", "tenant"): "a handle reaches runs of its own tenant only; `by` of another one is no member here",
}
CELLS: Final = [(door, rule) for rule in RULES for door in DOORS if (door, rule) not in IMPOSSIBLE]


# -- the house


PEOPLE: Final = {
    "ana@example.org": ("approver", "finance"),
    "ben@example.org": ("approver", "finance"),
    "rita@example.org": ("approver", "finance"),
    "xan@example.org": ("approver", "finance"),
    "vic@example.org": ("viewer", "finance"),
    "eva@example.org": ("approver", "legal"),
    "olga@example.org": ("operator", "office"),
    "otto@example.org": ("approver", "finance"),  # of another tenant
}


def move_in(tx: Tx, house: House) -> None:
    for who, (role, member_of) in PEOPLE.items():
        scope = Scope(house.tenant(who))
        users.add_user(tx, scope, who, role=role)
        groups.add_to_group(tx, scope, member_of, who)
        person = find_person(tx, scope.tenant_id, email=who)
        assert person is not None
        secret, session = sessions.open_session(tx, user_id=person.user_id, tenant_id=scope.tenant_id, role=role)
        house.cookies[who] = (secret, session.csrf)
        house.tokens[who] = tokens.create_token(tx, scope, who, role="admin", email=who)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            template: Path = request.getfixturevalue("sqlite_template")
            file = tmp_path_factory.mktemp("matrix") / "signoff.db"
            shutil.copy(template, file)
            url = f"sqlite:///{file}"
        else:
            stock: Stock = request.getfixturevalue("postgres_stock")
            url = stack.enter_context(stock.database())
        engine = await stack.enter_async_context(Engine(url, registry=registry, workflows=[asks]))
        transport = httpx.ASGITransport(cast(Any, create_app(engine)))
        http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://signoff"))
        made = House(engine, url, http, await engine.store.write(tenants.ensure_tenant, "other"))
        await engine.store.write(move_in, made)
        yield made


@cache
def _row_of(rule: str) -> tuple[Any, ...]:
    """What every door's audit row says, but for the door, the time and the question's id."""
    given = RULES[rule]
    return ("approval.decide", given.who, not given.reason, given.reason or None, None)


@pytest.mark.parametrize(("door", "rule"), CELLS, ids=[f"{rule}, {door}" for door, rule in CELLS])
async def test_a_cell(house: House, door: str, rule: str) -> None:
    given, (go, via) = RULES[rule], DOORS[door]
    cell = await house.ask(given.question)
    if given.before is not None:
        await given.before(house, cell)

    def rows(tx: Tx) -> tuple[list[Any], int]:
        audits = tx.conn.execute(sa.select(AUDIT).where(AUDIT.c.target == cell.approval).order_by(AUDIT.c.id)).all()
        # answers only: the worker may notice a deadline meanwhile
        ledger = sa.select(sa.func.count()).where(LEDGER.c.approval == cell.approval, LEDGER.c.kind == "decision")
        return list(audits), tx.conn.execute(ledger).scalar_one()

    audits_before, ledger_before = await house.engine.store.read(rows)
    told = await go(house, given, cell)
    audits, ledger = await house.engine.store.read(rows)
    assert told.taken is (given.reason == "")
    assert told.reason in (None, given.reason)
    assert ledger - ledger_before == (1 if told.taken else 0), "an answer, or nothing"
    (row,) = audits[len(audits_before) :]
    assert (row.action, row.actor, row.allowed, row.reason, row.detail) == _row_of(rule)
    assert (row.via, row.tenant_id) == (via, house.tenant(given.who))
    if told.taken and given.question != "of two":
        assert await cell.run.result(timeout=10) is True


async def test_embedded_code_of_another_tenant_finds_no_run(house: House) -> None:
    cell = await house.ask("plain")
    elsewhere = house.engine.run(cell.run.id, scope=Scope(house.other))
    with pytest.raises(NotFound):
        await elsewhere.decide(ship, Ship(approved=True, boxes=1), by="otto@example.org")
    with pytest.raises(Refused) as caught:
        await cell.run.decide(ship, Ship(approved=True, boxes=1), by="otto@example.org")
    assert caught.value.reason == "not_member"


async def test_every_reason_of_the_gate_is_a_row() -> None:
    """Every reason that the gate knows is a row, so that a new one is not forgotten here."""
    known = {"wrong_tenant", "role", "not_eligible", "excluded", "own_request", "closed", "deadline", "revision",
             "already_decided", "voted", "claim", "form"}  # fmt: skip
    assert {rule.reason for rule in RULES.values()} - {""} == known
