"""People and groups, for admins: who may sign in, with which role, in which groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.approvals.naming import questions_naming
from signoff.people import groups, links, users
from signoff.people.permissions import may, require
from signoff.store.scope import ROLES, Scope
from signoff.store.tx import Tx
from signoff.web import say
from signoff.web.addresses import name_of, number_of, segment
from signoff.web.pages import AnyRequest, backend_of, badge_of, home_of, is_htmx, outer_url, redirect, render, scope_of
from signoff.web.pages.oidc import providers_of
from signoff.workflow.errors import Conflict, InvalidInput, NotFound, Refused

ROWS = 50
FOUND = 10  # people who could be added, below the members that a search finds
ROLE_WORDS = {
    "viewer": "sees runs and questions",
    "approver": "answers questions as well",
    "operator": "starts, cancels and pauses runs as well",
    "admin": "restarts runs and manages people, tokens and the record as well",
}
DONE = {
    "role": "The role is changed. It counts from their next request on.",
    "groups": "The groups are saved.",
    "deactivated": "The account is deactivated, and its sessions have ended.",
    "activated": "The account is active again.",
    "group": "The group is made. Add its members here.",
    "member": "Added to the group.",
    "removed": "Taken out of the group.",
    "left": "They belong here no more. What they decided stays.",
    "deleted": "The group is deleted.",
}


@dataclass(frozen=True, slots=True)
class Details:
    """A member with what their page needs to say what is possible, and why not."""

    user: users.UserView
    groups: list[str]  # theirs, and some of the others
    more_groups: bool
    find: str
    last_admin: bool
    elsewhere: bool

    @property
    def why_not_role(self) -> str:
        return "The last admin stays one. Make somebody else an admin first." if self.last_admin else ""

    @property
    def why_not_deactivate(self) -> str:
        if self.last_admin:
            return "The last admin cannot be deactivated. Make somebody else an admin first."
        return _ELSEWHERE if self.elsewhere else ""

    @property
    def why_not_remove(self) -> str:
        if self.last_admin:
            return "The last admin cannot leave. Make somebody else an admin first."
        return "" if self.elsewhere else "The account belongs nowhere else. Deactivate it instead."

    @property
    def why_not_link(self) -> str:
        if not self.user.active:
            return "A deactivated account gets no link. Activate it first."
        return _ELSEWHERE if self.elsewhere else ""


_ELSEWHERE = "The account belongs to other tenants too. Whoever runs the server can change it with signoff users."


def _details(tx: Tx, scope: Scope, user_id: int, find: str = "") -> Details:
    user = users.user(tx, scope, user_id)
    last = user.role == "admin" and user.active and users.admins(tx, scope) == 1
    known, more = _groups_to_choose(tx, scope, user.groups, find)
    return Details(user, known, more, find, last, users.elsewhere(tx, scope, user_id))


def done_notes(request: AnyRequest, words: dict[str, str]) -> list[dict[str, str]]:
    """What was just done, after the redirect."""
    text = words.get(request.query_params.get("done", ""))
    return [{"kind": "good", "text": text}] if text else []


async def _typed(request: AnyRequest, *names: str) -> dict[str, str]:
    form = await request.form()
    return {name: str(form.get(name, ""))[:320] for name in names}


def problem_of(error: InvalidInput | Conflict | Refused | NotFound) -> str:
    return say.sentence(error.message)


# -- people


@dataclass(frozen=True, slots=True)
class Asked:
    """Which part of a list the address asks for."""

    path: str
    find: str
    after: str

    @classmethod
    def of(cls, request: AnyRequest, path: str) -> Asked:
        query = request.query_params
        return cls(path, query.get("find", "").strip()[:200], query.get("after", "")[:256])

    @property
    def number(self) -> int | None:
        """`after` as an id."""
        return number_of(self.after)

    def href(self, after: object = None) -> str:
        query = {name: str(text) for name, text in (("find", self.find), ("after", after)) if text}
        return f"{self.path}?{urlencode(query)}" if query else self.path


def _people(tx: Tx, scope: Scope, asked: Asked) -> tuple[users.UserPage, int]:
    return users.find_users(tx, scope, asked.find, after=asked.number, limit=ROWS), users.members(tx, scope)


@get("/people")
async def people_page(request: AnyRequest) -> Response[Any]:
    asked = Asked.of(request, "/people")
    page, total = await backend_of(request).look(_people, scope_of(request), asked)
    return render(request, "people/list.html", place="people", badge=await badge_of(request), page=page, asked=asked,
                  total=total, notes=done_notes(request, DONE))  # fmt: skip


async def _add_dialog(
    request: AnyRequest, typed: dict[str, Any], error: str = "", http: int = 200, *, existing: bool = False
) -> Response[Any]:
    """`existing`: the address has an account, and it is asked whether that is whom one means."""
    require(scope_of(request), "people.manage")
    known, more = await backend_of(request).look(_groups_to_choose, scope_of(request), typed["groups"])
    return render(request, "people/add.html", http=http, place="people", typed=typed, error=error, roles=ROLE_WORDS,
                  groups=known, more=more, existing=existing, in_dialog=is_htmx(request))  # fmt: skip


def _groups_to_choose(tx: Tx, scope: Scope, chosen: Sequence[str], find: str = "") -> tuple[list[str], bool]:
    """Those that are chosen, and the first of those that a search finds; whether there are others."""
    found = groups.find_groups(tx, scope, find, limit=ROWS)
    return sorted({*chosen, *(group.name for group in found.rows)}), found.after is not None


@get("/people/add")
async def add_dialog(request: AnyRequest) -> Response[Any]:
    return await _add_dialog(request, {"email": "", "name": "", "role": "approver", "groups": [], "existing": ""})


def _add(tx: Tx, scope: Scope, typed: dict[str, Any]) -> tuple[users.UserView, str | None]:
    # The answer is to the question about one address, and to no other that was typed after it.
    existing = bool(typed["existing"]) and typed["existing"] == users.clean_email(typed["email"])
    user_id = users.add_user(
        tx, scope, typed["email"], name=typed["name"], role=typed["role"], existing=existing
    )  # fmt: skip
    for group in typed["groups"]:
        groups.add_to_group(tx, scope, group, typed["email"])
    user = users.user(tx, scope, user_id)
    # An account of several tenants has its way in already, and no admin of one gives out another.
    ready = user.has_password or user.external or users.elsewhere(tx, scope, user_id)
    return user, None if ready else users.password_link(tx, scope, user.email)


@post("/people")
async def add(request: AnyRequest) -> Response[Any]:
    form = await request.form()
    typed: dict[str, Any] = await _typed(request, "email", "name", "role", "existing")
    typed["groups"] = [str(value)[:256] for value in form.getall("group", [])]
    try:
        user, secret = await backend_of(request).act("people.manage", typed["email"], _add, scope_of(request), typed)
    except (InvalidInput, Conflict) as error:
        http = 422 if isinstance(error, InvalidInput) else 409
        existing = bool(error.context.get("existing"))
        return await _add_dialog(request, typed, problem_of(error), http, existing=existing)
    if secret is None:
        return redirect(f"/people/{user.id}")
    return _link_page(request, user, secret, added=True)


def _link_page(request: AnyRequest, user: users.UserView, secret: str, *, added: bool) -> Response[Any]:
    link = f"{outer_url(request)}{links.SETUP_PATH}{secret}"
    return unkept(render(request, "people/link.html", place="people", user=user, link=link, added=added))


def unkept(answer: Response[Any]) -> Response[Any]:
    """A page with a secret: no browser keeps it."""
    answer.headers["cache-control"] = "no-store"
    return answer


async def _person_page(request: AnyRequest, user_id: int, error: str = "", http: int = 200) -> Response[Any]:
    find = request.query_params.get("find", "").strip()[:200]
    details = await backend_of(request).look(_details, scope_of(request), user_id, find)
    return render(request, "people/person.html", http=http, place="people", badge=await badge_of(request), error=error,
                  details=details, user=details.user, roles=ROLE_WORDS, notes=done_notes(request, DONE))  # fmt: skip


@get("/people/{user:int}")
async def person_page(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    return await _person_page(request, user)


async def _email(request: AnyRequest, user: int) -> str:
    return (await backend_of(request).look(users.user, scope_of(request), user)).email


async def _changed(request: AnyRequest, user: int, done: str, use_case: Any, *args: Any) -> Response[Any]:
    try:
        await backend_of(request).act("people.manage", str(user), use_case, scope_of(request), *args)
    except (InvalidInput, Conflict) as error:
        return await _person_page(request, user, problem_of(error), 422 if isinstance(error, InvalidInput) else 409)
    except Refused as refusal:
        if refusal.reason != "other_tenants":
            raise
        return await _person_page(request, user, problem_of(refusal), 403)
    person = scope_of(request).person
    itself = person is not None and person.user_id == user and done in ("role", "deactivated")
    return redirect("/" if itself else f"/people/{user}?done={done}")


@post("/people/{user:int}/role")
async def change_role(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    typed = await _typed(request, "role")
    return await _changed(request, user, "role", _set_role, user, typed["role"])


def _set_role(tx: Tx, scope: Scope, user_id: int, role: str) -> None:
    users.set_role(tx, scope, users.user(tx, scope, user_id).email, role)


@post("/people/{user:int}/groups")
async def change_groups(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    form = await request.form()
    had, wanted = ({str(value)[:256] for value in form.getall(name, [])} for name in ("had", "group"))
    return await _changed(request, user, "groups", _set_groups, user, had, wanted)


def _set_groups(tx: Tx, scope: Scope, user_id: int, had: set[str], wanted: set[str]) -> None:
    """Only what was changed on the page, which may be older than what another admin did meanwhile."""
    user = users.user(tx, scope, user_id)
    for name in sorted((wanted - had - set(user.groups)) & set(groups.group_names(tx, scope))):
        groups.add_to_group(tx, scope, name, user.email)
    for name in sorted((had - wanted) & set(user.groups)):
        groups.remove_from_group(tx, scope, name, user.email)


@post("/people/{user:int}/link")
async def make_link(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    backend, scope = backend_of(request), scope_of(request)
    try:
        secret = await backend.act("people.manage", str(user), _link, scope, user)
    except Conflict as error:
        return await _person_page(request, user, problem_of(error), 409)
    except Refused as refusal:
        if refusal.reason != "other_tenants":
            raise
        return await _person_page(request, user, problem_of(refusal), 403)
    return _link_page(request, await backend.look(users.user, scope, user), secret, added=False)


def _link(tx: Tx, scope: Scope, user_id: int) -> str:
    return users.password_link(tx, scope, users.user(tx, scope, user_id).email)


async def _leaving_dialog(request: AnyRequest, user: int, deed: str) -> Response[Any]:
    require(scope_of(request), "people.manage")
    details = await backend_of(request).look(_details, scope_of(request), user)
    return render(request, "people/leave.html", place="people", details=details, user=details.user,
                  deed=deed, in_dialog=is_htmx(request))  # fmt: skip


@get("/people/{user:int}/deactivate")
async def deactivate_dialog(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    return await _leaving_dialog(request, user, "deactivate")


@post("/people/{user:int}/deactivate")
async def deactivate(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    return await _changed(request, user, "deactivated", _set_active, user, False)


@post("/people/{user:int}/activate")
async def activate(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    return await _changed(request, user, "activated", _set_active, user, True)


def _set_active(tx: Tx, scope: Scope, user_id: int, active: bool) -> None:
    users.set_active(tx, scope, users.user(tx, scope, user_id).email, active)


@get("/people/{user:int}/remove")
async def remove_dialog(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    return await _leaving_dialog(request, user, "remove")


@post("/people/{user:int}/remove")
async def remove(request: AnyRequest, user: FromPath[int]) -> Response[Any]:
    """Out of this tenant. Whoever takes themselves out is a stranger here, and signs in again elsewhere."""
    try:
        await backend_of(request).act("people.manage", str(user), _remove, scope_of(request), user)
    except Conflict as error:
        return await _person_page(request, user, problem_of(error), 409)
    return redirect("/people?done=left")


def _remove(tx: Tx, scope: Scope, user_id: int) -> None:
    users.remove_user(tx, scope, users.user(tx, scope, user_id).email)


# -- groups


@get("/people/groups")
async def groups_page(request: AnyRequest) -> Response[Any]:
    return await _groups_page(request)


def _groups(tx: Tx, scope: Scope, asked: Asked) -> tuple[groups.GroupPage, int]:
    return groups.find_groups(tx, scope, asked.find, after=asked.after or None, limit=ROWS), groups.count(tx, scope)


async def _groups_page(request: AnyRequest, name: str = "", error: str = "", http: int = 200) -> Response[Any]:
    asked = Asked.of(request, "/people/groups")
    page, total = await backend_of(request).look(_groups, scope_of(request), asked)
    return render(request, "people/groups.html", http=http, place="people", badge=await badge_of(request), page=page,
                  asked=asked, total=total, name=name, error=error, notes=done_notes(request, DONE))  # fmt: skip


@post("/people/groups")
async def make_group(request: AnyRequest) -> Response[Any]:
    name = (await _typed(request, "name"))["name"]
    try:
        name = await backend_of(request).act("people.manage", name, groups.make_group, scope_of(request), name)
    except (InvalidInput, Conflict) as error:
        return await _groups_page(request, name, problem_of(error), 422 if isinstance(error, InvalidInput) else 409)
    return redirect(f"/people/groups/{segment(name)}?done=group")


@get("/people/groups/{group:str}")
async def group_page(request: AnyRequest, group: FromPath[str]) -> Response[Any]:
    return await _group_page(request, name_of(group))


@dataclass(frozen=True, slots=True)
class _Group:
    group: groups.GroupLine
    page: users.UserPage
    others: users.UserPage  # active people who are not in it: a few to choose from, or those who are looked for


def _group(tx: Tx, scope: Scope, name: str, asked: Asked) -> _Group:
    group = groups.find_group(tx, scope, name)
    page = users.find_users(tx, scope, asked.find, group=name, after=asked.number, limit=ROWS)
    others = users.find_users(tx, scope, asked.find, group=name, outside=True, limit=FOUND if asked.find else ROWS)
    return _Group(group, page, others)


async def _group_page(request: AnyRequest, name: str, error: str = "", http: int = 200) -> Response[Any]:
    asked = Asked.of(request, f"/people/groups/{segment(name)}")
    found = await backend_of(request).look(_group, scope_of(request), name, asked)
    return render(request, "people/group.html", http=http, place="people", badge=await badge_of(request), error=error,
                  group=found.group, page=found.page, others=found.others, asked=asked,
                  notes=done_notes(request, DONE))  # fmt: skip


@post("/people/groups/{group:str}/add")
async def add_member(request: AnyRequest, group: FromPath[str]) -> Response[Any]:
    return await _member(request, name_of(group), "member", _join)


@post("/people/groups/{group:str}/remove")
async def remove_member(request: AnyRequest, group: FromPath[str]) -> Response[Any]:
    return await _member(request, name_of(group), "removed", groups.remove_from_group)


def _join(tx: Tx, scope: Scope, name: str, email: str) -> None:
    groups.add_to_group(tx, scope, groups.find_group(tx, scope, name).name, email)


async def _member(request: AnyRequest, group: str, done: str, use_case: Any) -> Response[Any]:
    typed = await _typed(request, "email", "find")
    email, find = typed["email"], typed["find"]
    try:
        await backend_of(request).act("people.manage", group, use_case, scope_of(request), group, email)
    except (InvalidInput, NotFound) as error:
        return await _group_page(request, group, problem_of(error), 422)
    more = f"&{urlencode({'find': find})}" if find else ""
    return redirect(f"/people/groups/{segment(group)}?done={done}{more}")


def _why_not_delete(request: AnyRequest, home: str, group: str) -> str:
    """A provider would make the group again at the next sign-in, and nobody would have said so."""
    named = [config.name for config in providers_of(request).configs
             if config.tenant == home and group in config.groups.values()]  # fmt: skip
    return f"{say.listed(named, 'and')} would make it again: its settings name it. Take it out there first." * bool(
        named
    )


async def _delete_dialog(request: AnyRequest, name: str, http: int = 200) -> Response[Any]:
    scope = scope_of(request)
    require(scope, "people.manage")
    group = await backend_of(request).look(groups.find_group, scope, name)
    named = await backend_of(request).look(questions_naming, scope, name)
    why_not = _why_not_delete(request, home_of(request), name)
    return render(request, "people/delete_group.html", http=http, place="people", group=group, named=named,
                  why_not=why_not, in_dialog=is_htmx(request))  # fmt: skip


@get("/people/groups/{group:str}/delete")
async def delete_group_dialog(request: AnyRequest, group: FromPath[str]) -> Response[Any]:
    return await _delete_dialog(request, name_of(group))


@post("/people/groups/{group:str}/delete")
async def delete_group(request: AnyRequest, group: FromPath[str]) -> Response[Any]:
    name, scope = name_of(group), scope_of(request)
    if may(scope, "people.manage") and _why_not_delete(request, home_of(request), name):
        return await _delete_dialog(request, name, 409)
    await backend_of(request).act("people.manage", name, groups.delete_group, scope, name)
    return redirect("/people/groups?done=deleted")


HANDLERS = [
    people_page, add_dialog, add, person_page, change_role, change_groups, make_link, deactivate_dialog, deactivate,
    activate, remove_dialog, remove, groups_page, make_group, group_page, add_member, remove_member,
    delete_group_dialog, delete_group,
]  # fmt: skip

assert set(ROLE_WORDS) == set(ROLES)
