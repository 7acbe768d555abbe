"""Verification interference: a short request that shares a batch with a long one waits for it (WISP, section 3.4).

Times the batches of an interference experiment on a pair's large model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.engines.models import Pair
from serving.hardware.latency import Latency, load
from serving.progress import Progress
from training.latency.grid import MIXED, Part, Shape
from training.latency.profile import VARIETY
from training.latency.timing import Accelerator, Run, Stopwatch, Timing
from training.latency.work import forwards

SOLO_A, SOLO_B, BATCHED = "solo A", "solo B", "batched A+B"


@dataclass(frozen=True)
class Interference:
    """A: an uncached request of each of `lengths` tokens; B: `drafts` new tokens behind `prefix` cached ones.

    Of both the last `drafts` tokens are verified. Every run has prompts of its own.
    """

    lengths: tuple[int, ...] = (32, 64, 96, 128, 160, 192, 224)
    prefix: int = 64
    drafts: int = 5
    repeats: int = 15
    warm_ups: int = 10
    pause_ms: float = 20.0
    budget_s: float = 180.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < self.drafts:
            raise ValueError(
                f"interference: lengths={list(self.lengths)}; one or more are wanted, none below drafts={self.drafts}."
            )
        for name in ("prefix", "drafts", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"interference: {name}={getattr(self, name)} must be at least 1.")

    def parts(self, length: int) -> dict[str, tuple[Part, ...]]:
        """Sessions of the three batches."""
        long, short = Part(0, length, self.drafts), Part(self.prefix, self.drafts, self.drafts)
        return {SOLO_A: (long,), SOLO_B: (short,), BATCHED: (long, short)}

    def shapes(self) -> list[Shape]:
        """All three of each length, in the order of `lengths`."""
        return [Shape(MIXED, kind, parts) for n in self.lengths for kind, parts in self.parts(n).items()]


def label(length: int) -> str:
    return f"A of {length} tokens"


def measured(options: Interference, timings: Sequence[Timing], latency: Latency | None) -> dict[str, dict[str, Any]]:
    """Rows by A's length; lists have a number a round, so that the three batches of one round are paired.

    `timings` are those of `options.shapes()`; `latency` adds what a profile predicts of the batch.
    """
    found = {}
    for place, length in enumerate(options.lengths):
        solo_a, solo_b, batched = (_seconds(timing.runs) for timing in timings[3 * place : 3 * place + 3])
        found[label(length)] = {
            "length": length,
            "solo_a_s": solo_a,
            "solo_b_s": solo_b,
            "batched_s": batched,
            "over_a": _ratios(batched, solo_a),
            "over_b": _ratios(batched, solo_b),
            "predicted_s": None if latency is None else _predict(latency, options, length)(BATCHED),
        }
    return found


def predicted(options: Interference, latency: Latency) -> dict[str, dict[str, Any]]:
    """The same rows by coefficients alone."""
    found = {}
    for length in options.lengths:
        of = _predict(latency, options, length)
        solo_a, solo_b, batched = of(SOLO_A), of(SOLO_B), of(BATCHED)
        found[label(length)] = {
            "length": length,
            "solo_a_s": solo_a,
            "solo_b_s": solo_b,
            "batched_s": batched,
            "over_a": batched / solo_a,
            "over_b": batched / solo_b,
            "predicted_s": None,
        }
    return found


def _predict(latency: Latency, options: Interference, length: int) -> Callable[[str], float]:
    def of(kind: str) -> float:
        parts = options.parts(length)[kind]
        spans = [(part.cached, part.new) for part in parts]
        return latency.seconds(load(latency.layers, spans, sum(part.asked for part in parts)))

    return of


def _seconds(runs: Sequence[Run]) -> list[float]:
    """Wall time of quiet runs; of others, what they had of the processor."""
    return [run.wall_s if run.quiet or run.processor_s is None else run.processor_s for run in runs]


def _ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [this / that for this, that in zip(these, those, strict=True)]


def time_batches(pair: Pair, options: Interference, accelerator: str, progress: Progress) -> list[Timing]:
    """Timings of `options.shapes()`, in rounds: every shape once a round."""
    from serving.deployment.model_loading import open_models

    models, shapes = open_models(pair.device, pair.cloud, accelerator), options.shapes()
    vocabulary = min(VARIETY, pair.cloud.timing.vocabulary)
    works, pause_s = forwards(models.cloud_layers), options.pause_ms / 1e3
    watch = Stopwatch(models.cloud, works, Accelerator(accelerator), vocabulary, options.seed, pause_s=pause_s)
    warm = (shapes * options.warm_ups)[-options.warm_ups :] if options.warm_ups else []
    watch.warm_up(warm, 0.1 * options.budget_s)
    runs = options.repeats * len(shapes)
    return watch.time(shapes, options.repeats, options.budget_s, lambda done: progress(done, runs, "batches"))
