"""The page's static files, which refer to no other server."""

import re

from serving.frontend.ui import app


def test_static_files_refer_to_no_other_server() -> None:
    """No address, no inline script or style, no text taken for HTML; all that is named is there."""
    found = {path: data.decode() for path, data in app.static_files().items()}
    assert {"/", "/page.css", "/page.js", "/icon.svg"} <= found.keys()
    for path, text in found.items():
        addresses = set(re.findall(r"\w+://[^\s\"'<>`]+", text)) - {"http://www.w3.org/2000/svg"}  # a name, not a place
        assert not addresses, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text), path
        assert not re.search(r"localStorage|sessionStorage|document\.cookie", text), path
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\bstyle=|\bon\w+=", found["/"])
    named_in_html = re.findall(r"(?:src|href)=\"([^\"#]+)\"", found["/"])
    imported = re.findall(r"from \"\./([^\"]+)\"", "".join(found.values()))
    assert {f"/{name}" for name in (*named_in_html, *imported)} <= found.keys()


def test_every_file_has_a_content_type() -> None:
    assert {path.rpartition(".")[2] for path in app.static_files() if path != "/"} <= app.CONTENT_TYPES.keys()
