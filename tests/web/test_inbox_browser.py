"""The inbox and the page of a question in real browsers: two people at once, the keyboard alone, nothing that moves."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from signoff.people import groups
from tests.support.browser import Pages, accessibility_faults
from tests.web.desk import expense, publish, question
from tests.web.test_browser import WIDTHS, SiteProcess, enter
from tests.web.world import Site, form_workflow


async def asks(site: Site, title: str, team: str = "finance", due: float | None = None) -> str:
    return await site.question(await site.engine.start(question, title, team, due))


async def live(page: Page) -> None:
    await expect(page.locator("#live-light")).to_have_attribute("data-state", "live")


async def place(page: Page, selector: str) -> Any:
    return await page.locator(selector).first.bounding_box()


async def test_one_press_from_the_inbox_where_nothing_has_to_be_filled_in(site: Site, new_page: Pages) -> None:
    await asks(site, "One?")
    await asks(site, "Two?")
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ana@example.org", "/approvals")
    await page.get_by_label("Then open the next one").check()
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Two?")
    await expect(page.get_by_text("Answered: One?")).to_be_visible()
    await expect(page).to_have_title(re.compile(r"^\(1\) "))
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You answered")).to_be_visible()
    await expect(page).not_to_have_title(re.compile(r"^\("))


async def test_the_loser_of_a_race_reads_who_how_and_when_and_keeps_the_text(both_sites: Site, new_page: Pages) -> None:
    site = both_sites
    asked = await site.question(await site.engine.start(publish, "Beaches"))
    ana, ada = await new_page(viewport=WIDTHS["desk"]), await new_page(viewport=WIDTHS["desk"])
    for page, email in ((ana, "ana@example.org"), (ada, "ada@example.org")):
        await enter(page, site, email, f"/approvals/{asked}")
        await live(page)
    await ada.get_by_text("Ask for changes").first.click()
    await ada.get_by_label("What should change").fill("The title")
    send = ada.get_by_role("button", name="Ask for changes")
    before = await send.bounding_box()
    field = await place(ada, "#decide textarea, #decide input[type='text']")
    await ana.get_by_role("button", name="Publish now").click()
    await expect(ana.get_by_text("You answered")).to_be_visible()
    # The page of the other changes by itself, under nobody's hand.
    await expect(ada.locator("#decision-state")).to_contain_text("Ana Moreno answered")
    await expect(ada.locator("#decision-state")).to_contain_text("Publish now")
    await expect(send).to_be_disabled()
    assert await send.get_attribute("aria-describedby") == "why"
    assert await send.bounding_box() == before
    assert await place(ada, "#decide textarea, #decide input[type='text']") == field
    await expect(ada.get_by_label("What should change")).to_have_value("The title")
    await expect(ada.locator("#badge")).to_have_attribute("data-count", "0")
    await send.click(force=True)
    await expect(ada.get_by_label("What should change")).to_have_value("The title")


async def test_an_answer_while_the_server_is_away_stays_on_the_page_and_is_sent_again(
    new_page: Pages, sqlite_url: str, tmp_path: Path
) -> None:
    first = await SiteProcess.start(sqlite_url, tmp_path)
    try:
        page = await new_page(viewport=WIDTHS["desk"])
        await enter(page, first, "ana@example.org", "/approvals")
        await page.get_by_label("Boxes").fill("3")
        await page.get_by_label("Note for the warehouse").fill("By the back door")
        await first.kill()
        address = page.url
        await page.get_by_role("button", name="Approve").click()
        told = page.get_by_role("alert").filter(has_text="The server cannot be reached")
        again = told.get_by_role("button", name="Try again")
        for _ in range(2):
            await expect(told).to_be_visible()
            await expect(again).to_be_focused()
            assert page.url == address
            await expect(page.get_by_label("Note for the warehouse")).to_have_value("By the back door")
            await expect(page.get_by_role("button", name="Approve")).to_be_enabled()
            await again.click()
        assert await accessibility_faults(page) == []
    finally:
        await first.kill()
    second = await SiteProcess.start(sqlite_url, tmp_path, port=first.port, then="stay")
    try:
        await expect(told).to_be_visible()
        await again.click()
        await expect(page.get_by_text("You answered")).to_be_visible(timeout=20_000)  # by a server that just began
        await expect(page.locator("#decision-state")).to_contain_text("By the back door")
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
            assert database.execute("SELECT count(*) FROM signoff_decision").fetchone() == (1,)
    finally:
        await second.kill()


async def test_two_presses_at_once_have_one_winner(site: Site, new_page: Pages) -> None:
    asked = await asks(site, "Once?")
    pages = []
    for email in ("ana@example.org", "ada@example.org"):
        page = await new_page(java_script_enabled=False)  # no news of each other
        await enter(page, site, email, f"/approvals/{asked}")
        pages.append(page)
    await asyncio.gather(*(page.get_by_role("button", name="Approve").click() for page in pages))
    said = [await page.locator("main").inner_text() for page in pages]
    assert sorted("You answered" in text for text in said) == [False, True]
    loser = next(text for text in said if "You answered" not in text)
    assert "Your answer was not taken" in loser
    assert re.search(r"(Ana Moreno|Ada Admin) answered", loser)


async def test_what_is_new_is_seen_however_far_down_a_narrowed_list_is_read(site: Site, new_page: Pages) -> None:
    rows = [await asks(site, f"Row {number}") for number in range(6)]
    for width in (1280, 390):
        page = await new_page(viewport={"width": width, "height": 480})
        await enter(page, site, "ana@example.org", "/approvals?q=Row")
        await live(page)
        await page.locator(f"#item-{rows[-1]} a").evaluate("row => row.scrollIntoView({ block: 'end' })")
        await asks(site, f"Row at {width}")
        await expect(page.locator(".new-rows")).to_be_visible()
        for seen in (".new-rows", f"#item-{rows[-1]} a"):
            assert await page.evaluate(
                """seen => {
                    const one = document.querySelector(seen), box = one.getBoundingClientRect();
                    const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
                    return one === top || one.contains(top);
                }""",
                seen,
            ), (width, seen)


async def test_a_list_that_is_read_moves_nothing_and_tells_what_is_new(site: Site, new_page: Pages) -> None:
    first, second = await asks(site, "First"), await asks(site, "Second")
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ana@example.org", "/approvals")
    await live(page)
    row, button = await place(page, f"#item-{second}"), await place(page, "#decide button")
    await asks(site, "Third, and due", due=60.0)
    bar = page.get_by_role("link", name="1 new")
    await expect(bar).to_be_visible()
    pill, top = await place(page, ".new-rows"), await place(page, f"#item-{first}")
    assert pill["y"] + pill["height"] <= top["y"], "it covers no row"
    await expect(page.locator("#badge")).to_have_attribute("data-count", "3")
    assert await place(page, f"#item-{second}") == row
    assert await place(page, "#decide button") == button
    await site.engine.store.write(groups.remove_from_group, site.engine.scope(), "finance", "ana@example.org")
    await expect(page.locator("#badge")).to_have_attribute("data-count", "0")
    assert await place(page, f"#item-{second}") == row
    assert await place(page, "#decide button") == button
    await expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    await expect(page.locator("#decision-state")).to_contain_text("you are not among them")
    await expect(bar).to_be_hidden()
    await page.goto(f"{site.address}/approvals")
    await expect(page.get_by_text("Nothing waits for you")).to_be_visible()


async def test_claims_and_comments_of_others_arrive_while_one_types(site: Site, new_page: Pages) -> None:
    asked = await site.question(await site.engine.start(expense.options(requester="carl@example.org"), "12"))
    ana, ada = await new_page(viewport=WIDTHS["desk"]), await new_page(viewport=WIDTHS["desk"])
    for page, email in ((ana, "ana@example.org"), (ada, "ada@example.org")):
        await enter(page, site, email, f"/approvals/{asked}")
        await live(page)
    await ana.get_by_text("Do not pay").first.click()
    await ana.get_by_label("Reason").fill("because")
    typed = await place(ana, "#decide textarea")
    await ada.get_by_label("Comment", exact=True).last.fill("Is it ours?")
    await ada.get_by_role("button", name="Comment").click()
    await expect(ana.locator("#thread-list")).to_contain_text("Is it ours?")
    await ada.get_by_role("button", name="Pay it").click()
    await expect(ana.locator("#decision-now")).to_contain_text("1 of 3")
    await expect(ana.locator("#decision-state")).to_contain_text("Ada Admin: Pay it")
    await expect(ana.get_by_label("Reason")).to_be_focused()
    await expect(ana.get_by_label("Reason")).to_have_value("because")
    assert await place(ana, "#decide textarea") == typed
    await ana.get_by_role("button", name="Do not pay").click()
    await expect(ana.locator("main")).to_contain_text("You answered")


async def test_the_inbox_with_the_keyboard_alone(site: Site, new_page: Pages) -> None:
    for title in ("One?", "Two?", "Three?"):
        await asks(site, title)
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ana@example.org", "/approvals")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await expect(page.get_by_role("link", name="Two?")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Two?")
    await page.keyboard.press("r")
    await expect(page.get_by_role("button", name="Reject")).to_be_focused()
    await page.keyboard.press("a")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("You answered")).to_be_visible()
    await page.keyboard.press("n")
    await expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("One|Three"))
    await page.keyboard.press("c")
    await page.keyboard.type("ajk?")
    await expect(page.locator("#comment")).to_have_value("ajk?")
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await expect(page.locator("#find")).to_be_focused()
    await page.keyboard.type("Three")
    await page.keyboard.press("Enter")
    await expect(page.locator(".inbox-row")).to_have_count(1)
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    await expect(dialog).to_be_visible()
    assert await accessibility_faults(page) == []
    await dialog.get_by_label("Single keys work on this device").uncheck()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.keyboard.press("?")
    await expect(dialog).to_be_hidden()


async def test_the_bar_of_buttons_never_covers_what_is_typed_in_on_a_phone(site: Site, new_page: Pages) -> None:
    asked = await site.question(await site.engine.start(form_workflow))
    _, plain = await site.order("o-phone")
    page = await new_page(viewport={"width": 390, "height": 500})
    await enter(page, site, "ana@example.org")
    for approval in (plain, asked):
        await page.goto(f"{site.address}/approvals/{approval}")
        fields = page.locator(
            "#decide :is(input:not([type='hidden'], [type='radio'], [type='checkbox']), textarea):visible"
        )
        assert await fields.count()
        for number in range(await fields.count()):
            await fields.nth(number).focus()
            box = await fields.nth(number).bounding_box()
            assert box is not None
            covered = await page.evaluate(
                "([x, y]) => { const top = document.elementFromPoint(x, y);"
                " return top !== document.activeElement && !document.activeElement.contains(top) && top?.className }",
                [box["x"] + 10, box["y"] + min(box["height"], 40) - 6],
            )
            assert not covered, f"field {number} is under {covered}"
        last, then = fields.last, page.get_by_label("Then open the next one")
        assert await last.evaluate("(it) => it.getBoundingClientRect().bottom") <= await then.evaluate(
            "(it) => it.getBoundingClientRect().top"
        ), "what comes after the answer stands after its fields"


async def test_on_a_phone_the_list_and_the_question_come_one_after_the_other(site: Site, new_page: Pages) -> None:
    await asks(site, "Small?")
    page = await new_page(viewport=WIDTHS["phone"])
    await enter(page, site, "ana@example.org", "/approvals")
    await expect(page.get_by_role("button", name="Approve")).to_be_hidden()
    await page.get_by_role("link", name="Small?").click()
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_text("You answered")).to_be_visible()


async def test_a_change_of_who_answers_is_made_in_a_dialog(site: Site, new_page: Pages) -> None:
    asked = await asks(site, "Whose?")
    page = await new_page(viewport=WIDTHS["desk"])
    await enter(page, site, "ana@example.org", f"/approvals/{asked}")
    await page.get_by_label("More that you can do").focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Let somebody answer for you").click()
    dialog = page.get_by_role("dialog")
    assert await accessibility_faults(page) == []
    await dialog.get_by_label("Reason").fill("On leave")
    await dialog.get_by_role("button", name="Let them answer").click()
    await expect(dialog.get_by_text("Choose who answers.")).to_be_visible()
    await expect(dialog.get_by_label("Who answers")).to_be_focused()
    await expect(dialog.get_by_label("Reason")).to_have_value("On leave")
    assert page.url == f"{site.address}/approvals/{asked}", "a refused dialog stays one"
    assert await accessibility_faults(page) == []
    await dialog.get_by_label("Who answers").select_option("user:carl@example.org")
    await dialog.get_by_role("button", name="Let them answer").click()
    await expect(page.locator("#thread-list")).to_contain_text("On leave")
    await expect(page.locator("#decision-state")).to_contain_text("You cannot answer this")


# colours do not depend on the width, nor faults of layout on the colours
@pytest.mark.parametrize(("width", "scheme"), [("desk", "light"), ("phone", "dark")])
@pytest.mark.parametrize("part", ["lists", "questions"])
async def test_axe_finds_nothing_on_the_desk(site: Site, new_page: Pages, part: str, width: str, scheme: str) -> None:
    long = "".join(f"word{number} " for number in range(70))[:500]
    options = await site.question(await site.engine.start(publish.options(idempotency_key="k" * 200), long))
    votes = await site.question(await site.engine.start(expense.options(requester="carl@example.org"), long))
    stuck = await asks(site, "Who?", "nobody-is-here")
    viewport: dict[str, Any] = {"viewport": WIDTHS[width], "color_scheme": scheme, "reduced_motion": "reduce"}
    page = await new_page(**viewport)
    await enter(page, site, "ada@example.org", f"/approvals/{votes}")
    await page.locator("#comment").fill(long)
    await page.get_by_role("button", name="Comment").click()
    await page.get_by_role("button", name="Pay it").click()
    await expect(page.locator("#decision-state")).to_contain_text("Your answer is recorded")
    lists = ["/approvals?tab=all", "/approvals?tab=decided", "/approvals?q=nothing&due=overdue", "/keyboard"]
    questions = [f"/approvals/{options}", f"/approvals/{votes}", f"/approvals/{stuck}",
                 f"/approvals/{options}/reassign", f"/approvals/{options}/extend"]  # fmt: skip
    for path in lists if part == "lists" else questions:
        await page.goto(f"{site.address}{path}")
        await page.wait_for_load_state("load")
        await page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert await accessibility_faults(page) == [], path
        over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide"


async def test_the_desk_fits_a_phone_with_text_of_twice_the_size(site: Site, new_page: Pages) -> None:
    options = await site.question(await site.engine.start(publish, "Beaches"))
    page = await new_page(viewport=WIDTHS["phone"])
    await enter(page, site, "ana@example.org")
    for path in ("/approvals", f"/approvals/{options}", f"/approvals/{options}/delegate", "/keyboard"):
        await page.goto(f"{site.address}{path}")
        await page.evaluate("document.documentElement.setAttribute('data-large', '')")
        await page.evaluate("document.styleSheets[0].insertRule(':root[data-large] { font-size: 200% }', 0)")
        over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{path} is {over} px too wide"
        badge, icon = await place(page, "#badge .badge"), await place(page, ".rail [href='/approvals'] .icon")
        assert badge["x"] >= icon["x"] + icon["width"], "the number stands beside the icon"


async def test_a_question_is_printed_dark_on_light_and_without_what_leads_elsewhere(
    site: Site, new_page: Pages
) -> None:
    asked = await asks(site, "On paper?")
    page = await new_page(viewport=WIDTHS["desk"], color_scheme="dark")
    await enter(page, site, "ana@example.org", f"/approvals/{asked}")
    await page.emulate_media(media="print")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.locator(".rail")).to_be_hidden()
    await expect(page.locator(".pane-list")).to_be_hidden()
    await expect(page.locator("body")).to_have_css("color", "rgb(27, 28, 32)")
