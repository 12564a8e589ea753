"""What people reported of other products, where only a real browser can tell; and people who meet in one question."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest
from playwright.async_api import expect

from tests.support.browser import Pages
from tests.web.desk import Visit, question, visits
from tests.web.test_browser import enter
from tests.web.world import Site


@pytest.mark.parametrize(("zone", "scripts"), [("Pacific/Kiritimati", True), ("Pacific/Pago_Pago", False)])
async def test_enter_decides_nothing_and_loses_nothing_and_a_date_stays_that_day(
    site: Site, new_page: Pages, zone: str, scripts: bool
) -> None:
    run = await site.engine.start(visits)
    asked = await site.question(run)
    page = await new_page(timezone_id=zone, java_script_enabled=scripts)
    await enter(page, site, "ana@example.org", f"/approvals/{asked}")
    await page.get_by_label("Day").fill("2026-12-24")
    note = page.get_by_label("Note", exact=True)
    await note.press_sequentially("typed to the end")
    await page.get_by_label("Day").press("Enter")
    # Enter says neither yes nor no, so nothing is decided, and nothing that was typed is lost.
    await expect(page.get_by_text("Choose Approve or Reject").first).to_be_visible()
    (view,) = await run.approvals()
    assert view.state == "open"
    await expect(note).to_have_value("typed to the end")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You answered")).to_be_visible()
    assert await run.result(timeout=15) == Visit(approved=True, day=date(2026, 12, 24), note="typed to the end")
    await expect(page.get_by_text("typed to the end", exact=True)).to_be_visible()


async def test_of_a_claim_and_an_answer_at_once_one_is_told_why_not(site: Site, new_page: Pages) -> None:
    run = await site.engine.start(question, "Mine or yours?")
    asked = await site.question(run)
    ana, ada = await new_page(java_script_enabled=False), await new_page(java_script_enabled=False)
    for page, email in ((ana, "ana@example.org"), (ada, "ada@example.org")):
        await enter(page, site, email, f"/approvals/{asked}")
    await asyncio.gather(
        ana.get_by_role("button", name="I work on it").click(), ada.get_by_role("button", name="Approve").click()
    )
    (view,) = await run.approvals()
    if view.state == "decided":
        await expect(ada.get_by_text("You answered")).to_be_visible()
        await expect(ana.locator("main")).to_contain_text("answered")
        await expect(ana.get_by_role("button", name="Approve")).to_have_count(0)
        assert [decision.person for decision in view.decisions] == ["ada@example.org"]
    else:
        assert (view.claimed_by, view.decisions) == ("ana@example.org", [])
        await expect(ada.locator("main")).to_contain_text("Your answer was not taken")
        await expect(ada.locator("main")).to_contain_text("Ana Moreno")
        await ana.get_by_role("button", name="Approve").click()
        await expect(ana.get_by_text("You answered")).to_be_visible()
    assert await run.result(timeout=15) is True
