"""Tiers of nodes with the fake pair for models, on virtual time: each node has caches of its own, and may fail."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from catalogue import architecture, fleet, link
from fake_pair import FakePair, own_text
from fake_setup import FakeEngine, Questions, Words, pair, setup
from fake_world import Log

from serving.deployment.queries import Models, Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.deployment.wiring import Chips, populate
from serving.deployment.wiring import link as connect
from serving.drivers.simulator import Chip, Simulator
from serving.hardware.testbed import Testbed
from serving.hardware.tier import Tier
from serving.messages import Call, Deliver, Node, Sampling
from serving.network.outages import Window
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.partition.baselines import Balanced
from serving.policy.partition.division import Division
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.draft import NoDraft
from serving.policy.slots.kv_cache import Reuse
from serving.policy.slots.offload import Handover
from serving.policy.slots.payload import Hidden
from serving.policy.slots.placement import Tiers, UShape
from serving.policy.slots.scheduler import Fifo
from serving.runtimes.clients import Users
from serving.runtimes.failures import Failures

LAYERS = 8
CHIPS = {
    "nano": "jetson_orin_nano_8gb_super", "nx": "jetson_orin_nx_16gb", "agx": "jetson_agx_orin_32gb",
    "top": "jetson_agx_orin_64gb",
}  # fmt: skip
NETWORK = link("lan_1gbps")
DEVICE = fleet("jetson_agx_orin_32gb")

ROWS: dict[str, dict[str, Any]] = {
    "hyperion": {"draft": NoDraft(), "offload": Handover(), "scheduler": Fifo()},
    "sled": {"kv_cache": Reuse()},
    "synera": {},
    "hat": {"exchange": Hidden()},
}
"""What is asked of the large model, which runs in tiers: its text, or verdicts."""


def tiers(*nodes: int, **how: Any) -> dict[str, Tier]:
    """So many nodes in each."""
    how = {"detect_ms": 50.0} | how
    return {name: Tier(fleet(chip, count=n), **how) for n, (name, chip) in zip(nodes, CHIPS.items(), strict=False)}


def division(found: Mapping[str, Tier], **how: Any) -> Division:
    given = {
        "split": Balanced(), "architecture": architecture("llama2_7b"), "tiers": found, "network": NETWORK,
        "prompt_tokens": 16, "new_tokens": 24,
    }  # fmt: skip
    return Division(**(given | how))


def over(found: Mapping[str, Tier], name: str = "hyperion", devices: int = 2, **how: Any) -> Setup:
    """A policy over these tiers."""
    of = division(found)
    placed = {"placement": UShape(division=of) if name == "hat" else Tiers(of), "dispatch": HypSched()}
    override = ROWS[name] | placed | how.pop("override", {})
    base = "cloud_centric" if name == "hyperion" else name
    how = {"network": NETWORK, "pair": pair(cloud="llama2_7b")} | how
    return setup(base, Testbed(device=DEVICE, tiers=found), devices, override=override, **how)


@dataclass(frozen=True)
class Doomed(Cast):
    """A cast whose nodes fail as written."""

    down: Mapping[str, Sequence[Window]] = field(default_factory=dict)

    def failures(self, node: str) -> Iterator[Window]:
        return iter(self.down.get(node, ()))


class Stage(Simulator):
    """Remembers who plays."""

    def __init__(self, observers: Sequence[Any]) -> None:
        super().__init__(observers)
        self.nodes: dict[str, Node] = {}
        self.chips: dict[str, Chip] = {}

    def add(self, name: str, node: Node, chip: Chip) -> None:
        super().add(name, node, chip)
        self.nodes[name], self.chips[name] = node, chip


class Play:
    """A setup on virtual time, as runtime `emulated` plays it, whose nodes can be looked at."""

    def __init__(
        self, made: Setup, asked: Sequence[Query], down: Mapping[str, Sequence[Window]] | None = None,
        alpha: float = 0.7, timeout_s: float = float("inf"), log: Log | None = None,
    ) -> None:  # fmt: skip
        self.cast = Doomed(made, LAYERS, timeout_s, down=down or {})
        self.asked, self.log = asked, log or Log()
        self.stage = Stage([self.log])
        self.users = Users(asked, self.cast.devices)
        blobs: dict[str, Any] = {}

        def engine() -> FakeEngine:
            return FakeEngine(FakePair(alpha, blobs=blobs))

        models = Models(engine(), LAYERS, engine(), LAYERS, Words(), engine(), another=engine)  # type: ignore[arg-type]
        chips = Chips(self.cast, models, asked)
        self.failures = Failures(self.cast, self.stage, chips, lambda: self.users.over)
        populate(self.stage, self.cast, chips, (*self.cast.workers, *self.cast.devices))
        connect(self.stage, self.cast)
        self.stage.on_end(partial(self.users.hear, post=self.stage.post))
        self.users.ask(self.stage.post)
        self.failures.begin()

    def run(self, until: float = 5000.0) -> "Play":
        self.stage.run(until)
        return self

    @property
    def workers(self) -> dict[str, Worker]:
        return {name: node for name, node in self.stage.nodes.items() if isinstance(node, Worker)}

    @property
    def devices(self) -> dict[str, Device]:
        return {name: node for name, node in self.stage.nodes.items() if isinstance(node, Device)}

    def pair_of(self, name: str) -> FakePair:
        """The models of a node of a tier."""
        return self.stage.chips[name].executor._engine.pair  # type: ignore[attr-defined, no-any-return]

    def text(self, session: str) -> tuple[int, ...]:
        return tuple(t for d in self.log.commands(Deliver) if d.session == session for t in d.tokens)

    def endings(self) -> dict[str, str]:
        return {d.session: d.ending for d in self.log.commands(Deliver) if d.ending}


def queries(n: int, devices: int = 2, limit: int = 12, every_s: float | None = None, prompt: int = 12,
            sampling: Sampling | None = None) -> list[Query]:  # fmt: skip
    """Open arrivals one after the other, or a closed loop on each device."""
    made = Questions().prompts()
    return [
        Query(
            Call(f"s{i}", tuple((i * 104729 + k * 31) % 997 for k in range(prompt)), limit, sampling=sampling),
            made[i % len(made)], i % devices, None if every_s is None else i * every_s, 0.0, None,
        )
        for i in range(n)
    ]  # fmt: skip


def is_answered(play: Play) -> None:
    """Nothing is lost, and every text is the target's own."""
    assert play.endings() == {q.call.session: "complete" for q in play.asked}
    for query in play.asked:
        assert play.text(query.call.session) == own_text(query.call.prompt, query.call.limit)


def nothing_left(play: Play) -> None:
    heres = [device.here for device in play.devices.values() if device.here]
    for worker in (*play.workers.values(), *heres):
        assert not worker.queue, worker.name
        assert not worker.running, worker.name
        assert not worker.held, worker.name
        assert not worker.sent, worker.name
        assert not worker.unsent, worker.name
        assert not worker.ledger.lengths, worker.name
        assert not worker.ledger.used, worker.name
        assert not len(worker.commitments), worker.name
    for name in play.workers:
        assert not play.pair_of(name).caches, name


def longer(made: Setup, **limits: int) -> Setup:
    return replace(made, workload=replace(made.workload, **limits))
