"""What is known of one model's times: timings, the fit that is used, and the paper's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from serving.hardware.architecture import Architecture
from serving.hardware.latency import Latency, load
from training.latency.fit import Fit, fit, plain_fit
from training.latency.grid import Effort
from training.latency.timing import STEADY, Timing

POINT = 128
"""Tokens at which a prefill and a token behind a cache are quoted."""


@dataclass(frozen=True)
class Planned:
    """What was to be measured; what was is among the timings."""

    configurations: int
    repeats: int


@dataclass(frozen=True)
class Measured:
    """`name` is the model's in the report: its side of a pair, or its architecture; `place` says on what."""

    name: str
    architecture: Architecture
    place: str
    effort: Effort
    timings: Sequence[Timing]
    planned: Planned | None = None
    """None where somebody else measured."""
    warm_ups: int | None = None
    """Runs that were thrown away; None: not known."""

    @cached_property
    def fit(self) -> Fit:
        return fit(self.timings, self.effort)

    @cached_property
    def plain(self) -> Fit:
        return plain_fit(self.timings, self.effort)

    @property
    def latency(self) -> Latency:
        stands = "" if self.name == self.architecture.name else f" under the name of {self.architecture.name}"
        source = f"measured: {self.place}: {self.name}{stands}, off by {self.fit.held_out.mape:.0%} in the mean"
        return Latency(**self.fit.coefficients, layers=self.architecture.layers, source=source)

    @property
    def prefill_s(self) -> float:
        """Of a prompt of `POINT` tokens, by the fit."""
        return self.latency.seconds(load(self.architecture.layers, [(0, POINT)], 1))

    @property
    def token_s(self) -> float:
        """Of one token behind `POINT` cached ones, by the fit: drafting, on a device."""
        return self.latency.seconds(load(self.architecture.layers, [(POINT, 1)], 1))

    @property
    def repeats(self) -> int:
        return min(len(timing.runs) for timing in self.timings)

    @property
    def cut(self) -> str:
        """What the budget left out; empty where nothing was."""
        if self.planned is None:
            return ""
        parts = {
            "configurations": (len(self.timings), self.planned.configurations),
            "rounds of repeats": (self.repeats, self.planned.repeats),
            "warm-ups": (self.warm_ups or 0, self.effort.warm_ups),
        }
        return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in parts.items() if done < asked)

    @property
    def quiet_share(self) -> float | None:
        """Near 1: nobody else wanted this machine meanwhile; near 0, the times are not its own. None: not known."""
        runs = [run for timing in self.timings for run in timing.runs]
        if any(run.processor_s is None for run in runs):
            return None
        return sum(run.quiet for run in runs) / len(runs)

    @property
    def disturbed(self) -> int:
        """Configurations of which no run was quiet."""
        return sum(timing.is_disturbed for timing in self.timings)

    @property
    def steady_share(self) -> float | None:
        """Of the configurations with two runs that count: variation below the 5 % of WISP, appendix C."""
        known = [timing.variation for timing in self.timings if timing.variation is not None]
        return sum(variation < STEADY for variation in known) / len(known) if known else None

    @property
    def first_run_share(self) -> float | None:
        """A first run over its configuration's median, in the middle of those that nobody disturbed: near 1 where
        each is warm from the start.
        """
        shares = [t.runs[0].wall_s / t.median_s for t in self.timings if len(t.runs) > 1 and t.runs[0].quiet]
        return median(shares) if shares else None
