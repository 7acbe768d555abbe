"""Slot `offload`: which drafts are sent."""

from dataclasses import dataclass, field
from math import exp
from typing import ClassVar, Literal, Protocol

from serving.messages import INF
from serving.nodes.session import Session
from serving.thresholds import Thresholds

Reach = Literal["none", "some", "all", "handover"]


class Offload(Protocol):
    @property
    def reach(self) -> Reach:
        """Which drafts are asked about; a handover drafts nothing and leaves all of it to the route."""
        ...

    @property
    def probes(self) -> tuple[str, ...]: ...

    def ask(self, s: Session) -> int:
        """Tokens that the route may write: 0 keeps the draft, 1 asks for a verdict, more hands over."""
        ...


@dataclass(frozen=True)
class Always:
    """Every draft is verified (SLED, WISP, HAT)."""

    reach: ClassVar[Literal["all"]] = "all"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class Never:
    """Nothing leaves the device (edge-centric)."""

    reach: ClassVar[Literal["none"]] = "none"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class Handover:
    """The route writes all of it (cloud-centric)."""

    reach: ClassVar[Literal["handover"]] = "handover"
    probes: ClassVar[tuple[str, ...]] = ()

    def ask(self, s: Session) -> int:
        return s.remaining


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


@dataclass(frozen=True)
class ConfidenceImportance:
    """Synera, section 4.2: confident chunks stay, then important ones go, within a budget.

    The budget is the share of draft chunks that may be sent. `percentile` is the paper's rule (section 5): i_th is that
    percentile of the profiled importance, and the middle tier and the confidence filter make the achieved share differ.
    `share` (default) chooses i_th so that the expected share over the profiled chunks is the budget, or all that the
    confidence filter lets through where that is less. A budget of 0 sends nothing either way.
    """

    budget: float
    thresholds: Thresholds
    calibration: Literal["share", "percentile"] = "share"
    k: float = 10.0
    theta: float = -10.0
    reach: ClassVar[Literal["some"]] = "some"
    probes: ClassVar[tuple[str, ...]] = ("confidence", "importance")
    i_th: float = field(init=False, default=INF)

    def __post_init__(self) -> None:
        if not 0.0 <= self.budget <= 1.0:
            raise ValueError(f"policy.offload.budget is {self.budget}; it is a share of draft chunks: 0 to 1")
        if isinstance(self.thresholds, Thresholds):  # absent while a plan is made before the artifact exists
            object.__setattr__(self, "i_th", self._cutoff())

    def _cutoff(self) -> float:
        if self.budget == 0.0:
            return INF
        if self.calibration == "percentile":
            return self.thresholds.importance_percentile(1.0 - self.budget)
        return self._cutoff_for_share()

    def _cutoff_for_share(self) -> float:
        low, high = 0.0, 2.0 * max(self.thresholds.importance, default=0.0) + 1e-9
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._expected_share(middle) > self.budget else (low, middle)
        return high

    def _expected_share(self, i_th: float) -> float:
        chunks = list(zip(self.thresholds.confidence, self.thresholds.importance, strict=True))
        return sum(self._probability(c, i, i_th) for c, i in chunks) / max(1, len(chunks))

    def _probability(self, c: float, i: float, i_th: float) -> float:
        return p_confidence(c, self.thresholds.c_th, self.k) * p_importance(i, i_th, self.theta)

    def ask(self, s: Session) -> int:
        confidence, importance = s.scores["confidence"], s.scores["importance"]
        unsure = p_confidence(sum(confidence) / len(confidence), self.thresholds.c_th, self.k)
        if s.luck("offload_confidence") >= unsure:
            return 0
        matters = p_importance(sum(importance) / len(importance), self.i_th, self.theta)
        return int(s.luck("offload_importance") < matters)
