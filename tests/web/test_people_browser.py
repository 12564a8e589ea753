"""The pages for admins in a real browser: dialogs, what axe-core says, and a revoked session that goes at once."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from signoff.people import groups, tenants, users
from signoff.people.chain import seal_pending
from signoff.store.tx import Tx
from tests.support.browser import Pages, accessibility_faults
from tests.web.test_browser import WIDTHS, enter
from tests.web.world import Site


async def fill(site: Site) -> int:
    """Long names, empty groups, a deactivated person and a decision; the id of the only admin."""
    run, _ = await site.order("o-1")
    await run.decide("web/ship", {"approved": False, "boxes": 1, "note": ""}, by="ana@example.org")
    scope = site.engine.scope()

    def people(tx: Tx) -> int:
        tenants.open_tenant(tx, scope, "retail", "Retail and its many shops " * 3, "ada@example.org")
        groups.make_group(tx, scope, "a group with a name that goes on and on " * 5)
        users.add_user(tx, scope, f"{'long' * 40}@example.org", name="Name " * 40)
        users.set_active(tx, scope, "carl@example.org", False)
        seal_pending(tx)
        person = users.find_person(tx, scope.tenant_id, email="ada@example.org")
        assert person is not None
        assert person.user_id is not None
        return person.user_id

    return await site.engine.store.write(people)


# colours do not depend on the width, nor faults of layout on the colours
@pytest.mark.parametrize(("width", "scheme"), [("desk", "light"), ("phone", "dark")])
async def test_axe_finds_nothing_and_nothing_runs_off_the_page(
    site: Site, new_page: Pages, scheme: str, width: str
) -> None:
    ada = await fill(site)
    options: dict[str, Any] = {"viewport": WIDTHS[width], "color_scheme": scheme, "reduced_motion": "reduce"}
    page = await new_page(**options)
    await enter(page, site, "ada@example.org")
    for path in ("/people", "/people/add", f"/people/{ada}", f"/people/{ada}/deactivate", "/people/groups",
                 "/people/groups/finance", "/people/groups/finance?find=name", "/people/groups/finance/delete",
                 "/settings", "/settings/tokens", "/settings/tenants", "/settings/tenants/retail/rename", "/record",
                 "/record/audit", "/record/audit?person=nobody"):  # fmt: skip
        await page.goto(f"{site.address}{path}")
        await page.wait_for_load_state("load")
        assert await accessibility_faults(page) == [], path
        over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide"


async def test_a_person_is_added_in_a_dialog_and_the_link_is_there_to_copy(site: Site, new_page: Pages) -> None:
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ada@example.org", "/people")
    await page.get_by_role("link", name="Add a person").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("E-mail").fill("new@example.org")
    await dialog.get_by_label("Operator").check()
    await dialog.get_by_role("button", name="Add the person").click()
    link = await page.get_by_label("Set-up link").input_value()
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert link.startswith(f"{site.address}/setup/")
    await page.get_by_role("link", name="Done").click()
    await expect(page.get_by_label("Operator")).to_be_checked()


async def test_a_revoked_session_loses_its_open_page_at_once(site: Site, new_page: Pages) -> None:
    here, there = await new_page(), await new_page()
    await enter(here, site, "ana@example.org", "/settings")
    await enter(there, site, "ana@example.org", "/approvals")
    await expect(there.locator("#live-light")).to_have_attribute("data-state", "live")
    await here.reload()
    await here.get_by_role("button", name="End all other sessions").click()
    await expect(here.get_by_text("All other sessions have ended.")).to_be_visible()
    await there.wait_for_url(lambda url: "/sign-in" in url, timeout=5000)


async def test_a_disabled_button_stays_disabled_with_scripts(site: Site, new_page: Pages) -> None:
    ada = await fill(site)
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ada@example.org", f"/people/{ada}")
    button = page.get_by_role("button", name="Change the role")
    await expect(button).to_be_disabled()
    await expect(button).to_have_accessible_description("The last admin stays one. Make somebody else an admin first.")


async def test_somebody_goes_on_in_another_tenant_from_the_menu(site: Site, new_page: Pages) -> None:
    await fill(site)
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ada@example.org", "/people")
    other = await page.context.new_page()  # a second tab, which is shown the new tenant by itself
    await other.goto(f"{site.address}/people")
    await expect(other.get_by_text("Ana Moreno")).to_be_visible()
    await expect(other.locator("#live-light")).to_have_attribute("data-state", "live")
    await page.get_by_text("default", exact=True).click()
    await page.get_by_role("button", name="Go on in Retail").click()
    await expect(page.get_by_role("heading", name="Nothing waits for you")).to_be_visible()
    await expect(other.get_by_text("1 person", exact=True)).to_be_visible(timeout=5000)
    await expect(other.get_by_text("Ana Moreno")).to_have_count(0)
