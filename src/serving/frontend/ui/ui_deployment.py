"""The nodes of every policy on one driver, and runs put to them."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.simulator import Observer
from serving.drivers.real_time import RealTimeDriver
from serving.frontend.device_gateway import RequestStreams
from serving.frontend.shutdown import FaultBarrier
from serving.frontend.ui.config import UiConfig
from serving.frontend.ui.device_pool import PrefixedTopology
from serving.frontend.ui.run_metrics import RunMeter
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.run import UiRun
from serving.frontend.ui.token_trace import RunObserver
from serving.nodes.device import Device
from serving.runtimes.failures import LinkOutageInjector
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class UiDeployment:
    """Each policy has devices and a cloud of its own; all compute here, with the same models.

    With a `host` the first policy's cloud is another process, which that host dials.
    """

    def __init__(self, config: UiConfig, models: Mapping[str, LoadedModels], host: NodeHost | None = None) -> None:
        self.config, self.host = config, host
        self.tokenizer: Tokenizer = next(iter(models.values())).tokenizer
        self.topologies = {name: self._topology(name, models[name].cloud_layers) for name in config.setups}
        self._hardware_paced = config.service.page.pace == "hardware"
        self._closed = False
        afar = frozenset(self._devices(self.topologies[self._first_policy])) if host else frozenset()
        self.observer = RunObserver([name for cast in self.topologies.values() for name in self._devices(cast)], afar)
        breaks = (
            [self._outage_injector(cast) for cast in self.topologies.values()]
            if config.service.page.shaped and not host
            else []
        )
        self.driver = self._build_driver(models, [self.observer, *breaks])
        self.streams = RequestStreams(self.driver)
        self.observer.on_peer_change = self.streams.notify
        self._boot_id, self._run_numbers = secrets.token_hex(4), count(1)
        for each in breaks:
            each.start()

    @property
    def _first_policy(self) -> str:
        return self.config.setup.policy.name

    def _topology(self, name: str, layers: int) -> Topology:
        """A remote cloud knows its own nodes by their plain names."""
        timeout_s = self.config.service.timeout_s
        if self.host and name == self._first_policy:
            return self.host.topology
        return PrefixedTopology(self.config.setups[name], layers, timeout_s, prefix=f"{name}.")

    def _devices(self, topology: Topology) -> Sequence[str]:
        return topology.devices[: self.config.num_devices]

    def _local_nodes(self, topology: Topology) -> Sequence[str]:
        """The nodes of a cast that are played here."""
        afar = self.host and topology is self.host.topology
        return (*self._devices(topology), *(() if afar else topology.workers))

    def _outage_injector(self, topology: Topology) -> LinkOutageInjector:
        return LinkOutageInjector(
            topology, self._local_nodes(topology), lambda *what: self.driver.post(*what), lambda: self._closed
        )

    def _build_driver(self, models: Mapping[str, LoadedModels], observers: Sequence[Observer]) -> RealTimeDriver:
        live = RealTimeDriver(WallClock(), observers, self.config.service.page.pace, _log_error)
        for policy, cast in self.topologies.items():
            chips = ChipFactory(cast, models[policy], ())
            for name in self._local_nodes(cast):
                node = cast.create_node(name)
                live.add(name, FaultBarrier(node) if isinstance(node, Device) else node, chips(name))
            if self.config.service.page.shaped:
                connect_nodes(live, cast)
        return live

    @property
    def cloud_reachable(self) -> bool:
        """Can the cloud be reached, where it is another process?"""
        return self.host is None or bool(self.host.reachable)

    def run(self, request: RunRequest, prompt: tuple[int, ...], device_index: int) -> UiRun:
        """A run on the device of that number."""
        cast = self.topologies[request.policy_card.name]
        device = cast.devices[device_index]
        afar = self.host is not None and cast is self.host.topology
        cloud = self.config.setup.hardware.head_fleet
        meter = RunMeter(cast.device_fleets[device], cloud, self.config.packing_factor, self._hardware_paced, afar)
        session = f"{device}.{self._boot_id}.run-{next(self._run_numbers)}"
        reach = (lambda: self.cloud_reachable) if afar else (lambda: not self.observer.has_lost_peer(device))
        return UiRun(request, prompt, device, session, self.streams, self.observer, meter, self.tokenizer, reach)

    def close(self) -> None:
        self._closed = True
        self.driver.close()


def _log_error(problem: Exception) -> None:
    log.error("a model failed; the run that it worked for ends", exc_info=problem)
