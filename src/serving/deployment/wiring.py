"""Adds the nodes of a topology to a driver, each on its chip, and connects them by links."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from serving.deployment.queries import UNAVAILABLE_ENGINE
from serving.deployment.shards import Shard, whole_testbed
from serving.deployment.topology import Topology
from serving.drivers.simulator import ComputeResource, Processor
from serving.engines.prefix_reuse import PrefixReusingEngine
from serving.hardware.executor import Engine, Executor
from serving.hardware.latency import LatencyModel
from serving.hardware.timed_executor import DeviceExecutor, TimedExecutor
from serving.messages import Event, Node
from serving.network.channel import Channel, LinkDirection, MultiLinkChannel
from serving.network.link import Link
from serving.network.rate import TrafficDirection

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query


class Driver(Protocol):
    """The interface of a driver for adding nodes, links and events."""

    def add(self, name: str, node: Node, compute: ComputeResource) -> None: ...

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None: ...

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None: ...

    def post(self, at: float, node: str, event: Event) -> None: ...


class ChipFactory:
    """Makes the chip of each node: the pair's models, timed as the named hardware.

    With `shared_chip` all nodes compute on one processor in turn, as if one thread ran them all. With `reuse_prefixes`,
    for virtual time alone, models do not compute again what a policy without prefix caching is charged for.
    """

    def __init__(
        self,
        topology: Topology,
        models: "LoadedModels",
        queries: "Sequence[Query]",
        shared_chip: bool = False,
        reuse_prefixes: bool = False,
    ) -> None:
        self._topology, self._models, self._queries = topology, models, topology.queries_by_device(queries)
        self._shared_processor = Processor() if shared_chip else None
        self._is_first_cloud_node = True
        cache = topology.setup.policy.kv_cache
        self._reuse_target = reuse_prefixes and not cache.keeps_prefixes
        self._reuse_drafter = reuse_prefixes and not cache.device_keeps_cache

    def __call__(self, name: str) -> ComputeResource:
        if name in self._topology.device_fleets:
            return ComputeResource(self._device_executor(name), self._shared_processor or Processor())
        apart = self._topology.setup.policy.drafts_apart and not self._shared_processor
        processor = self._shared_processor or Processor()
        return ComputeResource(self._cloud_executor(name), processor, Processor() if apart else None)

    def _cloud_executor(self, name: str) -> Executor:
        topology, models = self._topology, self._models
        timing, latency = topology.setup.pair.cloud.timed_architecture, topology.cloud_latency(name)
        first, self._is_first_cloud_node = self._is_first_cloud_node, False
        engine = models.cloud if first or models.new_cloud_engine is None else models.new_cloud_engine()
        engine = PrefixReusingEngine(engine) if self._reuse_target else engine
        target = TimedExecutor(engine, models.cloud_layers, timing, _constant(latency), topology.split)
        if topology.setup.cloud_drafter is None:
            return target
        drafter = models.device if first or models.new_device_engine is None else models.new_device_engine()
        return DeviceExecutor(self._cloud_drafter(name, drafter), target)

    def _cloud_drafter(self, name: str, engine: Engine) -> Executor:
        """The draft model on a chip of the cloud."""
        timing = self._topology.setup.pair.device.timed_architecture
        latency = self._topology.cloud_fleets[name].latency(timing)
        engine = PrefixReusingEngine(engine) if self._reuse_drafter else engine
        return TimedExecutor(engine, self._models.device_layers, timing, _constant(latency))

    def _device_executor(self, name: str) -> Executor:
        topology, models, queries = self._topology, self._models, self._queries[name]
        timing, large = topology.setup.pair.device.timed_architecture, topology.setup.pair.cloud.timed_architecture
        if topology.device_runs_target and topology.setup.policy.draft.source != "model":
            timing = large  # there is no drafter
        own = UNAVAILABLE_ENGINE if topology.setup.cloud_drafter else models.device
        engine = PrefixReusingEngine(own) if self._reuse_drafter else own
        latency = topology.device_latency(name, queries, timing)
        drafter = TimedExecutor(engine, models.device_layers, timing, latency)
        if not topology.device_runs_target:
            return drafter
        held = topology.device_latency(name, queries, large)
        return DeviceExecutor(
            drafter, TimedExecutor(models.device_target, models.cloud_layers, large, held, topology.split)
        )


def add_nodes(
    driver: Driver, topology: Topology, make_chip: Callable[[str], ComputeResource], names: Sequence[str]
) -> None:
    """Adds the nodes `names` to the driver, each on its chip."""
    for name in names:
        driver.add(name, topology.create_node(name), make_chip(name))


def connect_nodes(driver: Driver, topology: Topology, shard: Shard | None = None) -> None:
    """Connects every device with every cloud node by one access link per device, and the nodes of all tiers; those of a
    shard alone if one is given.
    """
    shard = shard or whole_testbed(topology)
    behind = {worker: topology.intermediate_links(topology.tier_of[worker]) for worker in shard.workers}
    behind_links = {worker: links for worker, links in behind.items() if links}
    for name in shard.devices:
        up, down = topology.channels(name)
        driver.connect_access(name, up, down)
        for worker in behind_links:
            driver.connect(name, worker, _with_relay(up, behind_links[worker], "up"))
            driver.connect(worker, name, _with_relay(down, behind_links[worker], "down"))
    if topology.setup.hardware.tiers:
        _connect_tiers(driver, topology, shard.workers)


def _connect_tiers(driver: Driver, topology: Topology, workers: Sequence[str]) -> None:
    """A node has one port towards later tiers and one towards earlier tiers, each shaped as its link."""
    ports: dict[tuple[str, TrafficDirection], Channel] = {}
    for a in workers:
        before = topology.intermediate_links(topology.tier_of[a])
        stream = topology.link_stream(a)
        for b in workers:
            after = topology.intermediate_links(topology.tier_of[b])
            up = after[len(before) :]
            down = before[len(after) :][::-1]
            if up or down:
                first, *rest = up or down
                direction: TrafficDirection = "up" if up else "down"
                port = ports.setdefault((a, direction), first.channel(direction, stream))
                driver.connect(a, b, _with_relay(port, rest, direction))


def _with_relay(wire: LinkDirection, relay_links: Sequence[Link], direction: TrafficDirection) -> LinkDirection:
    return MultiLinkChannel(wire, [(link, direction) for link in relay_links]) if relay_links else wire


def _constant(latency: LatencyModel) -> Callable[[str], LatencyModel]:
    return lambda _: latency
