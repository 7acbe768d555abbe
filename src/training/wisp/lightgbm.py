"""Gradient-boosted trees by LightGBM, over histograms, as WISP compares them (appendix B, Table 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import Samples
from training.wisp.tree_models import require, within


@dataclass(frozen=True)
class LightGBM:
    """The library's hyperparameters by its own names. Raises ValueError for one out of range, or without the library.

    max_depth       -1: no limit but num_leaves
    n_estimators    at most: training stops after `patience` trees without a lower validation loss
    """

    num_leaves: int = 15
    max_depth: int = -1
    learning_rate: float = 0.05
    n_estimators: int = 500
    subsample: float = 0.8
    colsample_bytree: float = 1.0
    min_child_samples: int = 20
    reg_lambda: float = 0.0
    reg_alpha: float = 0.0
    patience: int = 30
    name: ClassVar[str] = "LightGBM"

    def __post_init__(self) -> None:
        require("lightgbm", self.name)
        within(self.name, "num_leaves", self.num_leaves, 2)
        within(self.name, "max_depth", self.max_depth, -1)
        for field in ("n_estimators", "min_child_samples", "patience"):
            within(self.name, field, getattr(self, field), 1)
        for field in ("learning_rate", "subsample", "colsample_bytree"):
            within(self.name, field, getattr(self, field), 1e-6, 1)
        for field in ("reg_lambda", "reg_alpha"):
            within(self.name, field, getattr(self, field), 0)

    def fit(self, train: Samples, validation: Samples, seed: int) -> FittedLightGBM:
        """The trees up to the lowest validation loss; one thread, so that a seed is one result."""
        import lightgbm

        data = lightgbm.Dataset(train.features, train.accepted, params={"verbose": -1})
        booster = lightgbm.train(
            self._options(seed), data, self.n_estimators,
            valid_sets=[lightgbm.Dataset(validation.features, validation.accepted, reference=data)],
            callbacks=[lightgbm.early_stopping(self.patience, verbose=False)],
        )  # fmt: skip
        return FittedLightGBM(booster)

    def _options(self, seed: int) -> dict[str, Any]:
        names = ("num_leaves", "max_depth", "learning_rate", "subsample", "colsample_bytree", "min_child_samples",
                 "reg_lambda", "reg_alpha")  # fmt: skip
        fixed = {"objective": "binary", "metric": "binary_logloss", "num_threads": 1, "seed": seed,
                 "deterministic": True, "force_row_wise": True, "subsample_freq": 1, "verbose": -1}  # fmt: skip
        return {**fixed, **{name: getattr(self, name) for name in names}}


class FittedLightGBM:
    """Trained trees."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    def chances(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._booster.predict(features, num_threads=1), dtype=np.float64)

    def chance(self, features: Sequence[float]) -> float:
        return float(self._booster.predict(np.array([features]), num_threads=1)[0])
