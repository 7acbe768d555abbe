"""The hardware of a run: fleets of devices, and a cloud or tiers of nodes."""

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
    """The nodes that may run one part of a split model (Hyperion, section III-B).

    `other_nodes` are nodes of other chips beside `nodes`. Raises ValueError if a fleet has its own link or a schedule
    of power modes.
    """

    nodes: Fleet
    other_nodes: tuple[Fleet, ...] = ()
    link: Link | None = None
    """Link to the previous tier, for the first tier to the devices; uplink is towards this tier. None: the run's
    network.
    """
    outages: OutageSchedule | None = None
    """Times at which each node fails and returns without its state."""
    failing_nodes: tuple[int, ...] = ()
    """Indices of the nodes that fail; empty: all."""
    detect_ms: float = 1000.0
    """Time until peers notice a failed node, in emulated time; over gRPC the connection shows it."""

    def __post_init__(self) -> None:
        if any(fleet.network or fleet.schedule for fleet in self.fleets):
            raise ValueError(
                "tier: the link belongs to the tier (link), and its nodes have no schedule of modes; set both to null."
            )
        if self.link and self.link.outages:
            raise ValueError(
                "tier: a tier's link has no outages; its nodes fail (tier.outages). Set link.outages=null."
            )
        if unknown := [number for number in self.failing_nodes if not 0 <= number < len(self.node_fleets)]:
            raise ValueError(
                f"tier: failing_nodes names node {unknown[0]} of {self.described}; there are {len(self.node_fleets)}, "
                "counted from 0."
            )
        if self.failing_nodes and not self.outages:
            raise ValueError(
                f"tier: failing_nodes names nodes of {self.described}, but there are no outages; set outages, too, "
                "or failing_nodes=[]."
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
        """The fleet whose nodes have most memory (Hyperion, Eq. 5)."""
        return max(self.fleets, key=lambda fleet: float("inf") if fleet.memory_nbytes is None else fleet.memory_nbytes)

    @property
    def described(self) -> str:
        return " + ".join(f"{fleet.count} x {fleet.chip.name}" for fleet in self.fleets)

    def cache_tokens(self, part: Architecture, beside: Architecture | None = None) -> float:
        """Least cached tokens that a node holds beside its weights of `part`, of the nodes that hold these weights."""
        capacities = [tokens for fleet in self.fleets if (tokens := cache_tokens(fleet, part, beside)) > 0]
        return min(capacities, default=0.0)

    def outage_intervals(self, node_index: int, stream: int) -> Iterator[OutageInterval]:
        """Yields (down, up) seconds of one node in order, possibly endless; `stream` is from
        `serving.core.keyed_random.key`.
        """
        fails = self.outages and (not self.failing_nodes or node_index in self.failing_nodes)
        return self.outages.outage_intervals(stream) if self.outages and fails else iter(())


def cache_tokens(fleet: Fleet, part: Architecture, beside: Architecture | None = None) -> float:
    """Cached tokens that a node of the fleet holds beside its weights of `part`, and of the model `beside` it."""
    if fleet.memory_nbytes is None:
        return float("inf")
    held = [each for each in (part, beside) if each]
    free_nbytes = fleet.memory_nbytes - sum(each.weights_nbytes(fleet.precision) for each in held)
    return max(0.0, free_nbytes // sum(each.kv_nbytes_per_token(fleet.precision) for each in held))


CLOUD = "cloud"
"""Name of a testbed's only tier; later stages of a pipeline on it are cloud.1, cloud.2 and so on."""
_TIER_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Testbed:
    """Device fleets (`device` or `fleets`), and the `cloud` or `tiers` by name, the nearest to the devices first."""

    cloud: Fleet | None = None
    device: Fleet | None = None
    fleets: tuple[Fleet, ...] = ()
    tiers: Mapping[str, Tier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.device is None) == (not self.fleets):
            raise ValueError(
                "testbed: set either one fleet of devices (hardware.device) or several (hardware.fleets), "
                f"not {'both' if self.fleets else 'neither'}."
            )
        if (self.cloud is None) == (not self.tiers):
            raise ValueError(
                "testbed: set either the cloud (hardware.cloud) or tiers (hardware.tiers), "
                f"not {'both' if self.tiers else 'neither'}; set the other to null."
            )
        if self.cloud and (self.cloud.network or self.cloud.schedule):
            raise ValueError("testbed: a link and a schedule of modes belong to devices; the cloud has neither.")
        for name in self.tiers:
            if not _TIER_NAME.fullmatch(name) or name == "here" or name.startswith(("device", CLOUD)):
                raise ValueError(
                    f"testbed: {name!r} cannot be a tier's name; use a-z, 0-9 and _, not here, and no name that starts "
                    "with device or cloud."
                )

    @property
    def head_fleet(self) -> Fleet:
        """The fleet that runs the large model's head: the cloud, or the last tier."""
        if self.cloud:
            return self.cloud
        return list(self.tiers.values())[-1].nodes

    def tier(self, name: str) -> Tier | None:
        """The tier of that name, None if there is none."""
        if self.cloud and (name == CLOUD or name.startswith(f"{CLOUD}.")):
            return Tier(self.cloud)
        return self.tiers.get(name)

    @property
    def tier_names(self) -> str:
        """Names of the tiers, for error messages."""
        if self.tiers:
            return ", ".join(self.tiers)
        return "cloud, and for later stages of a pipeline cloud.1, cloud.2 and so on"

    @property
    def device_fleets(self) -> tuple[Fleet, ...]:
        return self.fleets or ((self.device,) if self.device else ())

    @property
    def every_fleet(self) -> tuple[Fleet, ...]:
        """Those of the devices, of the cloud and of all tiers."""
        nodes = [fleet for tier in self.tiers.values() for fleet in tier.fleets]
        return (*self.device_fleets, *((self.cloud,) if self.cloud else ()), *nodes)

    def assign_fleets(self, num_devices: int) -> tuple[Fleet, ...]:
        """The fleet of each of `num_devices` devices, in proportion to the fleets' counts.

        The next device goes to the fleet with the least (assigned + 1/2) / count (Webster's rule), the earlier one on a
        tie, so that every prefix of the result is as near to the proportion as whole devices allow.
        """
        fleets = self.device_fleets
        assigned = [0] * len(fleets)
        order = []
        for _ in range(num_devices):
            least = min(range(len(fleets)), key=lambda i: (2 * assigned[i] + 1) / fleets[i].count)
            assigned[least] += 1
            order.append(fleets[least])
        return tuple(order)
