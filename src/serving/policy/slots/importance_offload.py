"""Synera's selective offloading (section 4.2): by confidence, by importance, or by confidence and then importance.

All are calibrated on profiled drafts, so that the expected share of offloaded drafts is the budget.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from typing import ClassVar, Literal

from serving.core.scores import IMPORTANCE, IMPORTANCE_SCORES
from serving.core.session import Session
from serving.learned.thresholds import Thresholds, nearest_rank
from serving.messages import INF
from serving.policy.slots.offload import check_budget

PROFILED = "profiled"
_MAX_EXPONENT = 700.0
"""Beyond it `exp` has no number."""
_LEAST_CUTOFF = -1e3
"""A c_th with which P_conf is 0.007 for all drafts."""
_BELOW_ALL = -INF
"""An i_th with which every draft is important."""


def p_confidence(c: float, c_th: float, k: float) -> float:
    """P_conf of Synera, section 4.2: 1 up to `c_th`, then falling. `c_th` = 1 gives 1 (printed: division by 0)."""
    if c <= c_th or c_th >= 1.0:
        return 1.0
    return _falling(k * ((c - c_th) / (1.0 - c_th) - 0.5))


def p_importance(i: float, i_th: float, theta: float) -> float:
    """P_imp of Synera, section 4.2: 0 up to half of `i_th`, 1 above `i_th`, a rising sigmoid between (theta < 0)."""
    half = i_th / 2
    if i <= half:
        return 0.0
    if i > i_th:
        return 1.0
    return _falling(theta * ((i - half) / half - 0.5))


def _falling(x: float) -> float:
    """The logistic function of -x; a steep one is a threshold."""
    return 1.0 / (1.0 + exp(min(x, _MAX_EXPONENT)))


def solve_threshold(share_at: Callable[[float], float], budget: float, low: float, high: float) -> float:
    """The threshold in low..high at which the monotonic `share_at` comes nearest to the budget from below.

    It is the bound of the greater share where that share is within the budget.
    """
    rising = share_at(high) > share_at(low)
    if share_at(high if rising else low) <= budget:
        return high if rising else low
    for _ in range(50):
        middle = (low + high) / 2
        if (share_at(middle) > budget) == rising:
            high = middle
        else:
            low = middle
    return low if rising else high


def share_passing_confidence(profiled: Thresholds, c_th: float, k: float) -> float:
    """The expected share of profiled drafts that pass the confidence filter."""
    probabilities = [p_confidence(c, c_th, k) for c in profiled.confidence]
    return sum(probabilities) / max(1, len(probabilities))


def confidence_cutoff(profiled: Thresholds, budget: float, k: float, least: float) -> float:
    """The c_th at which the share of profiled drafts that pass the confidence filter is the budget, `least` at least.

    For a budget of 1 it is 1, which any draft passes, also one that is more confident than all profiled ones.
    """
    if budget == 1.0:
        return 1.0

    def share_at(c_th: float) -> float:
        return share_passing_confidence(profiled, c_th, k)

    return solve_threshold(share_at, budget, least, 1.0) if share_at(least) < budget else least


def mean_draft_score(session: Session, name: str) -> float:
    """The mean of a score over the draft's tokens."""
    values = session.scores[name]
    return sum(values) / len(values)


@dataclass(frozen=True)
class ImportanceOffload:
    """Offloads important drafts, whatever their confidence: Synera (Imp.), Fig. 16.

    Args:
        budget: the share of drafts to offload; 0: none, 1: all.
        importance: a reading of the column sum (`IMPORTANCE_SCORES`), or "profiled": the one that told drafts that were
            cut best on the profiling prompts.
        calibration: `percentile` is the paper's rule (section 5): i_th is that percentile of the profiled importance,
            and the achieved share differs because of the sigmoid; for a budget of 1 i_th is below all drafts. `share`
            chooses i_th so that the expected share over the profiled drafts is the budget, or as near as the
            confidence filter allows.
    """

    budget: float
    thresholds: Thresholds
    calibration: Literal["share", "percentile"] = "share"
    theta: float = -10.0
    importance: str = PROFILED
    scope: ClassVar[Literal["some"]] = "some"
    score: str = field(init=False, default=IMPORTANCE)
    """The reading of importance that decides."""
    i_th: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.importance not in (PROFILED, *IMPORTANCE_SCORES):
            raise ValueError(
                f"policy.offload.importance is {self.importance!r}; it is {PROFILED}, or one of "
                f"{', '.join(IMPORTANCE_SCORES)}"
            )
        if self.importance != PROFILED:
            object.__setattr__(self, "score", self.importance)
        if isinstance(self.thresholds, Thresholds):  # a placeholder while a plan is made before the artifact exists
            if self.importance == PROFILED:
                object.__setattr__(self, "score", self.thresholds.best_importance)
            object.__setattr__(self, "i_th", self._calibrated_threshold())

    @property
    def requested_scores(self) -> tuple[str, ...]:
        return (self.score,)

    @property
    def _profiled(self) -> tuple[float, ...]:
        return self.thresholds.importance_by(self.score)

    def _calibrated_threshold(self) -> float:
        if self.budget == 0.0:
            return INF
        if self.budget == 1.0:
            return _BELOW_ALL
        if self.calibration == "percentile":
            return nearest_rank(self._profiled, 1.0 - self.budget) if self._profiled else 0.0
        if self._expected_share(_BELOW_ALL) <= self.budget:
            return _BELOW_ALL
        return solve_threshold(self._expected_share, self.budget, 0.0, 2.0 * max(self._profiled, default=0.0) + 1e-9)

    def _expected_share(self, i_th: float) -> float:
        """The expected share of profiled drafts that are offloaded."""
        profiled = self.thresholds
        probabilities = [
            self.confidence_filter(c) * p_importance(i, i_th, self.theta)
            for c, i in zip(profiled.confidence, self._profiled, strict=True)
        ]
        return sum(probabilities) / max(1, len(probabilities))

    def confidence_filter(self, confidence: float) -> float:  # noqa: ARG002
        """The probability that a draft of this confidence is considered for offloading by importance."""
        return 1.0

    def tokens_to_offload(self, session: Session) -> int:
        return int(
            session.uniform("offload_importance")
            < p_importance(mean_draft_score(session, self.score), self.i_th, self.theta)
        )


@dataclass(frozen=True)
class SyneraOffload(ImportanceOffload):
    """Keeps confident drafts, then offloads important ones, within a budget (Synera, section 4.2, Fig. 10).

    `c_th` is the profiled one, or larger if calibration by `share` could not reach the budget with it; then confidence
    alone decides. For a budget of 1 calibration by `share` sends every draft, by `percentile` those that pass the
    confidence filter, which the paper fixes before it serves.
    """

    k: float = 10.0
    c_th: float = field(init=False, default=0.0)

    @property
    def requested_scores(self) -> tuple[str, ...]:
        return ("confidence", self.score)

    def _calibrated_threshold(self) -> float:
        object.__setattr__(self, "c_th", self.thresholds.c_th)
        if self.calibration == "share":
            object.__setattr__(self, "c_th", confidence_cutoff(self.thresholds, self.budget, self.k, self.c_th))
        return super()._calibrated_threshold()

    def confidence_filter(self, confidence: float) -> float:
        return p_confidence(confidence, self.c_th, self.k)

    def tokens_to_offload(self, session: Session) -> int:
        if session.uniform("offload_confidence") >= self.confidence_filter(mean_draft_score(session, "confidence")):
            return 0
        return super().tokens_to_offload(session)


@dataclass(frozen=True)
class ConfidenceOffload:
    """Offloads uncertain drafts, whatever their importance: Synera (Conf.), Fig. 16.

    `budget` None: the profiled c_th, whatever share it offloads. Else c_th is chosen so that the expected share over
    the profiled drafts is the budget; 0: none, 1: all.
    """

    thresholds: Thresholds
    budget: float | None = None
    k: float = 10.0
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence",)
    c_th: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_budget(self.budget or 0.0)
        if isinstance(self.thresholds, Thresholds):
            object.__setattr__(self, "c_th", self._calibrated_threshold())

    def _calibrated_threshold(self) -> float:
        if self.budget is None:
            return self.thresholds.c_th
        return confidence_cutoff(self.thresholds, self.budget, self.k, _LEAST_CUTOFF)

    def tokens_to_offload(self, session: Session) -> int:
        if self.budget == 0.0:
            return 0
        probability = p_confidence(mean_draft_score(session, "confidence"), self.c_th, self.k)
        return int(session.uniform("offload_confidence") < probability)
