"""The trained router as it is served: quality on held-out prompts beside random routing of the same share.

Also the policy under which trajectories are recorded and routers are evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from serving.deployment.queries import LoadedModels, Query
from serving.learned.router import TokenRouter
from serving.metrics.recorder import SessionRecord
from serving.outcomes.offline import run_untimed
from serving.outcomes.record import target_only
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.offload import NeverOffload, Offload, RandomOffload
from serving.policy.slots.routed_offload import RoutedOffload
from serving.policy.slots.verify import Replace
from serving.progress import Progress
from serving.workload.metrics import Metric, checked_score
from training.fitting.held_out import with_note


def routing_policy(offload: Offload) -> Policy:
    """`offload` decides for every token whether the device or the cloud writes it."""
    return replace(target_only(), name="routing", draft=WindowDraft(1), offload=offload, verify=Replace())


RESAMPLES = 1000


@dataclass(frozen=True)
class RouterEvaluation:
    """Qualities are means over prompts; the gain has a paired bootstrap interval over prompts (95 %)."""

    prompts: int
    routed_share: float
    """Share of the tokens that the cloud wrote."""
    quality: float
    small_only_quality: float
    random_quality: float
    """With random routing of the same share."""
    gain: float
    gain_low: float
    gain_high: float


def evaluate_router(
    router: TokenRouter, models: LoadedModels, queries: Sequence[Query], metric: Metric, seed: int, progress: Progress
) -> RouterEvaluation:
    """Serves `queries` with the router at its own threshold, with the small model alone, and with random routing."""

    def served(offload: Offload, note: str) -> tuple[np.ndarray, float]:
        records = run_untimed(routing_policy(offload), models, queries, seed, with_note(progress, note))
        return _score_answers(records, models, queries, metric)

    quality, routed_share = served(RoutedOffload(router), "served with the router")
    small_only, _ = served(NeverOffload(), "served without")
    random, _ = served(RandomOffload(routed_share), "served with random routing")
    low, high = _bootstrap_interval(quality - small_only, seed)
    return RouterEvaluation(
        prompts=len(queries),
        routed_share=routed_share,
        quality=float(quality.mean()),
        small_only_quality=float(small_only.mean()),
        random_quality=float(random.mean()),
        gain=float((quality - small_only).mean()),
        gain_low=low,
        gain_high=high,
    )


def check(evaluation: RouterEvaluation) -> None:
    """Raises ValueError, with the figures, for a router whose answers are significantly worse than without it."""
    if evaluation.gain_high < 0:
        raise ValueError(
            f"the router is worse than none: quality {evaluation.quality:.3f} with {evaluation.routed_share:.1%} of "
            f"the tokens routed, {evaluation.small_only_quality:.3f} without, on {evaluation.prompts} held-out "
            "prompts; is the cloud's model the better one? Profile more prompts (workload.profiling.num_prompts), "
            "or change the pair"
        )


def _score_answers(
    records: dict[str, SessionRecord], models: LoadedModels, queries: Sequence[Query], metric: Metric
) -> tuple[np.ndarray, float]:
    """Each prompt's quality, and the share of all tokens that the cloud wrote."""
    scores, routed, total = [], 0, 0
    for query in queries:
        record = records[query.request.session]
        answer = query.prompt.extract_answer(models.tokenizer.decode(record.tokens))
        scores.append(checked_score(metric, answer, query.prompt))
        routed += record.origins.count("cloud")
        total += len(record.origins)
    return np.array(scores), routed / max(1, total)


def _bootstrap_interval(differences: np.ndarray, seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), (0.025, 0.975)).tolist()
    return low, high
