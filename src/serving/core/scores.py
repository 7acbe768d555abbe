"""Scores of a drafted token, by name. Trained ones come with a policy's slots, each as a `Scorer` that names it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

LOGIT_SCORES = ("confidence", "margin", "entropy", "logit_std")
"""confidence: the top-1 probability; margin: top-1 minus top-2 probability; entropy in nats; logit_std: standard
deviation of the logits over the vocabulary (n - 1). From the logits alone.
"""

IMPORTANCE = "importance"
"""The attention that the draft's tokens from this one on pay to it: the column's sum (Synera, section 3.2)."""

IMPORTANCE_SCORES = tuple(
    f"{IMPORTANCE}{kind}{layers}"
    for layers in ("", "_last_layer")
    for kind in ("", "_mean", "_later_sum", "_later_mean")
)
"""Readings of the column sum: the sum or the mean of a column, with its own row or of later rows only, averaged over
layers or of the last one alone; always averaged over heads.
"""

ACCEPTANCE = "accept"
"""The probability that the target accepts the token, as a rejection predictor estimates it."""

UNTRAINED_SCORES = (*LOGIT_SCORES, *IMPORTANCE_SCORES)
"""Scores that need no training."""


NUM_TOP_CANDIDATES = 3
"""The draft model names so many of its likeliest tokens for each draft. As a rank: a token is none of them."""


class Scorer(Protocol):
    """A trained score, computed from a token's `LOGIT_SCORES` (in this order) or from its hidden state."""

    @property
    def name(self) -> str:
        """The score that it computes: an identifier, none of `UNTRAINED_SCORES`."""
        ...

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


@dataclass(frozen=True)
class PlannedScorer:
    """Stands for a score that is still to be trained, while a run is planned: it says what its features will be."""

    feature_kind: Literal["scores", "hidden"]


@runtime_checkable
class ScoredChoice(Protocol):
    """A slot choice that decides by a trained score of its own."""

    @property
    def scorer(self) -> Scorer: ...


Scorers = Mapping[str, Scorer]
"""Trained scores by name."""

NO_SCORERS: Scorers = MappingProxyType({})


def by_name(scorers: Iterable[Scorer]) -> Scorers:
    """Raises ValueError for a name that cannot be a trained score's, and for two scorers that share a name."""
    found: dict[str, Scorer] = {}
    for scorer in scorers:
        if not scorer.name.isidentifier() or scorer.name in UNTRAINED_SCORES:
            raise ValueError(
                f"{scorer!r} names its score {scorer.name!r}; a trained score's name is letters, digits and _, and "
                f"none of {', '.join(UNTRAINED_SCORES)}"
            )
        if found.setdefault(scorer.name, scorer).digest != scorer.digest:
            raise ValueError(
                f"{found[scorer.name]!r} and {scorer!r} both name their score {scorer.name!r}; give one of them "
                "another name"
            )
    return found


def reads_hidden_states(choice: object) -> bool:
    """True if a slot choice has a score of hidden states, trained or still to be trained."""
    return getattr(getattr(choice, "scorer", None), "feature_kind", "") == "hidden"


def reading_hidden_states(scorers: Scorers) -> Scorers:
    """Those that need the hidden state of a token; the others follow from its `LOGIT_SCORES`."""
    return {name: scorer for name, scorer in scorers.items() if scorer.feature_kind == "hidden"}


ThresholdSide = Literal["below", "above"]


THRESHOLD_SIDES: tuple[ThresholdSide, ...] = ("below", "above")


def check_threshold(threshold: float) -> None:
    """Raises ValueError unless 0 <= threshold <= 1, the range of scores."""
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the routing threshold is {threshold}; scores lie between 0 and 1, so must it")
