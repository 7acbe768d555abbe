"""The interface of a family of predictors, so that all are trained and judged in the same way."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.progress import Progress, silent
from training.fitting.trainer import Trainer
from training.wisp.mlp import MLP
from training.wisp.samples import SampleSplit, TokenSamples


class FittedPredictor(Protocol):
    """A trained predictor. Features are raw, in the order of `serving.core.scores.LOGIT_SCORES`."""

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """P(accepted) of each of n tokens, from features of shape (n, 4); shape (n,)."""
        ...

    def probability(self, features: Sequence[float]) -> float:
        """P(accepted) of one token; the call that a drafter makes and whose latency is measured."""
        ...


class PredictorFamily(Protocol):
    """Hyperparameters of one kind of predictor: a dataclass that configuration names by `_target_`."""

    @property
    def name(self) -> str:
        """The name that tables print."""
        ...

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> FittedPredictor:
        """Trains on `train`; `validation` is used for early stopping only."""
        ...


def check_several(num_predictors: int) -> None:
    """Raises ValueError for fewer than two: Theorem 1 compares predictors."""
    if num_predictors < 2:
        raise ValueError(f"the theorem compares predictors, got {num_predictors}; give more families or seeds")


def fit_families(
    families: Sequence[PredictorFamily], split: SampleSplit, seed: int, trainer: Trainer, progress: Progress
) -> Iterator[tuple[str, FittedPredictor]]:
    """Yields each family's name with its trained predictor."""
    for i, family in enumerate(families, 1):
        yield family.name, fit_predictor(family, split, seed, trainer, silent)
        progress(i, len(families), family.name)


def fit_predictor(
    family: PredictorFamily, split: SampleSplit, seed: int, trainer: Trainer, progress: Progress
) -> FittedPredictor:
    """Trains `family`. Only a network reports progress; trees take too little time."""
    if isinstance(family, MLP):
        return family.fit(split.train, split.validation, seed, trainer, progress)
    return family.fit(split.train, split.validation, seed)
