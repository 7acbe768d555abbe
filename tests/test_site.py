"""The site of docs/: every page has its place, no link or anchor is broken, and pages say what they say on GitHub."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOP_PAGES = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return found


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(entry)


def test_every_page_stands_once_in_the_navigation() -> None:
    wanted = [path.name for path in DOCS.glob("*.md")] + [f"{page}.md" for page in TOP_PAGES]
    assert sorted(pages(settings()["nav"])) == sorted(wanted)


def test_no_font_comes_from_another_host() -> None:
    assert settings()["theme"]["font"] is False
    named = settings()["extra"]["polyfills"] + settings()["extra_css"]
    assert [name for name in named if not (DOCS / name).is_file()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not find_spec("mkdocs") or not find_spec("material"):
        pytest.skip("the site is not built: pip install -e '.[docs]' brings mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_other_hosts(site: Path) -> None:
    built = sorted(site.glob("*.html"))
    assert len(built) > 45
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?://[^\s\">]+)|<link[^>]*href=\"?(https?://[^\s\">]+)"
    )
    assert [(page.name, loaded.findall(page.read_text())) for page in built if loaded.search(page.read_text())] == []


@pytest.mark.slow
def test_a_page_says_the_same_on_the_site_and_as_github_reads_it(site: Path) -> None:
    """Words and structure, beside another reader of Markdown: lists, rows, code blocks, images."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("gfm-like", {"linkify": False})
    different = []
    for name in pages(settings()["nav"]):
        stem = Path(name).stem
        source = ROOT / TOP_PAGES[stem] if stem in TOP_PAGES else DOCS / name
        expected = reader.render(source.read_text(encoding="utf-8"))
        built = re.search(r"<article[^>]*>(.*)</article>", (site / f"{stem}.html").read_text(), re.DOTALL)
        assert built, name
        if structure(expected) != structure(built[1]):
            different.append((name, structure(expected), structure(built[1])))
    assert different == []


def structure(html: str) -> list[int]:
    return [len(re.findall(rf"<{tag}\b", html)) for tag in ("li", "tr", "td", "pre", "img", "h2", "h3", "strong", "em")]
