"""How much is measured of each model, and how the fit is tried."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST = 12
"""Configurations to fit on: two for each coefficient that every profile has. A device's has no further sessions, and a
cloud's no second forward that would tell waking up from the constant."""
FEWEST_HELD_OUT = 6


@dataclass(frozen=True)
class Effort:
    """WISP, appendix C, by default, but for the repeats.

    The paper takes the mean of 3 runs on a GPU of its own. Here the median of those of 7 counts that nobody disturbed,
    because of three runs on a shared machine often none is left.
    """

    configurations: int = 123
    held_out: int = 50
    repeats: int = 7
    warm_ups: int = 10
    """Runs before the first that counts, over all categories. The paper warms up every configuration, whose kernels
    its engine prepares; the engine here prepares none, and what a shape's first run costs more is reported."""
    longest: int = 256
    """Tokens of the longest session; longer ones are extrapolated."""
    budget_s: float = 540.0
    """Of all models together, fitting and plots aside; what does not fit into it is left out, and said."""
    pause_ms: float = 0.0
    """Idle before each run, as between two pieces of work of a served model."""
    bootstraps: int = 1000
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "configurations": FEWEST, "held_out": FEWEST_HELD_OUT, "repeats": 1, "warm_ups": 0, "longest": 128,
            "pause_ms": 0, "bootstraps": 100, "folds": 2,
        }  # fmt: skip
        for name, allowed in least.items():
            if (value := getattr(self, name)) < allowed:
                raise ValueError(f"latency profile: {name}={value} must be at least {allowed}.")
        if not self.budget_s > 0:
            raise ValueError(f"latency profile: budget_s={self.budget_s} must be more than 0 seconds.")
