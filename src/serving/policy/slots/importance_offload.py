"""Synera's selective offloading (section 4.2): by confidence, by importance, or by confidence and then importance.

All are calibrated on the profiled chunks so that the expected share of chunks that go is the budget.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from typing import ClassVar, Literal

from serving.core.session import Session
from serving.learned.thresholds import Thresholds
from serving.messages import INF
from serving.policy.slots.offload import check_budget


def p_confidence(c: float, c_th: float, k: float) -> float:
    """Synera, section 4.2, P_conf: 1 up to `c_th`, then falling; a `c_th` of 1 sends all (the printed norm divides by
    0).
    """
    if c <= c_th or c_th >= 1.0:
        return 1.0
    return 1.0 / (1.0 + exp(k * ((c - c_th) / (1.0 - c_th) - 0.5)))


def p_importance(i: float, i_th: float, theta: float) -> float:
    """Synera, section 4.2, P_imp: 0 up to half of `i_th`, 1 above it, a rising sigmoid between (theta < 0)."""
    half = i_th / 2
    if i <= half:
        return 0.0
    if i > i_th:
        return 1.0
    return 1.0 / (1.0 + exp(theta * ((i - half) / half - 0.5)))


def solve_threshold(share_at: Callable[[float], float], budget: float, low: float, high: float) -> float:
    """The threshold in low..high at which the monotonous `share_at` comes nearest to the budget from below."""
    rising = share_at(high) > share_at(low)
    for _ in range(50):
        middle = (low + high) / 2
        if (share_at(middle) > budget) == rising:
            high = middle
        else:
            low = middle
    return low if rising else high


def share_passing_confidence(profiled: Thresholds, c_th: float, k: float) -> float:
    """Of the profiled chunks that the confidence filter lets through."""
    odds = [p_confidence(c, c_th, k) for c in profiled.confidence]
    return sum(odds) / max(1, len(odds))


def mean_draft_score(session: Session, name: str) -> float:
    """Of the draft's tokens."""
    values = session.scores[name]
    return sum(values) / len(values)


@dataclass(frozen=True)
class ImportanceOffload:
    """Important chunks go, whatever their confidence: Synera (Imp.), Fig. 16.

    The budget is the share of draft chunks that may be sent. `percentile` is the paper's rule (section 5): i_th is that
    percentile of the profiled importance, and the middle tier makes the achieved share differ. `share` (default)
    chooses i_th so that the expected share over the profiled chunks is the budget, or all that may go where that is
    less. A budget of 0 sends nothing either way.
    """

    budget: float
    thresholds: Thresholds
    calibration: Literal["share", "percentile"] = "share"
    theta: float = -10.0
    scope: ClassVar[Literal["some"]] = "some"
    requested_scores: ClassVar[tuple[str, ...]] = ("importance",)
    i_th: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds):  # absent while a plan is made before the artifact exists
            object.__setattr__(self, "i_th", self._calibrated_threshold())

    def _calibrated_threshold(self) -> float:
        if self.budget == 0.0:
            return INF
        if self.calibration == "percentile":
            return self.thresholds.importance_percentile(1.0 - self.budget)
        return solve_threshold(
            self._expected_share, self.budget, 0.0, 2.0 * max(self.thresholds.importance, default=0.0) + 1e-9
        )

    def _expected_share(self, i_th: float) -> float:
        """Of the profiled chunks that would go."""
        profiled = self.thresholds
        odds = [
            self.confidence_filter(c) * p_importance(i, i_th, self.theta)
            for c, i in zip(profiled.confidence, profiled.importance, strict=True)
        ]
        return sum(odds) / max(1, len(odds))

    def confidence_filter(self, confidence: float) -> float:  # noqa: ARG002
        """How likely a chunk of this confidence is to be looked at by importance."""
        return 1.0

    def tokens_to_offload(self, session: Session) -> int:
        return int(
            session.uniform("offload_importance")
            < p_importance(mean_draft_score(session, "importance"), self.i_th, self.theta)
        )


@dataclass(frozen=True)
class SyneraOffload(ImportanceOffload):
    """Confident chunks stay, then important ones go, within a budget (Synera, section 4.2, Fig. 10).

    `c_th` is the profiled one, or as much more as is needed where `share` could not be reached with it.
    """

    k: float = 10.0
    requested_scores: ClassVar[tuple[str, ...]] = ("confidence", "importance")
    c_th: float = field(init=False, default=0.0)

    def _calibrated_threshold(self) -> float:
        object.__setattr__(self, "c_th", self.thresholds.c_th)
        if self.calibration == "share" and self._expected_share(0.0) < self.budget:
            object.__setattr__(
                self, "c_th", solve_threshold(self._share_passing_confidence, self.budget, self.c_th, 1.0)
            )
        return super()._calibrated_threshold()

    def _share_passing_confidence(self, c_th: float) -> float:
        return share_passing_confidence(self.thresholds, c_th, self.k)

    def confidence_filter(self, confidence: float) -> float:
        return p_confidence(confidence, self.c_th, self.k)

    def tokens_to_offload(self, session: Session) -> int:
        if session.uniform("offload_confidence") >= self.confidence_filter(mean_draft_score(session, "confidence")):
            return 0
        return super().tokens_to_offload(session)


@dataclass(frozen=True)
class ConfidenceOffload:
    """Unsure chunks go, whatever their importance: Synera (Conf.), Fig. 16.

    `budget` null keeps the profiled c_th, whatever share that sends; else c_th is chosen so that the expected share
    over the profiled chunks is the budget.
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
        return solve_threshold(
            self._expected_share, self.budget, -1e3, 1.0 - 1e-9
        )  # so low that P_conf is 0.007 for all

    def _expected_share(self, c_th: float) -> float:
        return share_passing_confidence(self.thresholds, c_th, self.k)

    def tokens_to_offload(self, session: Session) -> int:
        odds = p_confidence(mean_draft_score(session, "confidence"), self.c_th, self.k) if self.budget != 0.0 else 0.0
        return int(session.uniform("offload_confidence") < odds)
