import os

import pytest

os.environ.setdefault("TANDEM_FROZEN", "1")  # before anything imports the messages
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; test workers with two threads each slow each other down


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no core waits for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
