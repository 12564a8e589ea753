"""From one tenant to another of one's own; and for admins of the first one, making tenants and what they are called."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.people import links, tenants
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web import say
from signoff.web.addresses import name_of
from signoff.web.pages import (
    AnyRequest,
    backend_of,
    badge_of,
    caller_of,
    is_htmx,
    outer_url,
    redirect,
    render,
    scope_of,
    why_not_switch,
)
from signoff.web.pages.people import done_notes, unkept
from signoff.workflow.errors import Conflict, InvalidInput, NotFound

FIELDS = ("name", "title", "email", "person")
DONE = {
    "made": "The tenant is made, and its first admin can sign in.",
    "renamed": "The tenant is called that from now on.",
}


@post("/switch")
async def switch(request: AnyRequest) -> Response[Any]:
    """Nothing of the old tenant goes along: the session gets a new id, and the page is the start of the new one."""
    form, caller = await request.form(), caller_of(request)
    name, scope = str(form.get("tenant", ""))[:256], scope_of(request)
    secret = await backend_of(request).switch_tenant(scope, caller.secret or "", name, why_not_switch(request))
    answer = redirect("/")
    if secret is not None:
        answer.headers["set-cookie"] = caller.cookies.line(caller.cookies.session, secret)
    return answer


async def _page(
    request: AnyRequest, typed: dict[str, str] | None = None, error: str = "", http: int = 200
) -> Response[Any]:
    found = await backend_of(request).look(tenants.list_tenants, scope_of(request))
    return render(
        request, "settings/tenants.html", http=http, place="settings", badge=await badge_of(request), tenants=found,
        typed=typed or dict.fromkeys(FIELDS, ""), error=error, first=tenants.DEFAULT_TENANT, admin=True,
        notes=done_notes(request, DONE),
    )  # fmt: skip


@get("/settings/tenants")
async def tenants_page(request: AnyRequest) -> Response[Any]:
    return await _page(request)


@post("/settings/tenants")
async def make_tenant(request: AnyRequest) -> Response[Any]:
    form = await request.form()
    typed = {name: str(form.get(name, ""))[:320] for name in FIELDS}
    try:
        secret = await backend_of(request).act(
            "tenant.manage", typed["name"], tenants.open_tenant, scope_of(request), *typed.values()
        )
    except (InvalidInput, Conflict) as error:
        return await _page(request, typed, say.sentence(error.message), 422 if isinstance(error, InvalidInput) else 409)
    if secret is None:
        return redirect("/settings/tenants?done=made")
    link = f"{outer_url(request)}{links.SETUP_PATH}{secret}"
    name, email = typed["title"].strip() or typed["name"].strip(), typed["email"].strip().lower()
    return unkept(render(request, "settings/tenant.html", place="settings", name=name, email=email, link=link))


async def _dialog(
    request: AnyRequest, name: str, title: str | None = None, error: str = "", http: int = 200
) -> Response[Any]:
    found = await backend_of(request).look(_tenant, scope_of(request), name)
    return render(request, "settings/rename.html", http=http, place="settings", tenant=found, error=error,
                  title=found.title if title is None else title, in_dialog=is_htmx(request))  # fmt: skip


def _tenant(tx: Tx, scope: Scope, name: str) -> tenants.TenantView:
    found = next((tenant for tenant in tenants.list_tenants(tx, scope) if tenant.name == name), None)
    if found is None:
        raise NotFound(f"There is no tenant {name!r}", tenant=name)
    return found


@get("/settings/tenants/{tenant:str}/rename")
async def rename_dialog(request: AnyRequest, tenant: FromPath[str]) -> Response[Any]:
    return await _dialog(request, name_of(tenant))


@post("/settings/tenants/{tenant:str}/rename")
async def rename(request: AnyRequest, tenant: FromPath[str]) -> Response[Any]:
    form, name = await request.form(), name_of(tenant)
    title = str(form.get("title", ""))[:320]
    try:
        await backend_of(request).act("tenant.manage", name, tenants.rename_tenant, scope_of(request), name, title)
    except (InvalidInput, Conflict) as error:
        return await _dialog(request, name, title, say.sentence(error.message),
                             422 if isinstance(error, InvalidInput) else 409)  # fmt: skip
    return redirect("/settings/tenants?done=renamed")


HANDLERS = [switch, tenants_page, make_tenant, rename_dialog, rename]
