"""What every family of predictors can do, so that all are trained and judged alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import TokenSamples


class FittedPredictor(Protocol):
    """A trained predictor. Features are raw, in the order of `serving.core.scores.LOGIT_SCORES`."""

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """P(accepted) of each of n tokens, from features of shape (n, 4); shape (n,)."""
        ...

    def probability(self, features: Sequence[float]) -> float:
        """P(accepted) of one token, as a drafter asks; what latency is measured of."""
        ...


class PredictorFamily(Protocol):
    """Hyperparameters of one kind of predictor; a dataclass, which configuration names by `_target_`."""

    @property
    def name(self) -> str:
        """As the tables print it."""
        ...

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> FittedPredictor:
        """Trained on `train`; `validation` is for early stopping, and for nothing where a family has none."""
        ...
