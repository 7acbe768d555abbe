"""Devices and workers are told apart by their names."""

import pytest

from serving.nodes.device import device_names, is_device


@pytest.mark.parametrize("prefix", ["", "synera.", "hat_v1.5."])
def test_devices_are_known_by_name_with_and_without_a_policys_before_it(prefix: str) -> None:
    assert all(is_device(f"{prefix}{name}") for name in device_names(11))
    assert not any(is_device(f"{prefix}{name}") for name in ("cloud-0", "cloud.1-0", "nano-2", "devices-0"))
