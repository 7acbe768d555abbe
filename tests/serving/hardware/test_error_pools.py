"""Which chips share a processor."""

import pytest

from serving.hardware.error_pools import processor_of
from tests.support.conf_files import names


@pytest.mark.parametrize(
    ("chip", "processor"),
    [
        ("jetson_agx_orin_64gb", "jetson_agx_orin"),
        ("jetson_orin_nano_8gb_super", "jetson_orin_nano"),
        ("a100_80gb", "a100"),
        ("m1_max", "m1_max"),
        ("lab_512gb_x2", "lab_x2"),
        ("superchip", "superchip"),
    ],
)
def test_a_processor_is_the_chip_without_its_memory(chip: str, processor: str) -> None:
    assert processor_of(chip) == processor


def test_boards_of_one_family_share_a_processor() -> None:
    chips = names("hardware/chip")
    shared = [chip for chip in chips if sum(processor_of(chip) == processor_of(other) for other in chips) > 1]
    assert sorted(shared) == [
        "jetson_agx_orin_32gb", "jetson_agx_orin_64gb", "jetson_orin_nano_8gb", "jetson_orin_nano_8gb_super",
    ]  # fmt: skip
