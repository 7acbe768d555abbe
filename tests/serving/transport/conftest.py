from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_loop() -> Iterator[None]:
    from tests.serving.transport.transport_peers import RUNNER

    yield
    RUNNER.close()
