"""Sets a driver's stage: nodes on their chips, links between them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from serving.deployment.topology import Cast
from serving.drivers.simulator import Chip, Processor, Wire
from serving.hardware.executor import Executor
from serving.hardware.latency import Latency
from serving.hardware.timed_executor import Halves, Timed
from serving.messages import Event, Node
from serving.network.link import Channel, Link, Relay
from serving.network.rate import Direction

if TYPE_CHECKING:
    from serving.deployment.queries import Models, Query


class Driver(Protocol):
    """What every driver offers to those who set its stage."""

    def add(self, name: str, node: Node, chip: Chip) -> None: ...

    def connect(self, a: str, b: str, wire: Wire) -> None: ...

    def post(self, at: float, node: str, event: Event) -> None: ...


class Chips:
    """The chip of each node: the pair's models, timed as the named hardware.

    With `shared` all nodes compute on one processor in turn, as they do where one thread plays them all.
    """

    def __init__(self, cast: Cast, models: "Models", queries: "Sequence[Query]", shared: bool = False) -> None:
        self._cast, self._models, self._queries = cast, models, cast.by_device(queries)
        self._shared = Processor() if shared else None
        self._first = True

    def __call__(self, name: str) -> Chip:
        executor = self._device(name) if name in self._cast.fleets else self._cloud(name)
        return Chip(executor, self._shared or Processor())

    def _cloud(self, name: str) -> Executor:
        cast, models = self._cast, self._models
        timing, latency = cast.setup.pair.cloud.timing, cast.cloud_latency(name)
        engine = models.cloud if self._first or models.another is None else models.another()
        self._first = False
        return Timed(engine, models.cloud_layers, timing, _always(latency), cast.split)

    def _device(self, name: str) -> Executor:
        cast, models, queries = self._cast, self._models, self._queries[name]
        timing, large = cast.setup.pair.device.timing, cast.setup.pair.cloud.timing
        if cast.here and cast.setup.policy.draft.source != "model":
            timing = large  # of a drafter that there is not
        drafter = Timed(models.device, models.device_layers, timing, cast.device_latency(name, queries, timing))
        if not cast.here:
            return drafter
        held = cast.device_latency(name, queries, large)
        return Halves(drafter, Timed(models.here, models.cloud_layers, large, held, cast.split))


def populate(driver: Driver, cast: Cast, chip: Callable[[str], Chip], names: Sequence[str]) -> None:
    """Puts the nodes of `names` on the stage, each on its chip."""
    for name in names:
        driver.add(name, cast.node(name), chip(name))


def link(driver: Driver, cast: Cast) -> None:
    """Connects every device with every node of the cloud, by one access link a device, and the nodes of all tiers."""
    for name in cast.devices:
        up, down = cast.channels(name)
        for worker in cast.workers:
            further = cast.further(cast.tier_of[worker])
            driver.connect(name, worker, _relayed(up, further, "up"))
            driver.connect(worker, name, _relayed(down, further, "down"))
    if cast.setup.hardware.tiers:
        _link_tiers(driver, cast)


def _link_tiers(driver: Driver, cast: Cast) -> None:
    """A node has one port towards later tiers and one towards earlier ones, each shaped as the link that it is on."""
    ports: dict[tuple[str, Direction], Channel] = {}
    for a in cast.workers:
        before = cast.further(cast.tier_of[a])
        stream = cast.stream(a)
        for b in cast.workers:
            after = cast.further(cast.tier_of[b])
            up = after[len(before) :]
            down = before[len(after) :][::-1]
            if up or down:
                first, *rest = up or down
                direction: Direction = "up" if up else "down"
                port = ports.setdefault((a, direction), first.channel(direction, stream))
                driver.connect(a, b, _relayed(port, rest, direction))


def _relayed(own: Wire, further: Sequence[Link], direction: Direction) -> Wire:
    return Relay(own, [(link, direction) for link in further]) if further else own


def _always(latency: Latency) -> Callable[[str], Latency]:
    return lambda _: latency
