"""What hardware serves: fleets of like devices, and a cloud or tiers of nodes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.network.link import Link
from serving.network.outages import OutageInterval, OutageSchedule


@dataclass(frozen=True)
class Tier:
    """Hyperion, section III-B. Raises ValueError for a link or a schedule of modes of the fleets' own.

    `nodes` is the fleet that most tiers are; `other_nodes` are nodes of further kinds, beside them.
    """

    nodes: Fleet
    other_nodes: tuple[Fleet, ...] = ()
    link: Link | None = None
    """With the tier before it, for the first with devices: uplink towards the later one. None: the run's network."""
    outages: OutageSchedule | None = None
    """When each node fails, and when it is back, with nothing of what it knew."""
    failing_nodes: tuple[int, ...] = ()
    """The numbers of the nodes that do; none named: all."""
    detect_ms: float = 1000.0
    """How long after a node failed its peers know, in emulated time; over gRPC its connections tell."""

    def __post_init__(self) -> None:
        if any(fleet.network or fleet.schedule for fleet in self.fleets):
            raise ValueError(
                "tier: a link is the tier's own (link), and its nodes have no schedule of modes; set null."
            )
        if self.link and self.link.outages:
            raise ValueError(
                "tier: its link is always there; it is nodes that fail (tier.outages). Set link.outages=null."
            )
        if strangers := [number for number in self.failing_nodes if not 0 <= number < len(self.node_fleets)]:
            raise ValueError(
                f"tier: failing_nodes names node {strangers[0]} of {self.described}; there are {len(self.node_fleets)}, counted "
                "from 0."
            )
        if self.failing_nodes and not self.outages:
            raise ValueError(
                f"tier: failing_nodes names nodes of {self.described}, and nothing says when they fail; set outages, too, or "
                "failing=[]."
            )
        if not (self.detect_ms >= 0 and isfinite(self.detect_ms)):
            raise ValueError(f"tier: detect_ms={self.detect_ms} must be 0 or more milliseconds.")

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        return (self.nodes, *self.other_nodes)

    @property
    def node_fleets(self) -> tuple[Fleet, ...]:
        """The fleet of every node."""
        return tuple(fleet for fleet in self.fleets for _ in range(fleet.count))

    @property
    def largest_memory_fleet(self) -> Fleet:
        """The fleet whose nodes have most memory (Eq. 5)."""
        return max(self.fleets, key=lambda fleet: float("inf") if fleet.memory_nbytes is None else fleet.memory_nbytes)

    @property
    def described(self) -> str:
        return " + ".join(f"{fleet.count} x {fleet.chip.name}" for fleet in self.fleets)

    def cache_tokens(self, part: Architecture) -> float:
        """Cached tokens that the node with least room holds beside its weights of `part`, of those that hold these."""
        rooms = [room for fleet in self.fleets if (room := cache_tokens(fleet, part)) > 0]
        return min(rooms, default=0.0)

    def outage_intervals(self, node_index: int, stream: int) -> Iterator[OutageInterval]:
        """(fails, is back) of the node with this number, in order, perhaps without end; luck is by its `stream` (from
        `serving.core.keyed_random.key`).
        """
        fails = self.outages and (not self.failing_nodes or node_index in self.failing_nodes)
        return self.outages.outage_intervals(stream) if self.outages and fails else iter(())


def cache_tokens(fleet: Fleet, part: Architecture) -> float:
    """Cached tokens that a node of a fleet holds beside its weights of a part of a model."""
    if fleet.memory_nbytes is None:
        return float("inf")
    rest = fleet.memory_nbytes - part.weights_nbytes(fleet.precision)
    return max(0.0, rest // part.kv_nbytes_per_token(fleet.precision))


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
