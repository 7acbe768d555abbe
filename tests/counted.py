"""A stage function for tests: it writes one file."""

from pathlib import Path


def build(out: Path, *, text: str = "") -> None:
    (out / "text").write_text(text)
