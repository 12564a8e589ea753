"""Signing in at a real provider, and all that must not come in that way."""

from __future__ import annotations

import html
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from playwright.async_api import expect

from signoff.people import groups, sessions, tenants, users
from signoff.people.audit import A as AUDIT
from signoff.people.identities import I
from signoff.people.limits import LIMITS
from signoff.store.scope import Person, Scope
from signoff.store.tx import Tx
from signoff.web.providers import ProviderConfig, read_providers
from tests.support.browser import Pages
from tests.support.oidc import CLIENT, SECRET, Provider, running_provider, sign_in_there
from tests.web.world import Site, csrf_of, running_site

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACCOUNTS: dict[str, dict[str, Any]] = {
    "nia": {"email": "nia@example.org", "email_verified": True, "name": "Nia New", "groups": ["fin-eu", "unknown"]},
    "boss": {"email": "boss@example.org", "email_verified": True, "name": "Bo Boss", "groups": ["admins", "fin-eu"]},
    "lost": {"email": "lost@example.org", "email_verified": True, "name": "Lou Lost", "groups": []},
    "ana": {"email": "Ana@example.org", "email_verified": True, "name": "Another Ana", "groups": ["fin-eu"]},
    "vague": {"email": "ciso@example.org", "email_verified": False, "groups": ["fin-eu"]},
    "silent": {"groups": ["fin-eu"]},
}


@dataclass
class House:
    site: Site
    provider: Provider

    @asynccontextmanager
    async def browser(self) -> AsyncIterator[Browser]:
        async with self.site.client() as client, httpx.AsyncClient(timeout=20) as there:
            yield Browser(self, client, there)

    async def person(self, email: str) -> Person | None:
        return await self.site.engine.store.read(users.find_person, self.site.engine.scope().tenant_id, email=email)

    async def audited(self) -> list[tuple[bool, str | None]]:
        """Sign-ins over the provider that are on record."""
        rows = sa.select(AUDIT.c.allowed, AUDIT.c.reason).where(AUDIT.c.via == "oidc", AUDIT.c.action == "sign_in")
        return await self.site.engine.store.read(
            lambda tx: [tuple(row) for row in tx.conn.execute(rows.order_by(AUDIT.c.id))]  # type: ignore[misc]
        )

    async def flow(self, **changes: Any) -> None:
        """Change what is kept of the sign-in under way."""

        def change(tx: Tx) -> None:
            row = tx.conn.execute(sa.select(sessions.S).where(sessions.S.c.user_id.is_(None))).one()
            sessions.save_data(tx, row.hash, json.loads(row.data) | changes)

        await self.site.engine.store.write(change)


@dataclass
class Browser:
    """One person's browser: its cookies here, and those at the provider."""

    house: House
    client: httpx.AsyncClient
    there: httpx.AsyncClient

    async def leave(self, target: str = "/more", provider: str = "first") -> str:
        self.client.cookies.clear()  # whoever is signed in would be led on from here
        csrf = csrf_of((await self.client.get("/sign-in")).text)
        answer = await self.client.post(f"/sign-in/{provider}", data={"csrf": csrf, "next": target})
        assert answer.status_code == 200, answer.text
        led = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', answer.text)
        assert led is not None
        return html.unescape(led[1])

    async def callback(self, subject: str, target: str = "/more", provider: str = "first") -> str:
        """All up to the way back, which is not taken yet."""
        address = await self.leave(target, provider)
        back = f"{self.house.site.address}/sign-in/{provider}/callback"
        return await sign_in_there(self.there, address, subject, back)

    async def come(self, subject: str, provider: str = "first") -> httpx.Response:
        return await self.client.get(await self.callback(subject, provider=provider))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def provider_and_port() -> AsyncIterator[tuple[Provider, int]]:
    """One provider for all, and the port at which it knows us."""
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    back = [f"{here}/sign-in/{name}/callback" for name in ("first", "trusted", "plain")]
    async with running_provider(ACCOUNTS, back, [f"{here}/sign-in"]) as provider:
        yield provider, port


@pytest_asyncio.fixture(loop_scope="session")
async def house(sqlite_url: str, provider_and_port: tuple[Provider, int]) -> AsyncIterator[House]:
    async with house_at(sqlite_url, *provider_and_port) as made:
        yield made


@asynccontextmanager
async def house_at(url: str, provider: Provider, port: int) -> AsyncIterator[House]:
    await provider.tamper()
    common: dict[str, Any] = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET}
    mapping: dict[str, Any] = {
        "roles": {"fin-eu": "approver", "admins": "admin"},
        "groups": {"fin-eu": "finance", "sec": "security"},
    }
    configs = [
        ProviderConfig(id="first", name="Example", **common, **mapping),
        ProviderConfig(id="trusted", name="Trusted", trusted=True, **common, **mapping),
        ProviderConfig(id="plain", name="Plain", default_role="viewer", **common),
    ]
    async with running_site(url, port, providers=configs) as site:
        yield House(site, provider)


async def refused(house: House, answer: httpx.Response, reason: str, status: int = 403) -> None:
    """A plain page, nobody signed in, and one row on record."""
    assert (answer.status_code, await house.audited()) == (status, [(False, reason)]), answer.text
    assert "text/html" in answer.headers["content-type"]
    assert 'role="alert"' in answer.text
    assert "Traceback" not in answer.text
    cookies = answer.headers.get_list("set-cookie")
    assert not any(re.match(r"signoff-\d+=", cookie) for cookie in cookies), "no session"


async def test_whoever_the_provider_knows_comes_in_with_role_and_groups(house: House) -> None:
    async with house.browser() as nia:
        assert "Sign in with Example" in (await nia.client.get("/sign-in")).text
        answer = await nia.client.get(await nia.callback("nia", "/approvals?tab=mine"))
        assert (answer.status_code, answer.headers["location"]) == (303, "/approvals?tab=mine")
        assert "Nia New" in (await nia.client.get("/more")).text
        assert "with Example" in (await nia.client.get("/settings")).text
    person = await house.person("nia@example.org")
    assert person is not None
    assert (person.name, person.role, person.groups) == ("Nia New", "approver", {"finance"})
    assert await house.audited() == [(True, None)]
    # the second time the same account is found by its subject, whatever its address is meanwhile
    moved = sa.update(users.U).where(users.U.c.id == person.user_id).values(email="n@example.org")
    await house.site.engine.store.write(lambda tx: tx.conn.execute(moved).rowcount)
    async with house.browser() as again:
        assert (await again.come("nia")).status_code == 303
    assert await house.person("nia@example.org") is None


async def test_role_and_groups_follow_the_provider_and_other_groups_stay(house: House) -> None:
    scope, store = house.site.engine.scope(), house.site.engine.store
    async with house.browser() as boss:
        assert (await boss.come("boss")).status_code == 303
        await store.write(groups.add_to_group, scope, "security", "boss@example.org")
        await store.write(groups.add_to_group, scope, "chess", "boss@example.org")
        await store.write(users.set_role, scope, "boss@example.org", "viewer")
        assert (await boss.come("boss")).status_code == 303
    person = await house.person("boss@example.org")
    assert person is not None
    assert (person.role, person.groups) == ("admin", {"finance", "chess"})


async def test_the_last_admin_stays_one_whatever_the_provider_says(house: House) -> None:
    scope, store = house.site.engine.scope(), house.site.engine.store
    async with house.browser() as nia:
        await nia.come("nia")
        await store.write(users.set_role, scope, "nia@example.org", "admin")
        await store.write(users.set_role, scope, "ada@example.org", "viewer")
        assert (await nia.come("nia")).status_code == 303
    person = await house.person("nia@example.org")
    assert person is not None
    assert person.role == "admin"


async def test_without_mapped_roles_new_accounts_get_the_default_and_admins_change_it(house: House) -> None:
    async with house.browser() as lost:
        assert (await lost.come("lost", "plain")).status_code == 303
        await house.site.engine.store.write(users.set_role, house.site.engine.scope(), "lost@example.org", "operator")
        assert (await lost.come("lost", "plain")).status_code == 303
    person = await house.person("lost@example.org")
    assert person is not None
    assert person.role == "operator"


@pytest.mark.parametrize(
    ("subject", "provider", "reason"),
    [
        ("lost", "first", "no_role"),
        ("ana", "first", "account_exists"),
        ("vague", "first", "email_unverified"),
        ("vague", "trusted", "email_unverified"),
        ("silent", "first", "no_email"),
    ],
)
async def test_who_is_not_meant_to_come_in_reads_why(house: House, subject: str, provider: str, reason: str) -> None:
    before = await house.site.engine.store.read(users.list_users, house.site.engine.scope())
    async with house.browser() as one:
        await refused(house, await one.come(subject, provider), reason)
    assert await house.site.engine.store.read(users.list_users, house.site.engine.scope()) == before
    assert await house.site.engine.store.read(lambda tx: tx.conn.execute(sa.select(I)).all()) == []


async def test_an_account_that_exists_is_taken_by_a_trusted_provider_only(house: House) -> None:
    async with house.browser() as ana:
        assert (await ana.come("ana", "trusted")).status_code == 303
        assert "Ana Moreno" in (await ana.client.get("/more")).text
    async with house.browser() as ana:  # bound now, to the person and not to the address
        assert (await ana.come("ana", "first")).status_code == 303


async def test_an_account_of_another_tenant_is_taken_by_nobody(house: House) -> None:
    store = house.site.engine.store
    other = await store.write(tenants.ensure_tenant, "other")
    await store.write(users.add_user, Scope(other), "ana@example.org")
    async with house.browser() as ana:
        await refused(house, await ana.come("ana", "trusted"), "account_exists")


async def test_a_deactivated_account_stays_out(house: House) -> None:
    async with house.browser() as nia:
        await nia.come("nia")
        await house.site.engine.store.write(users.set_active, house.site.engine.scope(), "nia@example.org", False)
        assert (await nia.come("nia")).status_code == 403
        assert (await house.audited())[-1] == (False, "inactive")
        assert (await nia.client.get("/more")).status_code == 303


async def test_a_wrong_verifier_is_refused_by_the_provider(house: House) -> None:
    async with house.browser() as nia:
        back = await nia.callback("nia")
        await house.flow(verifier="x" * 86)
        await refused(house, await nia.client.get(back), "code")


async def test_a_wrong_nonce_is_refused(house: House) -> None:
    async with house.browser() as nia:
        back = await nia.callback("nia")
        await house.flow(nonce="another")
        await refused(house, await nia.client.get(back), "nonce")


def now(seconds: float) -> int:
    return int(time.time() + seconds)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"claims": {"iss": "https://evil.example"}}, "issuer"),
        ({"claims": {"aud": "somebody-else"}}, "audience"),
        ({"claims": {"aud": ["signoff", "somebody-else"], "azp": "somebody-else"}}, "audience"),
        ({"claims": {"exp": timedelta(seconds=-90)}}, "expired"),  # from when the test runs
        ({"claims": {"iat": timedelta(minutes=10)}}, "iat"),
        ({"claims": {"at_hash": "wrong"}}, "at_hash"),
        ({"claims": {"sub": "boss"}}, "sub"),
        ({"without": ["nonce"]}, "nonce"),
        ({"without": ["exp"]}, "exp"),
        ({"without": ["aud"]}, "audience"),
        ({"alg": "none"}, "signature"),
        ({"alg": "HS256"}, "signature"),
        ({"alg": "HS256", "publicKey": True}, "signature"),
        ({"key": "second", "kid": "first"}, "signature"),
        ({"key": "second"}, "signature"),
        ({"userinfo": {"sub": "boss"}}, "sub"),
    ],
    ids=str,
)
async def test_a_proof_that_does_not_hold_is_refused(house: House, how: dict[str, Any], reason: str) -> None:
    claims = {
        name: now(value.total_seconds()) if isinstance(value, timedelta) else value
        for name, value in how.get("claims", {}).items()
    }
    how = {**how, "claims": claims} if claims else how
    async with house.browser() as nia:
        back = await nia.callback("nia")
        await house.provider.tamper(**how)
        await refused(house, await nia.client.get(back), reason)
    assert await house.person("nia@example.org") is None


async def test_clocks_may_differ_by_a_minute(house: House) -> None:
    async with house.browser() as nia:
        await house.provider.tamper(claims={"exp": now(-30)})
        assert (await nia.come("nia")).status_code == 303


async def test_changed_keys_are_fetched_once(house: House) -> None:
    async with house.browser() as nia:
        assert (await nia.come("nia")).status_code == 303
        asked = await house.provider.tamper(key="second", published=["first", "second"])
        assert (await nia.come("nia")).status_code == 303
        assert await house.provider.tamper(key="second", kid="third", published=["first", "second"]) == asked + 1
        assert (await nia.come("nia")).status_code == 403
        assert await house.provider.tamper() == asked + 2
        assert (await house.audited())[-1] == (False, "signature")


async def test_a_forged_state_is_refused_and_uses_the_sign_in_up(house: House) -> None:
    async with house.browser() as nia:
        back = await nia.callback("nia")
        query = parse_qs(urlsplit(back).query) | {"state": ["forged"]}
        await refused(house, await nia.client.get(f"{back.split('?')[0]}?{urlencode(query, doseq=True)}"), "state")
        assert (await nia.client.get(back)).status_code == 403
        assert await house.audited() == [(False, "state"), (False, "flow")]


async def test_a_callback_works_once(house: House) -> None:
    async with house.browser() as nia:
        back = await nia.callback("nia")
        kept = dict(nia.client.cookies)
        assert (await nia.client.get(back)).status_code == 303
        async with house.site.client(cookies=kept) as thief:
            assert (await thief.get(back)).status_code == 403
        assert await house.audited() == [(True, None), (False, "flow")]


async def test_a_used_code_is_refused_by_the_provider_too(house: House) -> None:
    async with house.browser() as nia, house.browser() as eve:
        back = await nia.callback("nia")
        assert (await nia.client.get(back)).status_code == 303
        await eve.leave()
        code, state = (parse_qs(urlsplit(back).query)[name][0] for name in ("code", "state"))
        await house.flow(state=state)  # even if she could make the state fit
        query = urlencode({"code": code, "state": state, "iss": house.provider.issuer})
        assert (await eve.client.get(f"/sign-in/first/callback?{query}")).status_code == 403
        assert await house.audited() == [(True, None), (False, "code")]


async def test_somebody_elses_callback_signs_nobody_in(house: House) -> None:
    async with house.browser() as nia, house.site.client() as victim:
        await refused(house, await victim.get(await nia.callback("nia")), "flow")


@pytest.mark.parametrize("named", ["https://evil.example", None])
async def test_an_answer_of_another_provider_is_refused(house: House, named: str | None) -> None:
    async with house.browser() as nia:
        back = await nia.callback("nia")
        query = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items() if name != "iss"}
        query |= {"iss": named} if named else {}
        await refused(house, await nia.client.get(f"{back.split('?')[0]}?{urlencode(query)}"), "issuer")


async def test_who_says_no_at_the_provider_is_told_so(house: House) -> None:
    async with house.browser() as nia:
        state = parse_qs(urlsplit(await nia.leave()).query)["state"][0]
        query = urlencode({"error": "access_denied", "state": state, "iss": house.provider.issuer})
        answer = await nia.client.get(f"/sign-in/first/callback?{query}")
        await refused(house, answer, "provider_error")
        assert "You did not sign in there" in answer.text


async def test_the_request_carries_challenge_state_and_nonce_and_no_secret(house: House) -> None:
    async with house.browser() as nia:
        address = await nia.leave()
        query = parse_qs(urlsplit(address).query)
        assert query["code_challenge_method"] == ["S256"]
        assert query["response_type"] == ["code"]
        assert set(query["scope"][0].split()) == {"openid", "email", "profile"}
        assert len(query["state"][0]) >= 43
        assert len(query["nonce"][0]) >= 43
        assert "code_verifier" not in query
        assert SECRET not in address
        assert (await nia.client.get("/sign-in/first")).status_code == 405, "a GET begins nothing"
        assert (await nia.client.post("/sign-in/first")).status_code == 403, "nor does another site"


async def test_signing_in_leads_to_no_other_site(house: House) -> None:
    async with house.browser() as nia:
        answer = await nia.client.get(await nia.callback("nia", "//evil.example"))
        assert answer.headers["location"] == "/"


async def test_signing_out_ends_the_session_here_and_there(house: House) -> None:
    async with house.browser() as nia:
        await nia.come("nia")
        csrf = csrf_of((await nia.client.get("/more")).text)
        answer = await nia.client.post("/sign-out", data={"csrf": csrf})
        led = re.search(r'content="0;url=([^"]+)"', answer.text)
        assert led is not None
        address = html.unescape(led[1])
        assert address.startswith(f"{house.provider.issuer}/session/end?")
        assert parse_qs(urlsplit(address).query)["post_logout_redirect_uri"] == [f"{house.site.address}/sign-in"]
        assert (await nia.there.get(address)).status_code == 200  # the provider knows who is meant
        assert (await nia.client.get("/more")).status_code == 303


async def test_a_real_browser_goes_there_and_back_and_out_again(house: House, new_page: Pages) -> None:
    page = await new_page()
    await page.goto(f"{house.site.address}/more")
    await page.get_by_role("button", name="Sign in with Example").click()
    await page.wait_for_url(f"{house.provider.issuer}/**")
    await page.locator('input[name="login"]').fill("nia")
    await page.locator('input[name="password"]').fill("any")
    await page.locator('button[type="submit"]').click()
    await page.locator('input[name="prompt"][value="consent"]').wait_for(state="attached")
    await page.locator('button[type="submit"]').click()
    await page.wait_for_url(f"{house.site.address}/more")
    await expect(page.locator("main").get_by_text("Nia New")).to_be_visible()
    await page.locator("main").get_by_role("button", name="Sign out").click()
    await page.wait_for_url(f"{house.provider.issuer}/session/end**")
    await page.locator('button[value="yes"]').click()
    await page.wait_for_url(f"{house.site.address}/sign-in")


async def test_attempts_are_counted_by_address_and_the_log_is_not_filled(house: House) -> None:
    async with house.browser() as nia:
        limit = LIMITS["address"][0]
        codes = [(await nia.client.get("/sign-in/first/callback?state=x")).status_code for _ in range(limit + 3)]
        assert codes == [403] * limit + [429] * 3
        csrf = csrf_of((await nia.client.get("/sign-in")).text)
        assert (await nia.client.post("/sign-in/first", data={"csrf": csrf})).status_code == 429
    assert (await house.audited())[limit - 1 :] == [(False, "flow"), (False, "too_many_attempts")]


async def test_a_provider_that_is_away_gives_a_plain_page(sqlite_url: str) -> None:
    away = ProviderConfig(id="away", name="Away", issuer=f"http://127.0.0.1:{free_port()}", client_id="x")
    async with running_site(sqlite_url, providers=[away]) as site, site.client() as client:
        csrf = csrf_of((await client.get("/sign-in")).text)
        answer = await client.post("/sign-in/away", data={"csrf": csrf})
        assert answer.status_code == 503
        assert "Away does not answer" in answer.text
        assert (await client.post("/sign-in/none", data={"csrf": csrf})).status_code == 404


async def test_a_provider_that_calls_itself_otherwise_is_refused(house: House) -> None:
    await house.provider.tamper(metadata={"issuer": "https://evil.example"})
    async with house.browser() as nia:
        csrf = csrf_of((await nia.client.get("/sign-in")).text)
        await refused(house, await nia.client.post("/sign-in/first", data={"csrf": csrf}), "issuer")


async def test_it_works_on_postgres_too(postgres_url: str, provider_and_port: tuple[Provider, int]) -> None:
    async with house_at(postgres_url, *provider_and_port) as house, house.browser() as nia:
        assert (await nia.come("nia")).status_code == 303
        assert (await nia.come("nia")).status_code == 303
        assert await house.audited() == [(True, None)] * 2


# -- settings

TOML = """
[[provider]]
id = "example"
name = "Example"
issuer = "https://id.example.org"
client_id = "signoff"
client_secret_env = "EXAMPLE_SECRET"
group_claim = "teams"
default_role = "viewer"
[provider.roles]
"signoff-admins" = "admin"
[provider.groups]
"fin-eu" = "finance"
"""


async def test_settings_are_read_from_toml_json_and_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_SECRET", "s3cret")
    (tmp_path / "oidc.toml").write_text(TOML)
    (found,) = read_providers(str(tmp_path / "oidc.toml"))
    assert (found.secret(), found.role_of(["x"]), found.role_of(["signoff-admins"])) == ("s3cret", "viewer", "admin")
    text = json.dumps([found.model_dump(exclude_defaults=True)])
    (tmp_path / "oidc.json").write_text(json.dumps({"provider": json.loads(text)}))
    assert read_providers(str(tmp_path / "oidc.json")) == read_providers(text) == [found]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"issuer": "http://id.example.org"}, "https://"),
        ({"id": "Not/An/Id"}, "provider.0.id"),
        ({"scopes": ["email"]}, "openid"),
        ({"default_role": "boss"}, "default_role"),
        ({"unknown": 1}, "provider.0.unknown"),
        ({"client_secret_env": "SIGNOFF_TEST_NOT_SET", "client_secret": None}, "SIGNOFF_TEST_NOT_SET is not set"),
        ({"client_secret_file": "secret.txt"}, "one of client_secret"),
    ],
    ids=str,
)
async def test_wrong_settings_are_said_without_the_secret(changed: dict[str, Any], complaint: str) -> None:
    base = {"id": "a", "name": "A", "issuer": "https://id.example.org", "client_id": "x", "client_secret": "hush-hush"}
    with pytest.raises(ValueError) as caught:
        read_providers(json.dumps({"provider": [base | changed]}))
    assert complaint in str(caught.value)
    assert "hush-hush" not in str(caught.value)
