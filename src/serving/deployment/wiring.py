"""Sets a driver's stage: nodes on their chips, links between them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from serving.deployment.topology import Topology
from serving.drivers.simulator import ComputeResource, LinkDirection, Processor
from serving.hardware.executor import DeviceExecutor, Executor, TimedExecutor
from serving.hardware.latency import LatencyModel
from serving.messages import Event, Node
from serving.network.link import Channel, Link, MultiLinkChannel
from serving.network.rate import TrafficDirection

if TYPE_CHECKING:
    from serving.deployment.queries import LoadedModels, Query


class Driver(Protocol):
    """What every driver offers to those who set its stage."""

    def add(self, name: str, node: Node, compute: ComputeResource) -> None: ...

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None: ...

    def post(self, at: float, node: str, event: Event) -> None: ...


class ChipFactory:
    """The chip of each node: the pair's models, timed as the named hardware.

    With `shared` all nodes compute on one processor in turn, as they do where one thread plays them all.
    """

    def __init__(
        self, topology: Topology, models: "LoadedModels", queries: "Sequence[Query]", shared_chip: bool = False
    ) -> None:
        self._topology, self._models, self._queries = topology, models, topology.queries_by_device(queries)
        self._shared_processor = Processor() if shared_chip else None
        self._cloud_engine_unused = True

    def __call__(self, name: str) -> ComputeResource:
        executor = self._device_executor(name) if name in self._topology.device_fleets else self._cloud_executor(name)
        return ComputeResource(executor, self._shared_processor or Processor())

    def _cloud_executor(self, name: str) -> Executor:
        cast, models = self._topology, self._models
        timing, latency = cast.setup.pair.cloud.timed_architecture, cast.cloud_latency(name)
        engine = (
            models.cloud if self._cloud_engine_unused or models.new_cloud_engine is None else models.new_cloud_engine()
        )
        self._cloud_engine_unused = False
        return TimedExecutor(engine, models.cloud_layers, timing, _constant(latency), cast.split)

    def _device_executor(self, name: str) -> Executor:
        cast, models, queries = self._topology, self._models, self._queries[name]
        timing, large = cast.setup.pair.device.timed_architecture, cast.setup.pair.cloud.timed_architecture
        if cast.device_runs_target and cast.setup.policy.draft.source != "model":
            timing = large  # of a drafter that there is not
        drafter = TimedExecutor(models.device, models.device_layers, timing, cast.device_latency(name, queries, timing))
        if not cast.device_runs_target:
            return drafter
        held = cast.device_latency(name, queries, large)
        return DeviceExecutor(
            drafter, TimedExecutor(models.device_target, models.cloud_layers, large, held, cast.split)
        )


def add_nodes(
    driver: Driver, topology: Topology, make_chip: Callable[[str], ComputeResource], names: Sequence[str]
) -> None:
    """Puts the nodes of `names` on the stage, each on its chip."""
    for name in names:
        driver.add(name, topology.create_node(name), make_chip(name))


def connect_nodes(driver: Driver, topology: Topology) -> None:
    """Connects every device with every node of the cloud, by one access link a device, and the nodes of all tiers."""
    for name in topology.devices:
        up, down = topology.channels(name)
        for worker in topology.workers:
            further = topology.intermediate_links(topology.tier_of[worker])
            driver.connect(name, worker, _with_relay(up, further, "up"))
            driver.connect(worker, name, _with_relay(down, further, "down"))
    if topology.setup.hardware.tiers:
        _connect_tiers(driver, topology)


def _connect_tiers(driver: Driver, topology: Topology) -> None:
    """A node has one port towards later tiers and one towards earlier ones, each shaped as the link that it is on."""
    ports: dict[tuple[str, TrafficDirection], Channel] = {}
    for a in topology.workers:
        before = topology.intermediate_links(topology.tier_of[a])
        stream = topology.link_stream(a)
        for b in topology.workers:
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
