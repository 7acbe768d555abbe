"""Families at one recall: the false-alarm rate there, random choice among equal probabilities, resampled intervals."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.training.wisp.made_up_trace import write_trace
from training.fitting.trainer import Trainer
from training.wisp import comparison, stages
from training.wisp.mlp import MLP
from training.wisp.tree_models import RandomForest


def test_false_alarms_are_those_of_the_threshold_with_that_recall() -> None:
    chances = np.array([0.9, 0.8, 0.7, 0.6, 0.65, 0.2])
    accepted = np.array([1, 1, 1, 1, 0, 0], bool)
    assert comparison.fpr_at_recall(chances, accepted, 0.75) == 0.0
    assert comparison.fpr_at_recall(chances, accepted, 1.0) == 0.5


def test_equal_probabilities_pass_at_random() -> None:
    """A predictor that knows nothing lets through as many rejected as accepted tokens."""
    accepted = np.array([1] * 10 + [0] * 5, bool)
    assert comparison.fpr_at_recall(np.full(15, 0.4), accepted, 0.8) == pytest.approx(0.8)


def test_intervals_are_those_of_resampled_sessions() -> None:
    chance = np.random.default_rng(3)
    session = np.repeat(np.arange(200), 20)
    accepted = chance.random(4000) < 0.7
    chances = chance.normal(size=4000) + accepted + chance.normal(size=200)[session] / 2
    cell = comparison.fpr_by_session(chances, accepted, session, 200, 0.8)
    assert cell is not None
    assert np.mean(cell) == pytest.approx(comparison.fpr_at_recall(chances, accepted, 0.8), abs=1e-3)
    rows = [np.flatnonzero(session == i) for i in range(200)]
    drawn = [np.concatenate([rows[i] for i in chance.integers(200, size=200)]) for _ in range(300)]
    spread = np.std([comparison.fpr_at_recall(chances[own], accepted[own], 0.8) for own in drawn])
    assert np.std(cell) / np.sqrt(200) == pytest.approx(spread, rel=0.15)


def test_all_families_are_read_on_one_test_part(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    tokens = write_trace(tmp_path / "trace")
    families = (MLP(hidden_sizes=(16,), epochs=5, learning_rate=0.01), RandomForest(n_estimators=20))
    options = {"progress": lambda *_: None, "token_trace": tokens, "families": families, "trainer": Trainer(threads=1)}
    stages.compare_at_recall(tmp_path, recalls=[0.75, 0.8], seeds=(0, 1), **options)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert set(rows) == {"recall 0.75", "recall 0.8"}
    for family in ("MLP", "Random Forest"):
        for seed in ("0", "1"):
            low, high = (np.mean(rows[f"recall {at}"][family]["fpr"]["by_seed"][seed]) for at in (0.75, 0.8))
            assert 0 < low < high < 0.6
            assert np.mean(rows["recall 0.8"][family]["auc"]["by_seed"][seed]) > 0.75
        areas = rows["recall 0.8"][family]["auc"]["by_seed"]
        assert areas["0"] != areas["1"]  # another split, and other weights
    with pytest.raises(ValueError, match="recalls are"):
        stages.compare_at_recall(tmp_path, recalls=[75], **options)
    stages.measure_predictor_latency(tmp_path, num_calls=50, **options)
    times = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["this machine"]
    assert 0 < times["MLP"]["median"] < times["Random Forest"]["median"]
    assert set(times["MLP"]) == {"mean", "median", "std", "min", "max", "p95", "p99"}
