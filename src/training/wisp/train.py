"""One predictor, from a token trace to an artifact that was served and found better than none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.deployment.queries import LoadedModels, Query
from serving.learned.rejection_predictor import RejectionPredictor
from serving.outcomes.offline import run_untimed
from serving.policy.slots.draft import Draft, RejectionAwareDraft, WindowDraft
from serving.policy.slots.early_exit import EarlyExit
from serving.progress import Progress
from training.fitting.trainer import Trainer
from training.wisp.evaluation import evaluate, token_latency
from training.wisp.mlp import MLP
from training.wisp.rules import BalancedAccuracyRule, CoverageRule, RecallRule, ThresholdRule, coverage
from training.wisp.samples import SampleSplit, TokenSamples
from training.wisp.serving_eval import DraftCounts, compare, count_drafts

COMPARED_RULES: tuple[ThresholdRule, ...] = (BalancedAccuracyRule(), RecallRule(), CoverageRule())

MIN_TOKENS_RATIO = 0.75
"""Of a full window's tokens a round: who rejects all but the first draft is accepted often, and no help."""


def train(
    split: SampleSplit, mlp: MLP, rule: ThresholdRule, seed: int, trainer: Trainer, progress: Progress
) -> RejectionPredictor:
    """Fitted, with its threshold, and the metrics of the test part."""
    fitted = mlp.fit(split.train, split.validation, seed, trainer, progress)
    found = replace(fitted, threshold=rule.threshold(fitted, split.validation), threshold_rule=repr(rule))
    sizes = {name: len(getattr(split, name)) for name in ("train", "validation", "test")}
    metrics = {
        **fitted.metrics,
        "samples": sizes,
        "test": test_part_metrics(found, split.test),
        "latency_s": token_latency(found, split.test.features),
        "operating_points": [_operating_point(found, each, split) for each in dict.fromkeys((rule, *COMPARED_RULES))],
    }
    return replace(found, metrics=metrics)


def test_part_metrics(predictor: RejectionPredictor, test: TokenSamples) -> dict[str, Any]:
    """Tables 4 and 10, calibration, and the share of a round's tokens that is left."""
    metrics = evaluate(predictor.probabilities(test.features), test.accepted, predictor.threshold)
    return metrics | {"coverage": _coverage(predictor, test, predictor.threshold)}


def _operating_point(predictor: RejectionPredictor, rule: ThresholdRule, split: SampleSplit) -> dict[str, Any]:
    """What another rule would have chosen, and what of it is seen on test."""
    threshold, test = rule.threshold(predictor, split.validation), split.test
    metrics = evaluate(predictor.probabilities(test.features), test.accepted, threshold)
    windows = test.windows
    sent = windows.truncated_lengths(predictor.probabilities(windows.features), threshold)
    return {
        "rule": repr(rule),
        **{name: metrics[name] for name in ("threshold", "recall", "fpr", "balanced_accuracy")},
        "coverage": _coverage(predictor, test, threshold),
        "acceptance_rate": float((sent - windows.wasted_tokens(sent)).sum() / sent.sum()),
    }


def _coverage(predictor: RejectionPredictor, test: TokenSamples, threshold: float) -> float:
    return coverage(test.windows, predictor.probabilities(test.windows.features), threshold)


def evaluate_served(
    predictor: RejectionPredictor, models: LoadedModels, queries: Sequence[Query], k: int, early_exit: EarlyExit, seed: int,
    progress: Progress,
) -> tuple[RejectionPredictor, dict[str, Any]]:  # fmt: skip
    """The predictor with the acceptance that it was served with, and the figures without and with it.

    Raises ValueError, with the figures, where acceptance is not above that of full windows, or a round yields fewer
    than `MIN_TOKENS_RATIO` of theirs.
    """

    def noted(note: str) -> Progress:
        return lambda done, total, _: progress(done, total, note)

    without = _serve_and_count(WindowDraft(k), models, queries, early_exit, seed, noted("served without a predictor"))
    with_it = _serve_and_count(
        RejectionAwareDraft(k, predictor), models, queries, early_exit, seed, noted("served with it")
    )
    served = compare(without, with_it, seed)
    before, after = (served["acceptance_rate"][side][0] for side in ("without", "with"))
    if after <= before:
        raise ValueError(
            f"the predictor is no better than none: {after:.1%} of the tokens drafted with it were accepted, "
            f"{before:.1%} without it, on {len(queries)} held-out prompts with windows of {k}; profile more prompts "
            "(workload.profiling.num_prompts), or change its rule"
        )
    kept = served["tokens_per_round"]["ratio"][0]
    if kept < MIN_TOKENS_RATIO:
        raise ValueError(
            f"the predictor stops too soon: a round yields {kept:.0%} of the tokens without it, and "
            f"{MIN_TOKENS_RATIO:.0%} are wanted, on {len(queries)} held-out prompts with windows of {k}; lower its "
            "threshold by its rule (policy.artifacts.rejection_predictor.rule)"
        )
    return replace(predictor, acceptance=after, metrics={**predictor.metrics, "served": served}), served


def _serve_and_count(
    draft: Draft, models: LoadedModels, queries: Sequence[Query], early_exit: EarlyExit, seed: int, progress: Progress
) -> DraftCounts:
    from training.wisp.evaluation import tracing_policy

    records = run_untimed(tracing_policy(draft, early_exit), models, queries, seed, progress)
    return count_drafts([records[query.request.session].draft_decisions for query in queries])


def stage_metrics(predictor: RejectionPredictor) -> dict[str, float]:
    """What a run shows of the stage: the test metrics, the delay, and what serving changed."""
    test, served = predictor.metrics["test"], predictor.metrics["served"]
    names = ("accuracy", "auc", "recall", "specificity", "fpr", "balanced_accuracy", "ece", "brier", "coverage")
    shown = {f"test/{name}": test[name] for name in names} | {"threshold": predictor.threshold}
    shown |= {f"latency_s/{name}": value for name, value in predictor.metrics["latency_s"].items()}
    for name, sides in served.items():
        if isinstance(sides, dict):
            shown |= {f"served/{name}/{side}": value[0] for side, value in sides.items()}
    return {name: value for name, value in shown.items() if value is not None}


def write(out: Path, predictor: RejectionPredictor) -> None:
    """The artifact, and metrics.json beside it."""
    predictor.save(out)
    (out / "metrics.json").write_text(json.dumps(stage_metrics(predictor), indent=1), encoding="utf-8")
