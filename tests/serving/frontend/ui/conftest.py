import asyncio
from collections.abc import Iterator

import pytest

from serving.engines.models import ModelPair
from tests.serving.frontend.ui.tiny_page import Played, pair, routed, show


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    return pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def page(tiny: ModelPair) -> Iterator[Played]:
    """`citer`, edge_centric and cloud_centric."""
    from tests.support.fake_setup import setup

    policies = (routed(), setup("edge_centric").policy, setup("cloud_centric").policy)
    with asyncio.Runner() as runner:
        played = Played(runner, show(tiny, policies))
        yield played
        played.close()
