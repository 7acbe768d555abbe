"""What hardware serves: fleets of like devices, and a cloud or tiers of nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.hardware.fleet import Fleet
from serving.hardware.tier import Tier

CLOUD = "cloud"
"""The tier of a testbed that names none; the stages of a pipeline behind its first are cloud.1, cloud.2 and so on."""
_TIER_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Testbed:
    """Device fleets, `device` for one and `fleets` for several; and the `cloud`, or `tiers` by name, the nearest to
    the devices first.
    """

    cloud: Fleet | None = None
    device: Fleet | None = None
    fleets: tuple[Fleet, ...] = ()
    tiers: Mapping[str, Tier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.device is None) == (not self.fleets):
            raise ValueError(
                "testbed: name either one fleet of devices (hardware.device) or several (hardware.fleets), "
                f"not {'both' if self.fleets else 'neither'}."
            )
        if (self.cloud is None) == (not self.tiers):
            raise ValueError(
                "testbed: name either the cloud (hardware.cloud) or tiers (hardware.tiers), "
                f"not {'both' if self.tiers else 'neither'}; what is not meant is null."
            )
        if self.cloud and (self.cloud.network or self.cloud.schedule):
            raise ValueError("testbed: a link and a schedule of modes belong to devices; the cloud has neither.")
        for name in self.tiers:
            if not _TIER_NAME.fullmatch(name) or name == "here" or name.startswith(("device", CLOUD)):
                raise ValueError(
                    f"testbed: {name!r} cannot be a tier's name; use a-z, 0-9 and _, and neither here nor what begins "
                    "with device or cloud."
                )

    @property
    def head_fleet(self) -> Fleet:
        """Where the large model's head runs: the cloud, or the last tier."""
        if self.cloud:
            return self.cloud
        return list(self.tiers.values())[-1].nodes

    def tier(self, name: str) -> Tier | None:
        """The tier of that name; None where there is none."""
        if self.cloud and (name == CLOUD or name.startswith(f"{CLOUD}.")):
            return Tier(self.cloud)
        return self.tiers.get(name)

    @property
    def tier_names(self) -> str:
        """Of the tiers, for people."""
        if self.tiers:
            return ", ".join(self.tiers)
        return "cloud, and for the stages of a pipeline behind it cloud.1, cloud.2 and so on"

    @property
    def device_fleets(self) -> tuple[Fleet, ...]:
        return self.fleets or ((self.device,) if self.device else ())

    def assign_fleets(self, num_devices: int) -> tuple[Fleet, ...]:
        """The fleet of each of `num_devices` devices, in proportion to the fleets' counts.

        Each next device goes where (dealt + 1/2) / count is least (Webster's rule), the earlier fleet on a tie, so that
        every first part of the answer is as near to the proportion as whole devices allow.
        """
        fleets = self.device_fleets
        dealt = [0] * len(fleets)
        order = []
        for _ in range(num_devices):
            least = min(range(len(fleets)), key=lambda i: (2 * dealt[i] + 1) / fleets[i].count)
            dealt[least] += 1
            order.append(fleets[least])
        return tuple(order)
