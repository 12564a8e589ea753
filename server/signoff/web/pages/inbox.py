"""The inbox: questions in tabs, filtered and searched by the address, beside the one that is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args
from urllib.parse import urlencode

from litestar import Response, get
from markupsafe import Markup

from signoff.approvals.inbox import TABS, Claim, Due, Filters, InboxRow, Tab, tabs_of
from signoff.web import say
from signoff.web.addresses import number_of, segment
from signoff.web.backend import Inbox
from signoff.web.pages import AnyRequest, backend_of, badge_of, fragment, redirect, render, scope_of, send_fragment

TAB_WORDS = {
    "mine": "For me",
    "groups": "My groups",
    "requested": "Requested",
    "decided": "Decided",
    "all": "All",
    "stuck": "Stuck",
}
_EMPTY = {
    "mine": ("Nothing waits for you", "When a run asks you something, it appears here at once."),
    "groups": ("Nothing waits for your groups", "What is asked of a group of yours appears here, whoever takes it."),
    "requested": ("Nothing that you started waits", "What your runs ask appears here until somebody answers."),
    "decided": ("You have not decided anything yet", "What you answer is kept here, with its receipt."),
    "all": ("No question is open", "Every open question appears here, whoever it is put to."),
    "stuck": ("Somebody can answer every question", "What nobody can answer appears here, with what can be done."),
}
_DUE = {"overdue": "Overdue", "soon": "Due within a day"}
_CLAIM = {"free": "Nobody works on it", "me": "I work on it"}
MAX_SEEN = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """The list as the address asks for it. It stays in the address when a question is opened and decided."""

    tab: Tab = "mine"
    filters: Filters = field(default_factory=Filters)
    q: str = ""
    after: str | None = None
    next: bool = False  # open the next question after a decision

    @classmethod
    def of(cls, request: AnyRequest) -> Asked:
        query = request.query_params
        tab, due, claim, state = (query.get(name, "") for name in ("tab", "due", "claim", "state"))
        return cls(
            cast("Tab", tab) if tab in TABS and tab in tabs_of(scope_of(request)) else "mine",
            Filters(
                workflow=query.get("workflow", "").strip()[:300],
                requester=query.get("requester", "").strip()[:300],
                due=cast("Due", due) if due in get_args(Due) else "",
                claim=cast("Claim", claim) if claim in get_args(Claim) else "",
                state="over" if state == "over" else "open",
            ),
            query.get("q", "").strip()[:200],
            query.get("after") or None,
            query.get("then") == "next",
        )

    @property
    def narrowed(self) -> bool:
        return bool(self.filters.any or self.q)

    def values(self, **changes: Any) -> dict[str, str]:
        """What of it stands in an address; what is as usual is left out."""
        values = {
            "tab": self.tab if self.tab != "mine" else "",
            "q": self.q,
            "workflow": self.filters.workflow,
            "requester": self.filters.requester,
            "due": self.filters.due,
            "claim": self.filters.claim,
            "state": self.filters.state if self.filters.state != "open" else "",
            "after": self.after,
            "then": "next" if self.next else "",
            **changes,
        }
        return {key: str(value) for key, value in values.items() if value}

    def href(self, path: str = "/approvals", /, **changes: Any) -> str:
        query = urlencode(self.values(**changes))
        return f"{path}?{query}" if query else path

    def item(self, approval: str, part: str = "", /, **changes: Any) -> str:
        """The address of a question, with the list that it was opened from."""
        return self.href(f"/approvals/{segment(approval)}{part}", **changes)


def list_of(request: AnyRequest, asked: Asked, inbox: Inbox, current: str = "") -> Markup:
    """The list as a fragment that keeps its rows in place while it is looked at."""
    seen = ".".join(row.id for row in inbox.rows[:MAX_SEEN])
    live = asked.href("/approvals/rows", open=current, seen=seen, newest=inbox.newest)
    title, text = _EMPTY[asked.tab]
    if asked.narrowed:
        title, text = "No question matches", "Take a filter away to see more."
    elif asked.filters.state == "over":
        title, text = "Nothing is over yet", "What was answered, withdrawn or ran out of time appears here."
    return fragment(
        request, "approvals/_rows.html", rows=inbox.rows, current=current, asked=asked, live_href=live,
        fresh=inbox.fresh, tabs=_tabs(request, asked, inbox), older=inbox.after, empty_title=title, empty_text=text,
        stuck=inbox.counts.get("stuck", 0) if asked.tab in ("mine", "groups") else 0, order=_order(asked),
    )  # fmt: skip


def _order(asked: Asked) -> str:
    """How the list is sorted, in words."""
    if asked.tab == "decided" or asked.filters.state == "over":
        return "The latest first"
    return f"{'Stuck, overdue' if asked.tab == 'all' else 'Overdue'}, due soon, then the oldest"


def _tabs(request: AnyRequest, asked: Asked, inbox: Inbox) -> list[dict[str, Any]]:
    return [
        {
            "word": TAB_WORDS[tab],
            "href": Asked(tab, next=asked.next).href(),
            "on": tab == asked.tab,
            "count": inbox.counts.get(tab),
        }
        for tab in tabs_of(scope_of(request))
    ]


def chips_of(asked: Asked, workflows: Sequence[str]) -> dict[str, Any]:
    """The filters: those that are on, each with the address without it, and those that could be set."""
    on = [
        {"label": words, "href": asked.href(**{name: "", "after": None})}
        for name, value, words in (
            ("due", asked.filters.due, _DUE.get(asked.filters.due, "")),
            ("claim", asked.filters.claim, _CLAIM.get(asked.filters.claim, "")),
            ("workflow", asked.filters.workflow, asked.filters.workflow),
            ("requester", asked.filters.requester, f"from {say.person(asked.filters.requester)}"),
        )
        if value
    ]
    off = []
    if asked.tab != "decided":
        off += [("due", key, words) for key, words in _DUE.items() if key != asked.filters.due]
        off += [("claim", key, words) for key, words in _CLAIM.items() if key != asked.filters.claim]
    more = [{"label": words, "href": asked.href(**{name: key, "after": None})} for name, key, words in off]
    others = [{"label": name, "href": asked.href(workflow=name, after=None)} for name in workflows
              if name != asked.filters.workflow and len(workflows) > 1]  # fmt: skip
    over = None
    if asked.tab in ("groups", "requested", "all"):
        is_over = asked.filters.state == "over"
        over = {"label": "Open" if is_over else "Over", "href": asked.href(state="" if is_over else "over", after=None)}
    return {"on": on, "more": more, "workflows": others, "over": over}


def next_of(rows: Sequence[InboxRow], current: str) -> InboxRow | None:
    """The question to open after this one: the next below it that waits for the person, else the first."""
    places = [index for index, row in enumerate(rows) if row.id == current]
    start = places[0] + 1 if places else 0
    return next((row for row in (*rows[start:], *rows[:start]) if row.mine and row.id != current), None)


async def read_list(request: AnyRequest, asked: Asked) -> Inbox:
    return await backend_of(request).inbox(scope_of(request), asked.tab, asked.filters, asked.q, asked.after)


@get("/")
async def start_page(request: AnyRequest) -> Response[Any]:
    scope = scope_of(request)
    person = scope.person
    return redirect("/approvals" if person is None or person.role != "viewer" else "/runs")


@get("/badge")
async def badge(request: AnyRequest) -> Response[Any]:
    return send_fragment(request, fragment(request, "_badge.html", badge=await badge_of(request)))


@get("/approvals/rows")
async def inbox_rows(request: AnyRequest) -> Response[Any]:
    """The list again. Of rows that are `seen` none moves: what is new waits behind a bar."""
    asked, query = Asked.of(request), request.query_params
    seen = [name for name in query.get("seen", "").split(".") if name][:MAX_SEEN]
    newest = number_of(query.get("newest", ""), digits=18) or 0
    if seen:
        inbox = await backend_of(request).watch_inbox(
            scope_of(request), asked.tab, asked.filters, asked.q, seen, newest
        )
    else:
        inbox = await read_list(request, asked)
    return send_fragment(request, list_of(request, asked, inbox, query.get("open", "")))


@get("/keyboard")
async def keyboard_page(request: AnyRequest) -> Response[Any]:
    """What the keys do: a dialog over any page, and a page of its own without scripts."""
    return render(
        request, "approvals/keyboard.html", badge=await badge_of(request),
        in_dialog=request.headers.get("hx-request") == "true",
    )  # fmt: skip


HANDLERS = [start_page, badge, inbox_rows, keyboard_page]
