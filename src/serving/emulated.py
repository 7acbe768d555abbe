"""Runtime `emulated`: the pair makes the tokens here, the named hardware and links make a virtual time."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.device import Device
from serving.latency import Latency
from serving.luck import key
from serving.messages import Begin
from serving.progress import Progress, silent
from serving.recorder import Record, Recorder
from serving.setup import Setup
from serving.simulator import Chip, Observer, Simulator, StalledError
from serving.testbed import Fleet
from serving.timed import Timed
from serving.worker import Worker

if TYPE_CHECKING:
    from serving.runtime import Models, Query

TIER = "cloud"


@dataclass(frozen=True)
class Emulated:
    """A run of a setup on virtual time; the same setup and seed give the same record."""

    def serve(
        self, setup: Setup, models: "Models", queries: Sequence["Query"], progress: Progress = silent,
        observers: Sequence[Observer] = (),
    ) -> dict[str, Record]:  # fmt: skip
        """The records by session; raises StalledError when a session never ended."""
        return _Run(setup, models, queries, progress, observers).run()


class _Run:
    def __init__(
        self,
        setup: Setup,
        models: "Models",
        queries: Sequence["Query"],
        progress: Progress,
        observers: Sequence[Observer],
    ) -> None:
        self.setup, self.models, self.queries, self.progress = setup, models, queries, progress
        self.names = [f"device-{i}" for i in range(setup.devices)]
        self.recorder = Recorder(self.names)
        self.simulator = Simulator([self.recorder, *observers])
        self.next: dict[str, deque[Query]] = defaultdict(deque)
        """Closed loops: device -> what it asks next."""
        self.ended = 0
        self.device_of = {q.call.session: self.names[q.device] for q in queries}

    def run(self) -> dict[str, Record]:
        self._build()
        for query in self.queries:
            if query.at_s is None:
                self.next[self.names[query.device]].append(query)
            else:
                self.simulator.post(query.at_s, self.names[query.device], Begin(query.call))
        for name in self.names:
            self._ask_next(name, 0.0)
        self.simulator.on_end(self._ended)
        self.simulator.run()
        self._check()
        return self.recorder.records

    def _build(self) -> None:
        setup, models = self.setup, self.models
        hops = setup.policy.placement.route(models.cloud_layers)
        cloud = [f"{TIER}-{i}" for i in range(setup.hardware.cloud.count)]
        tiers = {TIER: tuple(cloud)}
        if hops:
            for name in cloud:
                worker = Worker(name, setup.policy, tiers, capacity_tokens=setup.cloud_cache_tokens)
                self.simulator.add(name, worker, Chip(self._cloud_executor()))
        for i, (name, fleet) in enumerate(zip(self.names, setup.hardware.deal(len(self.names)), strict=True)):
            device = Device(name, setup.policy, hops, tiers, setup.seed)
            self.simulator.add(name, device, Chip(self._device_executor(i, fleet)))
            self._connect(name, cloud, fleet)

    def _connect(self, device: str, cloud: Sequence[str], fleet: Fleet) -> None:
        """One access link per device, shared by all it says to the cloud's nodes."""
        link = fleet.network or self.setup.network
        up = link.channel("up", key(self.setup.seed, f"{device} up"))
        down = link.channel("down", key(self.setup.seed, f"{device} down"))
        for name in cloud:
            self.simulator.connect(device, name, up)
            self.simulator.connect(name, device, down)

    def _cloud_executor(self) -> Timed:
        fleet, architecture = self.setup.hardware.cloud, self.setup.pair.cloud.timing
        latency = fleet.latency(architecture)
        return Timed(self.models.cloud, self.models.cloud_layers, architecture, fleet.precision, lambda _: latency)

    def _device_executor(self, device: int, fleet: Fleet) -> Timed:
        architecture = self.setup.pair.device.timing
        modes = modes_of(self.setup, device, fleet, self.queries)
        latencies: dict[str, Latency] = {m: fleet.latency(architecture, m) for m in {*modes.values(), fleet.mode_name}}
        latency = {session: latencies[mode] for session, mode in modes.items()}
        return Timed(self.models.device, self.models.device_layers, architecture, fleet.precision, latency.__getitem__)

    def _ask_next(self, device: str, now: float) -> None:
        if self.next[device]:
            self.simulator.post(now, device, Begin(self.next[device].popleft().call))

    def _ended(self, session: str, now: float) -> None:
        self.ended += 1
        self.progress(self.ended, len(self.queries), f"{now:.0f} s of virtual time")
        device = self.device_of[session]
        if self.next[device]:
            self._ask_next(device, now + self.next[device][0].think_s)

    def _check(self) -> None:
        ended = {session for session, record in self.recorder.records.items() if record.ending}
        left = [q.call.session for q in self.queries if q.call.session not in ended]
        if left:
            raise StalledError(f"nothing is left to happen, and {len(left)} sessions wait: {', '.join(left[:5])}")


def modes_of(setup: Setup, device: int, fleet: Fleet, queries: Sequence["Query"]) -> dict[str, str]:
    """The power mode in which a device serves each of its sessions."""
    stream = key(setup.seed, f"modes of device-{device}")
    own = [q for q in queries if q.device == device]
    return {q.call.session: fleet.mode_at(stream, position) for position, q in enumerate(own)}
