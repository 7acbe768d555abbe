"""The tree families that WISP compares (appendix B, Table 9): scikit-learn's random forest, LightGBM and XGBoost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from training.wisp.samples import TokenSamples


@dataclass(frozen=True)
class TreeFamily:
    """Base class of the families. Raises ValueError for a hyperparameter out of range, or without the library."""

    name: ClassVar[str]
    library: ClassVar[str]
    bounds: ClassVar[Mapping[str, tuple[float, float]]]
    """The least and the largest value of a hyperparameter."""

    def __post_init__(self) -> None:
        if find_spec(self.library) is None:
            raise ValueError(
                f"the predictor {self.name} needs {self.library}, which is not installed: pip install -e "
                "'.[predictors]'; or leave this family out"
            )
        for field, (low, high) in self.bounds.items():
            value = getattr(self, field)
            if not isinstance(value, str) and not low <= value <= high:
                upper = "" if high == inf else f" and at most {high:g}"
                raise ValueError(f"{self.name}: {field} is {value}; it must be at least {low:g}{upper}")

    def options(self, *names: str) -> dict[str, Any]:
        """These hyperparameters by the library's names."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class FittedTrees:
    """Trained trees; `predict` gives P(accepted) of rows of features."""

    predict: Callable[[NDArray[Any]], Any]

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.predict(features), dtype=np.float64)

    def probability(self, features: Sequence[float]) -> float:
        return float(self.predict(np.array([features], dtype=np.float32))[0])


_AT_LEAST_0, _AT_LEAST_1, _SHARE = (0, inf), (1, inf), (1e-6, 1)


@dataclass(frozen=True)
class RandomForest(TreeFamily):
    """The library's hyperparameters by its own names.

    max_depth       0: no limit
    max_features    all of them, their square root, or a share
    """

    n_estimators: int = 200
    max_depth: int = 10
    min_samples_split: int = 2
    min_samples_leaf: int = 5
    max_features: Literal["all", "sqrt"] | float = "sqrt"
    name = "Random Forest"
    library = "sklearn"
    bounds: ClassVar = {
        "n_estimators": _AT_LEAST_1, "max_depth": _AT_LEAST_0, "min_samples_split": (2, inf),
        "min_samples_leaf": _AT_LEAST_1, "max_features": _SHARE,
    }  # fmt: skip

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> FittedTrees:  # noqa: ARG002 - there is nothing to stop early
        """All trees, in one thread."""
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            max_depth=self.max_depth or None, random_state=seed, n_jobs=1,
            max_features=1.0 if self.max_features == "all" else self.max_features,
            **self.options("n_estimators", "min_samples_split", "min_samples_leaf"),
        ).fit(train.features, train.accepted)  # fmt: skip
        return FittedTrees(lambda features: forest.predict_proba(features)[:, 1])


@dataclass(frozen=True)
class LightGBM(TreeFamily):
    """The library's hyperparameters by its own names.

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
    name = "LightGBM"
    library = "lightgbm"
    bounds: ClassVar = {
        "num_leaves": (2, inf), "max_depth": (-1, inf), "n_estimators": _AT_LEAST_1, "min_child_samples": _AT_LEAST_1,
        "patience": _AT_LEAST_1, "learning_rate": _SHARE, "subsample": _SHARE, "colsample_bytree": _SHARE,
        "reg_lambda": _AT_LEAST_0, "reg_alpha": _AT_LEAST_0,
    }  # fmt: skip

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> FittedTrees:
        """The trees up to the lowest validation loss; one thread, so that a seed is one result."""
        import lightgbm

        options = self.options("num_leaves", "max_depth", "learning_rate", "subsample", "colsample_bytree",
                               "min_child_samples", "reg_lambda", "reg_alpha")  # fmt: skip
        fixed = {"objective": "binary", "metric": "binary_logloss", "num_threads": 1, "seed": seed,
                 "deterministic": True, "force_row_wise": True, "subsample_freq": 1, "verbose": -1}  # fmt: skip
        data = lightgbm.Dataset(train.features, train.accepted, params={"verbose": -1})
        booster = lightgbm.train(
            {**fixed, **options}, data, self.n_estimators,
            valid_sets=[lightgbm.Dataset(validation.features, validation.accepted, reference=data)],
            callbacks=[lightgbm.early_stopping(self.patience, verbose=False)],
        )  # fmt: skip
        return FittedTrees(partial(booster.predict, num_threads=1))


@dataclass(frozen=True)
class XGBoost(TreeFamily):
    """The library's hyperparameters by its own names.

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
    name = "XGBoost"
    library = "xgboost"
    bounds: ClassVar = {
        "n_estimators": _AT_LEAST_1, "max_depth": _AT_LEAST_1, "patience": _AT_LEAST_1, "learning_rate": _SHARE,
        "subsample": _SHARE, "colsample_bytree": _SHARE, "min_child_weight": _AT_LEAST_0, "gamma": _AT_LEAST_0,
        "reg_lambda": _AT_LEAST_0, "reg_alpha": _AT_LEAST_0,
    }  # fmt: skip

    def fit(self, train: TokenSamples, validation: TokenSamples, seed: int) -> FittedTrees:
        """The trees up to the lowest validation loss; one thread, so that a seed is one result."""
        import xgboost

        options = self.options("max_depth", "learning_rate", "subsample", "colsample_bytree", "min_child_weight",
                               "gamma", "reg_lambda", "reg_alpha")  # fmt: skip
        fixed = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, "seed": seed}
        parts = [xgboost.DMatrix(part.features, part.accepted, nthread=1) for part in (train, validation)]
        booster = xgboost.train(
            {**fixed, **options}, parts[0], self.n_estimators, evals=[(parts[1], "validation")],
            early_stopping_rounds=self.patience, verbose_eval=False,
        )  # fmt: skip
        kept = booster[: booster.best_iteration + 1]
        kept.set_param({"nthread": 1})
        return FittedTrees(kept.inplace_predict)
