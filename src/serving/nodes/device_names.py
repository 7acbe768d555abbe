"""The names of devices, by which they differ from workers: a tier cannot be called `device` (`hardware/testbed.py`)."""

_DEVICE = "device-"


def device_names(count: int) -> tuple[str, ...]:
    return tuple(f"{_DEVICE}{i}" for i in range(count))


def is_device(node: str) -> bool:
    """True for a device's name, also behind the policy's name and a dot, which the page puts before it."""
    return node.rpartition(".")[2].startswith(_DEVICE)
