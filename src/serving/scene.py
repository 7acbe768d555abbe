"""Sets a driver's stage: nodes on their chips, links between them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from serving.cast import Cast
from serving.drivers.simulator import Chip, Processor, Wire
from serving.executor import Executor
from serving.latency import Latency
from serving.messages import Event, Node
from serving.timed import Timed

if TYPE_CHECKING:
    from serving.runtimes.runtime import Models, Query


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

    def __call__(self, name: str) -> Chip:
        return Chip(self._device(name) if name in self._cast.fleets else self._cloud(), self._shared or Processor())

    def _cloud(self) -> Executor:
        setup, models, latency = self._cast.setup, self._models, self._cast.cloud_latency()
        precision = setup.hardware.cloud.precision
        return Timed(models.cloud, models.cloud_layers, setup.pair.cloud.timing, precision, _always(latency))

    def _device(self, name: str) -> Executor:
        timing, precision = self._cast.setup.pair.device.timing, self._cast.fleets[name].precision
        latency = self._cast.device_latency(name, self._queries[name])
        return Timed(self._models.device, self._models.device_layers, timing, precision, latency)


def populate(driver: Driver, cast: Cast, chip: Callable[[str], Chip], names: Sequence[str]) -> None:
    """Puts the nodes of `names` on the stage, each on its chip."""
    for name in names:
        driver.add(name, cast.node(name), chip(name))


def link(driver: Driver, cast: Cast) -> None:
    """Connects every device with every node of the cloud, by one access link a device."""
    for name in cast.devices:
        up, down = cast.channels(name)
        for worker in cast.workers:
            driver.connect(name, worker, up)
            driver.connect(worker, name, down)


def _always(latency: Latency) -> Callable[[str], Latency]:
    return lambda _: latency
