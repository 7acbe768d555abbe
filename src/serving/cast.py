"""Who takes part in a run: names, fresh nodes, links, latencies; the same for every runtime and for a replay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from serving.architecture import Architecture
from serving.estimator import Estimator
from serving.hidden import hidden_nbytes
from serving.latency import Latency
from serving.luck import key
from serving.messages import INF, Hop, Node
from serving.network import Channel, Link
from serving.nodes.chooser import Tiers
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.scale import Scale, between
from serving.setup import Setup
from serving.slots.placement import HERE
from serving.testbed import Fleet
from serving.timed import Split

if TYPE_CHECKING:
    from serving.runtimes.runtime import Query

TIER = "cloud"


@dataclass(frozen=True)
class Cast:
    """The participants of a setup whose large model has `layers` layers where it runs."""

    setup: Setup
    layers: int
    timeout_s: float = INF
    """How long a device waits for an answer before it asks again; links that lose nothing need none."""
    linger_s: float = 30.0
    """How long the cloud keeps the caches of a device that it has lost."""

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"device-{i}" for i in range(self.setup.devices))

    @cached_property
    def workers(self) -> tuple[str, ...]:
        return tuple(name for names in self.tiers.values() for name in names)

    @cached_property
    def tiers(self) -> Tiers:
        """The nodes of each tier of the cloud, the first that a request meets first."""
        tiers = dict.fromkeys(hop.node for hop in self.hops if hop.node != HERE)
        return {tier: tuple(f"{tier}-{i}" for i in range(self.setup.hardware.cloud.count)) for tier in tiers}

    @cached_property
    def clouds(self) -> tuple[tuple[str, ...], ...]:
        """The nodes of each process of the cloud: a pipeline's stages share one."""
        return tuple(zip(*self.tiers.values(), strict=True))

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        return self.setup.policy.placement.route(self.layers, self.setup.pair.cloud.timing.layers)

    @cached_property
    def scale(self) -> Scale:
        """Which layers of the timed architecture the large model's stand for."""
        depth = self.setup.pair.cloud.timing.layers
        there = self.setup.policy.placement.route(depth, depth)
        return between(self.hops, there, self.layers, depth)

    @cached_property
    def split(self) -> Split:
        """How the placement divides the large model."""
        policy, timing = self.setup.policy, self.setup.pair.cloud.timing
        medusa = policy.draft.medusa
        heads = medusa.count * (1 + timing.hidden / timing.vocabulary) if medusa else 0.0
        return Split(self.scale, policy.exchange.number, heads)

    @property
    def here(self) -> bool:
        """Does a part of the large model run on devices?"""
        return any(hop.node == HERE for hop in self.hops)

    @cached_property
    def fleets(self) -> dict[str, Fleet]:
        """The fleet of each device."""
        return dict(zip(self.devices, self.setup.hardware.deal(len(self.devices)), strict=True))

    @property
    def digest(self) -> str:
        """Names what both ends must agree on: the policy, the decoding, the depth of the model."""
        said = f"{self.setup.policy!r} {self.setup.decoding!r} {self.layers}"
        return sha256(said.encode()).hexdigest()[:16]

    def node(self, name: str) -> Node:
        """A fresh node, as it is when a run begins or its host starts again."""
        policy = self.setup.policy
        if name in self.fleets:
            width, number = self.setup.pair.cloud.timing.hidden, policy.exchange.number
            return Device(
                name, policy, self.hops, self.tiers, self.setup.seed, self.timeout_s, self.setup.workload.at_once,
                hidden_nbytes(1, width, number),
            )  # fmt: skip
        capacity_tokens = self.setup.cloud_cache_tokens
        return Worker(
            name, policy, self.tiers, capacity_tokens=capacity_tokens, linger_s=self.linger_s, estimator=self.estimator
        )

    def link(self, device: str) -> Link:
        """A device's access link, shared by all it says to the cloud's nodes."""
        return self.fleets[device].network or self.setup.network

    def stream(self, device: str) -> int:
        """What decides the luck of a device's link."""
        return key(self.setup.seed, f"{device} link")

    def channels(self, device: str) -> tuple[Channel, Channel]:
        """Fresh channels of a device's link, up and down."""
        link, stream = self.link(device), self.stream(device)
        return link.channel("up", stream), link.channel("down", stream)

    @cached_property
    def estimator(self) -> Estimator:
        """What a scheduler of the cloud expects its batches to take."""
        return Estimator(self.cloud_latency(), self.scale)

    def cloud_latency(self) -> Latency:
        return self.setup.hardware.cloud.latency(self.setup.pair.cloud.timing)

    def device_latency(
        self, device: str, queries: "Sequence[Query]", architecture: Architecture
    ) -> Callable[[str], Latency]:
        """The coefficients of a model for each of a device's sessions, which its power mode decides."""
        fleet = self.fleets[device]
        modes = self.modes(device, queries)
        latencies = {mode: fleet.latency(architecture, mode) for mode in {*modes.values(), fleet.mode_name}}
        usual = latencies[fleet.mode_name]
        found = {session: latencies[mode] for session, mode in modes.items()}
        return lambda session: found.get(session, usual)

    def modes(self, device: str, queries: "Sequence[Query]") -> dict[str, str]:
        """The power mode in which a device serves each of its sessions, which are among `queries`."""
        fleet = self.fleets[device]
        stream = key(self.setup.seed, f"modes of {device}")
        own = (q for q in queries if self.devices[q.device] == device)
        return {q.call.session: fleet.mode_at(stream, position) for position, q in enumerate(own)}

    def by_device(self, queries: "Sequence[Query]") -> "dict[str, list[Query]]":
        """The queries of each device, in their order."""
        found: dict[str, list[Query]] = {name: [] for name in self.devices}
        for query in queries:
            found[self.devices[query.device]].append(query)
        return found
