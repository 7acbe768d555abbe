"""Every family learns from the same samples, is reproducible, and refuses invalid options."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.training.wisp.made_up_trace import token_samples, write_trace
from training.fitting.cluster_statistics import auc
from training.fitting.trainer import Trainer
from training.wisp import stages, tree_models
from training.wisp.families import PredictorFamily
from training.wisp.samples import SampleSplit
from training.wisp.tree_models import LightGBM, RandomForest, XGBoost

LIBRARIES = {XGBoost: "xgboost", LightGBM: "lightgbm", RandomForest: "sklearn"}
SMALL = {XGBoost: {"n_estimators": 60}, LightGBM: {"n_estimators": 60}, RandomForest: {"n_estimators": 30}}
FAMILIES = [
    pytest.param(family, marks=pytest.mark.skipif(not find_spec(name), reason=f"{name} is not installed"))
    for family, name in LIBRARIES.items()
]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SampleSplit:
    return token_samples(tmp_path_factory.mktemp("trace")).split(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_and_scores_tokens_independently(family: type, split: SampleSplit) -> None:
    made: PredictorFamily = family(**SMALL[family])
    found, again = (made.fit(split.train, split.validation, 1) for _ in range(2))
    test = split.test
    chances = found.probabilities(test.features)
    area = auc(chances, test.accepted)
    assert area is not None
    assert area > 0.78
    assert ((chances > 0) & (chances < 1)).all()
    assert np.array_equal(chances, again.probabilities(test.features)), "a seed is no single result"
    ones = [found.probability([float(x) for x in row]) for row in test.features[:20]]
    assert np.allclose(ones, chances[:20], atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_boosting_stops_early(family: type, split: SampleSplit) -> None:
    long = family(n_estimators=2000, learning_rate=0.3, patience=5).fit(split.train, split.validation, 0)
    booster = getattr(long.predict, "func", long.predict).__self__
    trees = booster.num_boosted_rounds() if family is XGBoost else booster.best_iteration
    assert 1 <= trees < 200


@pytest.mark.parametrize("family", FAMILIES)
def test_invalid_family_options_are_refused(family: type) -> None:
    with pytest.raises(ValueError, match="n_estimators is 0; it must be at least 1"):
        family(n_estimators=0)


@pytest.mark.parametrize("family", list(LIBRARIES))
def test_a_missing_library_is_named_with_its_extra(family: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_models, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"needs {LIBRARIES[family]}, which is not installed.*\[predictors\]"):
        family()


def test_a_candidate_has_the_metrics_that_a_search_wants(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    tokens = write_trace(tmp_path / "trace")
    stages.evaluate_family(
        tmp_path,
        progress=lambda *_: None,
        token_trace=tokens,
        family=XGBoost(n_estimators=40),
        trainer=Trainer(threads=1),
    )
    found = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert found["validation/auc"] > 0.75
    assert found["test/auc"] > 0.75
    assert 0 < found["test/fpr_at_0.75"] < found["test/fpr_at_0.8"] < 1
    assert found["training_s"] > 0
