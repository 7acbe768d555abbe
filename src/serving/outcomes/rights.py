"""Which drafts are right, by keyed luck: the same for every policy under one seed."""

from dataclasses import dataclass

from serving.core.keyed_random import course, key, luck_at

_BITS = 17
"""One draw of 51 bits decides three positions, each to 1 in 131,072."""
_ONE, _ALL = (1 << _BITS) - 1, 1 << 3 * _BITS


@dataclass(frozen=True)
class Chances:
    """P(the drafter's next token is the target's): at an answer's first position, after a right one, after a wrong one.

    A Markov chain of order 1 over positions; all equal: independent trials, and acceptance lengths are geometric.
    """

    first: float
    after_right: float
    after_wrong: float

    def __post_init__(self) -> None:
        for name in ("first", "after_right", "after_wrong"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"acceptance: {name} is {getattr(self, name)}; a probability lies between 0 and 1")

    @property
    def limits(self) -> tuple[int, int, int]:
        """What a draw of 17 bits has to stay below: after a wrong one, after a right one, at the first position."""
        return tuple(round(p * (1 << _BITS)) for p in (self.after_wrong, self.after_right, self.first))  # type: ignore[return-value]


class Rights:
    """One session's luck: a bit per position of its answer, drawn as far as somebody asked."""

    __slots__ = ("_course", "_last", "_right", "known", "prompt", "stream")

    def __init__(self, seed: int, name: str, prompt: int) -> None:
        self.prompt, self.stream = prompt, key(seed, name)
        self._course = course(self.stream, "accept")
        self.known = self._right = 0
        self._last = 2

    def run(self, at: int, cap: int, limits: tuple[int, int, int]) -> int:
        """How many of the `cap` drafts behind `at` tokens are right before the first wrong one."""
        offset = at - self.prompt
        if offset + cap > self.known:
            self._draw(offset + cap, limits)
        wrong = ~(self._right >> offset)
        return min(cap, (wrong & -wrong).bit_length() - 1)

    def before(self, at: int) -> int:
        """Was the position before `at` right? At the first one, yes."""
        offset = at - self.prompt
        return self._right >> (offset - 1) & 1 if offset > 0 else 1

    def _draw(self, upto: int, limits: tuple[int, int, int]) -> None:
        last, known, right = self._last, self.known, self._right
        while known < upto:
            bits = int(luck_at(self._course, known // 3) * _ALL)
            first = (bits & _ONE) < limits[last]
            second = (bits >> _BITS & _ONE) < limits[first]
            last = (bits >> 2 * _BITS) < limits[second]
            right |= (first + 2 * second + 4 * last) << known
            known += 3
        self._last, self.known, self._right = last, known, right
