"""A real Chromium for browser tests: where it is, how it is started, and what a page may not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

# Without these, every start looks up hosts of the browser's vendor, which a closed network refuses.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE_TIMEOUT = 15.0
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


def chromium_path() -> str:
    """The browser of this machine: `SIGNOFF_CHROMIUM`, or the first one found."""
    for name in (os.environ.get("SIGNOFF_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (path := shutil.which(name)):
            return path
    raise FileNotFoundError("no Chromium found: run .ci/chromium, or set SIGNOFF_CHROMIUM to one")


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class Pages:
    """Opens pages, each in a browser context of its own: two pages are two people with their own cookies.

    Errors that no page of ours may have, uncaught exceptions and violations of the content security policy, are
    collected in `faults`, which the fixture `new_page` asserts to be empty.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.faults: list[str] = []

    async def __call__(self, **options: Any) -> Page:
        """A page in a new context; `options` are those of playwright's `browser.new_context`."""
        context = await self._browser.new_context(**options)
        self._contexts.append(context)
        context.set_default_timeout(PAGE_TIMEOUT * 1000)
        context.on("weberror", lambda error: self.faults.append(f"uncaught: {error.error}"))
        context.on("console", self._listen)
        return await context.new_page()

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.faults.append(message.text)


async def accessibility_faults(page: Page) -> list[str]:
    """What axe-core finds wrong on the page, one line for each rule: its id, help text and the elements."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run()")
    return [
        f"{rule['id']}: {rule['help']}: {', '.join(str(node['target']) for node in rule['nodes'])}"
        for rule in found["violations"]
    ]
