"""What pages and API ask of the engine: each question one read on one snapshot, each deed one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import sqlalchemy as sa

from signoff.approvals import changes, claims, drafts, thread
from signoff.approvals import decide as gate
from signoff.approvals import inbox as boxes
from signoff.approvals import views as approvals
from signoff.approvals.abilities import Doing
from signoff.approvals.deeds import deciders
from signoff.approvals.doors import find_approval, record_refusal, through
from signoff.approvals.outlook import Outlook, outlook
from signoff.engine import control, rounds, views
from signoff.engine.lookup import find_run
from signoff.engine.outcomes import R, S
from signoff.people import links, sessions, sign_in, tokens, users
from signoff.people.audit import audit
from signoff.people.canonical import is_storable, storable
from signoff.people.permissions import Action, require
from signoff.runtime.engine import Engine
from signoff.store.scope import Person, Scope
from signoff.store.shared import SharedRead
from signoff.store.store import Store
from signoff.store.tx import Notice, Tx
from signoff.workflow.errors import NotFound, Refused
from signoff.workflow.registry import Registry

P = ParamSpec("P")
T = TypeVar("T")

STEPS_SHOWN = 200
LOGS_SHOWN = 200
EVENTS_SHOWN = 200
ROWS = 50
LOOKED_AT = 200  # people at a time, of whom those are shown who are not asked anyway


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run with all that its page shows, from one snapshot. `steps` are the last ones unless all were asked for;
    events and log lines are the last ones.
    """

    run: views.RunView
    steps: list[views.StepView]
    hidden: int
    events: list[views.EventView]
    logs: list[views.LogView]
    rounds: list[views.RoundView]
    questions: Mapping[str, boxes.InboxRow]  # that are waited for, by id
    can_undo: int  # steps that a cancel could undo
    key: int  # the run's, as notices name it


@dataclass(frozen=True, slots=True)
class Inbox:
    """A page of a tab. `fresh`: how many rows came while it was looked at."""

    rows: list[boxes.InboxRow]
    counts: Mapping[str, int]
    workflows: list[str]
    after: str | None = None
    newest: int = 0
    fresh: int = 0


@dataclass(frozen=True, slots=True)
class WhomToAsk:
    """Members who may answer, by name, and names of groups; `more`: there are others, who have to be looked for."""

    people: list[Person]
    groups: list[str]
    more: bool


NOBODY = WhomToAsk([], [], False)


class Backend:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._tokens: SharedRead[str, Scope | None] | None = None  # the store is open once the app runs

    @property
    def store(self) -> Store:
        return self.engine.store

    @property
    def registry(self) -> Registry:
        return self.engine.registry

    def now(self) -> datetime:
        return self.store.clock.now()

    def subscribe(self, callback: Callable[[Sequence[Notice]], None]) -> Callable[[], None]:
        return self.store.subscribe(callback)

    async def ready(self) -> None:
        """Raises when the database cannot be read."""
        await self.store.read(lambda tx: tx.conn.execute(sa.text("SELECT 1")).scalar())

    # -- people

    async def visitor(self, secret: str) -> sign_in.Visitor | None:
        return await sign_in.visitor(self.store, secret)

    async def present(self, secret: str) -> Scope | None:
        """As `visitor`, for streams: the session keeps its id, because a stream could not hand out another cookie."""
        return await self.store.read(_present, secret)

    async def sign_in(
        self, email: str, password: str, *, address: str, agent: str | None, old: str | None
    ) -> sign_in.Visitor:
        return await sign_in.sign_in(self.store, email, password, address=address, agent=agent, old=old)

    async def sign_out(self, secret: str) -> sessions.SessionView | None:
        return await self.store.write(_sign_out, secret)

    async def switch_tenant(self, scope: Scope, secret: str, name: str, why_not: str) -> str | None:
        """The cookie of the session in another tenant. `why_not`: why it must not go there, which is put on record."""
        return await self.act("tenant.enter", storable(name), _switch, scope, secret, name, why_not)

    async def change_password(self, scope: Scope, current: str, new: str, *, secret: str, address: str) -> str | None:
        return await sign_in.change_password(self.store, scope, current, new, secret=secret, address=address)

    async def find_link(self, link: str) -> links.LinkView:
        return await self.store.read(links.find_link, link)

    async def set_up(self, link: str, password: str, *, email: str, name: str) -> Person:
        return await sign_in.set_up(self.store, link, password, email=email, name=name)

    async def scope_for_token(self, token: str) -> Scope | None:
        if self._tokens is None:
            self._tokens = SharedRead(self.store, tokens.scopes_for_tokens)
        return await self._tokens(token)

    async def look(
        self, use_case: Callable[Concatenate[Tx, Scope, P], T], scope: Scope, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A use-case that only reads, on one snapshot."""
        return await self.store.read(use_case, scope, *args, **kwargs)

    async def allow(self, scope: Scope, right: Action, target: str) -> None:
        """`require` for a deed, with the refusal on record."""
        try:
            require(scope, right)
        except Refused as refusal:
            await self._on_record(scope, right, target, refusal, scope.via)
            raise

    async def act(
        self,
        right: Action | Literal["tenant.enter"],
        target: str,
        use_case: Callable[Concatenate[Tx, Scope, P], T],
        scope: Scope,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """A use-case that puts on record what it did; a refusal is put there in a transaction of its own."""
        try:
            return await self.store.write(use_case, scope, *args, **kwargs)
        except Refused as refusal:
            await self._on_record(scope, right, target, refusal, scope.via)
            raise

    async def record_refused_request(self, scope: Scope, action: str, request: str, reason: str) -> None:
        """The audit row of a request that no deed was made of: it was refused before, or only wanted to look."""
        await self.store.write(audit, scope, action, request[:256], allowed=False, reason=reason)

    async def _on_record(self, scope: Scope, action: str, target: str, refusal: Refused, via: str | None) -> None:
        await self.store.write(_refused, scope, action, storable(target), refusal, via)
        refusal.recorded = True

    # -- runs

    async def runs(self, scope: Scope, wanted: views.RunFilter, after: str | None, limit: int = ROWS) -> views.RunPage:
        require(scope, "run.view")
        return await self.store.read(views.page, scope, wanted, after, limit)

    async def run(self, scope: Scope, run: str) -> views.RunView:
        require(scope, "run.view")
        return await self.store.read(views.run_view, scope, run)

    async def run_details(self, scope: Scope, run: str, *, all_steps: bool = False) -> RunDetails:
        require(scope, "run.view")
        return await self.store.read(_details, scope, run, all_steps)

    async def step(self, scope: Scope, run: str, no: int) -> tuple[views.RunView, views.StepView, list[views.LogView]]:
        require(scope, "run.view")
        return await self.store.read(_step, scope, run, no)

    async def cancel(self, scope: Scope, run: str, *, reason: str | None, compensate: bool, via: str) -> None:
        actor = scope.person.actor if scope.person is not None else None
        await self._control(scope, "run.control", "run.cancel", run, via, lambda tx: control.cancel(
            tx, scope, run, reason=reason, actor=actor, compensate=compensate, grace=self.engine.settings.cancel_grace
        ))  # fmt: skip

    async def pause(self, scope: Scope, run: str, *, via: str) -> None:
        await self._control(scope, "run.control", "run.pause", run, via, lambda tx: control.pause(tx, scope, run))

    async def resume(self, scope: Scope, run: str, *, via: str) -> None:
        await self._control(scope, "run.control", "run.resume", run, via, lambda tx: control.resume(tx, scope, run))

    async def restart(
        self,
        scope: Scope,
        run: str,
        *,
        from_step: int | None,
        reason: str | None,
        via: str,
        ask_again: Sequence[int] = (),
    ) -> None:
        """`ask_again`: steps whose answers are not kept; those that have none to keep are passed over."""
        actor = scope.person.actor if scope.person is not None else None

        def restart(tx: Tx) -> None:
            known = rounds.prospect(tx, scope, run, from_step).answers if ask_again else ()
            again = [no for no in ask_again if no in known]
            rounds.restart(tx, scope, run, from_step=from_step, ask_again=again, reason=reason, actor=actor)

        await self._control(scope, "run.restart", "run.restart", run, via, restart)

    async def restart_prospect(self, scope: Scope, run: str, from_step: int | None) -> rounds.Prospect:
        require(scope, "run.view")
        return await self.store.read(rounds.prospect, scope, run, from_step)

    async def _control(
        self, scope: Scope, right: Action, action: str, run: str, via: str, use_case: Callable[[Tx], Any]
    ) -> None:
        try:
            require(scope, right)
        except Refused as refusal:
            await self._on_record(scope, action, run, refusal, via)
            raise

        def work(tx: Tx) -> None:
            use_case(tx)
            audit(tx, scope, action, run[:256], via=via)

        await self.store.write(work)

    async def start(
        self, scope: Scope, workflow: str, args: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """The public id, and whether the run was there already."""
        await self.allow(scope, "run.start", workflow)
        requester = scope.person.actor if scope.person is not None else None
        run = await self.engine.start_by_name(workflow, args, scope=scope, requester=requester, **options)
        return run.id, run.existing

    async def send(
        self,
        scope: Scope,
        run: str,
        event: str,
        value: Any,
        *,
        idempotency_key: str | None,
        is_error: bool,
        channel: str,
    ) -> views.EventView:
        await self.allow(scope, "run.send", run)
        handle = self.engine.run(run, scope=scope)
        if is_error:
            return await handle.send_error(event, value, idempotency_key=idempotency_key, channel=channel)
        return await handle.send(event, value, idempotency_key=idempotency_key, channel=channel)

    # -- approvals

    async def inbox(self, scope: Scope, tab: boxes.Tab, filters: boxes.Filters, q: str, after: str | None) -> Inbox:
        return await self.store.read(_inbox, scope, tab, filters, q, after)

    async def watch_inbox(
        self, scope: Scope, tab: boxes.Tab, filters: boxes.Filters, q: str, seen: Sequence[str], newest: int
    ) -> Inbox:
        return await self.store.read(_watch_inbox, scope, tab, filters, q, seen, newest)

    async def badge(self, scope: Scope) -> int:
        return await self.store.read(boxes.badge, scope)

    async def approval(self, scope: Scope, approval: str, *, whole_thread: bool = False) -> approvals.ApprovalView:
        return await self.store.read(approvals.approval_view, scope, approval, whole_thread=whole_thread)

    async def outlook(self, scope: Scope, approval: str) -> Outlook:
        return await self.store.read(outlook, scope, approval)

    async def decide(
        self, scope: Scope, approval: str, answer: Any, *, revision: int | None, via: str,
        option: str | None = None, comment: str | None = None,
    ) -> gate.Receipt:  # fmt: skip
        return await gate.decide_through(
            self.store,
            scope,
            approval,
            answer,
            revision=revision,
            via=via,
            option=option,
            comment=comment,
            registry=self.registry,
        )

    async def refuse(self, scope: Scope, approval: str, refusal: Refused, *, via: str) -> None:
        """On record: an answer that is none, which is refused before it comes to the gate."""
        await self.store.write(record_refusal, scope, approval, refusal, via)

    async def draft(self, scope: Scope, key: str) -> drafts.DraftView | None:
        return await self.store.read(drafts.get_draft, scope, key)

    async def save_draft(self, scope: Scope, key: str, data: drafts.Typed, revision: int | None = None) -> None:
        await self.store.write(drafts.save_draft, scope, key, data, revision)

    async def drop_draft(self, scope: Scope, key: str) -> None:
        await self.store.write(drafts.drop_draft, scope, key)

    async def act_on_approval(
        self, scope: Scope, approval: str, doing: Doing, arguments: Mapping[str, Any], *, via: str
    ) -> None:
        """A claim, a comment or a change; a refusal leaves its row in the audit log."""
        await through(self.store, f"approval.{doing}", _DEEDS[doing], scope, approval, via=via, **arguments)

    async def whom_to_ask(self, scope: Scope, find: str = "", besides: str | None = None) -> WhomToAsk:
        """Who could be asked instead or besides, for those who may ask somebody else.

        `besides`: without those whom this question waits for already, and without groups: for a place of one person.
        """
        require(scope, "approval.delegate")
        return await self.store.read(_whom_to_ask, scope, find, besides)

    # -- live

    async def watch(self, scope: Scope, topic: str) -> list[tuple[str, Any]]:
        """What notices are about that concern a topic; none when the person may not see it."""
        kind, _, name = topic.partition(":")
        try:
            match kind:
                case "runs":
                    require(scope, "run.view")
                    return [("runs", scope.tenant_id)]
                case "approvals" | "approval":
                    require(scope, "approval.view")
                    return [("approvals", scope.tenant_id)]
                case "run":
                    require(scope, "run.view")
                    return [("run", await self.store.read(lambda tx: find_run(tx, scope, name).id))]
                case _:
                    return []
        except (NotFound, Refused):
            return []

    async def tenants_of_runs(self, runs: Iterable[int]) -> dict[int, int]:
        query = sa.select(R.c.id, R.c.tenant_id).where(R.c.id.in_(list(runs)))
        return await self.store.read(lambda tx: {row.id: row.tenant_id for row in tx.conn.execute(query)})


_DEEDS: Mapping[Doing, Callable[..., Any]] = {
    "claim": claims.claim,
    "release": claims.release,
    "delegate": changes.delegate,
    "reassign": changes.reassign,
    "escalate": changes.escalate,
    "extend": changes.extend,
    "add": changes.add,
    "comment": thread.comment,
}


def _whom_to_ask(tx: Tx, scope: Scope, find: str, besides: str | None) -> WhomToAsk:
    most = ROWS + 1
    if besides is None:
        able = users.approvers(tx, scope.tenant_id, find, limit=most)
        query = sa.select(users.G.c.name).where(users.G.c.tenant_id == scope.tenant_id).order_by(users.G.c.name)
        query = query.where(*(users.G.c.name.icontains(word, autoescape=True) for word in find.split()))
        names = list(tx.conn.execute(query.limit(most)).scalars()) if is_storable(find) else []
        return WhomToAsk(able[:ROWS], names[:ROWS], len(able) == most or len(names) == most)
    row, start = find_approval(tx, scope, besides), 0
    others: list[Person] = []
    while len(others) < most:
        able = users.approvers(tx, scope.tenant_id, find, limit=LOOKED_AT, offset=start)
        asked = {person.email for person in deciders(tx, row, able)}
        others += [person for person in able if person.email not in asked]
        start += LOOKED_AT
        if len(able) < LOOKED_AT:
            break
    return WhomToAsk(others[:ROWS], [], len(others) > ROWS)


def _switch(tx: Tx, scope: Scope, secret: str, name: str, why_not: str) -> str | None:
    if why_not:
        raise Refused("provider", why_not)
    return sign_in.switch_tenant(tx, scope, secret, name)


def _sign_out(tx: Tx, secret: str) -> sessions.SessionView | None:
    scope, ended = _present(tx, secret), sessions.end_session(tx, secret)
    if scope is not None:
        audit(tx, scope, "sign_out", scope.actor, via="page")
    return ended


def _present(tx: Tx, secret: str) -> Scope | None:
    session = sessions.find_session(tx, secret)
    if session is None or session.tenant_id is None or session.user_id is None:
        return None
    person = users.find_person(tx, session.tenant_id, user_id=session.user_id)
    return None if person is None else Scope(session.tenant_id, person)


def _details(tx: Tx, scope: Scope, run: str, all_steps: bool) -> RunDetails:
    row = find_run(tx, scope, run)
    hidden = 0 if all_steps else max(0, row.next_no - STEPS_SHOWN)
    view = views.run_view(tx, scope, run)
    asked = {item.approval_id for item in view.awaiting if item.approval_id is not None}
    has_undo = S.c.options.contains('"compensate"', autoescape=True)
    live = sa.and_(S.c.run_id == row.id, S.c.retired_in.is_(None), S.c.started)
    undo = sa.select(sa.func.count()).select_from(S).where(live, has_undo)
    return RunDetails(
        run=view,
        steps=views.steps_view(tx, scope, run, after=hidden - 1),
        hidden=hidden,
        events=views.events_view(tx, scope, run, last=EVENTS_SHOWN),
        logs=views.last_logs_view(tx, scope, run, LOGS_SHOWN),
        rounds=views.rounds_view(tx, scope, run),
        questions=boxes.lines_of(boxes.Look(tx, scope), asked) if asked else {},
        can_undo=int(tx.conn.execute(undo).scalar_one()),
        key=row.id,
    )


def _step(tx: Tx, scope: Scope, run: str, no: int) -> tuple[views.RunView, views.StepView, list[views.LogView]]:
    found = views.steps_view(tx, scope, run, after=no - 1, limit=1)
    if not found or found[0].no != no:
        raise NotFound(f"run {run!r} has no step {no}", run=run, step_no=no)
    logs = views.last_logs_view(tx, scope, run, LOGS_SHOWN, step_no=no)
    return views.run_view(tx, scope, run), found[0], logs


def _inbox(tx: Tx, scope: Scope, tab: boxes.Tab, filters: boxes.Filters, q: str, after: str | None) -> Inbox:
    look = boxes.Look(tx, scope)
    page = boxes.inbox(tx, scope, tab, filters, q, after, ROWS, look)
    counts, workflows = boxes.counts(tx, scope, look), boxes.workflows(tx, scope, tab, look)
    return Inbox(page.rows, counts, workflows, page.after, page.newest)


def _watch_inbox(
    tx: Tx, scope: Scope, tab: boxes.Tab, filters: boxes.Filters, q: str, seen: Sequence[str], newest: int
) -> Inbox:
    look = boxes.Look(tx, scope)
    rows, fresh = boxes.watch(tx, scope, tab, filters, q, seen, newest, look)
    return Inbox(rows, boxes.counts(tx, scope, look), [], newest=newest, fresh=fresh)


def _refused(tx: Tx, scope: Scope, action: str, run: str, refusal: Refused, via: str | None) -> None:
    audit(tx, scope, action, run[:256], allowed=False, reason=refusal.reason, via=via)
