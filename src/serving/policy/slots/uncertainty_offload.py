"""What the systems beside Synera go by: uncertain tokens (Hybrid), samples of high perplexity (EdgeFM)."""

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
    """Drafts of low confidence go: Hybrid (Hao et al., Hybrid SLM and LLM for Edge-Cloud Collaborative Inference,
    2024), with one token a draft, which the cloud writes in its place (policy/draft=single_token, policy/verify=replace).

    Neither its threshold nor its budget in Synera's tables is published: here the threshold is the confidence that the
    share `budget` of the profiled drafts does not exceed.
    """

    budget: float
    thresholds: Thresholds
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    threshold: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds) and self.budget and self.thresholds.confidence:
            object.__setattr__(self, "threshold", nearest_rank(self.thresholds.confidence, self.budget))

    def tokens_to_offload(self, session: Session) -> int:
        return int(self.budget > 0.0 and mean_draft_score(session, "confidence") <= self.threshold)


@dataclass(frozen=True)
class EdgeFMOffload:
    """A sample whose opening has a high perplexity goes as a whole: EdgeFM (Yang et al., 2023) as Synera, section 6.1,
    adapts it to text.

    Perplexity is that of the device's own opening draft (policy/draft=initial says how long it is: up to the whole
    answer), which Synera does not say. The threshold is the perplexity that the share 1 - `budget` of the profiled
    samples does not exceed.
    """

    budget: float
    thresholds: Thresholds
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    threshold: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds):
            openings = self.thresholds.first_chunk_perplexities
            threshold = 0.0 if self.budget == 1.0 else nearest_rank(openings, 1.0 - self.budget) if openings else INF
            object.__setattr__(self, "threshold", threshold)

    def tokens_to_offload(self, session: Session) -> int:
        if session.num_generated:
            return 0
        return session.remaining_tokens if perplexity(session.scores["confidence"]) > self.threshold else 0


def perplexity(probabilities: "list[float] | tuple[float, ...]") -> float:
    """Of tokens that a model gave these probabilities, one or more."""
    return exp(-sum(log(max(p, 1e-12)) for p in probabilities) / len(probabilities))
