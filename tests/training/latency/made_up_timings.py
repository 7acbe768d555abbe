"""Timings that a machine of known coefficients would show."""

from __future__ import annotations

import numpy as np

from serving.hardware.latency import LinearLatency, batch_load
from training.latency.timing import TimedRun, Timing
from training.latency.work import FORWARD_GRID

TRUE = LinearLatency(2e-4, 6e-8, 9e-6, 6e-3, 8, "made up", head_token_s=8e-5, head_c_s=1e-3, session_s=2e-3)


def made_up(noise: float = 0.0, fitted: int = 123, held_out: int = 50, seed: int = 0) -> list[Timing]:
    """Each run off by `noise` in the mean."""
    generator = np.random.default_rng(seed)
    timings = []
    for shape in FORWARD_GRID.shapes(fitted, held_out, 1024, seed):
        spans = [(part.cached_tokens, part.new_tokens) for part in shape.sessions]
        loads = (batch_load(8, spans, sum(part.num_outputs for part in shape.sessions)),)
        runs = TRUE.seconds(loads[0]) * generator.normal(1, noise, size=5)
        timings.append(Timing(shape, loads, [TimedRun(run, run) for run in runs.tolist()]))
    return timings
