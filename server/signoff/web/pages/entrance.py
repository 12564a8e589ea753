"""The ways in and out: sign-in, one-time set-up links, sign-out; and the theme, which strangers may choose too."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from signoff.people.passwords import MIN_LENGTH
from signoff.web import say
from signoff.web.addresses import local
from signoff.web.pages import AnyRequest, backend_of, caller_of, outer_url, redirect, render, whence
from signoff.web.pages.oidc import leaving, providers_of
from signoff.web.security import THEMES
from signoff.workflow.errors import InvalidInput, NotFound, Refused


@get("/sign-in")
async def sign_in_page(request: AnyRequest) -> Response[Any]:
    target = local(request.query_params.get("next"))
    if caller_of(request).scope is not None:
        return redirect(target)
    return render(request, "sign_in.html", next=target, email="", error="", error_hint="", reason="",
                  providers=providers_of(request).buttons)  # fmt: skip


@post("/sign-in")
async def sign_in(request: AnyRequest) -> Response[Any]:
    form = await request.form()
    email, password = str(form.get("email", ""))[:320], str(form.get("password", ""))[:1000]
    target = local(str(form.get("next", "/")))
    caller = caller_of(request)
    try:
        visitor = await backend_of(request).sign_in(email, password, **whence(request), old=caller.secret)
    except Refused as refusal:
        known = {
            "bad_credentials": ("That does not match", "Check the e-mail address and the password."),
            "too_many_attempts": (refusal.message, "This protects the account from guessing."),
            "not_member": ("This account has no access any more", "Ask an admin of your team."),
        }
        error, hint = known.get(refusal.reason, (refusal.message, ""))
        status = {"too_many_attempts": 429}.get(refusal.reason, 401 if refusal.reason == "bad_credentials" else 403)
        return render(
            request, "sign_in.html", http=status, next=target, email=email, error=error, error_hint=hint, reason="",
            providers=providers_of(request).buttons,
        )  # fmt: skip
    response = redirect(target)
    response.headers["set-cookie"] = caller.cookies.line(caller.cookies.session, visitor.secret or "")
    return response


@post("/sign-out")
async def sign_out(request: AnyRequest) -> Response[Any]:
    """Here, and at the provider whom the session came from, if it offers that."""
    caller = caller_of(request)
    session = await backend_of(request).sign_out(caller.secret) if caller.secret else None
    provider = providers_of(request).get(session.provider) if session is not None else None
    response: Response[Any] = redirect("/sign-in")
    if session is not None and provider is not None:
        address = await provider.sign_out_address(session.data.get("id_token"), f"{outer_url(request)}/sign-in")
        if address is not None:
            response = leaving(request, address, provider.config.name, "sign out")
    response.headers["set-cookie"] = caller.cookies.line(caller.cookies.session, "", max_age=0)
    return response


@get("/setup/{link:str}")
async def set_up_page(request: AnyRequest, link: FromPath[str]) -> Response[Any]:
    try:
        found = await backend_of(request).find_link(link)
    except NotFound:
        return render(request, "set_up.html", http=410, gone=True, errors={})
    return _set_up_form(request, found, {"name": found.name or "", "email": ""}, {})


@post("/setup/{link:str}")
async def set_up(request: AnyRequest, link: FromPath[str]) -> Response[Any]:
    backend = backend_of(request)
    form = await request.form()
    typed = {name: str(form.get(name, ""))[:1000] for name in ("name", "email", "password", "again")}
    try:
        found = await backend.find_link(link)
    except NotFound:
        return render(request, "set_up.html", http=410, gone=True, errors={})
    try:
        errors = _check(typed, found.email is None)
        if not errors:
            person = await backend.set_up(
                link, typed["password"], email=found.email or typed["email"], name=typed["name"]
            )
            visitor = await backend.sign_in(
                person.email, typed["password"], **whence(request), old=caller_of(request).secret
            )
            response = redirect("/")
            cookies = caller_of(request).cookies
            response.headers["set-cookie"] = cookies.line(cookies.session, visitor.secret or "")
            return response
    except NotFound:
        return render(request, "set_up.html", http=410, gone=True, errors={})
    except InvalidInput as error:
        errors = {str(item.loc[-1]) if item.loc else "email": say.sentence(item.message) for item in error.fields} or {
            "password": say.sentence(error.message)
        }
    except Refused as refusal:
        errors = {"email": say.sentence(refusal.message)}
    return _set_up_form(request, found, typed, errors)


def _set_up_form(request: AnyRequest, found: Any, typed: dict[str, str], errors: dict[str, str]) -> Response[Any]:
    return render(
        request, "set_up.html", http=422 if errors else 200, gone=False, errors=errors, email=found.email,
        purpose="admin" if found.email is None else "password", typed=typed, min_length=MIN_LENGTH,
    )  # fmt: skip


def _check(typed: dict[str, str], needs_email: bool) -> dict[str, str]:
    errors = {}
    if not typed["name"].strip():
        errors["name"] = "Enter your name."
    if needs_email and "@" not in typed["email"]:
        errors["email"] = "Enter your e-mail address."
    return errors | new_password_problems(typed["password"], typed["again"])


def new_password_problems(password: str, again: str) -> dict[str, str]:
    """What a form with a new password says beside its fields."""
    if len(password) < MIN_LENGTH:
        return {"password": f"Use at least {MIN_LENGTH} characters."}
    return {"again": "The two passwords differ."} if again != password else {}


@post("/preferences/theme")
async def choose_theme(request: AnyRequest) -> Response[Any]:
    form = await request.form()
    theme = str(form.get("theme", "auto"))
    response = redirect(local(str(form.get("next", "/"))))
    response.headers["set-cookie"] = caller_of(request).cookies.theme_line(theme if theme in THEMES else "auto")
    return response


HANDLERS = [sign_in_page, sign_in, sign_out, set_up_page, set_up, choose_theme]
