"""One predictor, from a token trace to an artifact that was served and found better than none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.deployment.queries import Models, Query
from serving.learned.rejection_predictor import Predictor
from serving.outcomes.offline import play
from serving.policy.slots.draft import Draft, RejectionPredictor, Window
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from training.fitting.trainer import Trainer
from training.wisp.evaluation import evaluate, single_sample
from training.wisp.mlp import MLP
from training.wisp.rules import Balanced, Coverage, Recall, Rule, coverage
from training.wisp.samples import Samples, Split
from training.wisp.serving_eval import Tally, compare, tally

FRONTIER: tuple[Rule, ...] = (Balanced(), Recall(), Coverage())

LEAST_TOKENS = 0.75
"""Of a full window's tokens a round: who rejects all but the first draft is accepted often, and no help."""


def train(split: Split, mlp: MLP, rule: Rule, seed: int, trainer: Trainer, progress: Progress) -> Predictor:
    """Fitted, with its threshold, and the metrics of the test part."""
    fitted = mlp.fit(split.train, split.validation, seed, trainer, progress)
    found = replace(fitted, threshold=rule.threshold(fitted, split.validation), rule=repr(rule))
    sizes = {name: len(getattr(split, name)) for name in ("train", "validation", "test")}
    metrics = {
        **fitted.metrics,
        "samples": sizes,
        "test": judged(found, split.test),
        "latency_s": single_sample(found, split.test.features),
        "operating_points": [_point(found, each, split) for each in dict.fromkeys((rule, *FRONTIER))],
    }
    return replace(found, metrics=metrics)


def judged(found: Predictor, test: Samples) -> dict[str, Any]:
    """Tables 4 and 10, calibration, and the share of a round's tokens that is left."""
    metrics = evaluate(found.chances(test.features), test.accepted, found.threshold)
    return metrics | {"coverage": _coverage(found, test, found.threshold)}


def _point(found: Predictor, rule: Rule, split: Split) -> dict[str, Any]:
    """What another rule would have chosen, and what of it is seen on test."""
    threshold, test = rule.threshold(found, split.validation), split.test
    metrics = evaluate(found.chances(test.features), test.accepted, threshold)
    windows = test.windows
    sent = windows.sent(found.chances(windows.features), threshold)
    return {
        "rule": repr(rule),
        **{name: metrics[name] for name in ("threshold", "recall", "fpr", "balanced_accuracy")},
        "coverage": _coverage(found, test, threshold),
        "acceptance": float((sent - windows.wasted(sent)).sum() / sent.sum()),
    }


def _coverage(found: Predictor, test: Samples, threshold: float) -> float:
    return coverage(test.windows, found.chances(test.windows.features), threshold)


def serve(
    found: Predictor, models: Models, queries: Sequence[Query], k: int, early_exit: EarlyExit, seed: int,
    progress: Progress,
) -> tuple[Predictor, dict[str, Any]]:  # fmt: skip
    """The predictor with the acceptance that it was served with, and the figures without and with it.

    Raises ValueError, with the figures, where acceptance is not above that of full windows, or a round yields fewer
    than `LEAST_TOKENS` of theirs.
    """

    def noted(note: str) -> Progress:
        return lambda done, total, _: progress(done, total, note)

    without = _played(Window(k), models, queries, early_exit, seed, noted("served without a predictor"))
    with_it = _played(RejectionPredictor(k, found), models, queries, early_exit, seed, noted("served with it"))
    served = compare(without, with_it, seed)
    before, after = (served["acceptance"][side][0] for side in ("without", "with"))
    if after <= before:
        raise ValueError(
            f"the predictor is no better than none: {after:.1%} of the tokens drafted with it were accepted, "
            f"{before:.1%} without it, on {len(queries)} held-out prompts with windows of {k}; profile more prompts "
            "(workload.profiling.prompts), or change its rule"
        )
    kept = served["tokens_a_round"]["ratio"][0]
    if kept < LEAST_TOKENS:
        raise ValueError(
            f"the predictor stops too soon: a round yields {kept:.0%} of the tokens without it, and "
            f"{LEAST_TOKENS:.0%} are wanted, on {len(queries)} held-out prompts with windows of {k}; lower its "
            "threshold by its rule (policy.artifacts.rejection_predictor.rule)"
        )
    return replace(found, acceptance=after, metrics={**found.metrics, "served": served}), served


def _played(
    draft: Draft, models: Models, queries: Sequence[Query], early_exit: EarlyExit, seed: int, progress: Progress
) -> Tally:
    from training.wisp.evaluation import judging_policy

    records = play(judging_policy(draft, early_exit), models, queries, seed, progress)
    return tally([records[query.call.session].chunks for query in queries])


def metrics(found: Predictor) -> dict[str, float]:
    """What a run shows of the stage: the test metrics, the delay, and what serving changed."""
    test, served = found.metrics["test"], found.metrics["served"]
    names = ("accuracy", "auc", "recall", "specificity", "fpr", "balanced_accuracy", "ece", "brier", "coverage")
    shown = {f"test/{name}": test[name] for name in names} | {"threshold": found.threshold}
    shown |= {f"latency_s/{name}": value for name, value in found.metrics["latency_s"].items()}
    for name, sides in served.items():
        if isinstance(sides, dict):
            shown |= {f"served/{name}/{side}": value[0] for side, value in sides.items()}
    return {name: value for name, value in shown.items() if value is not None}


def write(out: Path, found: Predictor) -> None:
    """The artifact, and metrics.json beside it."""
    found.save(out)
    (out / "metrics.json").write_text(json.dumps(metrics(found), indent=1), encoding="utf-8")
