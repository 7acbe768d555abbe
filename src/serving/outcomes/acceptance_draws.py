"""Which drafts are right, without models: random bits by position, the same for every policy under one seed."""

from dataclasses import dataclass
from typing import Protocol

from serving.core.keyed_random import key, substream, uniform_at

_BITS = 17
"""One draw of 51 bits decides three positions, each with a resolution of 1 / 131,072."""
_MASK = (1 << _BITS) - 1
_DRAW_RANGE = 1 << 3 * _BITS


@dataclass(frozen=True)
class MatchProbabilities:
    """P(the drafter's next token is the target's): at the first position, after a right draft, after a wrong one.

    A Markov chain of order 1 over positions; with equal values acceptance lengths are geometric.
    """

    first: float
    after_right: float
    after_wrong: float

    def __post_init__(self) -> None:
        for name in ("first", "after_right", "after_wrong"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"acceptance: {name} is {getattr(self, name)}; a probability lies between 0 and 1")

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """A draft is right if 17 random bits are lower: after a wrong one, after a right one, at the first position."""
        return tuple(round(p * (1 << _BITS)) for p in (self.after_wrong, self.after_right, self.first))  # type: ignore[return-value]


class AcceptanceDraws:
    """One session's random bits, one per position of its answer; drawn when they are needed."""

    __slots__ = ("_bits", "_last", "_substream", "num_drawn", "prompt_len", "stream")

    def __init__(self, seed: int, name: str, prompt_len: int) -> None:
        self.prompt_len, self.stream = prompt_len, key(seed, name)
        self._substream = substream(self.stream, "accept")
        self.num_drawn = self._bits = 0
        self._last = 2

    def num_accepted(self, prefix_len: int, cap: int, thresholds: tuple[int, int, int]) -> int:
        """How many of the `cap` drafts after `prefix_len` tokens are right before the first wrong one."""
        offset = prefix_len - self.prompt_len
        if offset + cap > self.num_drawn:
            self._draw(offset + cap, thresholds)
        wrong = ~(self._bits >> offset)
        return min(cap, (wrong & -wrong).bit_length() - 1)

    def previous_is_right(self, prefix_len: int) -> int:
        """1 if the position before `prefix_len` was right, or there is none; else 0."""
        offset = prefix_len - self.prompt_len
        return self._bits >> (offset - 1) & 1 if offset > 0 else 1

    def _draw(self, upto: int, thresholds: tuple[int, int, int]) -> None:
        last, known, right = self._last, self.num_drawn, self._bits
        while known < upto:
            bits = int(uniform_at(self._substream, known // 3) * _DRAW_RANGE)
            first = (bits & _MASK) < thresholds[last]
            second = (bits >> _BITS & _MASK) < thresholds[first]
            last = int((bits >> 2 * _BITS) < thresholds[second])
            right |= (first + 2 * second + 4 * last) << known
            known += 3
        self._last, self.num_drawn, self._bits = last, known, right


TOKENS_PER_POSITION = 4
"""At position p the target writes 4p, a wrong draft is 4p + 1, and 4p + 2 and 4p + 3 are other candidates."""


class ScoreSource(Protocol):
    """Scores and candidates of sampled drafts."""

    def score(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int, name: str) -> float:
        """The score of draft i after `prefix_len` tokens, of which the first `num_accepted` drafts are right."""
        ...

    def target_rank(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        """The rank of the target's token among the drafter's candidates for draft i; NUM_TOP_CANDIDATES: none."""
        ...

    def exit_layer(self, draws: AcceptanceDraws, prefix_len: int, i: int, num_accepted: int) -> int:
        """The exit layer of draft i, if the drafter exits early."""
        ...

    def importance(self, draws: AcceptanceDraws, prefix_len: int, n: int, name: str) -> tuple[float, ...]: ...

    def last_accepted_node(self, draws: AcceptanceDraws, prefix_len: int) -> int:
        """The deepest right candidate of the tree that the target's heads propose with token `prefix_len`; -1: none."""
        ...
