"""How a model's blocks are divided over a testbed's tiers: what they cost there, and by which strategy."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.hardware.latency import Load
from serving.hardware.payload_size import Number, hidden_nbytes
from serving.hardware.tier import Tier
from serving.network.link import Link
from serving.policy.partition.costs import Costs, costs
from serving.policy.partition.problem import Ends, Problem, Split

Capacity: TypeAlias = Literal["flops", "dense", "bandwidth", "profiled"]


@dataclass(frozen=True)
class Division:
    """Of requests with `prompt_tokens` in and `new_tokens` out, `sessions` of which a node holds at once.

    Raises ValueError for a testbed without tiers, for chips that do not tell the figure that `capacity` wants, and for
    what the strategy refuses: blocks that do not fit.
    """

    split: Split
    architecture: Architecture
    tiers: Mapping[str, Tier]
    network: Link
    """Between tiers that name no link of their own."""
    prompt_tokens: int
    new_tokens: int
    sessions: int = 1
    capacity: Capacity = "profiled"
    """What a tier's speed C_j is: `flops` by the TOPS on its box, as in Hyperion's Table I; `dense` by its dense FP16
    peak; `bandwidth` by how fast it reads weights, which is what decoding waits for; `profiled` by the coefficients
    that time it (fleet.timing).
    """
    ends: bool = True
    """Are the embedding and the head charged to the first and the last block? The paper counts blocks alone."""
    number: Number = "fp16"
    """In which hidden states cross links."""

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ValueError(
                "policy.placement divides a model over tiers, and this testbed has none; choose hardware=hyperion, or "
                "name hardware.tiers"
            )

    @cached_property
    def whole(self) -> Ends:
        """Of the whole model."""
        return self.split.divide(self.problem())

    def inner(self, first: int) -> Ends:
        """Of all blocks from `first` on, where embedding, the blocks before them and the head are elsewhere."""
        return self.split.divide(self.problem(first, ends=False))

    def problem(self, first: int = 0, ends: bool | None = None) -> Problem:
        """The instance that the strategy solves; seconds are those of one request."""
        best = {name: max(tier.fleets, key=self._speed) for name, tier in self.tiers.items()}
        held = [self._costs(tier.roomiest, ends) for tier in self.tiers.values()]
        return Problem(
            tiers=tuple(f"{name} ({tier.roomiest.chip.name})" for name, tier in self.tiers.items()),
            seconds=tuple(self._seconds(fleet, ends)[first:] for fleet in best.values()),
            nbytes=tuple(each.nbytes[first:] for each in held),
            memory_nbytes=tuple(
                float("inf") if nbytes is None else nbytes
                for nbytes in (tier.roomiest.memory_nbytes for tier in self.tiers.values())
            ),
            nodes=tuple(len(tier.each) for tier in self.tiers.values()),
            hidden_s=self._crossings(hidden_nbytes(1, self.architecture.hidden, self.number)),
            token_s=self._crossings(_TOKEN_NBYTES),
        )

    def _costs(self, fleet: Fleet, ends: bool | None) -> Costs:
        return costs(
            self.architecture, fleet.precision, self.prompt_tokens, self.new_tokens, self.sessions,
            self.ends if ends is None else ends,
        )  # fmt: skip

    def _speed(self, fleet: Fleet) -> float:
        return 1 / sum(self._seconds(fleet, ends=False))

    def _seconds(self, fleet: Fleet, ends: bool | None) -> tuple[float, ...]:
        """Each block's time of one request."""
        if self.capacity == "profiled":
            return self._profiled_s(fleet, self.ends if ends is None else ends)
        found = self._costs(fleet, ends)
        if self.capacity == "bandwidth":
            speed = _known(fleet, "memory_gbps", fleet.figures.memory_gbps) * 1e9 * fleet.tensor_parallel
            return tuple(
                self.new_tokens * nbytes / speed for nbytes in _read(found, self.ends if ends is None else ends)
            )
        name = "headline_tops" if self.capacity == "flops" else "fp16_tflops"
        given = fleet.figures.headline_tops or fleet.chip.headline_tops
        tera = _known(fleet, name, given if self.capacity == "flops" else fleet.figures.fp16_tflops)
        return tuple(flops / (tera * 1e12 * fleet.tensor_parallel) for flops in found.flops)

    def _profiled_s(self, fleet: Fleet, ends: bool) -> tuple[float, ...]:
        """By the latency's own terms: a prefill, and passes of one token behind what is cached.

        While a plan is made whose first stage is the profile nobody knows them: all blocks count alike.
        """
        if fleet.timing == "profile" and not isinstance(fleet.chip.profile, Path):
            return (1.0,) * self.architecture.layers
        latency, p, n = fleet.latency(self.architecture), self.prompt_tokens, self.new_tokens
        cached = sum(p + i for i in range(n - 1))
        passes = Load(1, p + n - 1, p * p + cached + n - 1, cached, 0, forwards=n)
        block_s = latency.in_all((passes,), 1, 1) - latency.wake_s
        head_s = latency.in_all((Load(0, 0, 0, 0, n, forwards=n),), 1, 1) - latency.wake_s
        blocks = [block_s] * self.architecture.layers
        blocks[-1] += head_s * ends
        return tuple(blocks)

    def _crossings(self, row_nbytes: float) -> tuple[float, ...]:
        """One request's time on each link between tiers, alone: its prompt, then a row for each further token."""
        links = [tier.link or self.network for tier in list(self.tiers.values())[1:]]
        return tuple(
            link.seconds(self.prompt_tokens * row_nbytes, "up") + (self.new_tokens - 1) * link.seconds(row_nbytes, "up")
            for link in links
        )

    def parts(self, ends: Ends) -> dict[str, tuple[int, int]]:
        """The blocks of each tier that has any: (first, last)."""
        windows = dict(zip(self.tiers, pairwise((0, *ends)), strict=True))
        return {name: window for name, window in windows.items() if window[0] < window[1]}


_TOKEN_NBYTES = 4


def _read(found: Costs, ends: bool) -> tuple[float, ...]:
    """Bytes that a pass reads of each block: of the embedding it reads one row."""
    weights = list(found.weights_nbytes)
    if ends and len(weights) > 1:
        weights[0] = weights[1]
    return tuple(weights)


def _known(fleet: Fleet, name: str, figure: float | None) -> float:
    if not figure:
        raise ValueError(
            f"policy.placement.division.capacity wants {name} of {fleet.chip.name} in mode {fleet.mode_name}, which "
            "nobody gave; choose another capacity, such as profiled"
        )
    return figure
