"""The training of one predictor: fitted on a token trace, served, and refused if it is no better than none."""

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
from training.fitting.held_out import with_note
from training.fitting.trainer import Trainer
from training.wisp.evaluation import DraftCounts, compare, count_drafts, evaluate, token_latency, tracing_policy
from training.wisp.mlp import MLP
from training.wisp.rules import BalancedAccuracyRule, CoverageRule, RecallRule, ThresholdRule, coverage
from training.wisp.samples import SampleSplit, TokenSamples

COMPARED_RULES: tuple[ThresholdRule, ...] = (BalancedAccuracyRule(), RecallRule(), CoverageRule())

MIN_TOKENS_RATIO = 0.75
"""Of the tokens per round of full windows. A predictor that rejects all but the first draft has a high acceptance rate
and does not help.
"""


def train(
    split: SampleSplit, mlp: MLP, rule: ThresholdRule, seed: int, trainer: Trainer, progress: Progress
) -> RejectionPredictor:
    """The fitted predictor with its threshold and the metrics of the test part."""
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
    """The metrics of Tables 4 and 10, calibration and coverage."""
    metrics = evaluate(predictor.probabilities(test.features), test.accepted, predictor.threshold)
    return metrics | {"coverage": _coverage(predictor, test, predictor.threshold)}


def _operating_point(predictor: RejectionPredictor, rule: ThresholdRule, split: SampleSplit) -> dict[str, Any]:
    """The threshold of another rule, and its metrics on test."""
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
    predictor: RejectionPredictor,
    models: LoadedModels,
    queries: Sequence[Query],
    k: int,
    early_exit: EarlyExit,
    seed: int,
    progress: Progress,
) -> tuple[RejectionPredictor, dict[str, Any]]:
    """The predictor with its served acceptance rate, and the figures with and without it.

    Raises ValueError, with the figures, if the acceptance rate is not above that of full windows, or a round yields
    less than `MIN_TOKENS_RATIO` of their tokens.
    """

    baseline, with_predictor = (
        _serve_and_count(draft, models, queries, early_exit, seed, with_note(progress, note))
        for draft, note in (
            (WindowDraft(k), "served without a predictor"),
            (RejectionAwareDraft(k, predictor), "served with it"),
        )
    )
    served = compare(baseline, with_predictor, seed)
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
    records = run_untimed(tracing_policy(draft, early_exit), models, queries, seed, progress)
    return count_drafts([records[query.request.session].draft_decisions for query in queries])


def stage_metrics(predictor: RejectionPredictor) -> dict[str, float]:
    """The stage's metrics: test metrics, latency, and rates with and without the predictor."""
    test, served = predictor.metrics["test"], predictor.metrics["served"]
    names = ("accuracy", "auc", "recall", "specificity", "fpr", "balanced_accuracy", "ece", "brier", "coverage")
    shown = {f"test/{name}": test[name] for name in names} | {"threshold": predictor.threshold}
    shown |= {f"latency_s/{name}": value for name, value in predictor.metrics["latency_s"].items()}
    for name, sides in served.items():
        if isinstance(sides, dict):
            shown |= {f"served/{name}/{side}": value[0] for side, value in sides.items()}
    return {name: value for name, value in shown.items() if value is not None}


def write(out: Path, predictor: RejectionPredictor) -> None:
    """Writes the artifact and metrics.json."""
    predictor.save(out)
    (out / "metrics.json").write_text(json.dumps(stage_metrics(predictor), indent=1), encoding="utf-8")
