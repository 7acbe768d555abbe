"""How many copies of a model a cluster serves at once: the packing factor in Synera's cloud cost.

Synera, section 6.1: "the number of concurrent models that can run on a GPU cluster without causing more than 10 %
latency degradation", Llama-2-70B being 1. It says nothing of the load, of what is held in memory or of how copies share
a chip; what is assumed here:

    memory   a copy holds its weights, the KV cache of one request and one forward of its rows
    placing  a copy is split evenly over 1, 2, ... chips, as many as divide cluster and heads; whichever packs most
    load     every copy is asked the same, at random times that know nothing of each other
    latency  copies on the same chips take turns as in processor sharing: where the others keep the chips busy for a
             share b of the time, what takes t there lasts t / (1 - b); the host's launch overhead is not shared
"""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.hardware.latency import Latency, Load, load

REPORTED = {
    "llama2_70b": 1.0, "llama2_13b": 6.0, "llama2_7b": 13.0, "tinyllama_1_1b": 86.0, "llama_160m": 558.0, "yi_34b": 2.0,
    "yi_6b": 15.0, "falcon_40b": 2.0, "falcon_7b": 13.0,
}  # fmt: skip
"""Synera, Table 3, on 8 RTX A6000."""

Figure = Literal["reported", "derived"]


@dataclass(frozen=True)
class Demand:
    """What one copy is asked for: a request every `every_s` seconds on average."""

    prompt_tokens: int = 960
    new_tokens: int = 64
    every_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"packing.demand: {name}={getattr(self, name)} must be at least 1.")
        if self.every_s <= 0:
            raise ValueError(f"packing.demand: every_s={self.every_s} must be more than 0 seconds.")

    @property
    def tokens(self) -> int:
        """The context that a request ends with."""
        return self.prompt_tokens + self.new_tokens

    def seconds(self, latency: Latency) -> float:
        """Of one request by itself: its prefill, which writes a token, and a decode for each other token."""
        n, cached = self.new_tokens - 1, self.prompt_tokens + (self.new_tokens - 2) / 2
        prefill = load(latency.layers, [(0, self.prompt_tokens)], 1.0)
        decodes = Load(latency.layers, n, n * (cached + 1), n * cached, n, n)
        return latency.seconds(prefill) + latency.seconds(decodes)


@dataclass(frozen=True)
class Packed:
    """`copies` on the whole cluster, each on `chips` chips; `bound` says what kept it from more."""

    copies: int
    chips: int
    bound: Literal["memory", "latency"]


@dataclass(frozen=True)
class Factor:
    """How many such models cost what one reference model costs, and where the figure comes from."""

    value: float
    source: str


def reported(architecture: Architecture) -> Factor | None:
    """What the paper says, if it says anything of this model."""
    value = REPORTED.get(architecture.name)
    return None if value is None else Factor(value, "Synera, Table 3")


@dataclass(frozen=True)
class Packing:
    """Packing factors on `cluster`, normalised by `reference`.

    `figure` reported takes what Synera's Table 3 lists and derives the rest; derived derives all. Raises ValueError
    when the reference does not fit into the cluster, which then measures nothing.
    """

    cluster: Fleet
    reference: Architecture
    figure: Figure = "reported"
    demand: Demand = field(default_factory=Demand)
    slowdown: float = 0.10
    """By which a request may take longer than on a cluster of its own."""

    def __post_init__(self) -> None:
        if self.figure not in get_args(Figure):
            raise ValueError(f"packing.figure is {self.figure!r}; use one of {', '.join(get_args(Figure))}.")
        if self.slowdown <= 0:
            raise ValueError(f"packing.slowdown is {self.slowdown}; it must be more than 0, as 0.1 for 10 %.")
        if self.cluster.memory_nbytes is None:
            raise ValueError(
                f"packing.cluster: the memory of {self.cluster.chip.name} is not known; name another chip."
            )
        if self.cluster.timing != "roofline":
            raise ValueError(f"packing.cluster: timing={self.cluster.timing} times one chip only; set roofline.")
        if not self.packed(self.reference).copies:
            raise ValueError(
                f"packing: {self.reference.name} does not fit into {self._described}. Set more chips "
                "(packing.cluster.count) or a smaller packing.reference."
            )

    def factor(self, architecture: Architecture) -> Factor | None:
        """By `figure`; None where the model does not fit into the cluster."""
        if self.figure == "reported" and (found := reported(architecture)):
            return found
        packed = self.packed(architecture)
        value = packed.copies / self.packed(self.reference).copies
        source = f"derived: {packed.copies} copies on {self._described}, bound by {packed.bound}"
        return Factor(value, source) if packed.copies else None

    def packed(self, architecture: Architecture) -> Packed:
        """The placing that packs most; the one of fewer chips a copy on a tie."""
        sizes = [n for n in range(1, self.cluster.count + 1) if not (self.cluster.count % n or architecture.heads % n)]
        return max((self._packed(architecture, chips) for chips in sizes), key=lambda packed: packed.copies)

    def _packed(self, architecture: Architecture, chips: int) -> Packed:
        group = replace(self.cluster, tensor_parallel=chips)
        held, kept_pace = self._held(architecture, group), self._keeping_pace(architecture, group)
        copies = self.cluster.count // chips * min(held, kept_pace)
        return Packed(copies, chips, "memory" if held <= kept_pace else "latency")

    def _held(self, architecture: Architecture, group: Fleet) -> int:
        """Copies that fit into the memory of one group of chips."""
        tokens, precision = self.demand.tokens, group.precision
        copy = architecture.weights_nbytes(precision) + tokens * architecture.kv_nbytes_per_token(precision)
        copy += architecture.activation_nbytes(self.demand.prompt_tokens, precision)
        return int((group.memory_nbytes or 0.0) // copy)

    def _keeping_pace(self, architecture: Architecture, group: Fleet) -> int:
        """Copies in one group of chips that stay within the slowdown: see the module, latency."""
        alone_s = self.demand.seconds(group.latency(architecture))
        shared_s = alone_s - self.demand.new_tokens * group.chip.launch_overhead_s
        others = 1 - 1 / (1 + self.slowdown * alone_s / shared_s)
        return 1 + int(others // (shared_s / self.demand.every_s))

    @property
    def _described(self) -> str:
        return f"{self.cluster.count} {self.cluster.chip.name} in {self.cluster.precision}"
