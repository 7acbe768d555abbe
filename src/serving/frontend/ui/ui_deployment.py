"""The nodes of every policy of a page on one driver, and the models that they share."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from serving.deployment.queries import LoadedModels
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, connect_nodes
from serving.drivers.clock import WallClock
from serving.drivers.observer import Observer
from serving.drivers.real_time import RealTimeDriver
from serving.frontend.device_gateway import RequestStreams
from serving.frontend.shutdown import FaultBarrier
from serving.frontend.ui.config import UiConfig
from serving.frontend.ui.run import UiRun
from serving.frontend.ui.run_metrics import RunMeter
from serving.frontend.ui.run_request import RunRequest
from serving.frontend.ui.token_trace import RunObserver
from serving.nodes.device import Device
from serving.nodes.hop_path import TierNodes
from serving.policy.policy import EngineRequirements
from serving.runtimes.failures import LinkOutageInjector
from serving.runtimes.host import NodeHost

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer
    from serving.engines.torch.tensor_store import TensorStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrefixedTopology(Topology):
    """A topology whose node names begin with `prefix`, so that one driver can run several."""

    prefix: str = ""

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in self._unprefixed.devices)

    @cached_property
    def tiers(self) -> TierNodes:
        return {tier: tuple(f"{self.prefix}{name}" for name in names) for tier, names in self._unprefixed.tiers.items()}

    @property
    def _unprefixed(self) -> Topology:
        return Topology(self.setup, self.layers)


class UiDeployment:
    """Each policy has devices and a cloud of its own; all compute in this process, with the same models.

    With a `host`, the first policy's cloud is another process, to which that host connects.
    """

    def __init__(self, config: UiConfig, models: Mapping[str, LoadedModels], host: NodeHost | None = None) -> None:
        self.config, self.host, self._models = config, host, tuple(models.values())
        self.tokenizer: Tokenizer = next(iter(models.values())).tokenizer
        self.topologies = {name: self._topology(name, models[name].cloud_layers) for name in config.setups}
        self._hardware_paced = config.service.page.pace == "hardware"
        self._closed = False
        remote = frozenset(self._devices(self.topologies[self._first_policy])) if host else frozenset()
        devices = [name for topology in self.topologies.values() for name in self._devices(topology)]
        self.observer = RunObserver(devices, remote)
        shaped = config.service.page.shaped and not host
        outages = [self._outage_injector(topology) for topology in self.topologies.values()] if shaped else []
        self.driver = self._build_driver(models, [self.observer, *outages])
        self.streams = RequestStreams(self.driver)
        self.observer.on_peer_change = self.streams.notify
        self._boot_id, self._run_numbers = secrets.token_hex(4), count(1)
        for outage in outages:
            outage.start()

    @property
    def _first_policy(self) -> str:
        return self.config.setup.policy.name

    def _topology(self, name: str, layers: int) -> Topology:
        """A remote cloud knows its nodes by names without a prefix."""
        timeout_s = self.config.service.timeout_s
        if self.host and name == self._first_policy:
            return self.host.topology
        return PrefixedTopology(self.config.setups[name], layers, timeout_s, prefix=f"{name}.")

    def _devices(self, topology: Topology) -> Sequence[str]:
        return topology.devices[: self.config.num_devices]

    def _local_nodes(self, topology: Topology) -> Sequence[str]:
        """The nodes of a topology that run in this process."""
        remote = self.host and topology is self.host.topology
        return (*self._devices(topology), *(() if remote else topology.workers))

    def _outage_injector(self, topology: Topology) -> LinkOutageInjector:
        return LinkOutageInjector(
            topology, self._local_nodes(topology), lambda *what: self.driver.post(*what), lambda: self._closed
        )

    def _build_driver(self, models: Mapping[str, LoadedModels], observers: Sequence[Observer]) -> RealTimeDriver:
        driver = RealTimeDriver(WallClock(), observers, self.config.service.page.pace, _log_error)
        for policy, topology in self.topologies.items():
            chips = ChipFactory(topology, models[policy], ())
            for name in self._local_nodes(topology):
                node = topology.create_node(name)
                driver.add(name, FaultBarrier(node) if isinstance(node, Device) else node, chips(name))
            if self.config.service.page.shaped:
                connect_nodes(driver, topology)
        return driver

    @property
    def cloud_reachable(self) -> bool:
        """True if the cloud is in this process, or the remote one can be reached."""
        return self.host is None or bool(self.host.reachable)

    def run(self, request: RunRequest, prompt: tuple[int, ...], device_index: int) -> UiRun:
        topology = self.topologies[request.policy_card.name]
        device = topology.devices[device_index]
        remote = self.host is not None and topology is self.host.topology
        meter = RunMeter(
            topology.device_fleets[device],
            self.config.setup.hardware.head_fleet,
            topology.cloud_fleets,
            self._hardware_paced,
            remote,
        )
        session = f"{device}.{self._boot_id}.run-{next(self._run_numbers)}"
        reachable = (lambda: self.cloud_reachable) if remote else (lambda: not self.observer.has_lost_peer(device))
        return UiRun(request, prompt, device, session, self.streams, self.observer, meter, self.tokenizer, reachable)

    def close(self) -> None:
        self._closed = True
        for models in self._models:
            models.stop()
        self.driver.close()


def _log_error(problem: Exception) -> None:
    log.error("a model failed; the run that it worked for ends", exc_info=problem)


def open_shared_models(
    setups: Mapping[str, Setup], accelerator: str, context_lens: Mapping[str, int] | None = None
) -> dict[str, LoadedModels]:
    """Loads device and cloud models by policy, once for all policies that `engine_groups` puts together.

    `context_lens`: tokens of prompt and answer together, for each policy.
    """
    from serving.deployment.model_loading import load_models

    groups = engine_groups({name: setup.engine_requirements for name, setup in setups.items()})
    found: dict[str, LoadedModels] = {}
    for names, requirements in groups:
        pair = setups[names[0]].pair
        longest = max((context_lens[name] for name in names), default=0) if context_lens else None
        found |= dict.fromkeys(names, load_models(pair.device, pair.cloud, accelerator, requirements, longest))
    return found


def open_device_models(
    setups: Mapping[str, Setup], tensors: "TensorStore", accelerator: str
) -> dict[str, LoadedModels]:
    """Loads the device's models for each policy, and no cloud model."""
    from serving.deployment.model_loading import load_side

    return {name: load_side(setup, "device", tensors, accelerator) for name, setup in setups.items()}


def engine_groups(requirements: Mapping[str, EngineRequirements]) -> list[tuple[list[str], EngineRequirements]]:
    """Groups policies that the same engines can serve, each with what its engines must provide.

    Policies whose scorers have one name but different networks (the routers of CITER and Co-LLM) are kept apart.
    """
    found: list[tuple[list[str], EngineRequirements]] = []
    for name, wanted in requirements.items():
        for i, (names, given) in enumerate(found):
            if both := _merged(given, wanted):
                found[i] = ([*names, name], both)
                break
        else:
            found.append(([name], wanted))
    return found


def _merged(a: EngineRequirements, b: EngineRequirements) -> EngineRequirements | None:
    """What serves both; None if nothing does."""
    same = (a.block_tokens, a.hidden_dtype, a.medusa) == (b.block_tokens, b.hidden_dtype, b.medusa)
    agree = all(a.scorers[name].digest == b.scorers[name].digest for name in a.scorers.keys() & b.scorers.keys())
    if not (same and agree):
        return None
    return replace(
        a, scorers={**a.scorers, **b.scorers}, verifies_drafts=a.verifies_drafts or b.verifies_drafts,
        drafter=a.drafter or b.drafter, sessions=None,
    )  # fmt: skip
