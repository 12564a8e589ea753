"""The inbox: which questions concern a person, in tabs, filtered, searched, page by page; and the number on the badge.

Who may answer is decided by the gate's own rules in Python. So that a list stays one query, they are asked once for
each different way in which open questions are put (many questions share few of them), and those that fit become part
of the query. Only questions that have partial votes are looked at one by one. A `Look` keeps what was found out for all
lists and numbers of one page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from signoff.approvals.eligibility import Find, Question, who_may_answer
from signoff.approvals.questions import A
from signoff.approvals.standing import D, Standing, finder, stands
from signoff.approvals.words import said
from signoff.engine.outcomes import R, Row
from signoff.people.canonical import is_storable
from signoff.people.permissions import require
from signoff.people.users import U
from signoff.store.scope import Person, Scope
from signoff.store.tables import Definition, Label, StartKey
from signoff.store.tx import Tx
from signoff.store.types import from_micros, to_micros
from signoff.workflow.errors import InvalidInput, Refused
from signoff.workflow.selectors import Group

DEF = Definition.__table__
LABEL = Label.__table__
KEY = StartKey.__table__

Tab = Literal["mine", "groups", "requested", "decided", "all", "stuck"]
TABS: Final[tuple[Tab, ...]] = get_args(Tab)
FOR_OPERATORS: Final = frozenset({"all", "stuck"})
SOON: Final = timedelta(hours=24)  # what is due within it stands above what is only old
MAX_Q: Final = 200  # characters

Due = Literal["", "overdue", "soon"]
Claim = Literal["", "free", "me"]
State = Literal["open", "over"]


@dataclass(frozen=True, slots=True)
class Filters:
    """What narrows a tab. Empty: no filter. `over` shows what was answered, expired or withdrawn instead."""

    workflow: str = ""
    requester: str = ""
    due: Due = ""
    claim: Claim = ""
    state: State = "open"

    @property
    def any(self) -> bool:
        return self != Filters(state=self.state)


@dataclass(frozen=True, slots=True)
class Answered:
    """One decision of a row. `said`: what was answered in a word or two, where it can be said so."""

    person: str
    name: str
    said: str
    rejects: bool


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A line of the inbox. Names are those of accounts, or the address where there is none."""

    id: str
    run: str
    workflow: str
    ask: str
    title: str
    requester: str | None
    requester_name: str | None
    business_key: str | None
    who: str  # "anyone in finance or ana@example.org"
    state: str  # open, decided, expired, closed
    created_at: datetime
    due_at: datetime | None
    timeout_at: datetime | None
    closed_at: datetime | None
    decided_by: str | None
    decided_name: str | None
    answers: list[Answered]  # that count, oldest first
    progress: str  # "1 of 2"; empty where one answer is enough
    claimed_by: str | None
    claimed_name: str | None
    stuck: str | None  # why nobody can answer it now
    revision: int
    mine: bool  # waits for the person who looks


@dataclass(frozen=True, slots=True)
class InboxPage:
    """Rows of a tab. `after` leads to the next page; up to `newest` nothing counts as new for `watch`."""

    rows: list[InboxRow]
    after: str | None
    newest: int


class Look:
    """What one transaction finds out about who may answer, once for all that is read for one page."""

    def __init__(self, tx: Tx, scope: Scope) -> None:
        self.tx, self.scope = tx, scope
        self.find: Find = finder(tx, scope.tenant_id)

    @cached_property
    def ways(self) -> list[Row]:
        """The different ways in which open questions are put."""
        return _ways(self.tx, is_open(self.tx, self.scope))

    @cached_property
    def mine(self) -> sa.ColumnElement[bool]:
        """Open questions that have a place which the person could fill, and that nobody else works on."""
        person = self.scope.person
        if person is None or not person.role_at_least("approver"):
            return sa.false()
        texts = [row.text for row in self.ways if _has_place(person, self.find, stands(row, ()))]
        whole = (*_PUT[:-1], A.c.requester)
        voted = self.tx.conn.execute(sa.select(A.c.id, *whole).where(*is_open(self.tx, self.scope), _VOTED_ON)).all()
        votes = _votes(self.tx, [row.id for row in voted])
        ids = [row.id for row in voted if _has_place(person, self.find, stands(row, votes.get(row.id, ())))]
        fresh = sa.and_(_PUT_TEXT.in_(texts), ~_VOTED_ON, _is_not_own(person))
        return sa.and_(sa.or_(fresh, A.c.id.in_(ids)), _waits_for(person))

    @cached_property
    def groups(self) -> sa.ColumnElement[bool]:
        return _names_groups(self.ways, self.scope.person)


def inbox(
    tx: Tx,
    scope: Scope,
    tab: Tab = "mine",
    filters: Filters = Filters(),
    q: str = "",
    after: str | None = None,
    limit: int = 50,
    look: Look | None = None,
) -> InboxPage:
    """A page of a tab: overdue, due soon, then the oldest; what is over from the newest on.

    Each word of `q` is looked for in title, workflow, question's name, requester and business key, in any case of
    letters, and at the beginning of the run's id.
    Raises `Refused` (`role`) for a tab that is not the person's, `InvalidInput` for an `after` that leads nowhere.
    """
    _may(scope, tab)
    at, place = (tx.now, None) if after is None else _cursor(after)
    bucket, moment, down = _order(tab, filters, at)
    look = look or Look(tx, scope)
    # Places first, without what is shown: the database sorts few bytes, however many questions there are.
    places = sa.select(A.c.id, bucket.label("bucket"), moment.label("moment"))
    places = _with_runs(places) if filters.workflow or q else places.select_from(A)
    query = places.where(*_conditions(look, tab, filters, q))
    if place is not None:
        rank, when, last = place
        later = (moment < when, A.c.id < last) if down else (moment > when, A.c.id > last)
        query = query.where(
            sa.or_(bucket > rank, sa.and_(bucket == rank, sa.or_(later[0], sa.and_(moment == when, later[1]))))
        )
    ordering = (bucket, moment.desc(), A.c.id.desc()) if down else (bucket, moment, A.c.id)
    found = tx.conn.execute(query.order_by(*ordering).limit(limit + 1)).all()
    rest = found[limit - 1] if len(found) > limit else None
    cursor = None if rest is None else f"{to_micros(at)}-{rest.bucket}-{to_micros(rest.moment)}-{rest.id}"
    newest = tx.conn.execute(sa.select(sa.func.max(A.c.id)).where(A.c.tenant_id == scope.tenant_id)).scalar()
    ids = [row.id for row in found[:limit]]
    rows = {row.id: row for row in tx.conn.execute(_query().where(A.c.id.in_(ids)))} if ids else {}
    lines = _lines(look, [rows[number] for number in ids])
    return InboxPage(lines, cursor, int(newest or 0) if rest is not None else 0)


def watch(
    tx: Tx,
    scope: Scope,
    tab: Tab,
    filters: Filters,
    q: str,
    seen: Sequence[str],
    newest: int,
    look: Look | None = None,
) -> tuple[list[InboxRow], int]:
    """The rows that somebody looks at, as they are now and in the order in which they are seen, and how many are new.

    So that a list changes under nobody's hand: what was answered meanwhile stays in its place and says so.
    """
    _may(scope, tab)
    look, seen = look or Look(tx, scope), list(filter(is_storable, seen))
    rows = lines_of(look, seen)
    fresh = _with_runs(sa.select(sa.func.count()))
    fresh = fresh.where(*_conditions(look, tab, filters, q), A.c.public_id.not_in(seen), A.c.id > newest)
    return [rows[name] for name in seen if name in rows], int(tx.conn.execute(fresh).scalar_one())


def lines_of(look: Look, ids: Collection[str]) -> dict[str, InboxRow]:
    """These questions by their ids, in one set of queries however many they are; other tenants' are left out."""
    found = look.tx.conn.execute(_query().where(A.c.tenant_id == look.scope.tenant_id, A.c.public_id.in_(ids))).all()
    return {row.id: row for row in _lines(look, found)}


def badge(tx: Tx, scope: Scope) -> int:
    """How many rows the tab `mine` has in all."""
    require(scope, "approval.view")
    return _counts(Look(tx, scope), ["mine"])["mine"]


def counts(tx: Tx, scope: Scope, look: Look | None = None) -> dict[str, int]:
    """What is open in each tab that the person has; `decided` has no number."""
    require(scope, "approval.view")
    return _counts(look or Look(tx, scope), [tab for tab in tabs_of(scope) if tab != "decided"])


def tabs_of(scope: Scope) -> list[Tab]:
    operator = scope.person is None or scope.person.role_at_least("operator")
    return [tab for tab in TABS if operator or tab not in FOR_OPERATORS]


def workflows(tx: Tx, scope: Scope, tab: Tab, look: Look | None = None) -> list[str]:
    """The workflows whose questions stand open in a tab, for its filter."""
    _may(scope, tab)
    query = _with_runs(sa.select(DEF.c.name))
    query = query.where(*_conditions(look or Look(tx, scope), tab, Filters(), ""))
    return list(tx.conn.execute(query.distinct().order_by(DEF.c.name)).scalars())


def is_open(tx: Tx, scope: Scope) -> tuple[sa.ColumnElement[bool], ...]:
    """The tenant's open questions. A deadline that passed is not open any more, whoever records it and when."""
    in_time = sa.or_(A.c.timeout_at.is_(None), A.c.timeout_at > tx.now)
    return A.c.tenant_id == scope.tenant_id, A.c.state == "open", in_time


def _may(scope: Scope, tab: str) -> None:
    require(scope, "approval.view")
    if tab not in TABS:
        raise InvalidInput(f"{tab!r} is no tab of the inbox; there are {', '.join(TABS)}")
    if tab not in tabs_of(scope):
        raise Refused("role", "This list is for operators and admins", needs="operator")


def _query() -> sa.Select[Any]:
    return _with_runs(
        sa.select(A, R.c.public_id.label("run"), DEF.c.name.label("workflow"), business_key().label("business_key"))
    )


def _with_runs(query: sa.Select[Any]) -> sa.Select[Any]:
    return query.select_from(A).join(R, R.c.id == A.c.run_id).join(DEF, DEF.c.id == R.c.definition_id)


def business_key() -> sa.ColumnElement[Any]:
    """What people know a run by: its label `key`, which was given for that; else its idempotency key."""
    label = sa.select(LABEL.c.value).where(LABEL.c.run_id == R.c.id, LABEL.c.key == "key").scalar_subquery()
    started = sa.select(sa.func.min(KEY.c.key)).where(KEY.c.run_id == R.c.id).scalar_subquery()
    return sa.func.coalesce(label, started)


def _counts(look: Look, tabs: Sequence[Tab]) -> dict[str, int]:
    """In one pass over what is open."""
    numbers = [sa.func.count().filter(_in_tab(look, tab)) for tab in tabs]
    query = sa.select(*numbers).select_from(A).where(*is_open(look.tx, look.scope))
    return dict(zip(tabs, map(int, look.tx.conn.execute(query).one()), strict=True))


def _conditions(look: Look, tab: Tab, filters: Filters, q: str) -> list[sa.ColumnElement[bool]]:
    tx, scope = look.tx, look.scope
    over = filters.state == "over" or tab == "decided"
    if tab == "decided":
        wanted = [A.c.tenant_id == scope.tenant_id]
    elif over:
        late = sa.and_(A.c.state == "open", A.c.timeout_at <= tx.now)
        wanted = [A.c.tenant_id == scope.tenant_id, sa.or_(A.c.state != "open", late)]
    else:
        wanted = list(is_open(tx, scope))
    wanted.append(_in_tab(look, tab, over=over))
    if not all(map(is_storable, (filters.workflow, filters.requester, q))):
        return [*wanted, sa.false()]  # no text that is stored has it, and PostgreSQL would not even look
    if filters.workflow:
        wanted.append(DEF.c.name == filters.workflow)
    if filters.requester:
        wanted.append(A.c.requester == filters.requester)
    if filters.due == "overdue":
        wanted.append(A.c.due_at <= tx.now)
    elif filters.due == "soon":
        wanted.append(A.c.due_at <= tx.now + SOON)
    if filters.claim == "free":
        wanted.append(A.c.claimed_by.is_(None))
    elif filters.claim == "me":
        wanted.append(A.c.claimed_by == scope.actor)
    wanted += [_holds(word) for word in q[:MAX_Q].split()]
    return wanted


def _holds(word: str) -> sa.ColumnElement[bool]:
    places = (A.c.title, A.c.ask, A.c.requester, DEF.c.name, business_key())
    run = R.c.public_id.istartswith(word, autoescape=True)  # random letters: any short word is inside of some
    return sa.or_(run, *(place.icontains(word, autoescape=True) for place in places))


def _order(tab: Tab, filters: Filters, at: datetime) -> tuple[sa.ColumnElement[int], sa.ColumnElement[datetime], bool]:
    """Rank, moment within it, and whether the latest comes first. `at` is fixed for all pages of one reading."""
    kind = A.c.created_at.type
    if tab == "decided" or filters.state == "over":
        return sa.literal(0), sa.func.coalesce(A.c.closed_at, A.c.timeout_at, A.c.created_at, type_=kind), True
    ranks = [(A.c.due_at <= at, 1), (A.c.due_at <= at + SOON, 2)]
    if tab == "all":
        ranks.insert(0, (A.c.stuck.is_not(None), 0))
    rank = sa.case(*ranks, else_=3)
    moment = sa.case((A.c.due_at <= at + SOON, A.c.due_at), else_=A.c.created_at)
    return rank, sa.type_coerce(moment, kind), False


def _cursor(after: str) -> tuple[datetime, tuple[int, datetime, int]]:
    try:
        at, rank, moment, last = (int(part) for part in after.split("-"))
        if not 0 <= rank <= 3 or not 0 <= last < 2**63:
            raise ValueError("no place in a list")
        from_micros(at) + SOON  # the order looks as far ahead
        return from_micros(at), (rank, from_micros(moment), last)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{after!r} leads to no page") from error


# -- what belongs to a tab


def _in_tab(look: Look, tab: Tab, *, over: bool = False) -> sa.ColumnElement[bool]:
    scope, person = look.scope, look.scope.person
    match tab:
        case "all":
            return sa.true()
        case "stuck":
            return sa.type_coerce(A.c.stuck.is_not(None), sa.Boolean())
        case "requested":
            return sa.type_coerce(A.c.requester == scope.actor, sa.Boolean())
        case "decided":
            mine = sa.select(D.c.approval_id).where(D.c.person == scope.actor, D.c.lapsed_at.is_(None))
            return sa.type_coerce(A.c.id.in_(mine), sa.Boolean())
        case "groups":
            return _names_groups(_ways(look.tx, [A.c.tenant_id == scope.tenant_id]), person) if over else look.groups
        case _:
            return _was_mine(look) if over else look.mine


def _was_mine(look: Look) -> sa.ColumnElement[bool]:
    """All that were put to the person, whatever became of them."""
    person = look.scope.person
    if person is None or not person.role_at_least("approver"):
        return sa.false()
    ways = _ways(look.tx, [A.c.tenant_id == look.scope.tenant_id])
    texts = [row.text for row in ways if Question.of(row).may(person, look.find)]
    return sa.and_(_PUT_TEXT.in_(texts), _is_not_own(person))


def _waits_for(person: Person) -> sa.ColumnElement[bool]:
    """Not what somebody else works on."""
    return sa.or_(A.c.claimed_by.is_(None), A.c.claimed_by == person.actor)


def _is_not_own(person: Person) -> sa.ColumnElement[bool]:
    """Four eyes: not what the person asked for."""
    other = sa.func.lower(A.c.requester) != person.email.lower()
    return sa.or_(~A.c.not_requester, A.c.requester.is_(None), other)


# Only where several decide is a question open that has votes.
_VOTED_ON: Final = sa.and_(A.c.rule.is_not(None), sa.exists().where(D.c.approval_id == A.c.id, D.c.lapsed_at.is_(None)))

# All that says who may answer, as one text: questions that agree in it are asked of the same people. Under four eyes
# not of whoever asked for the run, which `_is_not_own` looks at; and nobody stands in for them after a place was given
# away, for which it matters whose place it was.
_BARRED: Final = sa.case((sa.and_(A.c.not_requester, A.c.changes.is_not(None)), A.c.requester), else_=None)
_PUT: Final = (A.c.to, A.c.rule, A.c.exclude, A.c.frozen, A.c.changes, A.c.not_requester, _BARRED.label("requester"))


def _put_text() -> sa.ColumnElement[str]:
    text: sa.ColumnElement[str] = A.c.to
    for column in (A.c.rule, A.c.exclude, A.c.frozen, A.c.changes, _BARRED):
        text = text.concat("\n").concat(sa.func.coalesce(column, ""))
    return text


_PUT_TEXT: Final = _put_text()


def _ways(tx: Tx, which: Iterable[sa.ColumnElement[bool]]) -> list[Row]:
    """The different ways in which questions are put."""
    return list(tx.conn.execute(sa.select(_PUT_TEXT.label("text"), *_PUT).where(*which).distinct()))


def _has_place(person: Person, find: Find, standing: Standing) -> bool:
    return standing.question.may(person, find) and standing.seat(person, find) is not None


def _names_groups(ways: Iterable[Row], person: Person | None) -> sa.ColumnElement[bool]:
    if person is None:
        return sa.false()
    return _PUT_TEXT.in_([row.text for row in ways if _groups_named(row) & person.groups])


def _groups_named(put: Row) -> set[str]:
    return {item.name for item in Question.of(put).named if isinstance(item, Group)}


def _votes(tx: Tx, approvals: Sequence[int]) -> dict[int, list[Row]]:
    votes: dict[int, list[Row]] = {}
    if approvals:
        query = sa.select(D).where(D.c.approval_id.in_(approvals), D.c.lapsed_at.is_(None)).order_by(D.c.id)
        for vote in tx.conn.execute(query):
            votes.setdefault(vote.approval_id, []).append(vote)
    return votes


# -- rows


def _lines(look: Look, found: Sequence[Row]) -> list[InboxRow]:
    votes = _votes(look.tx, [row.id for row in found if row.rule is not None or row.state == "decided"])
    actors = [actor for row in found for actor in (row.requester, row.claimed_by, row.decided_by)]
    names = names_of(look.tx, actors + [vote.person for given in votes.values() for vote in given])
    return [_line(look, row, names, votes.get(row.id, ())) for row in found]


def _line(look: Look, row: Row, names: Mapping[str, str], votes: Sequence[Row]) -> InboxRow:
    late = row.state == "open" and row.timeout_at is not None and row.timeout_at <= look.tx.now
    standing, person = stands(row, votes), look.scope.person
    mine = person is not None and row.state == "open" and not late and row.claimed_by in (None, person.actor)
    return InboxRow(
        id=row.public_id,
        run=row.run,
        workflow=row.workflow,
        ask=row.ask,
        title=row.title,
        requester=row.requester,
        requester_name=names.get(row.requester, row.requester),
        business_key=row.business_key,
        who=who_may_answer(standing.question.asked),
        state="expired" if late else row.state,
        created_at=row.created_at,
        due_at=row.due_at,
        timeout_at=row.timeout_at,
        closed_at=row.timeout_at if late else row.closed_at,
        decided_by=row.decided_by,
        decided_name=names.get(row.decided_by, row.decided_by),
        answers=[Answered(one.person, names.get(one.person, one.person), said(row, one), one.rejects) for one in votes],
        progress=standing.progress.text if standing.progress.need > 1 else "",
        claimed_by=row.claimed_by,
        claimed_name=names.get(row.claimed_by, row.claimed_by),
        stuck=row.stuck,
        revision=row.revision,
        mine=mine and person is not None and _has_place(person, look.find, standing),
    )


def names_of(tx: Tx, actors: Iterable[str | None]) -> dict[str, str]:
    """The names of accounts by address; who has none, or no account, is left out."""
    wanted = {actor for actor in actors if actor}
    if not wanted:
        return {}
    query = sa.select(U.c.email, U.c.name).where(U.c.email.in_(wanted), U.c.name != "")
    return {row.email: row.name for row in tx.conn.execute(query)}
