"""The configurations that a profile is made of: fixed grids and seeded draws, in WISP's five categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TypeAlias

import numpy as np

from training.latency.shape import COMPUTE_DRAWN, COMPUTE_GRID, MEMORY_DRAWN, MEMORY_GRID, MIXED, Part, Shape

CHUNK = 64
MOST_SESSIONS, MOST_DRAFTS = 8, 8

FITTED = {COMPUTE_GRID: 25, MEMORY_GRID: 48, COMPUTE_DRAWN: 15, MEMORY_DRAWN: 15, MIXED: 20}
"""Configurations that WISP, appendix C fits on, by category."""

HELD_OUT = {COMPUTE_DRAWN: 15, MEMORY_DRAWN: 15, MIXED: 20}
"""What is tested on is drawn with another seed, which a fixed grid cannot be; the paper's 50 come without shares."""


class Dice:
    """Sizes drawn evenly over their logarithm: small ones are as frequent as large ones."""

    def __init__(self, longest: int, seed: int) -> None:
        self.longest, self._generator = longest, np.random.default_rng(seed)

    def size(self, least: int, most: int) -> int:
        return round(float(np.exp(self._generator.uniform(log(least), log(max(least, most))))))

    def cached(self) -> int:
        return self.size(16, self.longest - CHUNK)

    def drafts(self) -> int:
        return self.size(1, MOST_DRAFTS)

    def sessions(self) -> int:
        return self.size(1, MOST_SESSIONS)

    def some(self, shapes: Sequence[Shape], count: int) -> list[Shape]:
        """`count` of the shapes: each once before any comes again."""
        return [shapes[i] for i in np.resize(self._generator.permutation(len(shapes)), count).tolist()]


Draw: TypeAlias = Callable[[Dice], tuple[Part, ...]]
Grid: TypeAlias = Callable[[int], list[Shape]]


@dataclass(frozen=True)
class Catalogue:
    """What one side of the link runs: grids (of the longest session's length) and draws, by category."""

    grids: Mapping[str, Grid]
    draws: Mapping[str, Mapping[str, Draw]]
    """By category and kind; the kinds of a category take turns."""

    def shapes(self, fitted: int, held_out: int, longest: int, seed: int) -> list[Shape]:
        """So many of each use, in an order of which every first part has its share of each category and use."""
        known = self._of(apportion(fitted, FITTED), Dice(longest, seed))
        unseen = self._of(apportion(held_out, HELD_OUT), Dice(longest, seed + 1))
        return _interleaved([*known, *(replace(shape, held_out=True) for shape in unseen)])

    def _of(self, counts: Mapping[str, int], dice: Dice) -> list[Shape]:
        return [shape for category, count in counts.items() for shape in self._category(category, count, dice)]

    def _category(self, category: str, count: int, dice: Dice) -> list[Shape]:
        if category in self.grids:
            return dice.some(self.grids[category](dice.longest), count)
        kinds = list(self.draws[category].items())
        return [Shape(category, kind, draw(dice)) for kind, draw in (kinds[i % len(kinds)] for i in range(count))]


def apportion(count: int, shares: Mapping[str, int]) -> dict[str, int]:
    """`count` in proportion to `shares`: the whole parts, then one more where the most was cut off."""
    exact = {name: count * share / sum(shares.values()) for name, share in shares.items()}
    found = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[: count - sum(found.values())]:
        found[name] += 1
    return found


def _interleaved(shapes: Sequence[Shape]) -> list[Shape]:
    groups = Counter((shape.category, shape.held_out) for shape in shapes)
    seen: Counter[tuple[str, bool]] = Counter()
    places = []
    for shape in shapes:
        group = shape.category, shape.held_out
        places.append((seen[group] + 0.5) / groups[group])
        seen[group] += 1
    return [shape for _, shape in sorted(zip(places, shapes, strict=True), key=lambda pair: pair[0])]
