"""The quality stage's figures as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def scorecard(report: Mapping[str, Any]) -> str:
    """Lines for people, from what `training.embedded_pair.quality.measure` reports."""
    large, small = (report["models"][name] for name in ("large", "small"))
    head = f"{report['items_per_task']} test items a task     exact match          ROUGE-1"
    rows = [
        _row(task, *(model[metric][task] for metric in ("exact_match", "rouge1") for model in (large, small)))
        for task in large["exact_match"]
    ]
    means = [model[f"mean_{metric}"] for metric in ("exact_match", "rouge1") for model in (large, small)]
    names = f"{'':<24}  large   small       large   small"
    return "\n".join([head, names, *rows, _row("mean", *means), "", *_drafting(report["drafting"]), *_cost(report)])


def _row(name: str, *figures: float) -> str:
    a, b, c, d = figures
    return f"  {name:<22}  {a:5.3f}   {b:5.3f}       {c:5.3f}   {d:5.3f}"


def _drafting(found: Mapping[str, Any]) -> list[str]:
    layers = ", ".join(f"{share:.2f}" for share in found["exit_agreement_by_layer"])
    return [
        f"greedy acceptance       {found['acceptance']:.3f} of all tokens, "
        f"{found['acceptance_content']:.3f} of content tokens",
        f"confidence AUC          {found['auc']:.3f} on all tokens, {found['auc_content']:.3f} on content tokens",
        f"tokens a round          {found['tokens_a_round']:.2f} with {found['drafted']} drafted",
        f"exit agreement          {layers} after each layer of the small model",
    ]


def _cost(report: Mapping[str, Any]) -> list[str]:
    cost = report["cost"]
    large_ms, small_ms = cost["large"]["decode_ms"], cost["small"]["decode_ms"]
    return [
        f"forward cost            {cost['weights_ratio']:.1f} to 1 by weights, "
        f"{cost['decode_ms_ratio']:.1f} to 1 measured ({large_ms:.2f} and {small_ms:.2f} ms a token)",
    ]
