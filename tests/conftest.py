import os

import pytest

os.environ.setdefault("TANDEM_FROZEN", "1")  # before anything imports the messages
os.environ.setdefault("TANDEM_WAIT_FOR_MLFLOW", "1")  # tests read what commands logged
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; test workers with two threads each slow each other down
import pipeline  # noqa: F401 - before torch, since it sets how long threads spin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest tests first, so that no worker waits for one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
