"""A chip as conf/hardware/chip/ wants it, with what was measured: to be copied there and kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from training.latency.measured import Measured

SET = "measured"

_HEADER = """\
# {source}.
# Copy this file into conf/hardware/chip/ (or `fitted` into a chip that is there), and choose it with
# hardware.cloud.chip={name} hardware.cloud.timing={set}; the same for hardware.device.
"""


def chip_file(source: str, measured: Sequence[Measured], memory_nbytes: int | None = None) -> str:
    """YAML of a chip without peaks, whose coefficients are a fitted set called `measured`."""
    import yaml

    name = slug(inside[1] if (inside := re.search(r"\((.*)\)", source)) else source)
    unused = "unverified: not used, latency is fitted"
    node: dict[str, Any] = {
        "_target_": "serving.hardware.chip.Chip",
        "name": name,
        "default_mode": "default",
        "modes": {"default": {}},
        "sources": dict.fromkeys(("compute_efficiency", "bandwidth_efficiency", "launch_overhead_s"), unused),
        "fitted": {SET: {"source": f"measured: {source}", "latencies": _latencies(measured)}},
    }
    if memory_nbytes is not None:
        node["memory_gb"] = round(memory_nbytes / 2**30, 1)
        node["sources"]["memory_gb"] = "measured: as the system and torch say"
    return _HEADER.format(source=source, name=name, set=SET) + yaml.safe_dump(node, sort_keys=False, width=120)


def _latencies(measured: Sequence[Measured]) -> dict[str, Any]:
    return {each.architecture.name: asdict(each.latency) for each in measured}


def slug(text: str) -> str:
    """A text as a name: small letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
