"""Replicas of a model that a cluster serves at once: the packing factor in Synera's cloud cost.

Synera, section 6.1: "the number of concurrent models that can run on a GPU cluster without causing more than 10 %
latency degradation", with Llama-2-70B as 1. The paper does not state load, memory contents or how replicas share a
chip. Assumptions here:

    memory     a replica holds its weights, the KV cache of one request and one forward of its prompt
    placement  a replica is split evenly over 1, 2, ... chips that divide cluster and heads; the best is taken
    load       all replicas have the same demand, at independent random times
    latency    replicas on the same chips share them as in processor sharing: if the others keep the chips busy for a
               share b of the time, work of t seconds takes t / (1 - b); the process's own overhead is not shared
"""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.hardware.latency import ForwardLoad, LatencyModel, batch_load
from serving.hardware.roofline import RooflineLatency

REPORTED_FACTORS = {
    "llama2_70b": 1.0, "llama2_13b": 6.0, "llama2_7b": 13.0, "tinyllama_1_1b": 86.0, "llama_160m": 558.0, "yi_34b": 2.0,
    "yi_6b": 15.0, "falcon_40b": 2.0, "falcon_7b": 13.0,
}  # fmt: skip
"""Synera, Table 3, on 8 RTX A6000."""

FactorSource = Literal["reported", "derived"]


@dataclass(frozen=True)
class ReplicaDemand:
    """The demand on one replica: on average a request every `request_interval_s` seconds."""

    prompt_tokens: int = 960
    new_tokens: int = 64
    request_interval_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"packing.demand: {name}={getattr(self, name)} must be at least 1.")
        if self.request_interval_s <= 0:
            raise ValueError(f"packing.demand: request_interval_s={self.request_interval_s} must be above 0 seconds.")

    @property
    def tokens(self) -> int:
        """Context length at the end of a request."""
        return self.prompt_tokens + self.new_tokens

    def seconds(self, latency: LatencyModel) -> float:
        """Seconds of a single request: a prefill, which yields one token, and a decode for each further token."""
        n, cached = self.new_tokens - 1, self.prompt_tokens + (self.new_tokens - 2) / 2
        prefill = batch_load(latency.layers, [(0, self.prompt_tokens)], 1.0)
        decodes = ForwardLoad(latency.layers, n, n * (cached + 1), n * cached, n, n)
        return latency.seconds(prefill) + latency.seconds(decodes)


@dataclass(frozen=True)
class PackedReplicas:
    """Replicas on the whole cluster."""

    num_replicas: int
    chips_per_replica: int
    limited_by: Literal["memory", "latency"]


@dataclass(frozen=True)
class PackingEstimate:
    """Number of such models that cost as much as one reference model."""

    value: float
    source: str


def reported_factor(architecture: Architecture) -> PackingEstimate | None:
    """The paper's factor, None if it lists none for this model."""
    value = REPORTED_FACTORS.get(architecture.name)
    return None if value is None else PackingEstimate(value, "Synera, Table 3")


@dataclass(frozen=True)
class ReplicaPacking:
    """Packing factors on `cluster`, normalised by `reference`.

    `factor_source` reported: Synera's Table 3, and derived for other models; derived: all are derived. Raises
    ValueError if the reference does not fit into the cluster.
    """

    cluster: Fleet
    reference: Architecture
    factor_source: FactorSource = "reported"
    demand: ReplicaDemand = field(default_factory=ReplicaDemand)
    max_slowdown: float = 0.10
    """Share by which a request may take longer than on an unshared cluster."""

    def __post_init__(self) -> None:
        if self.factor_source not in get_args(FactorSource):
            raise ValueError(
                f"packing.factor_source is {self.factor_source!r}; use one of {', '.join(get_args(FactorSource))}."
            )
        if self.max_slowdown <= 0:
            raise ValueError(
                f"packing.max_slowdown is {self.max_slowdown}; it must be above 0, for example 0.1 for 10 %."
            )
        if self.cluster.memory_nbytes is None:
            raise ValueError(
                f"packing.cluster: the memory of {self.cluster.chip.name} is not known; name another chip."
            )
        if self.cluster.timing != "roofline":
            raise ValueError(f"packing.cluster: timing={self.cluster.timing} times one chip only; set roofline.")
        if self.cluster.tensor_parallel != 1:
            raise ValueError(
                f"packing.cluster: tensor_parallel={self.cluster.tensor_parallel}, but count is the number of chips, "
                "and over how many of them a replica is split is chosen; set tensor_parallel=1."
            )
        if not self.best_packing(self.reference).num_replicas:
            raise ValueError(
                f"packing: {self.reference.name} does not fit into {self._cluster_text}. Set more chips "
                "(packing.cluster.count) or a smaller packing.reference."
            )

    def factor(self, architecture: Architecture) -> PackingEstimate | None:
        """The factor by `factor_source`; None if the model does not fit into the cluster."""
        if self.factor_source == "reported" and (found := reported_factor(architecture)):
            return found
        packed = self.best_packing(architecture)
        value = packed.num_replicas / self.best_packing(self.reference).num_replicas
        source = f"derived: {packed.num_replicas} replicas on {self._cluster_text}, bound by {packed.limited_by}"
        return PackingEstimate(value, source) if packed.num_replicas else None

    def best_packing(self, architecture: Architecture) -> PackedReplicas:
        """The packing with most replicas; on a tie, with fewer chips per replica."""
        sizes = [n for n in range(1, self.cluster.count + 1) if not (self.cluster.count % n or architecture.heads % n)]
        return max((self._packing_on(architecture, chips) for chips in sizes), key=lambda packed: packed.num_replicas)

    def _packing_on(self, architecture: Architecture, chips_per_replica: int) -> PackedReplicas:
        group = replace(self.cluster, tensor_parallel=chips_per_replica)
        by_memory, by_latency = (
            self._replicas_in_memory(architecture, group),
            self._replicas_in_time(architecture, group),
        )
        replicas = self.cluster.count // chips_per_replica * min(by_memory, by_latency)
        return PackedReplicas(replicas, chips_per_replica, "memory" if by_memory <= by_latency else "latency")

    def _replicas_in_memory(self, architecture: Architecture, group: Fleet) -> int:
        """Replicas that fit into the memory of one group of chips."""
        tokens, precision = self.demand.tokens, group.precision
        replica = architecture.weights_nbytes(precision) + tokens * architecture.kv_nbytes_per_token(precision)
        replica += architecture.activation_nbytes(self.demand.prompt_tokens, precision)
        return int((group.memory_nbytes or 0.0) // replica)

    def _replicas_in_time(self, architecture: Architecture, group: Fleet) -> int:
        """Replicas on one group of chips that stay within `max_slowdown`; see latency in the module docstring."""
        latency = group.latency(architecture)
        alone_s = self.demand.seconds(latency)
        assert isinstance(latency, RooflineLatency)  # other timings are refused
        overhead_s = latency.forward_s + latency.layers * latency.layer_s
        shared_s = alone_s - self.demand.new_tokens * overhead_s
        others = 1 - 1 / (1 + self.max_slowdown * alone_s / shared_s)
        return 1 + int(others // (shared_s / self.demand.request_interval_s))

    @property
    def _cluster_text(self) -> str:
        return f"{self.cluster.count} {self.cluster.chip.name} in {self.cluster.precision}"
