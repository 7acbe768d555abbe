"""A random forest by scikit-learn, as WISP compares it (appendix B, Table 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import Samples
from training.wisp.tree_models import require, within


@dataclass(frozen=True)
class RandomForest:
    """The library's hyperparameters by its own names. Raises ValueError for one out of range, or without the library.

    max_depth       0: no limit
    max_features    all of them, their square root, or a share
    """

    n_estimators: int = 200
    max_depth: int = 10
    min_samples_split: int = 2
    min_samples_leaf: int = 5
    max_features: Literal["all", "sqrt"] | float = "sqrt"
    name: ClassVar[str] = "Random Forest"

    def __post_init__(self) -> None:
        require("sklearn", self.name)
        for field, least in (("n_estimators", 1), ("max_depth", 0), ("min_samples_split", 2), ("min_samples_leaf", 1)):
            within(self.name, field, getattr(self, field), least)
        if not isinstance(self.max_features, str):
            within(self.name, "max_features", self.max_features, 1e-6, 1)

    def fit(self, train: Samples, validation: Samples, seed: int) -> FittedForest:  # noqa: ARG002 - there is nothing to stop early
        """All trees, in one thread."""
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            self.n_estimators, max_depth=self.max_depth or None, min_samples_split=self.min_samples_split,
            min_samples_leaf=self.min_samples_leaf, random_state=seed, n_jobs=1,
            max_features=1.0 if self.max_features == "all" else self.max_features,
        )  # fmt: skip
        return FittedForest(forest.fit(train.features, train.accepted))


class FittedForest:
    """Trained trees."""

    def __init__(self, forest: Any) -> None:
        self._forest = forest

    def chances(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._forest.predict_proba(features)[:, 1], dtype=np.float64)

    def chance(self, features: Sequence[float]) -> float:
        return float(self._forest.predict_proba(np.array([features], dtype=np.float32))[0, 1])
