"""Scores of a drafted token, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

LOGIT_SCORES = ("confidence", "margin", "entropy", "logit_std")
"""confidence: the top-1 probability; margin: top-1 minus top-2 probability; entropy in nats; logit_std: standard
deviation of the logits over the vocabulary (n - 1). From the logits alone.
"""

IMPORTANCE = "importance"
"""The attention that later tokens pay to the token."""

ACCEPTANCE = "accept"
"""The probability that the target accepts the token, as a trained predictor estimates it."""

ROUTE = "route"
"""A trained router's score of the draft model's last hidden state, from which the token was generated."""

UNTRAINED_SCORES = (*LOGIT_SCORES, IMPORTANCE)
"""Scores that need no training."""


class Scorer(Protocol):
    """A trained score, computed from a token's `LOGIT_SCORES` (in this order) or from its hidden state."""

    @property
    def feature_kind(self) -> Literal["scores", "hidden"]:
        """Its features: "scores" for `LOGIT_SCORES`, "hidden" for the hidden state that the LM head reads."""
        ...

    @property
    def num_features(self) -> int: ...

    @property
    def digest(self) -> str:
        """Identifies its weights."""
        ...

    def probability(self, features: Any) -> float:
        """The score of one token, from its features (a sequence, or an array of shape (features))."""
        ...

    def probabilities(self, features: Any) -> Any:
        """The scores of many tokens: an array of shape (tokens, features) to one of (tokens)."""
        ...


Scorers = Mapping[str, Scorer]
"""Trained scores by name."""

NO_SCORERS: Scorers = MappingProxyType({})


ThresholdSide = Literal["below", "above"]


THRESHOLD_SIDES: tuple[ThresholdSide, ...] = ("below", "above")


def check_threshold(threshold: float) -> None:
    """Raises ValueError unless 0 <= threshold <= 1, the range of scores."""
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the routing threshold is {threshold}; scores lie between 0 and 1, so must it")
