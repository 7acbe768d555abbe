"""Verification interference: a short request that shares a batch with a long one waits for it (WISP, section 3.4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.engines.models import ModelPair
from serving.hardware.latency import LatencyModel, batch_load
from serving.progress import Progress
from training.latency.grid import MIXED, SessionShape, WorkShape
from training.latency.profile import MAX_TOKEN_IDS
from training.latency.timing import Accelerator, TimedRun, Timing, WorkTimer
from training.latency.work import forward_work_builder

LONG_ALONE, SHORT_ALONE, BATCHED = "solo A", "solo B", "batched A+B"


@dataclass(frozen=True)
class InterferenceOptions:
    """A is an uncached request of each of `long_tokens` tokens; B has `num_drafts` new tokens behind `cached_tokens`.

    The last `num_drafts` tokens of both are verified. Every run has its own prompts.
    """

    long_tokens: tuple[int, ...] = (32, 64, 96, 128, 160, 192, 224)
    cached_tokens: int = 64
    num_drafts: int = 5
    repeats: int = 15
    warmup_runs: int = 10
    pause_ms: float = 20.0
    budget_s: float = 180.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.long_tokens or min(self.long_tokens) < self.num_drafts:
            raise ValueError(
                f"interference: long_tokens={list(self.long_tokens)}; one or more are wanted, "
                f"none below num_drafts={self.num_drafts}."
            )
        for name in ("cached_tokens", "num_drafts", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"interference: {name}={getattr(self, name)} must be at least 1.")

    def batches(self, length: int) -> dict[str, tuple[SessionShape, ...]]:
        """The sessions of the three batches for one length of A."""
        long, short = (
            SessionShape(0, length, self.num_drafts),
            SessionShape(self.cached_tokens, self.num_drafts, self.num_drafts),
        )
        return {LONG_ALONE: (long,), SHORT_ALONE: (short,), BATCHED: (long, short)}

    def shapes(self) -> list[WorkShape]:
        """The three shapes of each length, in the order of `long_tokens`."""
        return [WorkShape(MIXED, kind, parts) for n in self.long_tokens for kind, parts in self.batches(n).items()]


def label(length: int) -> str:
    return f"A of {length} tokens"


def measured_rows(
    options: InterferenceOptions, timings: Sequence[Timing], latency: LatencyModel | None
) -> dict[str, dict[str, Any]]:
    """Rows by A's length. Lists have one number per round, so that the three batches of a round are paired.

    `timings` are those of `options.shapes()`; `latency` adds a profile's prediction for the batch.
    """
    rows = {}
    for place, length in enumerate(options.long_tokens):
        times = [_seconds(timing.runs) for timing in timings[3 * place : 3 * place + 3]]
        ratios = [_ratios(times[2], alone) for alone in times[:2]]
        predicted_s = None if latency is None else _predictor(latency, options, length)(BATCHED)
        rows[label(length)] = _row(length, times, ratios, predicted_s)
    return rows


def predicted_rows(options: InterferenceOptions, latency: LatencyModel) -> dict[str, dict[str, Any]]:
    """The same rows, predicted by coefficients alone."""
    rows = {}
    for length in options.long_tokens:
        times = [_predictor(latency, options, length)(kind) for kind in (LONG_ALONE, SHORT_ALONE, BATCHED)]
        rows[label(length)] = _row(length, times, [times[2] / alone for alone in times[:2]], None)
    return rows


def _row(a_tokens: int, times: Sequence[Any], ratios: Sequence[Any], predicted_s: float | None) -> dict[str, Any]:
    names = ("solo_a_s", "solo_b_s", "batched_s", "batched_over_solo_a", "batched_over_solo_b")
    return {"a_tokens": a_tokens, **dict(zip(names, (*times, *ratios), strict=True)), "predicted_s": predicted_s}


def _predictor(latency: LatencyModel, options: InterferenceOptions, length: int) -> Callable[[str], float]:
    def of(kind: str) -> float:
        parts = options.batches(length)[kind]
        spans = [(part.cached_tokens, part.new_tokens) for part in parts]
        return latency.seconds(batch_load(latency.layers, spans, sum(part.num_outputs for part in parts)))

    return of


def _seconds(runs: Sequence[TimedRun]) -> list[float]:
    """Wall time of undisturbed runs, CPU time of others."""
    return [run.wall_s if run.undisturbed or run.cpu_s is None else run.cpu_s for run in runs]


def _ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    return [this / that for this, that in zip(numerators, denominators, strict=True)]


def time_batches(pair: ModelPair, options: InterferenceOptions, accelerator: str, progress: Progress) -> list[Timing]:
    """Timings of `options.shapes()` in rounds, every shape once per round."""
    from serving.deployment.model_loading import load_models

    models, shapes = load_models(pair.device, pair.cloud, accelerator), options.shapes()
    vocabulary = min(MAX_TOKEN_IDS, pair.cloud.timed_architecture.vocab_size)
    works, pause_s = forward_work_builder(models.cloud_layers), options.pause_ms / 1e3
    place, threads = Accelerator(accelerator), pair.cloud.threads
    place.use_threads(threads)
    watch = WorkTimer(models.cloud, works, place, vocabulary, options.seed, pause_s=pause_s, threads=threads)
    warm = (shapes * options.warmup_runs)[-options.warmup_runs :] if options.warmup_runs else []
    watch.warm_up(warm, 0.1 * options.budget_s)
    runs = options.repeats * len(shapes)
    return watch.time_shapes(shapes, options.repeats, options.budget_s, lambda done: progress(done, runs, "batches"))
