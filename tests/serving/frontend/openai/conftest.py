import asyncio
from collections.abc import Iterator

import pytest

from serving.frontend.openai.options import EndpointOptions
from tests.serving.frontend.openai.fake_gateway import FakeGateway, Loop


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def shared_loop(runner: asyncio.Runner) -> Iterator[Loop]:
    loop = Loop(runner, EndpointOptions(port=0, api_key_env="", max_waiting=2, max_connections=20))
    yield loop
    loop.close()


@pytest.fixture
def loop(shared_loop: Loop) -> Loop:
    """An endpoint whose gateway is as new; conversations of earlier tests have other prompts."""
    fresh = FakeGateway(released=[], cached_tokens_of=shared_loop.gateway.cached_tokens_of)
    shared_loop.gateway.__dict__.update(fresh.__dict__)
    return shared_loop
