"""The page in a real browser: Debian's Chromium, headless, with a new profile; skipped where there is none."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontend.ui.page_process import Process, described, free_port, served

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=alert(1)>"
PROMPT = "where is the red key"
CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PLACE = "[...document.activeElement.parentElement.children].indexOf(document.activeElement)"
"""The position of the focused token in its answer."""
LONG = 400
"""Tokens: seconds on the named device."""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, outputs: Path) -> tuple[str, ...]:
    return described(tmp_path_factory.mktemp("page"), outputs)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="no browser test: pip install 'tandem-llm[browser]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("no browser test: there is no chromium on this machine (Debian: apt-get install chromium)")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(words: tuple[str, ...]) -> Iterator[str]:
    with served(*words, "service.page.port=0") as (_, where):
        yield where


class View:
    """A tab, and what a person does in it."""

    def __init__(self, browser: Any, url: str, **how: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **how)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.goto(url)

    def ready(self) -> "View":
        self.page.wait_for_selector("#run:enabled")
        self.page.fill("#prompt", PROMPT)
        self.page.fill("#tokens", "20")
        return self

    def run(self, done: bool = True) -> None:
        self.page.click("#run")
        if done:
            self.over()

    def over(self) -> None:
        self.page.wait_for_selector("#stop:disabled")
        self.page.wait_for_selector("#run:enabled")

    def until_tokens(self, n: int, pane: int = 0) -> None:
        self.page.wait_for_function(
            "([n, pane]) => document.querySelectorAll('.answer')[pane].childElementCount >= n", arg=[n, pane]
        )  # fmt: skip

    def tokens(self, kind: str = "", pane: int = 0) -> int:
        return int(self.page.locator(".pane").nth(pane).locator(f".answer .token{kind}").count())

    def text(self, pane: int = 0) -> str:
        return str(self.page.locator(".answer").nth(pane).text_content())

    def counter(self, key: str, pane: int = 0) -> str:
        return str(self.page.locator(".pane").nth(pane).locator(f'[data-key="{key}"] dd').inner_text())

    def routed(self, pane: int = 0) -> int:
        """Tokens by the cloud, as they are counted; a token without text is marked with the next one that has some."""
        return int(re.search(r" (\d+)/", self.counter("cost/w_generated", pane))[1])  # type: ignore[index]

    def slide(self, key: str, times: int = 1) -> None:
        self.page.focus("input[type=range]")
        for _ in range(times):
            self.page.keyboard.press(key)


@pytest.fixture
def view(browser: Any, url: str) -> Iterator[View]:
    found = View(browser, url).ready()
    yield found
    found.context.close()
    assert found.wrong == []


def test_cloud_tokens_are_marked_by_colour_line_and_weight(view: View) -> None:
    view.run(done=False)
    view.until_tokens(3)
    assert view.page.is_enabled("#stop")  # it is seen while it is written
    view.over()
    assert 0 < view.tokens(".cloud") < view.tokens()
    assert view.counter("tokens") == "20"
    marked = view.routed()
    assert 0 < marked < 20
    assert all(re.match(r"[\d.]+ (ms|B|J|kB|USD/M tokens)$", view.counter(key)) for key in (
        "latency/ttft_s", "latency/tbt_s", "resources/uplink_nbytes", "resources/downlink_nbytes",
        "resources/device_energy_j", "resources/cloud_energy_j", "resources/cloud_busy_s",
        "cost/usd_per_million_tokens",
    ))  # fmt: skip
    style = "e => { const s = getComputedStyle(e); return [s.backgroundColor, s.borderBottomColor, +s.fontWeight] }"
    cloud = view.page.locator(".answer .token.cloud").first.evaluate(style)
    own = view.page.locator(".answer .token:not(.cloud)").first.evaluate(style)
    assert cloud[0] != own[0]  # colour
    assert cloud[1] != own[1]  # and a line
    assert cloud[2] >= 600 > own[2]  # and weight
    assert "written by the cloud" in view.page.locator(".answer .token.cloud").first.get_attribute("aria-label")
    assert f"{marked} of them" in view.page.inner_text("#status")


def test_the_slider_affects_runs_that_start_afterwards(view: View) -> None:
    assert view.page.inner_text(".slider output") == "0.4"
    assert "scores below 0.4 go to the cloud" in view.page.inner_text(".means")
    view.run()
    first, routed, head = view.tokens(".cloud"), view.routed(), view.page.inner_text(".headline")
    view.slide("PageUp", 2)
    assert view.page.inner_text(".slider output") == "0.6"
    share = int(re.search(r"(\d+) % of the held-out", view.page.inner_text(".means"))[1])  # type: ignore[index]
    assert 55 <= share <= 65  # of a hundred uniform scores
    assert (view.tokens(".cloud"), view.page.inner_text(".headline")) == (first, head)  # what was written stands
    view.run()
    assert view.tokens(".cloud") > first
    assert view.routed() > routed
    assert "scores below 0.6 go to the cloud" in view.page.inner_text(".headline")
    view.slide("Home")
    view.run()
    assert view.tokens(".cloud") == 0
    view.slide("End")
    view.run()
    assert (view.tokens(".cloud"), view.routed()) == (view.tokens(), 20)
    view.page.click(".own")
    view.run()
    assert (view.tokens(".cloud"), view.routed()) == (first, routed)


def test_small_only_marks_no_token_and_disables_the_slider(view: View) -> None:
    view.slide("End")
    view.page.check("input[value=small_only]")
    assert view.page.is_disabled("input[type=range]")
    assert "the device writes everything" in view.page.inner_text(".means")
    view.run()
    assert (view.tokens(".cloud"), view.routed(), view.counter("tokens")) == (0, 0, "20")
    assert view.counter("resources/uplink_nbytes") == "0 B"


def test_a_policy_without_a_router_says_why_there_is_no_slider(view: View) -> None:
    view.page.select_option(".policy", "cloud_centric")
    assert view.page.is_disabled("input[type=range]")
    assert "cloud_centric has no router: the cloud writes everything" in view.page.inner_text(".means")
    view.run()
    assert (view.tokens(".cloud"), view.routed()) == (view.tokens(), 20)


def test_hovering_shows_the_score_and_the_alternatives(view: View) -> None:
    view.run()
    token = view.page.locator(".answer .token.cloud").first
    token.hover()
    told = view.page.inner_text("#tip")
    assert "written by the cloud" in told
    score = float(re.search(r"score ([\d.]+) < 0.4: to the cloud", told)[1])  # type: ignore[index]
    assert 0 <= score < 0.4
    assert view.page.locator("#tip li").count() == 3
    assert token.get_attribute("aria-describedby") == "tip"
    box, seen = view.page.locator("#tip").bounding_box(), view.page.viewport_size
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= seen["width"]
    view.page.mouse.move(5, 5)
    view.page.wait_for_selector("#tip", state="hidden")


def test_everything_works_with_the_keyboard_alone(view: View) -> None:
    keyboard = view.page.keyboard
    view.page.evaluate("document.activeElement.blur()")
    _tab_to(view, "prompt")
    keyboard.press("Control+A")
    keyboard.type(PROMPT)
    _tab_to(view, "tokens")
    keyboard.press("Control+A")
    keyboard.type("20")
    _tab_to(view, "threshold-A")
    keyboard.press("ArrowRight")
    keyboard.press("Control+Enter")
    view.over()
    assert "scores below 0.41 go" in view.page.inner_text(".headline")
    _tab_to(view, "token")
    for key, at in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", view.tokens() - 1), ("Home", 0)):
        keyboard.press(key)
        assert (
            view.page.evaluate("[...document.querySelectorAll('.answer .token')].indexOf(document.activeElement)") == at
        )
        assert view.page.is_visible("#tip")
    assert view.page.locator("#tip li").count() == 3
    outline = view.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    keyboard.press("Escape")
    assert view.page.is_hidden("#tip")
    view.page.focus("#prompt")
    view.page.fill("#tokens", str(LONG))
    view.page.focus("#prompt")
    keyboard.press("Enter")
    view.until_tokens(5)
    keyboard.press("Escape")
    view.over()
    assert 5 <= view.tokens() < LONG
    assert "stopped; what was written is kept" in view.page.inner_text("#status")


def _tab_to(view: View, what: str) -> None:
    """With Tab alone to the control of that id or class."""
    for _ in range(40):
        view.page.keyboard.press("Tab")
        if view.page.evaluate(
            "w => document.activeElement.id === w || document.activeElement.classList.contains(w)", what
        ):
            return
    raise AssertionError(f"Tab never reaches {what}")


def test_two_runs_side_by_side(view: View) -> None:
    view.page.check("#pair")
    view.page.locator(".pane").nth(1).locator("input[value=small_only]").check()
    view.run(done=False)
    view.until_tokens(3, 0)
    view.until_tokens(3, 1)
    view.over()
    assert (view.counter("tokens", 0), view.counter("tokens", 1)) == ("20", "20")
    assert view.tokens(".cloud", 0) > view.tokens(".cloud", 1) == 0
    heads = [view.page.locator(".headline").nth(i).inner_text() for i in (0, 1)]
    assert "citer.device-0" in heads[0]
    assert "citer.device-1" in heads[1]
    assert "share its cloud" in view.page.evaluate("fetch('/api/about').then(r => r.json()).then(a => a.cloud_text)")


def test_no_request_leaves_this_machine(browser: Any, url: str) -> None:
    view = View(browser, url).ready()
    view.run()
    assert {asked.split("/")[2] for asked in view.asked} == {url.split("/")[2]}
    assert len(view.asked) > 6
    inline = view.page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.crossed = true';
        document.head.append(script);
        return window.crossed ?? false;
    }""")
    assert inline is False  # the policy in the header forbids it
    view.context.close()


BEGUN = {"device": "d", "policy": "citer", "mode": "joint", "threshold": 0.4, "prompt_tokens": 1, "cloud": True}
TOKEN = {
    "text": "a", "token": "<b>", "end": False, "origin": "cloud", "by_cloud": True, "score": 0.1, "device_token": "<i>",
    "alternatives": ["<u>", "a", "b"], "at_ms": 1,
}  # fmt: skip
END = [("counters", {"tokens": 1, "cloud_tokens": 1}), ("done", {"finish_reason": "stop", "remaining_text": ""})]


def told(view: View, *events: tuple[str, dict[str, Any]]) -> None:
    """A run of which the server tells these events."""
    from serving.frontend.ui.run import encode_sse

    body = encode_sse(list(events)).decode()
    view.page.route("**/api/runs", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    view.run()


def test_held_back_text_is_shown_before_the_end_token(view: View) -> None:
    half, end = TOKEN | {"text": ""}, TOKEN | {"text": "\ufffd", "end": True}
    told(view, ("started", BEGUN), ("token", TOKEN), ("token", half), ("token", end), *END)
    assert view.page.locator(".answer .token").all_text_contents()[:3] == ["a", "\ufffd", "end"]
    assert view.page.locator(".answer .token.end").all_text_contents() == ["end"]


def test_a_run_that_starts_in_an_outage_shows_the_policys_notice(view: View) -> None:
    gone = {"reachable": False, "message": "The run waits for it."}
    told(view, ("started", BEGUN | {"cloud": False}), ("cloud", gone), ("token", TOKEN), *END)
    assert view.page.inner_text(".notice").strip().startswith("The run waits for it.")


def test_answers_are_shown_as_text_and_never_as_markup(view: View) -> None:
    told(view, ("started", BEGUN), ("token", TOKEN | {"text": MARKUP}), *END)
    assert view.text() == MARKUP
    view.page.locator(".answer .token").hover()
    assert view.page.locator("#panes img, #tip b:has-text('<'), #tip i, #tip u").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (420, "dark"), (1280, "dark")])
def test_the_page_fits_a_narrow_screen_in_either_colour_scheme(browser: Any, url: str, width: int, scheme: str) -> None:
    view = View(browser, url, color_scheme=scheme).ready()
    view.page.set_viewport_size({"width": width, "height": 800})
    view.page.check("#pair")
    view.run()
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    for kind in (".token.cloud", ".token:not(.cloud)"):
        assert _contrast(view.page.locator(f".answer {kind}").first) >= 4.5
    assert _contrast(view.page.locator(".means").first) >= 4.5
    view.context.close()


def _contrast(element: Any) -> float:
    """WCAG 2: of an element's text on what is behind it."""
    found: float = element.evaluate("""e => {
        const parts = c => c.match(/[\\d.]+/g).map(Number);
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const weights = [0.2126, 0.7152, 0.0722];
        const light = c => weights.reduce((sum, weight, i) => sum + weight * linear(parts(c)[i] / 255), 0);
        let behind = e;
        while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const both = [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor].map(light);
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    }""")
    return found


# What dies in the middle.


def test_after_the_pages_server_is_killed_one_click_tries_again(browser: Any, words: tuple[str, ...]) -> None:
    """A key is asked for, too; and once the server is back, one click tries again."""
    port = free_port()
    again = (*words, f"service.page.port={port}")
    with served(*again, TANDEM_API_KEY="the-key") as (process, where):
        view = View(browser, where)
        view.page.fill("#key", "the-key")
        view.page.keyboard.press("Enter")
        view.ready()
        view.page.fill("#tokens", str(LONG))
        view.run(done=False)
        view.until_tokens(8)
        process.kill()
        view.over()
        kept = view.text()
        assert view.tokens() >= 8
        assert "server cannot be reached any more. What was written is kept" in view.page.inner_text(".notice")
        view.page.wait_for_selector(".again:visible")
        view.page.click(".again")
        view.over()
        assert "cannot be reached" in view.page.inner_text(".notice")
    with served(*again, TANDEM_API_KEY="the-key"):
        view.page.fill("#tokens", "20")
        view.page.click(".again")
        view.over()
        assert view.counter("tokens") == "20"
        assert view.text()[:10] == kept[:10]
        assert view.page.is_hidden(".notice")
    view.context.close()


def test_after_the_cloud_is_killed_the_run_goes_on_offline(browser: Any, words: tuple[str, ...]) -> None:
    """The device goes on alone, says so, and what it then writes is marked; a new cloud is found again."""
    address = f"service.cloud=127.0.0.1:{free_port()}"
    cloud = Process("cloud", *words, address, "service.pace=hardware", "service.shaped=true")
    try:
        with served(*words, address, "service.page.port=0", "service.page.remote_cloud=true") as (process, where):
            cloud.said(r"(listens)")
            view = View(browser, where).ready()
            assert view.page.locator(".policy").first.locator("option").count() == 2  # cloud_centric is left out
            view.page.wait_for_function("() => fetch('/api/about').then(r => r.ok)")
            _joined(view)
            assert not any(
                re.search(r"\d", view.counter(key)) for key in ("resources/cloud_energy_j", "resources/cloud_busy_s")
            )
            view.page.fill("#tokens", str(LONG))
            view.run(done=False)
            view.page.wait_for_selector(".answer .token.cloud")
            cloud.kill()
            view.page.wait_for_selector(".answer .token.offline")
            assert "goes on alone" in view.page.inner_text(".notice")
            view.page.wait_for_selector("#run:enabled", timeout=60_000)
            assert view.counter("tokens").startswith(str(LONG))
            assert view.tokens(".cloud") > 0
            assert "offline" in view.counter("tokens")
            cloud = Process("cloud", *words, address, "service.pace=hardware", "service.shaped=true")
            cloud.said(r"(listens)")
            _joined(view)
            view.context.close()
            assert process.stop() == 0
    finally:
        cloud.kill()


def _joined(view: View) -> None:
    """Runs until one meets the cloud: the device dials it again and again."""
    view.page.fill("#tokens", "20")
    for _ in range(40):
        view.run()
        if view.tokens(".cloud"):
            return
    raise AssertionError("the cloud is never found")
