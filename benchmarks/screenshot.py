"""`python -m benchmarks.screenshot [FILE] [OVERRIDE ...]`: the page's picture in the README, taken of a real run.

It needs the extra `browser` and Debian's chromium. The same words as for `python -m serving.page` may follow.
"""

import re
import shutil
import subprocess
import sys
from typing import Any

OVERRIDES = ("+policy=citer", "network=lte", "service.page.port=0")
EXAMPLE_INDEX = 2
"""Which of the page's examples."""
SIZE = {"width": 1280, "height": 800}
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


def main(file: str = "docs/page.png", *words: str) -> None:
    from playwright.sync_api import sync_playwright

    with subprocess.Popen(
        [sys.executable, "-m", "serving.page", *OVERRIDES, *words], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            found = next(hit for line in server.stdout if (hit := re.search(r"open (http\S+)", line)))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
                _take_screenshot(browser.new_page(viewport=SIZE, color_scheme="light"), found[1], file)
                browser.close()
        finally:
            server.terminate()


def _take_screenshot(page: Any, url: str, file: str) -> None:
    """A joint run beside one of the device alone, with the pointer on a token of the cloud."""
    page.goto(url)
    page.wait_for_selector("#run:enabled")
    page.select_option("#examples", index=EXAMPLE_INDEX)
    page.check("#pair")
    page.locator(".pane").nth(1).locator("input[value=small_only]").check()
    page.click("#run")
    page.wait_for_selector("#stop:disabled")
    page.wait_for_selector("#run:enabled")
    page.locator(".answer .token.cloud").first.hover()
    page.screenshot(path=file)
    print(file, page.inner_text("#status"))


if __name__ == "__main__":
    main(*sys.argv[1:])
