"""Sets a driver's stage: nodes on their chips, links between them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from serving.cast import Cast
from serving.drivers.simulator import Chip, Processor, Wire
from serving.executor import Executor
from serving.latency import Latency
from serving.messages import Event, Node
from serving.timed import Halves, Timed

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
        cast, models, latency = self._cast, self._models, self._cast.cloud_latency()
        timing = cast.setup.pair.cloud.timing
        return Timed(models.cloud, models.cloud_layers, timing, _always(latency), cast.split)

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
    """Connects every device with every node of the cloud, by one access link a device."""
    for name in cast.devices:
        up, down = cast.channels(name)
        for worker in cast.workers:
            driver.connect(name, worker, up)
            driver.connect(worker, name, down)


def _always(latency: Latency) -> Callable[[str], Latency]:
    return lambda _: latency
