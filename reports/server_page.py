"""Takes the pictures of the server's page for the reports: ``python -m reports.server_page``.

A real server with the ladder pico is started, and a headless Chromium does what a visitor would: three tenants go on
with their texts, the budget is cut for the middle rung while the first writes, and for the smallest while the others
do. The pictures are taken when all three are done.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from molt.client.demo import server
from molt.errors import InputError
from molt.program import run_words
from reports.publish import OUT, folder_of, published_folder

PICTURES: dict[str, dict[str, Any]] = {
    "server-page": {"viewport": {"width": 1280, "height": 1200}, "color_scheme": "light"},
    "server-page-phone": {
        "viewport": {"width": 360, "height": 780},
        "color_scheme": "dark",
        "device_scale_factor": 2,
    },
}
ANSWER_LENGTH = "160"
WAIT_MS = 60_000
PHONE_PX = 700


def picture(page: Any, address: str, path: Path) -> None:
    """Visit the page, play the session on it and save what is then to be seen."""
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    page.get_by_role("button", name="Room for tier0").click()
    page.get_by_label("Tokens").fill(ANSWER_LENGTH)
    page.get_by_role("button", name="as three tenants").click()
    first, second, _ = (page.locator("article").nth(i) for i in range(3))
    first.locator(".words.r0").first.wait_for()
    page.get_by_role("button", name="Room for tier1").click()
    second.locator(".words.r1").first.wait_for()
    page.get_by_role("button", name="Room for tier2").click()
    page.locator("[data-state=done]").nth(2).wait_for()
    if page.viewport_size["width"] < PHONE_PX:
        first.evaluate("card => card.scrollIntoView({block: 'nearest'})")
    page.wait_for_timeout(400)  # the chart is drawn ten times a second
    page.screenshot(path=path)


def main(words: list[str]) -> int:
    """Take all pictures."""
    words, out = folder_of(words)
    if words:
        raise InputError(f"{words[0]}: no argument is known; it takes all pictures")
    published = published_folder(out)
    published.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("molt: no chromium on this machine", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, options in PICTURES.items():
            with server("pico", Path(folder) / f"{name}.jsonl") as (url, admin):
                page = browser.new_context(**options).new_page()
                picture(page, f"{url}/#admin={admin}", published / f"{name}.png")
                page.context.close()
            print(f"{name}.png: published", file=sys.stderr)
        browser.close()
    return 0


if __name__ == "__main__":
    run_words(main, f"python -m reports.server_page {OUT}")
