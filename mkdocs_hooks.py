"""What mkdocs needs beside docs/: the pages at the top of the repository, and Markdown as GitHub reads it."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""A file at the top of the repository -> its page."""
_LINK = re.compile(r"\]\((?:docs/)?([\w./-]+\.(?:md|png))(#[\w-]+)?\)")
_NAMED_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of `TOP_PAGES`, whose links are relative to the repository."""
    for name, page in TOP_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_LINK.sub(_site_link, text)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """A file that stands behind a fence's language is the block's title; code in tables escapes no bars."""
    named = _NAMED_FENCE.sub(r'```\1 title="\2"', markdown)
    return _TABLE_ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), named)


def _site_link(link: re.Match[str]) -> str:
    return f"]({TOP_PAGES.get(link[1], link[1])}{link[2] or ''})"
