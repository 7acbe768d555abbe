"""Timings that a machine of known coefficients would show."""

from __future__ import annotations

import numpy as np

from serving.hardware.latency import Latency, load
from training.latency.timing import Run, Timing
from training.latency.work import FORWARDS

TRUE = Latency(2e-4, 6e-8, 9e-6, 6e-3, 8, "made up", head_row_s=8e-5, head_c_s=1e-3, session_s=2e-3)


def made_up(noise: float = 0.0, fitted: int = 123, held_out: int = 50, seed: int = 0) -> list[Timing]:
    """Each run off by `noise` in the mean."""
    generator = np.random.default_rng(seed)
    timings = []
    for shape in FORWARDS.shapes(fitted, held_out, 1024, seed):
        spans = [(part.cached, part.new) for part in shape.parts]
        loads = (load(8, spans, sum(part.asked for part in shape.parts)),)
        runs = TRUE.seconds(loads[0]) * generator.normal(1, noise, size=5)
        timings.append(Timing(shape, loads, [Run(run, run) for run in runs.tolist()]))
    return timings
