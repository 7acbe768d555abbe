"""What was measured of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median, pstdev
from typing import NamedTuple

from serving.hardware.latency import Load
from training.latency.shape import Shape

QUIET = 0.95
STEADY = 0.05
"""Coefficient of variation that WISP, appendix C aims below."""


class Run(NamedTuple):
    wall_s: float
    processor_s: float | None = None
    """What this process had of the processor meanwhile; None where another computes."""

    @property
    def share(self) -> float:
        return 1.0 if self.processor_s is None else self.processor_s / self.wall_s

    @property
    def quiet(self) -> bool:
        """Did nobody else take the processor away for a while?"""
        return self.share >= QUIET


@dataclass
class Timing:
    """One configuration's passes, as the engine counts them, and its runs."""

    shape: Shape
    loads: tuple[Load, ...] = ()
    runs: list[Run] = field(default_factory=list)

    @property
    def is_disturbed(self) -> bool:
        """Was no run quiet?"""
        return not any(run.quiet for run in self.runs)

    @property
    def counted_s(self) -> list[float]:
        """Wall times of the quiet runs. Where none was: what each run had of the processor, which one thread that
        computes would have needed of the wall clock too, but for caches that others emptied.
        """
        if self.is_disturbed:
            return [run.processor_s for run in self.runs if run.processor_s is not None]
        return [run.wall_s for run in self.runs if run.quiet]

    @property
    def median_s(self) -> float:
        return median(self.counted_s)

    @property
    def variation(self) -> float | None:
        """Standard deviation of the counted runs over their mean; None of a single one."""
        return pstdev(self.counted_s) / fmean(self.counted_s) if len(self.counted_s) > 1 else None

    def statistics(self) -> dict[str, float]:
        """Of the counted runs."""
        counted = self.counted_s
        return {
            "mean_s": fmean(counted),
            "deviation_s": pstdev(counted),
            "min_s": min(counted),
            "max_s": max(counted),
            "median_s": median(counted),
        }
