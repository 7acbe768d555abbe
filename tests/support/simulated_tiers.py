"""Tiers of nodes on virtual time, with the fake pair as models: each node has its own caches and may fail."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from serving.deployment.queries import LoadedModels, Query
from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.deployment.wiring import ChipFactory, add_nodes
from serving.deployment.wiring import connect_nodes as connect
from serving.drivers.simulator import ComputeResource, Simulator
from serving.hardware.testbed import Testbed, Tier
from serving.messages import EmitTokens, GenerationRequest, Node, SamplingParams
from serving.network.channel import LinkDirection, LinkTable
from serving.network.outages import OutageInterval
from serving.nodes.device import Device
from serving.nodes.worker import Worker
from serving.policy.partition.baselines import GPipeSplit
from serving.policy.partition.division import ModelPartition
from serving.policy.slots.dispatch import HypSched
from serving.policy.slots.draft import NoDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.offload import FullOffload
from serving.policy.slots.payload import HiddenStatePayload
from serving.policy.slots.placement import TieredPlacement, UShapedPlacement
from serving.policy.slots.scheduler import Fifo
from serving.runtimes.clients import WorkloadClients
from serving.runtimes.failures import NodeFailureInjector
from tests.support.conf_files import architecture, fleet, link
from tests.support.fake_pair import LAYERS, FakePair, own_text
from tests.support.fake_setup import FakeEngine, Questions, Words, pair, setup
from tests.support.simulated_nodes import Log

CHIPS = {
    "nano": "jetson_orin_nano_8gb_super", "nx": "jetson_orin_nx_16gb", "agx": "jetson_agx_orin_32gb",
    "top": "jetson_agx_orin_64gb",
}  # fmt: skip
NETWORK = link("lan_1gbps")
DEVICE = fleet("jetson_agx_orin_32gb")

TIERED_POLICIES: dict[str, dict[str, Any]] = {
    "hyperion": {"draft": NoDraft(), "offload": FullOffload(), "scheduler": Fifo()},
    "sled": {"kv_cache": PrefixCaching()},
    "synera": {},
    "hat": {"payload": HiddenStatePayload()},
}
"""Slot choices of policies whose large model runs in tiers and writes the text or verifies drafts."""


def tiers(*nodes: int, **how: Any) -> dict[str, Tier]:
    """Tiers with these numbers of nodes."""
    how = {"detect_ms": 50.0} | how
    return {name: Tier(fleet(chip, count=n), **how) for n, (name, chip) in zip(nodes, CHIPS.items(), strict=False)}


def division(found: Mapping[str, Tier], **how: Any) -> ModelPartition:
    given = {
        "strategy": GPipeSplit(), "architecture": architecture("llama2_7b"), "tiers": found, "network": NETWORK,
        "prompt_tokens": 16, "new_tokens": 24,
    }  # fmt: skip
    return ModelPartition(**(given | how))


def tiered_setup(found: Mapping[str, Tier], name: str = "hyperion", devices: int = 2, **how: Any) -> Setup:
    """A setup of a policy over these tiers."""
    of = division(found)
    placed = {
        "placement": UShapedPlacement(partition=of) if name == "hat" else TieredPlacement(of),
        "dispatch": HypSched(),
    }
    override = TIERED_POLICIES[name] | placed | how.pop("override", {})
    base = "cloud_centric" if name == "hyperion" else name
    how = {"network": NETWORK, "pair": pair(cloud="llama2_7b")} | how
    return setup(base, Testbed(device=DEVICE, tiers=found), devices, override=override, **how)


@dataclass(frozen=True)
class FailingTopology(Topology):
    """A topology whose nodes fail at the given times."""

    outages: Mapping[str, Sequence[OutageInterval]] = field(default_factory=dict)

    def node_outages(self, node: str) -> Iterator[OutageInterval]:
        return iter(self.outages.get(node, ()))


class RecordingSimulator:
    """A simulator that keeps its nodes and chips by name; not a subclass, which a compiled simulator cannot have."""

    def __init__(self, observers: Sequence[Any]) -> None:
        self._simulator = Simulator(observers)
        self.nodes: dict[str, Node] = {}
        self.chips: dict[str, ComputeResource] = {}
        self.links = LinkTable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

    def add(self, name: str, node: Node, chip: ComputeResource) -> None:
        self._simulator.add(name, node, chip)
        self.nodes[name], self.chips[name] = node, chip

    def connect(self, sender: str, receiver: str, link: LinkDirection) -> None:
        self._simulator.connect(sender, receiver, link)
        self.links.connect(sender, receiver, link)

    def connect_access(self, name: str, outgoing: LinkDirection, incoming: LinkDirection) -> None:
        self._simulator.connect_access(name, outgoing, incoming)
        self.links.connect_access(name, outgoing, incoming)


class TieredRun:
    """A run of a setup on virtual time, as in runtime `emulated`, whose nodes can be inspected."""

    def __init__(
        self, base: Setup, queries: Sequence[Query], outages: Mapping[str, Sequence[OutageInterval]] | None = None,
        alpha: float = 0.7, timeout_s: float = float("inf"), log: Log | None = None,
    ) -> None:  # fmt: skip
        self.topology = FailingTopology(base, LAYERS, timeout_s, outages=outages or {})
        self.queries, self.log = queries, log or Log()
        self.simulator = RecordingSimulator([self.log])
        self.users = WorkloadClients(queries, self.topology.devices)
        hidden_states: dict[str, Any] = {}

        def engine() -> FakeEngine:
            return FakeEngine(FakePair(alpha, hidden_states=hidden_states))

        models = LoadedModels(engine(), LAYERS, engine(), LAYERS, Words(), engine(), new_cloud_engine=engine)  # type: ignore[arg-type]
        chips = ChipFactory(self.topology, models, queries)
        self.failures = NodeFailureInjector(self.topology, self.simulator, chips, lambda: self.users.all_ended)
        add_nodes(self.simulator, self.topology, chips, (*self.topology.workers, *self.topology.devices))
        connect(self.simulator, self.topology)
        self.simulator.on_session_end(partial(self.users.on_session_end, post=self.simulator.post))
        self.users.start(self.simulator.post)
        self.failures.start()

    def run(self, until: float = 5000.0) -> "TieredRun":
        self.simulator.run(until)
        return self

    @property
    def workers(self) -> dict[str, Worker]:
        return {name: node for name, node in self.simulator.nodes.items() if isinstance(node, Worker)}

    @property
    def devices(self) -> dict[str, Device]:
        return {name: node for name, node in self.simulator.nodes.items() if isinstance(node, Device)}

    def pair_of(self, name: str) -> FakePair:
        """The models of a node of a tier."""
        return self.simulator.chips[name].executor._engine.pair  # type: ignore[attr-defined, no-any-return]

    def text(self, session: str) -> tuple[int, ...]:
        return tuple(t for d in self.log.commands(EmitTokens) if d.session == session for t in d.tokens)

    def endings(self) -> dict[str, str]:
        return {d.session: d.ending for d in self.log.commands(EmitTokens) if d.ending}


def queries(
    n: int,
    devices: int = 2,
    limit: int = 12,
    every_s: float | None = None,
    prompt: int = 12,
    sampling: SamplingParams | None = None,
) -> list[Query]:
    """Queries of open arrivals every `every_s` seconds, or of a closed loop on each device."""
    prompts = Questions().prompts()
    return [
        Query(
            GenerationRequest(
                f"s{i}", tuple((i * 104729 + k * 31) % 997 for k in range(prompt)), limit, sampling=sampling
            ),
            prompts[i % len(prompts)],
            i % devices,
            None if every_s is None else i * every_s,
            0.0,
            None,
        )
        for i in range(n)
    ]


def assert_all_answered(tiered: TieredRun) -> None:
    """Every request is complete, and every text is the target's."""
    assert tiered.endings() == {q.request.session: "complete" for q in tiered.queries}
    for query in tiered.queries:
        assert tiered.text(query.request.session) == own_text(query.request.prompt, query.request.max_new_tokens)


def assert_no_state_left(tiered: TieredRun) -> None:
    local_workers = [device.local_worker for device in tiered.devices.values() if device.local_worker]
    for worker in (*tiered.workers.values(), *local_workers):
        assert not worker.queue, worker.name
        assert not worker.running, worker.name
        assert not worker.retained_requests, worker.name
        assert not worker.forwarded, worker.name
        assert not worker.undeliverable, worker.name
        assert not worker.kv_accounting.cached_lens, worker.name
        assert not worker.kv_accounting.used_tokens, worker.name
        assert not len(worker.reservations), worker.name
    for name in tiered.workers:
        assert not tiered.pair_of(name).caches, name


def longer(base: Setup, **limits: int) -> Setup:
    return replace(base, workload=replace(base.workload, **limits))
