"""One model's timings with the fit that is used and the paper's own fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from serving.hardware.architecture import Architecture
from serving.hardware.latency import LinearLatency, batch_load
from training.latency.fit import LatencyFit, fit_latency, fit_ordinary
from training.latency.grid import ProfilingOptions
from training.latency.timing import STEADY_VARIATION, Timing

QUOTED_TOKENS = 128
"""Tokens of the prefill and of the cache for which times are quoted."""


@dataclass(frozen=True)
class ModelProfile:
    """`name` is the model's name in the report: its side of a pair, or its architecture."""

    name: str
    architecture: Architecture
    measured_on: str
    options: ProfilingOptions
    timings: Sequence[Timing]
    warmup_runs: int | None = None
    """Warm-up runs; None for timings from a file, whose number of runs was not planned."""

    @cached_property
    def fit(self) -> LatencyFit:
        return fit_latency(self.timings, self.options)

    @cached_property
    def ordinary_fit(self) -> LatencyFit:
        return fit_ordinary(self.timings, self.options)

    @property
    def latency(self) -> LinearLatency:
        alias = "" if self.name == self.architecture.name else f" under the name of {self.architecture.name}"
        source = f"measured: {self.measured_on}: {self.name}{alias}, off by {self.fit.held_out.mape:.0%} in the mean"
        return LinearLatency(**self.fit.coefficients, layers=self.architecture.layers, source=source)

    @property
    def prefill_s(self) -> float:
        """Fitted seconds of a prompt of `QUOTED_TOKENS` tokens."""
        return self.latency.seconds(batch_load(self.architecture.layers, [(0, QUOTED_TOKENS)], 1))

    @property
    def decode_s(self) -> float:
        """Fitted seconds of one token behind `QUOTED_TOKENS` cached ones."""
        return self.latency.seconds(batch_load(self.architecture.layers, [(QUOTED_TOKENS, 1)], 1))

    @property
    def repeats(self) -> int:
        return min(len(timing.runs) for timing in self.timings)

    @property
    def omitted(self) -> str:
        """The runs that the budget left out, as text; empty if there are none."""
        if self.warmup_runs is None:
            return ""
        parts = {
            "configurations": (len(self.timings), self.options.configurations + self.options.held_out),
            "rounds of repeats": (self.repeats, self.options.repeats),
            "warm-ups": (self.warmup_runs, min(self.options.warmup_runs, len(self.timings))),
        }
        return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in parts.items() if done < asked)

    @property
    def undisturbed_share(self) -> float | None:
        """Share of the runs that no other process disturbed. None if unknown."""
        runs = [run for timing in self.timings for run in timing.runs]
        if any(run.cpu_s is None for run in runs):
            return None
        return sum(run.undisturbed for run in runs) / len(runs)

    @property
    def num_disturbed(self) -> int:
        """Configurations without an undisturbed run."""
        return sum(timing.is_disturbed for timing in self.timings)

    @property
    def steady_share(self) -> float | None:
        """Share of the configurations with a variation below 5 % (WISP, appendix C), of those with two counted runs."""
        known = [timing.variation for timing in self.timings if timing.variation is not None]
        return sum(variation < STEADY_VARIATION for variation in known) / len(known) if known else None

    @property
    def first_run_share(self) -> float | None:
        """Median over configurations of first / median run time, undisturbed first runs only; 1 if warm."""
        shares = [t.runs[0].wall_s / t.median_s for t in self.timings if len(t.runs) > 1 and t.runs[0].undisturbed]
        return median(shares) if shares else None
