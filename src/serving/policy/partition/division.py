"""Builds the partition problem of a model on a testbed, and solves it with a strategy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from serving.hardware.architecture import Architecture
from serving.hardware.fleet import Fleet
from serving.hardware.latency import ForwardLoad
from serving.hardware.payload_size import HiddenDtype, hidden_nbytes
from serving.hardware.testbed import Tier
from serving.network.link import Link
from serving.policy.partition.costs import BlockCosts, block_costs
from serving.policy.partition.problem import PartitionProblem, PartitionStrategy, SplitPoints

CapacityMetric: TypeAlias = Literal["flops", "dense", "bandwidth", "profiled"]


@dataclass(frozen=True)
class ModelPartition:
    """Divides a model's blocks over tiers, for requests with `prompt_tokens` in and `new_tokens` out. A node holds
    `sessions` at once.

    Raises ValueError for a testbed without tiers, for a chip without the figure that `capacity` needs, and if no split
    fits into memory.
    """

    strategy: PartitionStrategy
    architecture: Architecture
    tiers: Mapping[str, Tier]
    network: Link
    """The link between tiers that have no link of their own."""
    prompt_tokens: int
    new_tokens: int
    sessions: int = 1
    capacity: CapacityMetric = "profiled"
    """A tier's speed C_j. flops: its advertised TOPS, as in Hyperion's Table I. dense: its dense FP16 peak. bandwidth:
    its memory bandwidth, which limits decoding. profiled: the coefficients that time it (fleet.timing).
    """
    include_embed_head: bool = True
    """True: charge embedding and LM head to the first and the last block. The paper counts blocks only."""
    hidden_dtype: HiddenDtype = "fp16"
    """Number format of hidden states on links."""

    @cached_property
    def split_points(self) -> SplitPoints:
        """The split of the whole model."""
        return self.strategy.solve(self.problem())

    def split_points_from(self, first_block: int) -> SplitPoints:
        """The split of the blocks from `first_block` on, without embedding and LM head."""
        return self.strategy.solve(self.problem(first_block, include_embed_head=False))

    @cached_property
    def printed_latency(self) -> dict[str, float]:
        """The latency of a request as Eq. 8 to 10a have it, by the tiers' own times and with embedding and head:
        `slowest_stage_s`, `communication_s`, and their sum, `printed_latency_s`.
        """
        problem = replace(self, capacity="profiled", include_embed_head=True).problem()
        stage_s, links_s = (
            problem.slowest_stage_s(self.split_points),
            problem.communication_s(self.split_points),
        )
        return {"slowest_stage_s": stage_s, "communication_s": links_s, "printed_latency_s": stage_s + links_s}

    def problem(self, first_block: int = 0, include_embed_head: bool | None = None) -> PartitionProblem:
        """The problem that the strategy solves, in seconds of one request (default: `self.include_embed_head`).

        Raises ValueError if the testbed has no tiers.
        """
        if not self.tiers:
            raise ValueError(
                "policy.placement divides a model over tiers, and this testbed has none; choose hardware=hyperion, or "
                "name hardware.tiers"
            )
        if include_embed_head is None:
            include_embed_head = self.include_embed_head
        best = {name: max(tier.fleets, key=self._requests_per_s) for name, tier in self.tiers.items()}
        held = [self._block_costs(tier.largest_memory_fleet, include_embed_head) for tier in self.tiers.values()]
        return PartitionProblem(
            tiers=tuple(f"{name} ({tier.largest_memory_fleet.chip.name})" for name, tier in self.tiers.items()),
            block_s=tuple(self._block_seconds(fleet, include_embed_head)[first_block:] for fleet in best.values()),
            block_nbytes=tuple(each.nbytes[first_block:] for each in held),
            memory_nbytes=tuple(
                float("inf") if nbytes is None else nbytes
                for nbytes in (tier.largest_memory_fleet.memory_nbytes for tier in self.tiers.values())
            ),
            node_counts=tuple(len(tier.node_fleets) for tier in self.tiers.values()),
            hidden_transfer_s=self._transfers_s(hidden_nbytes(1, self.architecture.hidden_size, self.hidden_dtype)),
            token_transfer_s=self._transfers_s(_TOKEN_NBYTES),
        )

    def _block_costs(self, fleet: Fleet, include_embed_head: bool) -> BlockCosts:
        return block_costs(
            self.architecture, fleet.precision, self.prompt_tokens, self.new_tokens, self.sessions,
            include_embed_head,
        )  # fmt: skip

    def _requests_per_s(self, fleet: Fleet) -> float:
        return 1 / sum(self._block_seconds(fleet, include_embed_head=False))

    def _block_seconds(self, fleet: Fleet, include_embed_head: bool) -> tuple[float, ...]:
        """Each block's time for one request."""
        if self.capacity == "profiled":
            return self._profiled_s(fleet, include_embed_head)
        found = self._block_costs(fleet, include_embed_head)
        if self.capacity == "bandwidth":
            speed = _required_figure(fleet, "memory_gbps", fleet.power_mode.memory_gbps) * 1e9 * fleet.tensor_parallel
            return tuple(self.new_tokens * nbytes / speed for nbytes in _read_nbytes(found, include_embed_head))
        name = "headline_tops" if self.capacity == "flops" else "fp16_tflops"
        given = fleet.power_mode.headline_tops or fleet.chip.headline_tops
        tera = _required_figure(fleet, name, given if self.capacity == "flops" else fleet.power_mode.fp16_tflops)
        return tuple(flops / (tera * 1e12 * fleet.tensor_parallel) for flops in found.flops)

    def _profiled_s(self, fleet: Fleet, include_embed_head: bool) -> tuple[float, ...]:
        """By the latency's own terms: a prefill, and passes of one token behind what is cached.

        What a tier's process spends to start a pass is no block's: it is left out.
        Before the profile exists (while a plan is made), all blocks count alike.
        """
        if fleet.timing == "profile" and not isinstance(fleet.chip.profile, Path):
            return (1.0,) * self.architecture.layers
        latency, p, n = fleet.latency(self.architecture), self.prompt_tokens, self.new_tokens
        cached = sum(p + i for i in range(n - 1))
        latency_s = partial(latency.total_seconds, timed_layers=1, served_layers=1)
        prefill = ForwardLoad(1, p, p * p, 0, 0, num_continued=1)
        decodes = ForwardLoad(1, n - 1, cached + n - 1, cached, 0, num_forwards=n - 1, num_continued=n - 1)
        head = ForwardLoad(0, 0, 0, 0, n, num_forwards=n, num_continued=n)
        wake_s = latency_s((ForwardLoad(0, 0, 0, 0, num_forwards=0),))
        block_s, head_s = latency_s((prefill, decodes)) - wake_s, latency_s((head,)) - wake_s
        blocks = [block_s] * self.architecture.layers
        blocks[-1] += head_s * include_embed_head
        return tuple(blocks)

    def _transfers_s(self, token_nbytes: float) -> tuple[float, ...]:
        """One request's time on each link between tiers: its prompt, then one token after another."""
        links = [tier.link or self.network for tier in list(self.tiers.values())[1:]]
        return tuple(
            link.mean_transfer_s(self.prompt_tokens * token_nbytes, "up")
            + (self.new_tokens - 1) * link.mean_transfer_s(token_nbytes, "up")
            for link in links
        )

    def blocks_by_tier(self, split_points: SplitPoints) -> dict[str, tuple[int, int]]:
        """(start, end) of the blocks of each tier that has any."""
        ranges = dict(zip(self.tiers, pairwise((0, *split_points)), strict=True))
        return {name: (start, end) for name, (start, end) in ranges.items() if start < end}


_TOKEN_NBYTES = 4


def _read_nbytes(costs: BlockCosts, include_embed_head: bool) -> tuple[float, ...]:
    """Bytes that a pass reads of each block; of the embedding it reads one row only."""
    weights = list(costs.weights_nbytes)
    if include_embed_head and len(weights) > 1:
        weights[0] = weights[1]
    return tuple(weights)


def _required_figure(fleet: Fleet, name: str, figure: float | None) -> float:
    if not figure:
        raise ValueError(
            f"policy.placement.partition.capacity wants {name} of {fleet.chip.name} in mode {fleet.mode_name}, which "
            "is not known; choose another capacity, such as profiled"
        )
    return figure
