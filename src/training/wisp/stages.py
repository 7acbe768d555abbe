"""Stages about families of predictors, beside those of `training.stages`: tried, matched, timed, and their waste."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.progress import Progress, silent
from training.fitting.trainer import ALL_CORES, Trainer
from training.wisp.families import Family
from training.wisp.mlp import MLP
from training.wisp.samples import load


def try_family(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    family: Family = MLP(),  # noqa: B008
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Trains one family on the trace `tokens` and judges it on validation and test: metrics.json (WISP, Table 9)."""
    from training.wisp.matched_recall import measure

    _write(out, "metrics.json", measure(family, load(tokens).split(seed), seed, trainer, progress))


def match_recall(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    families: tuple[Family, ...],
    recalls: Sequence[float],
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
) -> None:
    """False alarms of all families at the same recall of the same test part: rows.json. Raises ValueError for recalls
    that are no shares.
    """
    from training.wisp import matched_recall
    from training.wisp.matched_recall import fitted

    wrong = [at for at in recalls if not 0 < at < 1]
    if wrong or not recalls:
        raise ValueError(f"recalls are {list(recalls)}; give shares between 0 and 1, as 0.75")
    split, chances = load(tokens).split(seed), {}
    for i, family in enumerate(families):
        chances[family.name] = fitted(family, split, seed, trainer, silent).chances(split.test.features)
        progress(i + 1, len(families), family.name)
    found = matched_recall.rows(chances, split.test, recalls)
    _write(out, "rows.json", found)


def time_families(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    families: tuple[Family, ...],
    trials: int = 1000,
    seed: int = 0,
    trainer: Trainer = ALL_CORES,
    machine: str = "",  # noqa: ARG001
) -> None:
    """How long each family takes for one token on this machine, in one thread: rows.json (WISP, Table 11).

    `machine` only names it, so that outputs shared by two machines keep the times of each.
    """
    from training.wisp.evaluation import single_sample
    from training.wisp.matched_recall import fitted

    split, rows = load(tokens).split(seed), {}
    for i, family in enumerate(families):
        found = fitted(family, split, seed, trainer, silent)
        rows[family.name] = single_sample(found, split.test.features, trials)
        progress(i + 1, len(families), family.name)
    _write(out, "rows.json", {"this machine": rows})


def measure_waste(
    out: Path,
    *,
    progress: Progress,
    tokens: Path,
    families: Mapping[str, Family],
    seeds: Sequence[int] = (0,),
    recalls: Sequence[float] = (0.5, 0.65, 0.8, 0.9, 0.95),
    k: int = 8,
    trainer: Trainer = ALL_CORES,
) -> None:
    """Wasted drafts against false alarms of many trained predictors, on held-out windows: rows.json (WISP, Theorem 1).

    Each of `families` (by what tables call it) is trained with each of `seeds`, and stands at thresholds that let
    through `recalls` of the accepted validation tokens; the split is that of the first seed. Raises ValueError for
    windows longer than `k`, and where there are fewer than two predictors.
    """
    from training.wisp import theorem1

    found = theorem1.measure(load(tokens), families, seeds, recalls, k, trainer, progress)
    _write(out, "rows.json", theorem1.rows(found))
    _write(out, "metrics.json", theorem1.metrics(found))


def _write(out: Path, name: str, node: Any) -> None:
    (out / name).write_text(json.dumps(node), encoding="utf-8")
