"""Stages about families of predictors, beside those of `training.stages`: tried, matched, timed, and their waste."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.progress import Progress, silent
from training.fitting.trainer import CPU_TRAINER, Trainer
from training.wisp.families import PredictorFamily
from training.wisp.mlp import MLP
from training.wisp.samples import load_samples


def evaluate_family(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    family: PredictorFamily = MLP(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Trains one family on the trace `token_trace` and judges it on validation and test: metrics.json (WISP, Table 9)."""
    from training.wisp.matched_recall import evaluate_family

    _write(out, "metrics.json", evaluate_family(family, load_samples(token_trace).split(seed), seed, trainer, progress))


def compare_at_recall(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    recalls: Sequence[float],
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """False alarms of all families at the same recall of the same test part: rows.json. Raises ValueError for recalls
    that are no shares.
    """
    from training.wisp import matched_recall
    from training.wisp.matched_recall import fit_predictor

    wrong = [at for at in recalls if not 0 < at < 1]
    if wrong or not recalls:
        raise ValueError(f"recalls are {list(recalls)}; give shares between 0 and 1, as 0.75")
    split, chances = load_samples(token_trace).split(seed), {}
    for i, family in enumerate(families):
        chances[family.name] = fit_predictor(family, split, seed, trainer, silent).probabilities(split.test.features)
        progress(i + 1, len(families), family.name)
    found = matched_recall.rows(chances, split.test, recalls)
    _write(out, "rows.json", found)


def measure_predictor_latency(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: tuple[PredictorFamily, ...],
    num_calls: int = 1000,
    seed: int = 0,
    trainer: Trainer = CPU_TRAINER,
    machine: str = "",  # noqa: ARG001
) -> None:
    """How long each family takes for one token on this machine, in one thread: rows.json (WISP, Table 11).

    `machine` only names it, so that outputs shared by two machines keep the times of each.
    """
    from training.wisp.evaluation import token_latency
    from training.wisp.matched_recall import fit_predictor

    split, rows = load_samples(token_trace).split(seed), {}
    for i, family in enumerate(families):
        found = fit_predictor(family, split, seed, trainer, silent)
        rows[family.name] = token_latency(found, split.test.features, num_calls)
        progress(i + 1, len(families), family.name)
    _write(out, "rows.json", {"this machine": rows})


def measure_waste(
    out: Path,
    *,
    progress: Progress,
    token_trace: Path,
    families: Mapping[str, PredictorFamily],
    seeds: Sequence[int] = (0,),
    recalls: Sequence[float] = (0.5, 0.65, 0.8, 0.9, 0.95),
    k: int = 8,
    trainer: Trainer = CPU_TRAINER,
) -> None:
    """Wasted drafts against false alarms of many trained predictors, on held-out windows: rows.json (WISP, Theorem 1).

    Each of `families` (by what tables call it) is trained with each of `seeds`, and stands at thresholds that let
    through `recalls` of the accepted validation tokens; the split is that of the first seed. Raises ValueError for
    windows longer than `k`, and where there are fewer than two predictors.
    """
    from training.wisp import theorem1

    found = theorem1.measure_theorem(load_samples(token_trace), families, seeds, recalls, k, trainer, progress)
    _write(out, "rows.json", theorem1.rows(found))
    _write(out, "metrics.json", theorem1.metrics(found))


def _write(out: Path, name: str, node: Any) -> None:
    (out / name).write_text(json.dumps(node), encoding="utf-8")
