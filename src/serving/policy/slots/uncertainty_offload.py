"""Offloading of the systems that Synera is compared with: uncertain tokens (Hybrid), uncertain samples (EdgeFM)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import ClassVar, Literal

from serving.core.session import Session
from serving.learned.thresholds import Thresholds, nearest_rank
from serving.messages import INF
from serving.policy.slots.importance_offload import mean_draft_score
from serving.policy.slots.offload import check_budget


@dataclass(frozen=True)
class HybridOffload:
    """Offloads drafts of low confidence (Hao et al., Hybrid SLM and LLM for Edge-Cloud Collaborative Inference, 2024).

    Drafts are one token long, and the cloud replaces them (policy/draft=single_token, policy/verify=replace). Neither
    its threshold nor its budget in Synera's tables is published: here the share `budget` of the profiled drafts is at
    or below the threshold. With a budget of 1 every draft is, also one that is more confident than all profiled ones.
    """

    budget: float
    thresholds: Thresholds
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    threshold: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds):
            object.__setattr__(self, "threshold", self._threshold(self.thresholds.confidence))

    def _threshold(self, profiled: Sequence[float]) -> float:
        if self.budget == 1.0:
            return INF
        return nearest_rank(profiled, self.budget) if profiled and self.budget else 0.0

    def tokens_to_offload(self, session: Session) -> int:
        return int(self.budget > 0.0 and mean_draft_score(session, "confidence") <= self.threshold)


@dataclass(frozen=True)
class EdgeFMOffload:
    """Offloads a whole answer if its first draft has a high perplexity: EdgeFM (Yang et al., 2023), adapted to text in
    Synera, section 6.1.

    Synera does not say which text is scored: here it is the first draft (policy/draft=initial sets its length, up to
    the whole answer). The share 1 - `budget` of the profiled samples is at or below the threshold.
    """

    budget: float
    thresholds: Thresholds
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    threshold: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds):
            object.__setattr__(self, "threshold", self._threshold(self.thresholds.first_chunk_perplexities))

    def _threshold(self, openings: Sequence[float]) -> float:
        if self.budget == 1.0:
            return 0.0
        return nearest_rank(openings, 1.0 - self.budget) if openings and self.budget else INF

    def tokens_to_offload(self, session: Session) -> int:
        if session.num_generated:
            return 0
        return session.remaining_tokens if perplexity(session.scores["confidence"]) > self.threshold else 0


def perplexity(probabilities: "list[float] | tuple[float, ...]") -> float:
    """The perplexity of one or more tokens with these probabilities."""
    return exp(-sum(log(max(p, 1e-12)) for p in probabilities) / len(probabilities))
