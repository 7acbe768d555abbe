"""What is known of one model's times: timings, the fit that is used, and the paper's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from serving.hardware.architecture import Architecture
from serving.hardware.latency import LatencyModel, batch_load
from training.latency.fit import LatencyFit, fit_latency, fit_ordinary
from training.latency.grid import ProfilingOptions
from training.latency.timing import STEADY_VARIATION, Timing

QUOTED_TOKENS = 128
"""Tokens at which a prefill and a token behind a cache are quoted."""


@dataclass(frozen=True)
class PlannedRuns:
    """What was to be measured; what was is among the timings."""

    configurations: int
    repeats: int


@dataclass(frozen=True)
class ModelProfile:
    """`name` is the model's in the report: its side of a pair, or its architecture; `measured_on` says on what."""

    name: str
    architecture: Architecture
    measured_on: str
    options: ProfilingOptions
    timings: Sequence[Timing]
    planned: PlannedRuns | None = None
    """None where somebody else measured."""
    warmup_runs: int | None = None
    """Runs that were thrown away; None: not known."""

    @cached_property
    def fit(self) -> LatencyFit:
        return fit_latency(self.timings, self.options)

    @cached_property
    def ordinary_fit(self) -> LatencyFit:
        return fit_ordinary(self.timings, self.options)

    @property
    def latency(self) -> LatencyModel:
        stands = "" if self.name == self.architecture.name else f" under the name of {self.architecture.name}"
        source = f"measured: {self.measured_on}: {self.name}{stands}, off by {self.fit.held_out.mape:.0%} in the mean"
        return LatencyModel(**self.fit.coefficients, layers=self.architecture.layers, source=source)

    @property
    def prefill_s(self) -> float:
        """Of a prompt of `POINT` tokens, by the fit."""
        return self.latency.seconds(batch_load(self.architecture.layers, [(0, QUOTED_TOKENS)], 1))

    @property
    def decode_s(self) -> float:
        """Of one token behind `POINT` cached ones, by the fit: drafting, on a device."""
        return self.latency.seconds(batch_load(self.architecture.layers, [(QUOTED_TOKENS, 1)], 1))

    @property
    def repeats(self) -> int:
        return min(len(timing.runs) for timing in self.timings)

    @property
    def omitted(self) -> str:
        """What the budget left out; empty where nothing was."""
        if self.planned is None:
            return ""
        parts = {
            "configurations": (len(self.timings), self.planned.configurations),
            "rounds of repeats": (self.repeats, self.planned.repeats),
            "warm-ups": (self.warmup_runs or 0, self.options.warmup_runs),
        }
        return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in parts.items() if done < asked)

    @property
    def undisturbed_share(self) -> float | None:
        """Near 1: nobody else wanted this machine meanwhile; near 0, the times are not its own. None: not known."""
        runs = [run for timing in self.timings for run in timing.runs]
        if any(run.cpu_s is None for run in runs):
            return None
        return sum(run.undisturbed for run in runs) / len(runs)

    @property
    def num_disturbed(self) -> int:
        """Configurations of which no run was quiet."""
        return sum(timing.is_disturbed for timing in self.timings)

    @property
    def steady_share(self) -> float | None:
        """Of the configurations with two runs that count: variation below the 5 % of WISP, appendix C."""
        known = [timing.variation for timing in self.timings if timing.variation is not None]
        return sum(variation < STEADY_VARIATION for variation in known) / len(known) if known else None

    @property
    def first_run_share(self) -> float | None:
        """A first run over its configuration's median, in the middle of those that nobody disturbed: near 1 where
        each is warm from the start.
        """
        shares = [t.runs[0].wall_s / t.median_s for t in self.timings if len(t.runs) > 1 and t.runs[0].undisturbed]
        return median(shares) if shares else None
