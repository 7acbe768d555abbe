"""Gradient-boosted trees by XGBoost, as WISP compares them (appendix B, Table 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import Samples
from training.wisp.tree_models import require, within


@dataclass(frozen=True)
class XGBoost:
    """The library's hyperparameters by its own names. Raises ValueError for one out of range, or without the library.

    n_estimators    at most: training stops after `patience` trees without a lower validation loss
    """

    n_estimators: int = 500
    max_depth: int = 4
    learning_rate: float = 0.05
    subsample: float = 0.8
    colsample_bytree: float = 1.0
    min_child_weight: float = 1.0
    gamma: float = 0.0
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    patience: int = 30
    name: ClassVar[str] = "XGBoost"

    def __post_init__(self) -> None:
        require("xgboost", self.name)
        for field in ("n_estimators", "max_depth", "patience"):
            within(self.name, field, getattr(self, field), 1)
        for field in ("learning_rate", "subsample", "colsample_bytree"):
            within(self.name, field, getattr(self, field), 1e-6, 1)
        for field in ("min_child_weight", "gamma", "reg_lambda", "reg_alpha"):
            within(self.name, field, getattr(self, field), 0)

    def fit(self, train: Samples, validation: Samples, seed: int) -> FittedXGBoost:
        """The trees up to the lowest validation loss; one thread, so that a seed is one result."""
        import xgboost

        parts = [xgboost.DMatrix(part.features, part.accepted, nthread=1) for part in (train, validation)]
        booster = xgboost.train(
            self._options(seed), parts[0], self.n_estimators, evals=[(parts[1], "validation")],
            early_stopping_rounds=self.patience, verbose_eval=False,
        )  # fmt: skip
        return FittedXGBoost(booster[: booster.best_iteration + 1])

    def _options(self, seed: int) -> dict[str, Any]:
        names = ("max_depth", "learning_rate", "subsample", "colsample_bytree", "min_child_weight", "gamma",
                 "reg_lambda", "reg_alpha")  # fmt: skip
        fixed = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, "seed": seed}
        return {**fixed, **{name: getattr(self, name) for name in names}}


class FittedXGBoost:
    """Trained trees."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster
        booster.set_param({"nthread": 1})

    def chances(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._booster.inplace_predict(features), dtype=np.float64)

    def chance(self, features: Sequence[float]) -> float:
        return float(self._booster.inplace_predict(np.array([features], dtype=np.float32))[0])
