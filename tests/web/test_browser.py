"""The order story in real browsers, with scripts and without, and what axe-core says of every page."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import Pages, accessibility_faults
from tests.web.world import GATES, PASSWORD, Gate, Payment, Site, eventually, form_workflow, payment

NewPage = Callable[..., Awaitable[Page]]
WIDTHS = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 800}}


async def enter(page: Page, site: Site | SiteProcess, email: str, path: str = "/") -> None:
    await page.goto(f"{site.address}{path}")
    await page.get_by_label("E-mail").fill(email)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(lambda url: "/sign-in" not in url)


async def test_an_approver_answers_and_an_operator_watches_live(both_sites: Site, new_page: Pages) -> None:
    site = both_sites
    gate = GATES["o-story"] = Gate()
    ana, omar = await new_page(), await new_page()
    await enter(ana, site, "ana@example.org")
    await enter(omar, site, "omar@example.org", "/runs")
    await expect(ana.get_by_text("Nothing waits for you")).to_be_visible()
    await expect(ana.locator("#live-light")).to_have_attribute("data-state", "live")
    await expect(omar.locator("#live-light")).to_have_attribute("data-state", "live")

    run, _ = await site.order("o-story")
    row = ana.get_by_role("link", name="Ship order o-story?")
    await expect(row).to_be_visible()
    await expect(ana).to_have_title(re.compile(r"^\(1\) "))
    await omar.goto(f"{site.address}/runs/{run.id}")
    await expect(omar.get_by_role("heading", level=1)).to_contain_text("Waits for anyone in finance")
    await expect(omar.locator("#live-light")).to_have_attribute("data-state", "live")

    await row.click()
    await ana.get_by_label("Boxes").fill("2")
    await ana.get_by_role("button", name="Approve").click()
    await expect(ana.get_by_text("You answered")).to_be_visible()

    await expect(omar.get_by_role("heading", level=1)).to_have_text("Running web/label")
    await expect(omar.get_by_role("progressbar", name="Progress of web/label")).to_have_attribute("value", "0.4")
    await omar.get_by_role("link", name="web/label").click()
    await expect(omar.locator("#panel")).to_contain_text("printing")
    assert omar.url.endswith("?step=1")
    gate.opened.set()
    await expect(omar.get_by_role("heading", level=1)).to_contain_text("Completed in")
    await expect(omar.locator("#panel")).to_contain_text("label of o-story")
    await expect(omar).to_have_title(re.compile("^Completed"))
    await omar.keyboard.press("Escape")
    await expect(omar.locator("#panel")).to_be_empty()


async def test_who_is_late_reads_who_was_first_and_keeps_the_text(site: Site, new_page: Pages) -> None:
    _, question = await site.order("o-race")
    ana, ada = await new_page(), await new_page()
    for page, email in ((ana, "ana@example.org"), (ada, "ada@example.org")):
        await enter(page, site, email, f"/approvals/{question}")
        await page.get_by_label("Boxes").fill("2")
        await expect(page.locator("#live-light")).to_have_attribute("data-state", "live")
    await ada.get_by_label("Note for the warehouse").fill("what I typed")
    await ana.get_by_role("button", name="Approve").click()
    await expect(ada.locator("#decision-state")).to_contain_text("Ana Moreno answered")
    await expect(ada.get_by_role("button", name="Approve")).to_be_disabled()
    await expect(ada.get_by_label("Note for the warehouse")).to_have_value("what I typed")


async def test_enter_in_a_field_decides_nothing(site: Site, new_page: Pages) -> None:
    _, question = await site.order("o-enter")
    page = await new_page()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.get_by_label("Boxes").fill("3")
    await page.get_by_label("Boxes").press("Enter")
    await expect(page.locator("#error-summary")).to_be_focused()
    await expect(page.locator("#error-summary")).to_contain_text("Choose Approve or Reject.")
    await expect(page.get_by_label("Boxes")).to_have_value("3")


async def test_a_form_with_errors_comes_back_with_what_was_typed(site: Site, new_page: Pages) -> None:
    _, question = await site.order("o-typed")
    page = await new_page()
    await enter(page, site, "ana@example.org", f"/approvals/{question}")
    await page.get_by_label("Boxes").fill("many")
    await page.get_by_label("Note for the warehouse").fill("first line\nsecond & <third>")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("#error-summary")).to_be_focused()
    await expect(page.get_by_label("Boxes")).to_have_value("many")
    await expect(page.get_by_label("Boxes")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Note for the warehouse")).to_have_value("first line\nsecond & <third>")
    await page.get_by_role("link", name="Boxes").click()
    await expect(page.get_by_label("Boxes")).to_be_focused()


async def test_all_of_it_without_scripts(site: Site, new_page: Pages) -> None:
    run, _ = await site.order("o-plain")
    page = await new_page(java_script_enabled=False)
    await enter(page, site, "ana@example.org")
    await page.get_by_role("link", name="Ship order o-plain?").click()
    await page.get_by_label("Boxes").fill("1")
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_text("You answered")).to_be_visible()
    await page.get_by_role("link", name="Watch the run").click()

    async def completed() -> bool:
        await page.reload()
        return "Completed" in await page.locator("h1").inner_text()

    await eventually(completed)
    await page.get_by_role("link", name="web/ship").click()
    assert "Answered" in await page.locator("#panel").inner_text()
    await page.get_by_label("Close the step").click()
    assert await page.locator("#panel").inner_text() == ""
    assert (await run.status()).status == "completed"


async def test_an_operator_cancels_in_a_dialog_with_the_keyboard_alone(site: Site, new_page: Pages) -> None:
    run, _ = await site.order("o-cancel")
    page = await new_page()
    await enter(page, site, "omar@example.org", f"/runs/{run.id}")
    await page.locator(".menu summary").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Cancel the run").focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Withdraws 1 open question.")
    await page.keyboard.press("Escape")
    await expect(page.locator(".menu summary")).to_be_focused()  # the link in it went away with the menu
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Cancel the run").press("Enter")
    await expect(dialog.get_by_label("Reason")).to_be_focused()
    await page.keyboard.type("customer called")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await expect(dialog.get_by_role("button", name="Cancel the run")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main h1")).to_contain_text("Canceled")
    await expect(page.locator(".run-detail")).to_contain_text("Customer called")


async def test_what_a_person_opened_stays_open_when_the_page_changes(site: Site, new_page: Pages) -> None:
    run, _ = await site.order("o-open")
    page = await new_page()
    await enter(page, site, "omar@example.org", f"/runs/{run.id}")
    await expect(page.locator("#live-light")).to_have_attribute("data-state", "live")
    await page.locator(".menu summary").click()
    await page.get_by_role("link", name="Cancel the run").focus()
    await run.send(payment, Payment(amount=3))
    await expect(page.get_by_role("heading", name="Messages")).to_be_visible()
    await expect(page.get_by_role("link", name="Cancel the run")).to_be_focused()
    await page.get_by_text("Content").click()
    await run.send(payment, Payment(amount=44))
    await expect(page.locator(".events li")).to_have_count(2)
    await expect(page.get_by_text('"amount": 3')).to_be_visible()


async def test_several_tabs_share_one_stream(site: Site, new_page: Pages) -> None:
    page = await new_page()
    await enter(page, site, "ana@example.org")
    tabs = [page, *[await page.context.new_page() for _ in range(7)]]
    for tab in tabs[1:]:
        await tab.goto(f"{site.address}/approvals")
    for tab in tabs:
        await expect(tab.locator("#live-light")).to_have_attribute("data-state", "live")
    assert len(site.app.state.live.streams) == 1
    await site.order("o-tabs")
    for tab in tabs:
        await tab.bring_to_front()
        await expect(tab.get_by_role("link", name="Ship order o-tabs?")).to_be_visible()


async def test_a_page_catches_up_after_the_server_was_killed(sqlite_url: str, new_page: Pages, tmp_path: Path) -> None:
    server = await SiteProcess.start(sqlite_url, tmp_path)
    try:
        page = await new_page()
        await page.goto(f"{server.address}/sign-in")
        await page.get_by_label("E-mail").fill("omar@example.org")
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(f"{server.address}/runs/o-kill")
        await expect(page.locator("#live-light")).to_have_attribute("data-state", "live")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Waits for anyone in finance")
        await server.kill()
        await expect(page.locator("#live-light")).not_to_have_attribute("data-state", "live")
        server = await SiteProcess.start(sqlite_url, tmp_path, port=server.port, then="cancel")
        await expect(page.locator("#live-light")).to_have_attribute("data-state", "live", timeout=30_000)
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Canceled", timeout=30_000)
    finally:
        await server.kill()


class SiteProcess:
    """The test site in a process of its own, to be killed."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address
        self.port = int(address.rsplit(":", 1)[1])

    @classmethod
    async def start(cls, url: str, folder: Path, port: int = 0, then: str = "order") -> SiteProcess:
        ready = folder / f"ready-{then}"
        log = (folder / f"{then}.log").open("wb")
        command = [sys.executable, "-m", "tests.web.process", url, str(port), then, str(ready)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2], env=dict(os.environ))

        async def written() -> str:
            assert process.poll() is None, Path(log.name).read_text()
            return ready.read_text() if ready.exists() else ""

        return cls(process, await eventually(written, within=40))

    async def kill(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


# -- for everybody


# colours do not depend on the width, nor faults of layout on the colours
@pytest.mark.parametrize(("width", "scheme"), [("desk", "light"), ("phone", "dark")])
async def test_axe_finds_nothing_and_nothing_runs_off_the_page(
    site: Site, new_page: Pages, scheme: str, width: str
) -> None:
    viewport: dict[str, Any] = {"viewport": WIDTHS[width], "color_scheme": scheme, "reduced_motion": "reduce"}
    run, question = await site.order("o-axe", labels={"region": "x" * 200})
    long, _ = await site.order("an endless name " * 30)
    form = await site.question(await site.engine.start(form_workflow))
    page = await new_page(**viewport)
    await page.goto(f"{site.address}/sign-in")
    assert await accessibility_faults(page) == []
    await enter(page, site, "ada@example.org")
    seen = ["/approvals", f"/approvals/{question}", f"/approvals/{form}", "/runs", "/runs?q=none", f"/runs/{run.id}",
            f"/runs/{run.id}?step=0", f"/runs/{long.id}", f"/runs/{run.id}/cancel", "/workflows", "/more",
            "/nowhere"]  # fmt: skip
    for path in seen:
        await page.goto(f"{site.address}{path}")
        await page.wait_for_load_state("load")
        assert await accessibility_faults(page) == [], path
        over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide"
    await page.goto(f"{site.address}/approvals/{question}")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("#error-summary")).to_be_visible()
    assert await accessibility_faults(page) == [], "a form with errors"
    await page.get_by_label("Boxes").fill("2")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You answered")).to_be_visible()
    assert await accessibility_faults(page) == [], "a receipt"


async def test_text_of_twice_the_size_fits_a_phone(site: Site, new_page: Pages) -> None:
    _, question = await site.order("o-large")
    page = await new_page(viewport=WIDTHS["phone"])
    await enter(page, site, "ana@example.org")
    for path in ("/approvals", f"/approvals/{question}", "/runs"):
        await page.goto(f"{site.address}{path}")
        await page.evaluate("document.documentElement.setAttribute('data-large', '')")
        await page.evaluate("document.styleSheets[0].insertRule(':root[data-large] { font-size: 200% }', 0)")
        over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide"
