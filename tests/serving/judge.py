"""A scorer that was not trained: a chance from confidence alone."""

from collections.abc import Sequence
from typing import Any


class Judge:
    """Looks at confidence, or says the same of every draft."""

    acceptance = 0.5
    name, feature_kind, num_features = "accept", "scores", 4

    def __init__(self, threshold: float, always: float | None = None) -> None:
        self.threshold, self._always = threshold, always

    def __repr__(self) -> str:
        return f"Judge({self.threshold}, {self._always})"

    @property
    def digest(self) -> str:
        return repr(self)

    def probability(self, features: Sequence[float]) -> float:
        return float(features[0]) if self._always is None else self._always

    def probabilities(self, features: Any) -> Any:
        return features[:, 0] if self._always is None else 0.0 * features[:, 0] + self._always
