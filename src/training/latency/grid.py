"""The configurations of a profile: shapes of work from fixed grids and seeded samples, in WISP's five categories; and
the options of a profile.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple, TypeAlias

import numpy as np

COMPUTE_GRID = "compute-bound deterministic"
MEMORY_GRID = "memory-bound deterministic"
COMPUTE_RANDOM = "compute-bound random"
MEMORY_RANDOM = "memory-bound random"
MIXED = "mixed"
CATEGORIES = (COMPUTE_GRID, MEMORY_GRID, COMPUTE_RANDOM, MEMORY_RANDOM, MIXED)
"""The names of WISP, appendix C."""


class SessionShape(NamedTuple):
    """One session's part of a work: `new_tokens` tokens behind `cached_tokens` ones.

    `num_outputs`: rows through the LM head in a forward, written tokens in a draft.
    """

    cached_tokens: int
    new_tokens: int
    num_outputs: int


@dataclass(frozen=True)
class WorkShape:
    """The shape of one piece of work; `kind` is a prefill, a chunk of one, a decode, a verification or a draft."""

    category: str
    kind: str
    sessions: tuple[SessionShape, ...] = ()
    held_out: bool = False
    """True if the fit is tested on it."""


MAX_CHUNK_TOKENS = 64
MAX_SESSIONS, MAX_DRAFTS = 8, 8

FITTED_BY_CATEGORY = {COMPUTE_GRID: 25, MEMORY_GRID: 48, COMPUTE_RANDOM: 15, MEMORY_RANDOM: 15, MIXED: 20}
"""Configurations that WISP, appendix C fits on, by category."""

HELD_OUT_BY_CATEGORY = {COMPUTE_RANDOM: 15, MEMORY_RANDOM: 15, MIXED: 20}
"""Test configurations are random, so they have no fixed grids. The paper gives no shares for its 50."""


class LogUniformSampler:
    """Samples sizes uniformly over their logarithm."""

    def __init__(self, max_session_tokens: int, seed: int) -> None:
        self.max_session_tokens, self._generator = max_session_tokens, np.random.default_rng(seed)

    def sample(self, low: int, high: int) -> int:
        return round(float(np.exp(self._generator.uniform(log(low), log(max(low, high))))))

    def cached_tokens(self) -> int:
        return self.sample(16, self.max_session_tokens - MAX_CHUNK_TOKENS)

    def num_drafts(self) -> int:
        return self.sample(1, MAX_DRAFTS)

    def num_sessions(self) -> int:
        return self.sample(1, MAX_SESSIONS)

    def subset(self, shapes: Sequence[WorkShape], count: int) -> list[WorkShape]:
        """`count` of the shapes in random order, each once before any repeats."""
        return [shapes[i] for i in np.resize(self._generator.permutation(len(shapes)), count).tolist()]


ShapeSampler: TypeAlias = Callable[[LogUniformSampler], tuple[SessionShape, ...]]
ShapeGrid: TypeAlias = Callable[[int], list[WorkShape]]


@dataclass(frozen=True)
class WorkGrid:
    """The work of one side of the link: grids (for a longest session) and samplers, by category."""

    grids: Mapping[str, ShapeGrid]
    samplers: Mapping[str, Mapping[str, ShapeSampler]]
    """By category and kind; the kinds of a category take turns."""

    def shapes(self, fitted: int, held_out: int, max_session_tokens: int, seed: int) -> list[WorkShape]:
        """Shapes to fit and to hold out, ordered so that any first part has its share of each category and use."""
        fitted_shapes = self._shapes_for(
            apportion(fitted, FITTED_BY_CATEGORY), LogUniformSampler(max_session_tokens, seed)
        )
        held_out_shapes = self._shapes_for(
            apportion(held_out, HELD_OUT_BY_CATEGORY), LogUniformSampler(max_session_tokens, seed + 1)
        )
        return _interleaved([*fitted_shapes, *(replace(shape, held_out=True) for shape in held_out_shapes)])

    def _shapes_for(self, counts: Mapping[str, int], sampler: LogUniformSampler) -> list[WorkShape]:
        return [
            shape for category, count in counts.items() for shape in self._category_shapes(category, count, sampler)
        ]

    def _category_shapes(self, category: str, count: int, sampler: LogUniformSampler) -> list[WorkShape]:
        if category in self.grids:
            return sampler.subset(self.grids[category](sampler.max_session_tokens), count)
        kinds = list(self.samplers[category].items())
        return [
            WorkShape(category, kind, draw(sampler)) for kind, draw in (kinds[i % len(kinds)] for i in range(count))
        ]


def apportion(count: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Integers in proportion to `shares` that sum to `count` (largest remainder method)."""
    exact = {name: count * share / sum(shares.values()) for name, share in shares.items()}
    found = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[: count - sum(found.values())]:
        found[name] += 1
    return found


def _interleaved(shapes: Sequence[WorkShape]) -> list[WorkShape]:
    groups = Counter((shape.category, shape.held_out) for shape in shapes)
    seen: Counter[tuple[str, bool]] = Counter()
    places = []
    for shape in shapes:
        group = shape.category, shape.held_out
        places.append((seen[group] + 0.5) / groups[group])
        seen[group] += 1
    return [shape for _, shape in sorted(zip(places, shapes, strict=True), key=lambda pair: pair[0])]


MIN_FITTED = 12
"""Configurations to fit on: two for each of the six coefficients that every profile has. A device has no further
sessions; a cloud has no second forward that would separate the wake-up time from the constant.
"""
MIN_HELD_OUT = 6


@dataclass(frozen=True)
class ProfilingOptions:
    """The extent of each model's profile. The defaults are those of WISP, appendix C, except for the repeats.

    The paper takes the mean of 3 runs on its own GPU. Here the median of the undisturbed ones of 7 runs counts, because
    on a shared machine often none of three runs is undisturbed.
    """

    configurations: int = 123
    held_out: int = 50
    repeats: int = 7
    warmup_runs: int = 10
    """Warm-up runs in all. The paper warms up every configuration, because its engine prepares kernels by shape. The
    engine here prepares none on a CPU, and captures a shape's second pass on a GPU; the profile reports how much longer
    first runs take.
    """
    max_session_tokens: int = 256
    """Tokens of the longest session; longer sessions are extrapolated."""
    budget_s: float = 540.0
    """For all models together, without fitting and plots. What does not fit into it is left out and reported."""
    pause_ms: float = 0.0
    """Idle time before each run."""
    bootstraps: int = 1000
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "configurations": MIN_FITTED,
            "held_out": MIN_HELD_OUT,
            "repeats": 1,
            "warmup_runs": 0,
            "max_session_tokens": 128,
            "pause_ms": 0,
            "bootstraps": 100,
            "folds": 2,
        }
        for name, allowed in least.items():
            if (value := getattr(self, name)) < allowed:
                raise ValueError(f"latency profile: {name}={value} must be at least {allowed}.")
        if not self.budget_s > 0:
            raise ValueError(f"latency profile: budget_s={self.budget_s} must be more than 0 seconds.")
