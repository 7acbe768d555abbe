"""A world of small episodes, drawn from two of the library's chips."""

import pytest

from tests.support.conf_files import architecture, chip, link
from training.hyperion.environment import DispatchEnvironment, Range


@pytest.fixture(scope="session")
def world() -> DispatchEnvironment:
    chips = (chip("jetson_orin_nano_8gb_super"), chip("jetson_agx_orin_32gb"))
    return DispatchEnvironment(
        architecture=architecture("llama3_8b"), chips=chips, network=link("lan_1gbps"), tasks_per_episode=6,
        tiers=Range(2, 2), nodes_per_tier=Range(2, 3), new_tokens=Range(2, 4), offered_load=Range(1.0, 2.0),
    )  # fmt: skip
