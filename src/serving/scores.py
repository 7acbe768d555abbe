"""What one can tell of a drafted token, by name."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

SCORES = ("confidence", "margin", "entropy", "logit_std")
"""confidence: the top-1 probability; margin: top-1 minus top-2 probability; entropy in nats; logit_std: standard
deviation of the logits over the vocabulary (n - 1). From the logits alone.
"""

IMPORTANCE = "importance"
"""The attention that later rows pay to the token."""

ACCEPT = "accept"
"""The chance that the target accepts the token, as a predictor sees it."""

KNOWN = (*SCORES, IMPORTANCE)
"""Scores that need no training."""


class Scorer(Protocol):
    """A trained score: what `SCORES` of a token, in this order, say about it."""

    def chance(self, features: Sequence[float]) -> float:
        """Of one token."""
        ...

    def chances(self, features: Any) -> Any:
        """Of many: an array of shape (tokens, 4) to one of (tokens)."""
        ...


Scorers = Mapping[str, Scorer]
"""Trained scores by name."""

UNTRAINED: Scorers = MappingProxyType({})
