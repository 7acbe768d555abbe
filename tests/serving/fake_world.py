"""Real nodes over a fake wire: devices and a cloud on the simulator, with a log that fresh nodes can replay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fake_pair import ROW_NBYTES, FakePair

from serving.deployment.wiring import Driver
from serving.drivers.observer import Observer
from serving.drivers.simulator import Chip, Simulator
from serving.learned.medusa import Medusa
from serving.learned.thresholds import Thresholds
from serving.messages import INF, Begin, Call, Chunk, Command, Deliver, Event, Node, Sampling
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.policy import Policy
from serving.policy.slots.dispatch import RoundRobin
from serving.policy.slots.draft import Heads, NoDraft, Window
from serving.policy.slots.early_exit import NoExit, Progressive
from serving.policy.slots.importance_offload import ConfidenceImportance
from serving.policy.slots.kv_cache import NoReuse, Reuse
from serving.policy.slots.link_loss import LinkLoss
from serving.policy.slots.lookahead import Candidates, Idle, Parallel
from serving.policy.slots.offload import Always, Handover, Never
from serving.policy.slots.payload import Hidden, Nothing, Tokens
from serving.policy.slots.placement import HERE, Cloud, DeviceOnly, UShape
from serving.policy.slots.prefill import Balanced, Whole
from serving.policy.slots.scheduler import Continuous, StaticBatch, VerificationAware
from serving.policy.slots.verify import Lossless, Tree

LAYERS = 8
THRESHOLDS = Thresholds(0.6, 0.7, (0.5, 0.7, 0.9), (0.4, 0.6, 0.8), {}, (1.3, 1.6, 3.0))

MEDUSA = Medusa(4, ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0)), parameters=1)

_COMMON: dict[str, Any] = {
    "draft": Window(4), "offload": Always(), "waiting": Idle(), "early_exit": NoExit(), "verify": Lossless(),
    "prefill": Whole(), "exchange": Tokens(), "kv_cache": Reuse(), "scheduler": Continuous(), "placement": Cloud(),
    "dispatch": RoundRobin(), "link_loss": LinkLoss("wait"),
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "edge_centric": {"draft": Window(1), "offload": Never(), "placement": DeviceOnly(), "exchange": Nothing()},
    "cloud_centric": {"draft": NoDraft(), "offload": Handover(), "scheduler": Continuous(chunk=16)},
    "sled": {"scheduler": StaticBatch(4, 0.01), "kv_cache": NoReuse()},
    "synera": {
        "offload": ConfidenceImportance(0.5, THRESHOLDS),
        "waiting": Parallel(THRESHOLDS),
        "early_exit": Progressive(),
        "scheduler": VerificationAware(),
        "link_loss": LinkLoss("local"),
    },
}
SPLIT: dict[str, dict[str, Any]] = {
    "hat": {
        "draft": Window(12, "confidence", 0.6), "waiting": Candidates(), "prefill": Balanced(first=8),
        "placement": UShape(), "exchange": Hidden(),
    },
    "u_shape": {
        "draft": NoDraft(), "prefill": Whole("first"), "placement": UShape(), "exchange": Hidden(),
    },
    "u_medusa": {
        "draft": Heads(MEDUSA), "verify": Tree(), "prefill": Whole("first"), "placement": UShape(),
        "exchange": Hidden(),
    },
}  # fmt: skip


def policy(name: str, **override: Any) -> Policy:
    return Policy(name=name, **(_COMMON | (ROWS | SPLIT)[name] | override))


class LateWire:
    """Constant rate and delay, first in, first out."""

    def __init__(self, delay_s: float = 0.02, nbytes_per_s: float = 2e6) -> None:
        self.delay_s, self.rate, self.free = delay_s, nbytes_per_s, 0.0

    def arrive(self, nbytes: float, now: float) -> float:
        self.free = max(now, self.free) + nbytes / self.rate
        return self.free + self.delay_s


@dataclass
class Log:
    """Who heard what when, and what it said."""

    entries: list[tuple[str, Event, float, tuple[Command, ...]]] = field(default_factory=list)

    def handled(self, node: str, event: Event, now: float, commands: Sequence[Command]) -> None:
        self.entries.append((node, event, now, tuple(commands)))

    def ran(self, *_: object) -> None: ...

    def sent(self, *_: object) -> None: ...

    def commands(self, kind: type) -> list[Any]:
        return [c for _, _, _, commands in self.entries for c in commands if isinstance(c, kind)]


@dataclass
class World:
    simulator: Any
    log: Log
    make: dict[str, Callable[[], Node]]
    nodes: dict[str, Node]
    chips: dict[str, FakePair]
    calls: list[Call]

    def run(self) -> "World":
        self.simulator.run()
        return self

    @property
    def workers(self) -> dict[str, Worker]:
        """The cloud's nodes."""
        return {name: node for name, node in self.nodes.items() if isinstance(node, Worker)}

    @property
    def devices(self) -> dict[str, Device]:
        return {name: node for name, node in self.nodes.items() if isinstance(node, Device)}

    def text(self, session: str) -> tuple[int, ...]:
        return tuple(t for d in self.log.commands(Deliver) if d.session == session for t in d.tokens)

    def endings(self) -> dict[str, str]:
        return {d.session: d.ending for d in self.log.commands(Deliver) if d.ending}

    def chunks(self) -> list[Chunk]:
        return self.log.commands(Chunk)

    def replays(self) -> bool:
        """Fresh nodes, the logged events: the same commands?"""
        fresh = {name: make() for name, make in self.make.items()}
        return all(tuple(fresh[n].handle(event, now)) == commands for n, event, now, commands in self.log.entries)


def world(
    p: Policy,
    devices: int = 3,
    calls_each: int = 1,
    limit: int = 24,
    prompt: int = 12,
    alpha: float = 0.7,
    seed: int = 1,
    ends: tuple[int, ...] = (),
    timeout_s: float = INF,
    capacity_tokens: float = INF,
    sampling: Sampling | None = None,
    drive: Callable[[Sequence[Observer]], Driver] = Simulator,
    at_once: int = 1,
) -> World:
    log = Log()
    simulator = drive([log])
    hops = p.placement.route(LAYERS, LAYERS)
    tiers = {hop.node: (hop.node,) for hop in hops if hop.node != HERE} or {"cloud": ("cloud",)}
    make: dict[str, Callable[[], Node]] = {
        tier: lambda tier=tier: Worker(tier, p, tiers, capacity_tokens=capacity_tokens)  # type: ignore[misc]
        for tier in tiers
    }
    calls = []
    for i in range(devices):
        make[f"device-{i}"] = lambda i=i: Device(  # type: ignore[misc]
            f"device-{i}", p, hops, tiers, seed, timeout_s, at_once, ROW_NBYTES
        )
    nodes = {name: factory() for name, factory in make.items()}
    blobs: dict[str, Any] = {}
    chips = {name: FakePair(alpha, blobs=blobs, medusa=p.draft.medusa) for name in nodes}
    for name, node in nodes.items():
        simulator.add(name, node, Chip(chips[name]))
        if name not in tiers:
            up, down = LateWire(), LateWire()
            for tier in tiers:
                simulator.connect(name, tier, up)
                simulator.connect(tier, name, down)
    for i in range(devices):
        for j in range(calls_each):
            text = tuple((seed * 7919 + i * 104729 + j * 613 + k * 31) % 997 for k in range(prompt))
            call = Call(f"s{i}.{j}", text, limit, ends, sampling)
            calls.append(call)
            simulator.post(i * 0.003, f"device-{i}", Begin(call))
    return World(simulator, log, make, nodes, chips, calls)
