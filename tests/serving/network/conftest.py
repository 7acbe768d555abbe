import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def data() -> Path:
    """The folder of real data sets, named by TANDEM_DATA."""
    folder = os.environ.get("TANDEM_DATA")
    if not folder:
        pytest.skip("TANDEM_DATA is not set: no recorded links to read")
    return Path(folder)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """A file with that text."""

    def write(text: str) -> Path:
        path = tmp_path / "trace.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return write
