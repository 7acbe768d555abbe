"""What one can tell of a drafted token, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

LOGIT_SCORES = ("confidence", "margin", "entropy", "logit_std")
"""confidence: the top-1 probability; margin: top-1 minus top-2 probability; entropy in nats; logit_std: standard
deviation of the logits over the vocabulary (n - 1). From the logits alone.
"""

IMPORTANCE = "importance"
"""The attention that later rows pay to the token."""

ACCEPTANCE = "accept"
"""The chance that the target accepts the token, as a predictor sees it."""

ROUTE = "route"
"""What a trained router makes of the drafter's last hidden state, from which the token was written."""

UNTRAINED_SCORES = (*LOGIT_SCORES, IMPORTANCE)
"""Scores that need no training."""


class Scorer(Protocol):
    """A trained score: what the `LOGIT_SCORES` of a token, in this order, or a hidden state say about it."""

    @property
    def feature_kind(self) -> Literal["scores", "hidden"]:
        """Its features: `LOGIT_SCORES`, or the hidden state that the head wrote the token from."""
        ...

    @property
    def num_features(self) -> int:
        """How many features it reads."""
        ...

    @property
    def digest(self) -> str:
        """Names it among others of its kind."""
        ...

    def probability(self, features: Any) -> float:
        """Of one token, from its features (a sequence, or an array of shape (features))."""
        ...

    def probabilities(self, features: Any) -> Any:
        """Of many: an array of shape (tokens, features) to one of (tokens)."""
        ...


Scorers = Mapping[str, Scorer]
"""Trained scores by name."""

NO_SCORERS: Scorers = MappingProxyType({})


ThresholdSide = Literal["below", "above"]


THRESHOLD_SIDES: tuple[ThresholdSide, ...] = ("below", "above")


def check_threshold(threshold: float) -> None:
    """Raises ValueError for what no score can be compared with."""
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the routing threshold is {threshold}; scores lie between 0 and 1, so must it")
