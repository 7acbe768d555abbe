"""What a router is worth when it is served: quality on prompts that nothing was learned from, beside luck's.

The policy under which trajectories are made and routers are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from serving.deployment.queries import Models, Query
from serving.learned.router import Router
from serving.metrics.recorder import Record
from serving.outcomes.offline import play
from serving.outcomes.record import target_alone
from serving.policy.policy import Policy
from serving.policy.slots.draft import Window
from serving.policy.slots.offload import Never, Offload, Random
from serving.policy.slots.routed_offload import Routed
from serving.policy.slots.verify import Replace
from serving.progress import Progress
from serving.workload.metrics import Metric


def routing(offload: Offload) -> Policy:
    """Device and cloud by turns, as `offload` decides token by token."""
    return replace(target_alone(), name="routing", draft=Window(1), offload=offload, verify=Replace())


DRAWS = 1000


@dataclass(frozen=True)
class Trial:
    """Qualities are means over prompts; the gain's interval is a paired bootstrap over them (95 %)."""

    prompts: int
    routed: float
    """Share of the tokens that the cloud wrote."""
    quality: float
    small_only: float
    random: float
    """Of luck that routes the same share."""
    gain: float
    gain_low: float
    gain_high: float

    def metrics(self) -> dict[str, float]:
        return {f"served/{name}": value for name, value in asdict(self).items()}


def serve(
    router: Router, models: Models, queries: Sequence[Query], metric: Metric, seed: int, progress: Progress
) -> Trial:
    """With the router at its own threshold, without, and with luck in its place."""

    def played(offload: Offload, note: str) -> tuple[np.ndarray, float]:
        def noted(done: int, total: int, _: str) -> None:
            progress(done, total, note)

        records = play(routing(offload), models, queries, seed, noted)
        return _judged(records, models, queries, metric)

    quality, routed = played(Routed(router), "served with the router")
    alone, _ = played(Never(), "served without")
    luck, _ = played(Random(routed), "served with luck instead")
    low, high = _interval(quality - alone, seed)
    return Trial(
        len(queries), routed, float(quality.mean()), float(alone.mean()), float(luck.mean()),
        float((quality - alone).mean()), low, high,
    )  # fmt: skip


def check(trial: Trial) -> None:
    """Raises ValueError, with the figures, for a router with which answers are certainly worse than without."""
    if trial.gain_high < 0:
        raise ValueError(
            f"the router is worse than none: quality {trial.quality:.3f} with {trial.routed:.1%} of the tokens "
            f"routed, {trial.small_only:.3f} without, on {trial.prompts} held-out prompts; is the cloud's model the "
            "better one? Profile more prompts (workload.profiling.prompts), or change the pair"
        )


def _judged(
    records: dict[str, Record], models: Models, queries: Sequence[Query], metric: Metric
) -> tuple[np.ndarray, float]:
    """Each prompt's quality, and the share of all tokens that the cloud wrote."""
    scores, routed, total = [], 0, 0
    for query in queries:
        record = records[query.call.session]
        answer = query.prompt.answered(models.tokenizer.decode(record.tokens))
        scores.append(metric.score(answer, query.prompt))
        routed += record.origins.count("cloud")
        total += len(record.origins)
    return np.array(scores), routed / max(1, total)


def _interval(differences: np.ndarray, seed: int) -> tuple[float, float]:
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, len(differences), (DRAWS, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), (0.025, 0.975)).tolist()
    return low, high
