"""The problem of splitting a model over tiers, and what strategies share to solve it.

Matrices [n, k] hold a figure for every block range k .. n-1; 0 <= k, n <= N. A split is a path from 0 to N blocks, with
one step for each tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Bools: TypeAlias = NDArray[np.bool_]
    Indices: TypeAlias = NDArray[np.intp]


SplitPoints: TypeAlias = tuple[int, ...]
"""p_1 .. p_T, with p_T = N (Hyperion, Eq. 6): tier j has blocks p_{j-1} .. p_j - 1, counted from 0."""


@dataclass(frozen=True)
class PartitionProblem:
    """N blocks in order on T tiers in pipeline order.

    Every sum over a block range is a difference of prefix sums (Eq. 15, 16). Raises ValueError for rows of different
    lengths and for figures that are negative or not finite.
    """

    tiers: tuple[str, ...]
    """Names, for messages."""
    block_s: tuple[tuple[float, ...], ...]
    """[tier][block]: seconds of a block on the tier: f_i / C_j of Eq. 13, or profiled."""
    block_nbytes: tuple[tuple[float, ...], ...]
    """[tier][block]: m_i at the tier's precision."""
    memory_nbytes: tuple[float, ...]
    """M_j of the node with the most memory (Eq. 5); inf: not known."""
    node_counts: tuple[int, ...]
    """K_j: nodes of the tier, each of which holds the tier's blocks."""
    hidden_transfer_s: tuple[float, ...] = ()
    """[T-1]: tau_{j,j+1}: one request's hidden states over the link after tier j; (): 0."""
    token_transfer_s: tuple[float, ...] = ()
    """[T-1]: one request's token ids over the same link, if all blocks are on one side of it; (): 0."""

    def __post_init__(self) -> None:
        if not self.tiers or not self.block_s or not self.block_s[0]:
            raise ValueError("partition: there is nothing to divide; give at least one tier and one block")
        for name in ("block_s", "block_nbytes"):
            self._check_count(name, len(getattr(self, name)))
            for tier, row in zip(self.tiers, getattr(self, name), strict=True):
                self._check_row(f"{name} of {tier}", row)
        for name in ("memory_nbytes", "node_counts"):
            self._check_count(name, len(getattr(self, name)))
        for name in ("hidden_transfer_s", "token_transfer_s"):
            self._check_links(name, getattr(self, name))
        for tier, memory, count in zip(self.tiers, self.memory_nbytes, self.node_counts, strict=True):
            if not memory >= 0:
                raise ValueError(f"partition: memory_nbytes of {tier} is {memory}; it is 0 or more, inf if not known")
            if count < 1:
                raise ValueError(f"partition: {tier} has {count} nodes; a tier needs at least 1")

    def _check_count(self, name: str, count: int) -> None:
        if count != len(self.tiers):
            raise ValueError(
                f"partition: {name} has {count} entries for {len(self.tiers)} tiers ({', '.join(self.tiers)})"
            )

    def _check_row(self, name: str, row: Sequence[float]) -> None:
        if len(row) != self.num_blocks:
            raise ValueError(f"partition: {name} has {len(row)} entries for {self.num_blocks} blocks")
        _check_figures(name, row)

    def _check_links(self, name: str, row: Sequence[float]) -> None:
        if len(row) not in (0, len(self.tiers) - 1):
            raise ValueError(f"partition: {name} has {len(row)} entries; {len(self.tiers)} tiers have one fewer links")
        _check_figures(name, row)

    @property
    def num_blocks(self) -> int:
        """N."""
        return len(self.block_s[0])

    @cached_property
    def prefix_s(self) -> tuple[tuple[float, ...], ...]:
        """[tier][n]: seconds of the first n blocks, n = 0 .. N (Eq. 15)."""
        return tuple(tuple(accumulate(row, initial=0.0)) for row in self.block_s)

    @cached_property
    def prefix_nbytes(self) -> tuple[tuple[float, ...], ...]:
        """[tier][n]: bytes of the first n blocks (Eq. 16)."""
        return tuple(tuple(accumulate(row, initial=0.0)) for row in self.block_nbytes)

    def range_s(self, tier: int, first: int, last: int) -> float:
        """Seconds of blocks first .. last-1 on a tier."""
        return self.prefix_s[tier][last] - self.prefix_s[tier][first]

    def range_nbytes(self, tier: int, first: int, last: int) -> float:
        """Bytes of blocks first .. last-1 on a tier."""
        return self.prefix_nbytes[tier][last] - self.prefix_nbytes[tier][first]

    def fits(self, tier: int, first: int, last: int) -> bool:
        """True if a node of the tier holds blocks first .. last-1 (Eq. 11c)."""
        return self.range_nbytes(tier, first, last) <= self.memory_nbytes[tier]

    def block_ranges(self, split_points: SplitPoints) -> tuple[tuple[int, int], ...]:
        """(first, last) of each tier. Raises ValueError if the split points are not those of a split."""
        edges = (0, *split_points)
        if (
            len(split_points) != len(self.tiers)
            or split_points[-1] != self.num_blocks
            or any(a > b for a, b in pairwise(edges))
        ):
            raise ValueError(
                f"partition: ends {list(split_points)} divide nothing: {len(self.tiers)} tiers need as many ends, none "
                f"below the one before, the last {self.num_blocks}"
            )
        return tuple(pairwise(edges))

    def stage_s(self, split_points: SplitPoints) -> tuple[float, ...]:
        """L_j of each tier: one request's time there (Eq. 13)."""
        return tuple(self.range_s(tier, *blocks) for tier, blocks in enumerate(self.block_ranges(split_points)))

    def transfer_s(self, tier: int, split_point: int) -> float:
        """Transfer time over the link after a tier, with `split_point` blocks before it."""
        row = self.hidden_transfer_s if 0 < split_point < self.num_blocks else self.token_transfer_s
        return row[tier] if row else 0.0

    def single_request_s(self, split_points: SplitPoints) -> float:
        """Latency of a request on an idle pipeline: the sum of all stages and links.

        The paper's latency (Eq. 10a) is the slowest stage and the links; its partition minimises the slowest stage
        alone (Eq. 11a).
        """
        return sum(self.stage_s(split_points)) + self.communication_s(split_points)

    def slowest_stage_s(self, split_points: SplitPoints) -> float:
        """max_j L_j: what the paper calls the computing latency (Eq. 8)."""
        return max(self.stage_s(split_points))

    def communication_s(self, split_points: SplitPoints) -> float:
        """One request's time on all links between tiers (Eq. 9)."""
        return sum(self.transfer_s(i, end) for i, end in enumerate(split_points[:-1]))

    def bottleneck_s(self, split_points: SplitPoints) -> float:
        """max_j L_j / K_j: seconds per request of a busy pipeline; its inverse is the throughput."""
        return max(stage_s / count for stage_s, count in zip(self.stage_s(split_points), self.node_counts, strict=True))


class PartitionStrategy(Protocol):
    def solve(self, problem: PartitionProblem) -> SplitPoints:
        """The split points. Raises ValueError that says what is missing if there is no split."""
        ...


def _check_figures(name: str, row: Sequence[float]) -> None:
    for i, value in enumerate(row):
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"partition: {name} has {value} in place {i}; give a finite figure, 0 or more")


def range_sums(prefix_sums: Sequence[float]) -> Floats:
    """[n, k]: the sum over blocks k .. n-1; only k <= n is meaningful."""
    import numpy as np

    ends: Floats = np.array(prefix_sums, np.float64)
    return ends[:, None] - ends[None, :]


def first_within(ranges: Floats, limit: float) -> Indices:
    """[n]: the first k for which blocks k .. n-1 are within the limit, n if there is none; all later k are, too."""
    found: Indices = (ranges <= limit).argmax(axis=1)
    return found


def fitting_ranges(problem: PartitionProblem, tier: int, allow_empty: bool) -> Bools:
    """[n, k]: True if the tier's memory holds blocks k .. n-1 (Eq. 11c), and for k = n if `allow_empty`."""
    import numpy as np

    forward: Bools = np.tri(problem.num_blocks + 1, k=0 if allow_empty else -1, dtype=bool)
    within: Bools = range_sums(problem.prefix_nbytes[tier]) <= problem.memory_nbytes[tier]
    return forward & within


class SplitSolution(NamedTuple):
    cost: float
    split_points: SplitPoints


def cheapest_split(tier_costs: Sequence[Floats], combine: np.ufunc) -> SplitSolution | None:
    """The split of least cost, by dynamic programming in O(T N^2); None if there is none.

    Of equal splits it takes the one with the most blocks on the last tier, then on the one before it, and so on.

    Args:
        tier_costs: [tier][n, k]: the cost of blocks k .. n-1 on the tier; inf: not allowed.
        combine: combines the tiers' costs: np.add or np.maximum.
    """
    import numpy as np

    costs = np.full(len(tier_costs[0]), np.inf)
    costs[0] = 0.0
    before: list[Indices] = []
    for step in tier_costs:
        joined = combine(costs[None, :], step)
        before.append(joined.argmin(axis=1))
        costs = joined.min(axis=1)
    if costs[-1] == np.inf:
        return None
    return SplitSolution(float(costs[-1]), trace_back(before))


def trace_back(predecessors: Sequence[Indices]) -> SplitPoints:
    """The split points of a path to N blocks; `predecessors[j][n]` is where tier j begins if it ends at n."""
    ends = [len(predecessors[0]) - 1]
    for row in reversed(predecessors[1:]):
        ends.append(int(row[ends[-1]]))
    return tuple(reversed(ends))


ADVICE = "Keep the weights in fewer bits (precision), give a tier more memory, or add a tier."


def infeasibility_error(problem: PartitionProblem, allow_empty: bool = False) -> ValueError:
    """The error for a problem without a split. `allow_empty`: True if a tier may have no block."""
    if not allow_empty:
        if problem.num_blocks < len(problem.tiers):
            return ValueError(
                f"partition: {problem.num_blocks} blocks leave less than one for each of {len(problem.tiers)} tiers "
                f"({', '.join(problem.tiers)}); name fewer tiers."
            )
        for tier in range(len(problem.tiers)):
            if said := _no_block_fits(problem, tier):
                return ValueError(f"partition: {said}. {ADVICE[:-1]}, or leave {problem.tiers[tier]} out.")
    return ValueError(f"partition: {_memory_exceeded(problem, allow_empty)}. {ADVICE}")


def _no_block_fits(problem: PartitionProblem, tier: int) -> str:
    """An error text if a node of the tier holds none of the blocks that the tier could have; else ""."""
    last = len(problem.tiers) - 1
    possible = range(tier, problem.num_blocks - last + tier)
    possible = possible[:1] if tier == 0 else possible[-1:] if tier == last else possible
    block = min(possible, key=lambda block: problem.block_nbytes[tier][block])
    if problem.fits(tier, block, block + 1):
        return ""
    which = "block" if len(possible) == 1 else "the smallest that it could have, block"
    return (
        f"{problem.tiers[tier]} cannot hold even one block: {which} {block + 1} of {problem.num_blocks} takes "
        f"{_gb(problem.block_nbytes[tier][block])}, a node has {_gb(problem.memory_nbytes[tier])}"
    )


def _memory_exceeded(problem: PartitionProblem, allow_empty: bool) -> str:
    """How far the blocks reach if tiers are filled from the front; no other split reaches further."""
    filled, said, idle = 0, [], ""
    for tier, name in enumerate(problem.tiers):
        last, most = filled, problem.num_blocks - (0 if allow_empty else len(problem.tiers) - 1 - tier)
        while last < most and problem.fits(tier, filled, last + 1):
            last += 1
        said.append(_tier_usage(problem, tier, filled, last))
        idle = idle or (name if last == filled else "")
        filled = last
    left = problem.num_blocks - filled
    if left:
        over = f"{_count_blocks(left)} of {problem.num_blocks} left over, which {problem.tiers[-1]} would need "
        over += f"{_gb(problem.range_nbytes(len(problem.tiers) - 1, filled, problem.num_blocks))} more for"
    else:
        over = f"{idle} would have no block"
    return f"the tiers' memory does not hold the model. Filled from the front: {'; '.join(said)}; {over}"


def _tier_usage(problem: PartitionProblem, tier: int, first: int, last: int) -> str:
    name, memory = problem.tiers[tier], _gb(problem.memory_nbytes[tier])
    if first == last:
        return f"{name} none (block {last + 1} takes {_gb(problem.block_nbytes[tier][last])} of {memory})"
    return f"{name} {_count_blocks(last - first)} ({_gb(problem.range_nbytes(tier, first, last))} of {memory})"


def _count_blocks(count: int) -> str:
    return f"{count} block{'s' if count > 1 else ''}"


def _gb(nbytes: float) -> str:
    from serving.hardware.fleet import GB

    return f"{nbytes / GB:.4g} GB"
