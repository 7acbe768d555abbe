"""What a router is worth when it is served: quality on prompts that nothing was learned from, beside luck's.

The policy under which trajectories are made and routers are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

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
from serving.workload.metrics import Metric


def routing_policy(offload: Offload) -> Policy:
    """Device and cloud by turns, as `offload` decides token by token."""
    return replace(target_only(), name="routing", draft=WindowDraft(1), offload=offload, verify=Replace())


RESAMPLES = 1000


@dataclass(frozen=True)
class RouterEvaluation:
    """Qualities are means over prompts; the gain's interval is a paired bootstrap over them (95 %)."""

    prompts: int
    routed_share: float
    """Share of the tokens that the cloud wrote."""
    quality: float
    small_only_quality: float
    random_quality: float
    """Of luck that routes the same share."""
    gain: float
    gain_low: float
    gain_high: float

    def metrics(self) -> dict[str, float]:
        return {f"served/{name}": value for name, value in asdict(self).items()}


def evaluate_router(
    router: TokenRouter, models: LoadedModels, queries: Sequence[Query], metric: Metric, seed: int, progress: Progress
) -> RouterEvaluation:
    """With the router at its own threshold, without, and with luck in its place."""

    def played(offload: Offload, note: str) -> tuple[np.ndarray, float]:
        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, note)

        records = run_untimed(routing_policy(offload), models, queries, seed, noted)
        return _score_answers(records, models, queries, metric)

    quality, routed = played(RoutedOffload(router), "served with the router")
    alone, _ = played(NeverOffload(), "served without")
    luck, _ = played(RandomOffload(routed), "served with luck instead")
    low, high = _bootstrap_interval(quality - alone, seed)
    return RouterEvaluation(
        len(queries), routed, float(quality.mean()), float(alone.mean()), float(luck.mean()),
        float((quality - alone).mean()), low, high,
    )  # fmt: skip


def check(evaluation: RouterEvaluation) -> None:
    """Raises ValueError, with the figures, for a router with which answers are certainly worse than without."""
    if evaluation.gain_high < 0:
        raise ValueError(
            f"the router is worse than none: quality {evaluation.quality:.3f} with {evaluation.routed_share:.1%} of the tokens "
            f"routed, {evaluation.small_only_quality:.3f} without, on {evaluation.prompts} held-out prompts; is the cloud's model the "
            "better one? Profile more prompts (workload.profiling.num_prompts), or change the pair"
        )


def _score_answers(
    records: dict[str, SessionRecord], models: LoadedModels, queries: Sequence[Query], metric: Metric
) -> tuple[np.ndarray, float]:
    """Each prompt's quality, and the share of all tokens that the cloud wrote."""
    scores, routed, total = [], 0, 0
    for query in queries:
        record = records[query.request.session]
        answer = query.prompt.extract_answer(models.tokenizer.decode(record.tokens))
        scores.append(metric.score(answer, query.prompt))
        routed += record.origins.count("cloud")
        total += len(record.origins)
    return np.array(scores), routed / max(1, total)


def _bootstrap_interval(differences: np.ndarray, seed: int) -> tuple[float, float]:
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), (0.025, 0.975)).tolist()
    return low, high
