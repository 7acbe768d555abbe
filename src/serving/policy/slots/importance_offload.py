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


def threshold_for(share: Callable[[float], float], budget: float, low: float, high: float) -> float:
    """The threshold in low..high at which the monotonous `share` comes nearest to the budget from below."""
    rising = share(high) > share(low)
    for _ in range(50):
        middle = (low + high) / 2
        if (share(middle) > budget) == rising:
            high = middle
        else:
            low = middle
    return low if rising else high


def share_through(profiled: Thresholds, c_th: float, k: float) -> float:
    """Of the profiled chunks that the confidence filter lets through."""
    odds = [p_confidence(c, c_th, k) for c in profiled.confidence]
    return sum(odds) / max(1, len(odds))


def mean(s: Session, score: str) -> float:
    """Of the draft's tokens."""
    values = s.scores[score]
    return sum(values) / len(values)


@dataclass(frozen=True)
class Importance:
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
    reach: ClassVar[Literal["some"]] = "some"
    probes: ClassVar[tuple[str, ...]] = ("importance",)
    i_th: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if isinstance(self.thresholds, Thresholds):  # absent while a plan is made before the artifact exists
            object.__setattr__(self, "i_th", self._cutoff())

    def _cutoff(self) -> float:
        if self.budget == 0.0:
            return INF
        if self.calibration == "percentile":
            return self.thresholds.importance_percentile(1.0 - self.budget)
        return threshold_for(self._share, self.budget, 0.0, 2.0 * max(self.thresholds.importance, default=0.0) + 1e-9)

    def _share(self, i_th: float) -> float:
        """Of the profiled chunks that would go."""
        profiled = self.thresholds
        odds = [
            self.filter(c) * p_importance(i, i_th, self.theta)
            for c, i in zip(profiled.confidence, profiled.importance, strict=True)
        ]
        return sum(odds) / max(1, len(odds))

    def filter(self, confidence: float) -> float:  # noqa: ARG002
        """How likely a chunk of this confidence is to be looked at by importance."""
        return 1.0

    def ask(self, s: Session) -> int:
        return int(s.luck("offload_importance") < p_importance(mean(s, "importance"), self.i_th, self.theta))


@dataclass(frozen=True)
class ConfidenceImportance(Importance):
    """Confident chunks stay, then important ones go, within a budget (Synera, section 4.2, Fig. 10).

    `c_th` is the profiled one, or as much more as is needed where `share` could not be reached with it.
    """

    k: float = 10.0
    probes: ClassVar[tuple[str, ...]] = ("confidence", "importance")
    c_th: float = field(init=False, default=0.0)

    def _cutoff(self) -> float:
        object.__setattr__(self, "c_th", self.thresholds.c_th)
        if self.calibration == "share" and self._share(0.0) < self.budget:
            object.__setattr__(self, "c_th", threshold_for(self._through, self.budget, self.c_th, 1.0))
        return super()._cutoff()

    def _through(self, c_th: float) -> float:
        return share_through(self.thresholds, c_th, self.k)

    def filter(self, confidence: float) -> float:
        return p_confidence(confidence, self.c_th, self.k)

    def ask(self, s: Session) -> int:
        if s.luck("offload_confidence") >= self.filter(mean(s, "confidence")):
            return 0
        return super().ask(s)


@dataclass(frozen=True)
class Confidence:
    """Unsure chunks go, whatever their importance: Synera (Conf.), Fig. 16.

    `budget` null keeps the profiled c_th, whatever share that sends; else c_th is chosen so that the expected share
    over the profiled chunks is the budget.
    """

    thresholds: Thresholds
    budget: float | None = None
    k: float = 10.0
    reach: ClassVar[Literal["some"]] = "some"
    probes: ClassVar[tuple[str, ...]] = ("confidence",)
    c_th: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_budget(self.budget or 0.0)
        if isinstance(self.thresholds, Thresholds):
            object.__setattr__(self, "c_th", self._cutoff())

    def _cutoff(self) -> float:
        if self.budget is None:
            return self.thresholds.c_th
        return threshold_for(self._share, self.budget, -1e3, 1.0 - 1e-9)  # so low that P_conf is 0.007 for all

    def _share(self, c_th: float) -> float:
        return share_through(self.thresholds, c_th, self.k)

    def ask(self, s: Session) -> int:
        odds = p_confidence(mean(s, "confidence"), self.c_th, self.k) if self.budget != 0.0 else 0.0
        return int(s.luck("offload_confidence") < odds)
