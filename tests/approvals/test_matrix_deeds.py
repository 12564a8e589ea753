"""Every door × every deed on a question but answering it: the same rule refuses with the same reason and audit row.

Embedded code has no such deeds: they are for people. What stands in the way is a situation; `REFUSED` says by deed what
it is called. What is refused changes nothing, so the doors share one question of each situation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, get_args

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from signoff import user
from signoff.approvals import changes
from signoff.approvals.abilities import Doing
from signoff.approvals.notes import N
from signoff.approvals.questions import A
from signoff.cli.main import main
from signoff.people import tenants
from signoff.people.audit import A as AUDIT
from signoff.people.chain import LEDGER
from signoff.store.tx import Tx
from signoff.web.security import mask
from signoff.workflow.errors import Conflict, InvalidInput, Refused
from tests.approvals.test_matrix import (
    FINANCE,
    QUESTIONS,
    Cell,
    House,
    ana_answers,
    ben_answers,
    ben_claims,
    the_run_ends,
    the_time_passes,
)
from tests.approvals.test_matrix import house as house

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEEDS: Final[tuple[Doing, ...]] = tuple(deed for deed in get_args(Doing) if deed != "decide")
DECIDERS: Final[tuple[Doing, ...]] = ("claim", "delegate", "reassign", "escalate", "extend")  # open to who may decide
OFFICE: Final[tuple[Doing, ...]] = ("release", "reassign", "escalate", "extend", "add")  # open to operators
ANA, OLGA, EVA = "ana@example.org", "olga@example.org", "eva@example.org"
IN_TIME: Final[dict[str, Any]] = {
    "to": FINANCE, "escalate_to": user(OLGA), "escalate_after": timedelta(days=1), "timeout": timedelta(days=3),
    "extend": timedelta(hours=1),
}  # fmt: skip
QUESTIONS.update(
    {
        "with everything": IN_TIME | {"exclude": user("xan@example.org"), "not_requester": True},
        "of two with everything": {**IN_TIME, "rule": QUESTIONS["of two"]["rule"]},
        "not to be claimed": {"to": FINANCE, "claim": "none"},
    }
)


def all_of(deeds: tuple[Doing, ...], reason: str) -> dict[Doing, str]:
    return dict.fromkeys(deeds, reason)


async def olga_escalates(house: House, cell: Cell) -> None:
    store, scope = house.engine.store, await house.scope(OLGA)
    await store.write(changes.escalate, scope, cell.approval, via="page", reason="It is late")


@dataclass(frozen=True)
class Situation:
    """Who acts on which question, what happened to it before, and by deed how it is refused."""

    who: str
    refused: Mapping[Doing, str] = field(default_factory=dict)
    question: str = "with everything"
    before: Callable[[House, Cell], Awaitable[None]] | None = None
    reason: str = "It is mine"


_NOT_COMMENTS: Final[tuple[Doing, ...]] = ("release", *DECIDERS)
REFUSED: Final = {
    "tenant": Situation("otto@example.org", all_of(DEEDS, "wrong_tenant")),
    "role": Situation("vic@example.org", all_of(DEEDS, "role")),
    "eligibility": Situation(EVA, {**all_of(DECIDERS, "not_eligible"), "add": "role"}),
    "exclusion": Situation("xan@example.org", all_of(DECIDERS, "excluded")),
    "self": Situation("rita@example.org", all_of(DECIDERS, "own_request")),
    "no place of one's own": Situation(OLGA, all_of(("claim", "delegate"), "not_eligible")),
    "run over": Situation(ANA, all_of(_NOT_COMMENTS, "closed"), before=the_run_ends),
    "run over, for operators": Situation(OLGA, all_of(OFFICE, "closed"), before=the_run_ends),
    "deadline": Situation(ANA, all_of(_NOT_COMMENTS, "deadline"), before=the_time_passes),
    "deadline, for operators": Situation(OLGA, all_of(OFFICE, "deadline"), before=the_time_passes),
    "already decided": Situation(ANA, all_of(_NOT_COMMENTS, "already_decided"), before=ben_answers),
    "already decided, for operators": Situation(OLGA, all_of(OFFICE, "already_decided"), before=ben_answers),
    "decided by oneself": Situation(
        ANA, all_of(DECIDERS, "voted"), question="of two with everything", before=ana_answers
    ),
    "claim": Situation(ANA, all_of(("claim", "release"), "claim"), before=ben_claims),
    "never claimed": Situation(ANA, {"claim": "claim"}, question="not to be claimed"),
    "reason missing": Situation(
        ANA, all_of(("delegate", "reassign", "escalate", "comment"), "invalid_input"), reason=" "
    ),
    "reason missing, for operators": Situation(
        OLGA, all_of(("reassign", "escalate", "add", "comment"), "invalid_input"), reason=""
    ),
    "nobody to escalate to, no more time": Situation(
        ANA, {"escalate": "invalid_input", "extend": "role"}, question="plain"
    ),
    "no deadline": Situation(OLGA, {"extend": "invalid_input"}, question="plain"),
    "escalated before": Situation(ANA, {"escalate": "conflict"}, before=olga_escalates),
}


async def ana_claims(house: House, cell: Cell) -> None:
    await house.claim(cell)


ALLOWED: Final[dict[tuple[str, Doing], Situation]] = {
    **{(f"who may decide: {deed}", deed): Situation(ANA) for deed in DECIDERS},
    **{(f"an operator: {deed}", deed): Situation(OLGA) for deed in ("reassign", "escalate", "extend", "add")},
    ("whoever claimed it: release", "release"): Situation(ANA, before=ana_claims),
    ("an operator: release", "release"): Situation(OLGA, before=ana_claims),
    ("any approver: comment", "comment"): Situation(EVA),
    ("comment on what is over", "comment"): Situation(ANA, before=the_run_ends),
    ("comment on what was decided", "comment"): Situation(EVA, before=ben_answers),
}


# -- doors


def status_of(reason: str) -> int:
    if reason == "wrong_tenant":
        return 404
    error = {"invalid_input": InvalidInput, "conflict": Conflict}.get(reason)
    return int((Refused(reason) if error is None else error("")).to_problem()["status"])


async def _page(house: House, who: str, deed: Doing, cell: Cell, reason: str, scripts: bool) -> httpx.Response:
    secret, csrf = house.cookies[who]
    data = {"reason": reason}
    if deed in ("delegate", "reassign", "add"):
        data["to"] = f"user:{EVA}"
    headers = {"cookie": f"signoff-80={secret}"}
    if scripts:
        headers |= {"hx-request": "true", "x-csrf-token": mask(csrf), "origin": "http://signoff"}
    else:
        data["csrf"] = mask(csrf)
    return await house.http.post(f"/approvals/{cell.approval}/{deed}", data=data, headers=headers)


async def with_scripts(house: House, who: str, deed: Doing, cell: Cell, reason: str) -> int:
    return (await _page(house, who, deed, cell, reason, True)).status_code


async def without_scripts(house: House, who: str, deed: Doing, cell: Cell, reason: str) -> int:
    return (await _page(house, who, deed, cell, reason, False)).status_code


async def api(house: House, who: str, deed: Doing, cell: Cell, reason: str) -> tuple[int, str | None]:
    body: dict[str, Any] = {} if deed == "claim" else {"text" if deed == "comment" else "reason": reason}
    if deed in ("delegate", "reassign", "add"):
        body["to"] = EVA if deed == "delegate" else [EVA]
    answer = await house.http.post(
        f"/api/v1/approvals/{cell.approval}/{'comments' if deed == 'comment' else deed}",
        json=body,
        headers={"authorization": f"Bearer {house.tokens[who]}"},
    )
    problem = answer.json()
    return answer.status_code, problem.get("reason", problem.get("type"))


async def command_line(house: House, who: str, deed: Doing, cell: Cell, reason: str) -> int:
    tenant = "other" if house.tenant(who) == house.other else tenants.DEFAULT_TENANT
    command = ["approvals", deed, cell.approval, "--as", who, "--database", house.url, "--tenant", tenant]
    command += {"claim": [], "comment": [reason]}.get(deed, ["--reason", reason])
    command += ["--to", EVA] if deed in ("delegate", "reassign", "add") else []
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code


DOORS: Final[dict[str, tuple[Callable[..., Awaitable[Any]], str]]] = {
    "page": (with_scripts, "page"),
    "page without scripts": (without_scripts, "page"),
    "api": (api, "api"),
    "command line": (command_line, "cli"),
}


def expected(door: str, reason: str | None) -> Any:
    """What the door answers, when it refuses for that reason or takes the deed."""
    match door:
        case "command line":
            return 0 if reason is None else 1
        case "api" if reason is not None:
            return status_of(reason), "not_found" if reason == "wrong_tenant" else reason
        case "api":
            return 200, None
        case _:
            return 303 if reason is None else status_of(reason)


# -- what is left behind


@dataclass(frozen=True)
class Left:
    audits: list[Any]
    notes: list[Any]
    ledger: int
    put: tuple[Any, ...]


def left(tx: Tx, approval: str) -> Left:
    row = tx.conn.execute(sa.select(A).where(A.c.public_id == approval)).one()
    # not the row of a deadline, which the worker may notice meanwhile
    ledger = sa.select(sa.func.count()).where(LEDGER.c.approval == approval, LEDGER.c.kind == "decision")
    return Left(
        list(tx.conn.execute(sa.select(AUDIT).where(AUDIT.c.target == approval).order_by(AUDIT.c.id))),
        list(tx.conn.execute(sa.select(N).where(N.c.approval_id == row.id).order_by(N.c.id))),
        tx.conn.execute(ledger).scalar_one(),
        (row.changes, row.claimed_by, row.escalated_at, row.timeout_at, row.due_at),
    )


async def asked(house: House, given: Situation) -> Cell:
    cell = await house.ask(given.question)
    if given.before is not None:
        await given.before(house, cell)
    return cell


@pytest.fixture(scope="module")
def shared() -> dict[tuple[int, str, Any], Cell]:
    return {}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("situation", REFUSED)
async def test_refused(house: House, shared: dict[tuple[int, str, Any], Cell], door: str, situation: str) -> None:
    given, (go, via) = REFUSED[situation], DOORS[door]
    key = (id(house), given.question, given.before)
    if key not in shared:
        shared[key] = await asked(house, given)
    cell, read = shared[key], house.engine.store.read
    before = await read(left, cell.approval)
    for deed, reason in given.refused.items():
        assert await go(house, given.who, deed, cell, given.reason) == expected(door, reason), deed
        after = await read(left, cell.approval)
        (row,) = after.audits[len(before.audits) :]
        assert (row.action, row.actor, row.via) == (f"approval.{deed}", given.who, via)
        assert (row.allowed, row.reason, row.tenant_id) == (False, reason, house.tenant(given.who))
        assert (after.notes, after.ledger, after.put) == (before.notes, before.ledger, before.put), deed
        before = after


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", ALLOWED, ids=[name for name, _ in ALLOWED])
async def test_allowed(house: House, door: str, case: tuple[str, Doing]) -> None:
    given, (go, via), deed = ALLOWED[case], DOORS[door], case[1]
    cell, read = await asked(house, given), house.engine.store.read
    before = await read(left, cell.approval)
    assert await go(house, given.who, deed, cell, given.reason) == expected(door, None)
    after = await read(left, cell.approval)
    (row,) = after.audits[len(before.audits) :]
    assert (row.action, row.actor, row.via, row.allowed) == (f"approval.{deed}", given.who, via, True)
    (note,) = after.notes[len(before.notes) :]
    assert (note.kind, note.actor, note.via) == (deed, given.who, via)
    assert note.text == (None if deed == "claim" or (deed == "release" and note.text is None) else given.reason)
    assert after.ledger == before.ledger, "only answers stand in the ledger"
    assert (after.put == before.put) is (deed == "comment")


async def test_every_deed_is_refused_and_allowed_somewhere() -> None:
    """A new deed is not forgotten here, and each reason of the gate stands in the way of one."""
    assert {deed for _, deed in ALLOWED} == set(DEEDS)
    assert {deed for given in REFUSED.values() for deed in given.refused} == set(DEEDS)
    reasons = {reason for given in REFUSED.values() for reason in given.refused.values()}
    assert reasons == {
        "wrong_tenant", "role", "not_eligible", "excluded", "own_request", "closed", "deadline", "already_decided",
        "voted", "claim", "invalid_input", "conflict",
    }  # fmt: skip
