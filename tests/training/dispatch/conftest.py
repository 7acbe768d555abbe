"""A world of small episodes, drawn from two of the library's chips."""

import pytest
from catalogue import architecture, chip, link

from training.hyperion.environment import Range, World


@pytest.fixture(scope="session")
def world() -> World:
    chips = (chip("jetson_orin_nano_8gb_super"), chip("jetson_agx_orin_32gb"))
    return World(
        architecture=architecture("llama3_8b"), chips=chips, network=link("lan_1gbps"), tasks=6,
        tiers=Range(2, 2), nodes=Range(2, 3), new_tokens=Range(2, 4), load=Range(1.0, 2.0),
    )  # fmt: skip
