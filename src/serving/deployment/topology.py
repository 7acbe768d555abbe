"""The nodes of a run: names, creation, links, latencies; the same for every runtime and for a replay."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from serving.core.keyed_random import key
from serving.deployment.setup import Setup
from serving.hardware.architecture import Architecture
from serving.hardware.estimator import Estimator
from serving.hardware.fleet import Fleet, fits_memory
from serving.hardware.latency import LatencyModel, LayerScale, layer_scale
from serving.hardware.payload_size import hidden_nbytes
from serving.hardware.testbed import Tier, cache_tokens
from serving.hardware.timed_executor import ModelSplit
from serving.messages import INF, Hop, LoadReport, Node, Span
from serving.network.channel import Channel
from serving.network.link import Link
from serving.network.outages import OutageInterval
from serving.nodes.device import MAX_IDLE_SESSIONS, Device, LocalTarget, device_names
from serving.nodes.hop_path import TierNodes
from serving.nodes.round_timing import ChipProfile
from serving.nodes.speculator import Speculator
from serving.nodes.worker import Worker
from serving.policy.slots.placement import DEVICE_TIER

if TYPE_CHECKING:
    from serving.deployment.queries import Query
    from serving.engines.tokenizer import Tokenizer


@dataclass(frozen=True)
class Topology:
    """The nodes and links of a setup whose large model has `layers` layers where it runs."""

    setup: Setup
    layers: int
    timeout_s: float = INF
    """How long a device waits for an answer before it sends the request again; lossless links need none."""
    session_lease_s: float = 30.0
    """How long the cloud keeps the caches of a lost device."""
    tokenizer: "Tokenizer | None" = None
    """None: the pair's, which is loaded for the first request with stop strings."""
    max_idle_sessions: int = MAX_IDLE_SESSIONS
    """How many ended sessions of a device keep their caches."""

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return device_names(self.setup.num_devices)

    @cached_property
    def workers(self) -> tuple[str, ...]:
        return tuple(name for names in self.tiers.values() for name in names)

    @cached_property
    def tiers(self) -> TierNodes:
        """The nodes of each tier of the cloud, in the order of a request's hops."""
        names = dict.fromkeys(hop.node for hop in self.hops if hop.node != DEVICE_TIER)
        return {name: tuple(f"{name}-{i}" for i in self._nodes_with_memory(name)) for name in names}

    def _nodes_with_memory(self, tier: str) -> list[int]:
        """The indices of a tier's nodes with enough memory for their part of the model and a request. A split goes by
        the node with the most memory (Hyperion, Eq. 5); nodes with too little memory are left out.
        """
        tokens, each = self.setup.allocated_tokens, enumerate(self.tier(tier).node_fleets)
        held = self._models_on_chips(tier)
        return [i for i, fleet in each if all(fits_memory(fleet, model, 1, tokens, beside) for model, beside in held)]

    def _models_on_chips(self, tier: str) -> list[tuple[Architecture, Architecture | None]]:
        """As `Setup.models_on_chips`, of all parts that a tier's node runs."""
        parts = [self.setup.hop_architecture(hop) for hop in self.setup.hops if hop.node == tier]
        return [models for part in parts for models in self.setup.models_on_chips(part)]

    def tier(self, name: str) -> Tier:
        tier = self.setup.hardware.tier(name)
        assert tier, f"{name} was checked"
        return tier

    @cached_property
    def cloud_processes(self) -> tuple[tuple[str, ...], ...]:
        """The nodes of each process of the cloud: one per node if the testbed names tiers, else one per pipeline."""
        if self.setup.hardware.tiers:
            return tuple((name,) for name in self.workers)
        return tuple(zip(*self.tiers.values(), strict=True))

    @cached_property
    def tier_of(self) -> dict[str, str]:
        """The tier of each node of the cloud."""
        return {node: tier for tier, names in self.tiers.items() for node in names}

    def node_outages(self, node: str) -> Iterator[OutageInterval]:
        """(down, up) times of a node of the cloud."""
        tier = self.tier_of[node]
        return self.tier(tier).outage_intervals(_node_index(node), self.link_stream(node))

    def downstream_nodes(self, node: str) -> tuple[str, ...]:
        """The nodes of later tiers, which run in other processes and connect to `node`."""
        if not self.setup.hardware.tiers:
            return ()
        names = list(self.tiers)
        after = names[names.index(self.tier_of[node]) + 1 :]
        return tuple(other for other in self.workers if self.tier_of[other] in after)

    def upstream_nodes(self, node: str) -> tuple[str, ...]:
        """The nodes of earlier tiers, to which `node` connects."""
        return tuple(other for other in self.workers if node in self.downstream_nodes(other))

    @cached_property
    def cloud_fleets(self) -> dict[str, Fleet]:
        """The fleet of each node of the cloud."""
        return {name: self.tier(tier).node_fleets[_node_index(name)] for name, tier in self.tier_of.items()}

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        return self.setup.policy.placement.hops(self.layers, self.setup.pair.cloud.timed_architecture.layers)

    @cached_property
    def scale(self) -> LayerScale:
        """Maps the large model's layers to those of the timed architecture."""
        depth = self.setup.pair.cloud.timed_architecture.layers
        there = self.setup.policy.placement.hops(depth, depth)
        return layer_scale(self.hops, there, self.layers, depth)

    @cached_property
    def split(self) -> ModelSplit:
        """How the placement divides the large model."""
        policy, timing = self.setup.policy, self.setup.pair.cloud.timed_architecture
        medusa = policy.draft.medusa
        heads = medusa.num_heads * (1 + timing.hidden_size / timing.vocab_size) if medusa else 0.0
        return ModelSplit(self.scale, policy.payload.hidden_dtype, heads)

    @property
    def device_runs_target(self) -> bool:
        """True if a part of the large model runs on devices."""
        return any(hop.node == DEVICE_TIER for hop in self.hops)

    @cached_property
    def device_fleets(self) -> dict[str, Fleet]:
        """The fleet of each device."""
        return dict(zip(self.devices, self.setup.hardware.assign_fleets(len(self.devices)), strict=True))

    @property
    def digest(self) -> str:
        """A digest of what both ends must agree on: policy, decoding, layers of the model and where they run.

        No file's path is in it, since the ends may keep their files in different folders. What a placement reads from
        files (profiles of chips, recordings of links) counts by the hops that follow from it.
        """
        text = f"{self.setup.policy!r} {self.setup.decoding!r} {self.layers} {self.hops!r}"
        return sha256(text.encode()).hexdigest()[:16]

    def create_node(self, name: str) -> Node:
        """A new node, as at the start of a run or after a restart of its host."""
        policy = self.setup.policy
        if name not in self.device_fleets:
            return self._create_speculator(name) if policy.is_colocated else self._create_worker(name)
        width, hidden_dtype = self.setup.pair.cloud.timed_architecture.hidden_size, policy.payload.hidden_dtype
        return Device(
            name,
            policy.on_device,
            self.hops,
            self.tiers,
            self.setup.seed,
            self.timeout_s,
            self.setup.workload.max_concurrency,
            hidden_nbytes(1, width, hidden_dtype),
            self._token_text,
            max_idle_sessions=self.max_idle_sessions,
            idle_reports=self.idle_reports,
        )

    def _create_speculator(self, name: str) -> Speculator:
        (hop,), policy = self.hops, self.setup.policy
        target = LocalTarget(
            policy.scheduler, self._cache_tokens(name), self.estimator(name),
            "apart" if policy.drafts_apart else "first", self._chip_profile(name),
        )  # fmt: skip
        return Speculator(
            name, policy, hop.span, self.setup.seed, target, self.session_lease_s, token_text=self._token_text
        )

    def _chip_profile(self, name: str) -> ChipProfile | None:
        """What the target and the draft model take on a cloud node's chip; None if no draft model runs there."""
        drafter, scheduler = self.setup.cloud_drafter, self.setup.policy.scheduler
        if drafter is None:
            return None
        most, chunk = getattr(scheduler, "max_num_seqs", INF), getattr(scheduler, "chunk_tokens", None)
        return ChipProfile(self.cloud_latency(name), self.cloud_fleets[name].latency(drafter), most, chunk or INF)

    def _create_worker(self, name: str) -> Worker:
        return Worker(
            name,
            self.setup.policy,
            self.tiers,
            self._load_report_receivers(name),
            self._cache_tokens(name),
            self.session_lease_s,
            self.estimator(name),
            token_text=self._token_text,
            idle_reports=self.idle_reports,
        )

    def _token_text(self, token: int) -> str:
        return (self.tokenizer or self._pair_tokenizer).token_text(token)

    @cached_property
    def _pair_tokenizer(self) -> "Tokenizer":
        from serving.deployment.model_loading import load_tokenizer

        return load_tokenizer(self.setup.models.device, self.setup.models.cloud)[0]

    def _load_report_receivers(self, node: str) -> tuple[str, ...]:
        """The nodes that choose between this node and its peers: those of the tier before, or the devices."""
        tiers = list(self.tiers)
        at = tiers.index(self.tier_of[node])
        if not self.setup.policy.dispatch.needs_load_reports or len(self.tiers[tiers[at]]) == 1:
            return ()
        return self.tiers[tiers[at - 1]] if at else self.devices

    @cached_property
    def idle_reports(self) -> dict[str, LoadReport]:
        """What each node of the cloud reports while it has no work; empty if the dispatch slot asks for no reports."""
        if not self.setup.policy.dispatch.needs_load_reports:
            return {}
        spans = {hop.node: hop.span for hop in reversed(self.hops)}
        return {node: self._idle_report(node, spans[tier]) for node, tier in self.tier_of.items()}

    def _idle_report(self, node: str, span: Span) -> LoadReport:
        estimator = self.estimator(node)
        return LoadReport(node, 0.0, estimator.per_token_s(span), estimator.pass_s(span), self._cache_tokens(node))

    def _cache_tokens(self, node: str) -> float:
        """Cached tokens that fit into the node's memory beside its weights, or fewer if the policy keeps fewer."""
        fleet, most = self.cloud_fleets[node], self.setup.policy.kv_cache.capacity_tokens
        fit = min(cache_tokens(fleet, *models) for models in self._models_on_chips(self.tier_of[node]))
        return fit if most is None else min(fit, most)

    def device_link(self, device: str) -> Link:
        """A device's access link, shared by its messages to all cloud nodes."""
        return self.device_fleets[device].network or self._access_link

    @cached_property
    def _access_link(self) -> Link:
        return self.setup.access_link

    def tier_link(self, tier: str) -> Link:
        """The link between a tier and the one before it, or the devices."""
        found = self.setup.hardware.tier(tier)
        return (found and found.link) or self.setup.network

    def intermediate_links(self, tier: str) -> tuple[Link, ...]:
        """The links between the first tier and `tier`, without outages."""
        names = list(self.setup.hardware.tiers)
        between = names[1 : names.index(tier) + 1] if tier in names else []
        return tuple(replace(self.tier_link(name), outages=None) for name in between)

    def link_stream(self, device: str) -> int:
        """The random stream of a device's link."""
        return key(self.setup.seed, f"{device} link")

    def channels(self, device: str) -> tuple[Channel, Channel]:
        """New channels of a device's link, up and down."""
        link, stream = self.device_link(device), self.link_stream(device)
        return link.channel("up", stream), link.channel("down", stream)

    def estimator(self, node: str) -> Estimator:
        """The estimator of a cloud node's batch times, for its scheduler."""
        return Estimator.of(self.cloud_latency(node), self.scale)

    def cloud_latency(self, node: str) -> LatencyModel:
        fleet = self.cloud_fleets[node]
        return self._latency(fleet, self.setup.pair.cloud.timed_architecture, fleet.mode_name)

    def device_latency(
        self, device: str, queries: "Sequence[Query]", architecture: Architecture
    ) -> Callable[[str], LatencyModel]:
        """Maps each of a device's sessions to the latency model of its power mode; `setup` holds `architecture`."""
        fleet = self.device_fleets[device]
        usual = self._latency(fleet, architecture, fleet.mode_name)
        if not fleet.schedule:
            return lambda _: usual
        modes = self.power_modes(device, queries)
        found = {session: self._latency(fleet, architecture, mode) for session, mode in modes.items()}
        return lambda session: found.get(session, usual)

    def _latency(self, fleet: Fleet, architecture: Architecture, mode: str) -> LatencyModel:
        shared_by = (id(fleet), id(architecture), mode)
        if shared_by not in self._latencies:
            self._latencies[shared_by] = fleet.latency(architecture, mode)
        return self._latencies[shared_by]

    @cached_property
    def _latencies(self) -> dict[tuple[int, int, str], LatencyModel]:
        """What many devices share, by the identity of what `setup` holds."""
        return {}

    def power_modes(self, device: str, queries: "Sequence[Query]") -> dict[str, str]:
        """The power mode of each of a device's sessions, which are among `queries`."""
        fleet = self.device_fleets[device]
        stream = key(self.setup.seed, f"modes of {device}")
        own = (q for q in queries if self.devices[q.device] == device)
        return {q.request.session: fleet.mode_at(stream, position) for position, q in enumerate(own)}

    def queries_by_device(self, queries: "Sequence[Query]") -> "dict[str, list[Query]]":
        """The queries of each device, in their order."""
        found: dict[str, list[Query]] = {name: [] for name in self.devices}
        for query in queries:
            found[self.devices[query.device]].append(query)
        return found


def _node_index(node: str) -> int:
    """The index of a node in its tier."""
    return int(node.rpartition("-")[2])
