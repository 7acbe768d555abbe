import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _one_loop() -> Iterator[None]:
    from fake_hosts import RUNNER

    yield
    RUNNER.close()
