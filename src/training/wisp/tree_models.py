"""The tree families that WISP compares (appendix B, Table 9): scikit-learn's random forest, LightGBM and XGBoost."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import TokenSamples


def require_library(library: str, family: str) -> None:
    """Raises ValueError with an install command if `library` is missing."""
    if find_spec(library) is None:
        raise ValueError(
            f"the predictor {family} needs {library}, which is not installed: pip install -e '.[predictors]'; or leave "
            "this family out"
        )


def check_range(family: str, name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raises ValueError for a hyperparameter out of range, ends included."""
    if not low <= value <= high:
        upper = "" if high == float("inf") else f" and at most {high:g}"
        raise ValueError(f"{family}: {name} is {value}; it must be at least {low:g}{upper}")


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
        require_library("sklearn", self.name)
        for field, least in (("n_estimators", 1), ("max_depth", 0), ("min_samples_split", 2), ("min_samples_leaf", 1)):
            check_range(self.name, field, getattr(self, field), least)
        if not isinstance(self.max_features, str):
            check_range(self.name, "max_features", self.max_features, 1e-6, 1)

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> "FittedForest":  # noqa: ARG002 - there is nothing to stop early
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

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._forest.predict_proba(features)[:, 1], dtype=np.float64)

    def probability(self, features: Sequence[float]) -> float:
        return float(self._forest.predict_proba(np.array([features], dtype=np.float32))[0, 1])


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
        require_library("lightgbm", self.name)
        check_range(self.name, "num_leaves", self.num_leaves, 2)
        check_range(self.name, "max_depth", self.max_depth, -1)
        for field in ("n_estimators", "min_child_samples", "patience"):
            check_range(self.name, field, getattr(self, field), 1)
        for field in ("learning_rate", "subsample", "colsample_bytree"):
            check_range(self.name, field, getattr(self, field), 1e-6, 1)
        for field in ("reg_lambda", "reg_alpha"):
            check_range(self.name, field, getattr(self, field), 0)

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> "FittedLightGBM":
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

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._booster.predict(features, num_threads=1), dtype=np.float64)

    def probability(self, features: Sequence[float]) -> float:
        return float(self._booster.predict(np.array([features]), num_threads=1)[0])


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
        require_library("xgboost", self.name)
        for field in ("n_estimators", "max_depth", "patience"):
            check_range(self.name, field, getattr(self, field), 1)
        for field in ("learning_rate", "subsample", "colsample_bytree"):
            check_range(self.name, field, getattr(self, field), 1e-6, 1)
        for field in ("min_child_weight", "gamma", "reg_lambda", "reg_alpha"):
            check_range(self.name, field, getattr(self, field), 0)

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> "FittedXGBoost":
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

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self._booster.inplace_predict(features), dtype=np.float64)

    def probability(self, features: Sequence[float]) -> float:
        return float(self._booster.inplace_predict(np.array([features], dtype=np.float32))[0])
