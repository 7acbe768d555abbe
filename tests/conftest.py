import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TANDEM_FROZEN", "1")  # before anything imports the messages
sys.path.insert(0, str(Path(__file__).parent / "serving"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no core waits for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
