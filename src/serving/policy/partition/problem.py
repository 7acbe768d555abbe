"""What a split of a model over tiers is judged by: each block's time and memory on each tier, and the links between.

All windows of consecutive blocks at once, as matrices [n, k] of blocks k .. n-1; 0 <= k, n <= N.

A split as a path from no block to all of them, one step a tier.
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

Ends: TypeAlias = tuple[int, ...]
"""p_1 .. p_T, with p_T = N (Hyperion, Eq. 6): tier j has blocks p_{j-1} .. p_j - 1, counted from 0."""


@dataclass(frozen=True)
class Problem:
    """N blocks in their order, T tiers in pipeline order.

    Every sum over a window of blocks is a difference of prefix sums (Eq. 15, 16), for all strategies and for whoever
    checks them. Raises ValueError for rows that do not fit each other and for figures that are none.
    """

    tiers: tuple[str, ...]
    """Names, for messages."""
    seconds: tuple[tuple[float, ...], ...]
    """[tier][block]: time of a block there: f_i / C_j of Eq. 13, or profiled."""
    nbytes: tuple[tuple[float, ...], ...]
    """[tier][block]: m_i there, which a tier's precision changes."""
    memory_nbytes: tuple[float, ...]
    """M_j of the most capable node (Eq. 5); inf: not known."""
    nodes: tuple[int, ...]
    """K_j: like nodes, each of which holds the tier's blocks."""
    hidden_s: tuple[float, ...] = ()
    """[T-1]: one request's hidden states over the link behind tier j: tau_{j,j+1}; (): 0."""
    token_s: tuple[float, ...] = ()
    """[T-1]: what crosses there where all blocks are on one side: prompt and answer as token ids; (): 0."""

    def __post_init__(self) -> None:
        if not self.tiers or not self.seconds or not self.seconds[0]:
            raise ValueError("partition: there is nothing to divide; give at least one tier and one block")
        for name in ("seconds", "nbytes"):
            self._check_count(name, len(getattr(self, name)))
            for tier, row in zip(self.tiers, getattr(self, name), strict=True):
                self._check_row(f"{name} of {tier}", row)
        for name in ("memory_nbytes", "nodes"):
            self._check_count(name, len(getattr(self, name)))
        for name in ("hidden_s", "token_s"):
            self._check_links(name, getattr(self, name))
        for tier, memory, count in zip(self.tiers, self.memory_nbytes, self.nodes, strict=True):
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
        if len(row) != self.blocks:
            raise ValueError(f"partition: {name} has {len(row)} entries for {self.blocks} blocks")
        _check_figures(name, row)

    def _check_links(self, name: str, row: Sequence[float]) -> None:
        if len(row) not in (0, len(self.tiers) - 1):
            raise ValueError(f"partition: {name} has {len(row)} entries; {len(self.tiers)} tiers have one fewer links")
        _check_figures(name, row)

    @property
    def blocks(self) -> int:
        """N."""
        return len(self.seconds[0])

    @cached_property
    def second_sums(self) -> tuple[tuple[float, ...], ...]:
        """[tier][n]: the first n blocks' time there, n = 0 .. N (Eq. 15)."""
        return tuple(tuple(accumulate(row, initial=0.0)) for row in self.seconds)

    @cached_property
    def nbyte_sums(self) -> tuple[tuple[float, ...], ...]:
        """[tier][n]: the first n blocks' bytes there (Eq. 16)."""
        return tuple(tuple(accumulate(row, initial=0.0)) for row in self.nbytes)

    def window_s(self, tier: int, first: int, last: int) -> float:
        """Time of blocks first .. last-1 on a tier."""
        return self.second_sums[tier][last] - self.second_sums[tier][first]

    def window_nbytes(self, tier: int, first: int, last: int) -> float:
        """Bytes of blocks first .. last-1 on a tier."""
        return self.nbyte_sums[tier][last] - self.nbyte_sums[tier][first]

    def fits(self, tier: int, first: int, last: int) -> bool:
        """Are blocks first .. last-1 within a node's memory (Eq. 11c)?"""
        return self.window_nbytes(tier, first, last) <= self.memory_nbytes[tier]

    def windows(self, ends: Ends) -> tuple[tuple[int, int], ...]:
        """(first, last) of each tier. Raises ValueError where the ends are not those of a split."""
        edges = (0, *ends)
        if len(ends) != len(self.tiers) or ends[-1] != self.blocks or any(a > b for a, b in pairwise(edges)):
            raise ValueError(
                f"partition: ends {list(ends)} divide nothing: {len(self.tiers)} tiers need as many ends, none below "
                f"the one before, the last {self.blocks}"
            )
        return tuple(pairwise(edges))

    def stage_s(self, ends: Ends) -> tuple[float, ...]:
        """L_j of each tier: one request's time there (Eq. 13)."""
        return tuple(self.window_s(tier, *window) for tier, window in enumerate(self.windows(ends)))

    def crossing_s(self, boundary: int, end: int) -> float:
        """Over the link behind a tier, where `end` blocks lie before it."""
        row = self.hidden_s if 0 < end < self.blocks else self.token_s
        return row[boundary] if row else 0.0

    def lone_s(self, ends: Ends) -> float:
        """What a request feels that is alone: all stages and all links, one after the other.

        The paper's objective (Eq. 11a) has the slowest stage alone in place of their sum.
        """
        return sum(self.stage_s(ends)) + sum(self.crossing_s(i, end) for i, end in enumerate(ends[:-1]))

    def bottleneck_s(self, ends: Ends) -> float:
        """max_j L_j / K_j: seconds a request in a pipeline that is never idle; its inverse is the throughput."""
        return max(stage_s / count for stage_s, count in zip(self.stage_s(ends), self.nodes, strict=True))


class Split(Protocol):
    def divide(self, problem: Problem) -> Ends:
        """The tiers' last blocks. Raises ValueError that says what is lacking where there is no such split."""
        ...


def _check_figures(name: str, row: Sequence[float]) -> None:
    for i, value in enumerate(row):
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"partition: {name} has {value} in place {i}; give a finite figure, 0 or more")


def between(sums: Sequence[float]) -> Floats:
    """Of every window, from prefix sums; no window is right of the diagonal, where the figures mean nothing."""
    import numpy as np

    ends: Floats = np.array(sums, np.float64)
    return ends[:, None] - ends[None, :]


def first_within(windows: Floats, limit: float) -> Indices:
    """[n]: the first block from which a window that ends at n stays within the limit; n where none does.

    Sums only shrink as a window begins later, so all that begin behind it stay within the limit as well.
    """
    found: Indices = (windows <= limit).argmax(axis=1)
    return found


def held(problem: Problem, tier: int, empty: bool) -> Bools:
    """Which windows a tier's memory holds (Eq. 11c); `empty`: is one of no blocks a window?"""
    import numpy as np

    forward: Bools = np.tri(problem.blocks + 1, k=0 if empty else -1, dtype=bool)
    within: Bools = between(problem.nbyte_sums[tier]) <= problem.memory_nbytes[tier]
    return forward & within


class Path(NamedTuple):
    cost: float
    ends: Ends


def cheapest(steps: Sequence[Floats], join: np.ufunc) -> Path | None:
    """The path that costs least, by dynamic programming in O(T N^2); None where there is none.

    `steps[j][n, k]` is what tier j costs with blocks k .. n-1, inf where it cannot have them; `join` makes a path's
    cost of its steps': np.add or np.maximum. Of equally cheap paths the one whose last tier has most blocks, then the
    tier before it, and so on.
    """
    import numpy as np

    costs = np.full(len(steps[0]), np.inf)
    costs[0] = 0.0
    before: list[Indices] = []
    for step in steps:
        joined = join(costs[None, :], step)
        before.append(joined.argmin(axis=1))
        costs = joined.min(axis=1)
    if costs[-1] == np.inf:
        return None
    return Path(float(costs[-1]), traced(before))


def traced(before: Sequence[Indices]) -> Ends:
    """The ends that lead to all blocks; `before[j][n]` is where tier j begins if it ends at n."""
    ends = [len(before[0]) - 1]
    for row in reversed(before[1:]):
        ends.append(int(row[ends[-1]]))
    return tuple(reversed(ends))
