"""A file is replaced as a whole or not at all."""

import os
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place: a reader or a crash meets the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
