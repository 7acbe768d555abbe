"""A rejection predictor of which only its rates are known, such as a paper's; for outcomes that are drawn by luck."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from serving.core.scores import LOGIT_SCORES


@dataclass(frozen=True)
class StatedPredictor:
    """Lets through `recall` of the drafts that are right and `false_alarm` of those that are wrong.

    WISP's MLP: 0.8011 and 0.4250 (Table 4), with which 0.48 of Qwen3-0.6B's drafts stand (Table 5).
    """

    recall: float = 0.8011
    false_alarm: float = 0.4250
    acceptance: float = 0.48
    threshold: ClassVar[float] = 0.5
    feature_kind: ClassVar[Literal["scores"]] = "scores"
    num_features: ClassVar[int] = len(LOGIT_SCORES)

    def __post_init__(self) -> None:
        for name in ("recall", "false_alarm", "acceptance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"predictor: {name} is {getattr(self, name)}; it is a share, 0 to 1")

    @property
    def digest(self) -> str:
        return repr(self)

    def score(self, right: bool, uniform: float) -> float:
        """1 where a draft is let through, else 0, by a draw in [0, 1)."""
        return float(uniform < (self.recall if right else self.false_alarm))

    def probability(self, features: Sequence[float]) -> NoReturn:  # noqa: ARG002
        raise ValueError(self._untrained_error)

    def probabilities(self, features: Any) -> NoReturn:  # noqa: ARG002
        raise ValueError(self._untrained_error)

    _untrained_error: ClassVar[str] = (
        "policy.draft.predictor is known by its rates alone and cannot judge a draft; use it with "
        "runtime=simulated runtime/outcomes=constant, or train one: policy/draft=rejection_predictor"
    )
