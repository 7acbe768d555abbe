"""`python -m benchmarks.screenshot [FILE] [beside=POLICY] [OVERRIDE ...]`: the page's picture, taken of a real run.

It needs the extra `browser` and Debian's chromium. The same words as for `python -m serving.page` may follow. The
second run is the device alone (mode small_only), or that of the policy `beside`.
"""

import re
import shutil
import subprocess
import sys
from typing import Any

DEFAULTS = ("+policy=citer", "network=lte")
"""Where the words name no policy."""
EXAMPLE_INDEX = 2
"""Which of the page's examples."""
BESIDE = "beside="
SIZE = {"width": 1280, "height": 800}
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


def main(file: str = "docs/page.png", *words: str) -> None:
    from playwright.sync_api import sync_playwright

    beside = next((word.removeprefix(BESIDE) for word in words if word.startswith(BESIDE)), "")
    chosen = [word for word in words if not word.startswith(BESIDE)]
    if not any(word.startswith("+policy=") for word in chosen):
        chosen = [*DEFAULTS, *chosen]
    with subprocess.Popen(
        [sys.executable, "-m", "serving.page", *chosen, "service.page.port=0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            found = next(hit for line in server.stdout if (hit := re.search(r"open (http\S+)", line)))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
                _take_screenshot(browser.new_page(viewport=SIZE, color_scheme="light"), found[1], file, beside)
                browser.close()
        finally:
            server.terminate()


def _take_screenshot(page: Any, url: str, file: str, beside: str) -> None:
    """Two runs beside each other, with the pointer on a token of the cloud."""
    page.goto(url)
    page.wait_for_selector("#run:enabled")
    page.select_option("#examples", index=EXAMPLE_INDEX)
    page.check("#pair")
    second = page.locator(".pane").nth(1)
    if beside:
        second.locator("select.policy").select_option(beside)
    else:
        second.locator("input[value=small_only]").check()
    page.click("#run")
    page.wait_for_selector("#stop:disabled")
    page.wait_for_selector("#run:enabled")
    page.locator(".answer .token.cloud, .answer .token.checked").first.hover()
    page.screenshot(path=file)
    print(file, page.inner_text("#status"))


if __name__ == "__main__":
    main(*sys.argv[1:])
