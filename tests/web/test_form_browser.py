"""Every kind of field in a real browser, with scripts and without; drafts that outlive reload and sign-out."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.async_api import Page, expect

from signoff.approvals.drafts import DR
from signoff.people import tenants, users
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web import forms
from tests.support.browser import Pages, accessibility_faults
from tests.web.filling import typed
from tests.web.kinds import FILLED, SECRET, Kinds
from tests.web.test_browser import WIDTHS, enter
from tests.web.world import Site, all_kinds, eventually, kinds_workflow, started_workflow


async def fill(page: Page, sent: dict[str, list[str]]) -> None:
    """Enters what `sent` says: parts and rows first, from the outside in, then the values."""
    for name in [name for name in sent if name.endswith("!")]:
        await page.locator(f'[name="{name}"]').check()
    for name in sorted((name for name in sent if name.endswith("#")), key=lambda name: name.count(".")):
        for row in sent[name]:
            entry = page.locator(f'input[name="{name}"][value="{row}"]')
            if not await entry.count():
                await page.locator(f'button[name="form-add"][value="{name[:-1]}"]').click()
                await expect(entry).to_be_attached(timeout=15_000)
    for name, texts in sent.items():
        if name[-1] in "!#":
            continue
        control = page.locator(f'[name="{name}"]').first
        kind = await control.evaluate("it => it.tagName === 'SELECT' ? 'select' : it.type")
        if kind in ("radio", "checkbox"):
            for text in texts:
                await page.locator(f'[name="{name}"][value="{text}"]').check()
        elif kind == "select":
            await control.select_option(texts[-1])
        else:
            await control.fill(texts[-1])


def meant() -> dict[str, list[str]]:
    sent = typed(forms.build(all_kinds.codec.json_schema()), {**FILLED}, apart=1)
    sent.pop("f.approved")  # a button
    return {**sent, "f.key*": [SECRET]}


async def kinds_question(site: Site) -> tuple[Any, str]:
    run = await site.engine.start(kinds_workflow)
    return run, await site.question(run)


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
async def test_a_form_with_every_kind_is_filled_in_and_means_it(site: Site, new_page: Pages, scripts: bool) -> None:
    run, question = await kinds_question(site)
    # Where the calendar is a day ahead: what is typed is not moved.
    page = await new_page(java_script_enabled=scripts, timezone_id="Pacific/Kiritimati", locale="de-AT")
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.get_by_label("Title").fill("typed before rows came")
    await fill(page, meant())
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You answered")).to_be_visible()
    value = Kinds.model_validate(await run.result(timeout=10), from_attributes=True)
    assert value == Kinds.model_validate_json(json.dumps({**FILLED, "key": SECRET}))


async def test_rows_come_and_go_in_place_with_the_focus(site: Site, new_page: Pages) -> None:
    _, question = await kinds_question(site)
    page = await new_page()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.locator('[name="f.key*"]').fill("kept, because the page stays")
    add = page.get_by_role("button", name="Add tag")
    await add.click()
    await expect(page.locator('[name="f.tags.0"]')).to_be_focused(timeout=15_000)
    await page.keyboard.type("one")
    await add.click()
    await expect(page.locator('[name="f.tags.1"]')).to_be_focused(timeout=15_000)
    await page.keyboard.type("two")
    await page.get_by_role("button", name="Remove tag 1").click()
    await expect(page.locator('[name="f.tags.0"]')).to_have_count(0)
    await expect(page.locator('[name="f.tags.1"]')).to_have_value("two")
    await expect(add).to_be_focused()
    await expect(page.locator('[name="f.key*"]')).to_have_value("kept, because the page stays")


async def test_rows_come_where_the_question_stands_beside_its_list(site: Site, new_page: Pages) -> None:
    await kinds_question(site)
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ana@example.org", "/approvals")
    await page.get_by_role("button", name="Add tag").click()
    await expect(page.locator('[name="f.tags.0"]')).to_be_focused(timeout=15_000)


async def test_a_kind_of_a_union_shows_its_own_fields(site: Site, new_page: Pages) -> None:
    _, question = await kinds_question(site)
    for scripts, email in ((True, "ana@example.org"), (False, "ada@example.org")):
        page = await new_page(java_script_enabled=scripts)
        await enter(page, site, email, f"/approvals/{question}")
        await expect(page.get_by_label("IBAN")).to_be_hidden()
        await page.get_by_label("Bank transfer").check()
        await expect(page.get_by_label("IBAN")).to_be_visible()
        await expect(page.get_by_label("Number", exact=True)).to_be_hidden()


async def saved(site: Site, text: str) -> None:
    async def there() -> bool:
        query = "SELECT data FROM signoff_draft"
        rows = await site.engine.store.read(lambda tx: tx.conn.exec_driver_sql(query).scalars().all())
        return any(text in row for row in rows)

    await eventually(there)


async def test_what_is_typed_outlives_reload_and_sign_out(site: Site, new_page: Pages) -> None:
    _, question = await kinds_question(site)
    page = await new_page()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.get_by_label("Title").fill("typed and left alone")
    await page.locator('[name="f.key*"]').fill("s3cret")
    await saved(site, "typed and left alone")
    await page.reload()
    await expect(page.get_by_label("Title")).to_have_value("typed and left alone")
    await expect(page.get_by_text("Filled in with what you typed")).to_be_visible()
    await expect(page.locator('[name="f.key*"]')).to_have_value("")
    await page.get_by_label("Title").fill("typed just before leaving")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Password")).to_be_visible()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await expect(page.get_by_label("Title")).to_have_value("typed just before leaving")
    await page.get_by_role("button", name="Discard it").click()
    await expect(page.get_by_label("Title")).to_have_value("")


async def test_what_is_typed_after_the_session_ended_waits_in_the_tab(site: Site, new_page: Pages) -> None:
    _, question = await kinds_question(site)
    page = await new_page()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.get_by_role("button", name="Add tag").click()
    await expect(page.locator('[name="f.tags.0"]')).to_be_focused(timeout=15_000)
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Add tag").click()
    await expect(page.get_by_text("You are signed out.")).to_be_visible(timeout=15_000)
    await expect(page.locator('[name="f.tags.0"]')).to_be_visible()
    await page.get_by_label("Title").fill("typed too late")
    await expect(page.get_by_text("You are signed out.")).to_be_visible()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await expect(page.get_by_label("Title")).to_have_value("typed too late")
    await saved(site, "typed too late")


async def test_a_double_click_starts_one_run(site: Site, new_page: Pages) -> None:
    page = await new_page()
    await enter(page, site, "omar@example.org", "/workflows")
    await page.get_by_role("link", name="Start web/start").click()
    await page.get_by_label("Order").fill("o-twice")
    await page.get_by_role("button", name="Start the run").dblclick()
    await page.wait_for_url("**/runs/*")
    found = await site.engine.runs(workflow=started_workflow.name)
    assert len(found.items) == 1


# colours do not depend on the width, nor faults of layout on the colours
@pytest.mark.parametrize(("width", "theme"), [("desk", "dark"), ("phone", "light")])
async def test_forms_have_no_accessibility_faults(site: Site, new_page: Pages, width: str, theme: Any) -> None:
    _, question = await kinds_question(site)
    page = await new_page(viewport=WIDTHS[width], color_scheme=theme)
    await enter(page, site, "ada@example.org", f"/approvals/{question}")
    await fill(page, {**meant(), "f.boxes": ["many"], "f.code": ["vie"]})
    assert await accessibility_faults(page) == []
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("#error-summary")).to_be_focused()
    await expect(page.get_by_label("Boxes")).to_have_attribute("aria-invalid", "true")
    assert await accessibility_faults(page) == []
    await page.goto(f"{site.address}/workflows/web%2Fstart/start")
    await page.get_by_text("When, key and labels").click()
    assert await accessibility_faults(page) == []


async def test_what_waits_in_the_tab_comes_up_in_its_own_tenant_only(site: Site, new_page: Pages) -> None:
    def join(tx: Tx) -> None:
        other = Scope(tenants.add_tenant(tx, site.engine.scope(), "wholesale"))
        users.add_user(tx, other, "boss@example.org", role="admin")
        users.add_user(tx, other, "omar@example.org", role="operator")

    async def go_on(tenant: str) -> None:
        await page.goto(f"{site.address}/settings")
        await page.locator(".switch summary").first.click()
        await page.locator(f'button[name="tenant"][value="{tenant}"]').first.click()
        await expect(page.locator(".switch-name").first).to_have_text(tenant)
        await page.goto(start)

    await site.engine.store.write(join)
    start, page = f"{site.address}/workflows/web%2Fstart/start", await new_page()
    await enter(page, site, "omar@example.org", "/workflows/web%2Fstart/start")
    await page.route("**/drafts/*", lambda route: route.abort())
    await page.get_by_label("Order").fill("of the first tenant")
    await expect(page.get_by_text("kept in this tab")).to_be_visible()
    await page.unroute("**/drafts/*")
    await go_on("wholesale")
    await expect(page.get_by_label("Order")).to_have_value("")
    await go_on("default")
    await expect(page.get_by_label("Order")).to_have_value("of the first tenant")
    rows = await site.engine.store.read(lambda tx: tx.conn.execute(sa.select(DR.c.tenant_id, DR.c.data)).all())
    assert [row.tenant_id for row in rows if "of the first tenant" in row.data] == [site.engine.scope().tenant_id]
