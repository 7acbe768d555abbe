"""Waste as the paper counts it, its bound, and pairs of predictors that contradict the theorem."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.training.wisp.made_up_trace import write_trace
from training.fitting.trainer import Trainer
from training.wisp import stages, theorem1
from training.wisp.mlp import MLP
from training.wisp.rules import threshold_at_recall
from training.wisp.samples import TokenSamples
from training.wisp.theorem1 import HeldOutWindows, compare_pairs, fpr_and_waste
from training.wisp.trace import DraftWindows

K = 4


def windows(accepted: list[int]) -> DraftWindows:
    n = len(accepted)
    return DraftWindows(
        np.zeros((n * K, 4), np.float32), np.repeat(np.arange(n), K), np.tile(np.arange(K), n), np.array(accepted),
        np.array([f"s{i}" for i in range(n)]),
    )  # fmt: skip


HELD = HeldOutWindows.from_windows(windows([0, 1, 2, 4]), K)


def passed(*rows: str) -> np.ndarray:
    """1: predicted accepted."""
    return np.array([float(sign) for row in rows for sign in row])


def test_waste_is_what_is_drafted_beyond_the_accepted_tokens() -> None:
    chances = passed("1101", "0111", "1111", "1110")
    empty = HELD.operating_point("a", 0.8, chances, 0.5, allow_empty=True)
    one = HELD.operating_point("a", 0.8, chances, 0.5, allow_empty=False)
    assert empty.wasted_tokens.tolist() == [2, 0, 2, 0]
    assert one.wasted_tokens.tolist() == [2, 0, 2, 0]
    assert empty.false_alarm.tolist() == [True, True, True, False], "at R, whether drafting got so far or not"
    assert HELD.operating_point(
        "a", 0.8, passed("0111", "0000", "0000", "0000"), 0.5, allow_empty=False
    ).wasted_tokens.tolist() == [
        1,
        0,
        0,
        0,
    ]
    alarms, waste = fpr_and_waste(HELD, [empty])
    assert (alarms[0], waste[0]) == (1.0, 1.0)
    assert HELD.waste_bound(empty) == (4 + 3 + 2) / 4


def test_the_bound_holds_for_empty_drafts_and_not_where_a_token_is_drafted_anyway() -> None:
    nothing = passed(*["0000"] * 4)
    assert HELD.waste_bound(HELD.operating_point("a", 0.8, nothing, 0.5, allow_empty=True)) == 0.0
    assert HELD.operating_point("a", 0.8, nothing, 0.5, allow_empty=False).wasted_tokens.mean() == 0.25


def test_a_pair_that_contradicts_the_theorem_is_found() -> None:
    """a is alarmed as often as b or less at every position, and yet drafts on for longer."""
    n = 6
    held = HeldOutWindows.from_windows(windows([0] * n), K)
    fewer = passed(*(["1111"] * (n // 2) + ["0000"] * (n // 2)))
    more = passed(*(["1000"] * (2 * n // 3) + ["0000"] * (n // 3)))
    points = [
        held.operating_point(name, 0.8, chances, 0.5, allow_empty=True) for name, chances in (("a", fewer), ("b", more))
    ]
    found = compare_pairs(held, points, seed=0)
    assert found.lower_fpr.tolist() == [[False, True], [False, False]]
    assert found.count(found.lower_fpr_everywhere & found.different_predictors) == {
        "pairs": 1,
        "contradictions": 1,
        "share": 1.0,
        "significant_contradictions": 0,
    }
    assert found.more_waste[0, 1]
    wide = HeldOutWindows.from_windows(windows([0] * 40 * n), K)
    points = [
        wide.operating_point(name, 0.8, np.tile(chances, 40), 0.5, allow_empty=True)
        for name, chances in (("a", fewer), ("b", more))
    ]
    assert (
        compare_pairs(wide, points, seed=0).count(compare_pairs(wide, points, seed=0).lower_fpr)[
            "significant_contradictions"
        ]
        == 1
    )


def test_predictors_that_agree_with_the_theorem_are_no_contradiction() -> None:
    held = HeldOutWindows.from_windows(windows([0, 1, 2, 3] * 20), K)
    careful = held.operating_point("a", 0.8, passed(*["0000"] * 80), 0.5, allow_empty=True)
    careless = held.operating_point("b", 0.8, passed(*["1111"] * 80), 0.5, allow_empty=True)
    found = compare_pairs(held, [careful, careless], seed=0)
    assert found.count(found.lower_fpr) == {
        "pairs": 1,
        "contradictions": 0,
        "share": 0.0,
        "significant_contradictions": 0,
    }


def test_longer_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="windows of 4 tokens, and k is 3"):
        HeldOutWindows.from_windows(windows([1]), 3)


def test_thresholds_are_set_on_validation(
    learnable: TokenSamples, one_thread: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first feature is the predicted probability."""
    split, thresholds = learnable.split(0), list[float]()
    held = HeldOutWindows.from_windows(split.test.windows, 4)
    by_feature = SimpleNamespace(probabilities=lambda features: features[:, 0])
    monkeypatch.setattr(theorem1, "fit_predictor", lambda *_: by_feature)
    monkeypatch.setattr(HeldOutWindows, "operating_point", lambda *given: thresholds.append(given[4]))
    theorem1._operating_points(held, split, "x", MLP(), 0, (0.5,), one_thread)
    known = split.validation
    expected = threshold_at_recall(known.features[:, 0], known.accepted, 0.5)
    assert thresholds == [expected] * 2
    assert expected != threshold_at_recall(split.test.features[:, 0], split.test.accepted, 0.5)


def test_the_experiment_compares_trained_predictors(tmp_path: Path) -> None:
    tokens = write_trace(tmp_path / "trace")
    families = {"small": MLP(hidden_sizes=(4,), epochs=3), "large": MLP(hidden_sizes=(32, 16), epochs=3)}
    options = {"progress": lambda *_: None, "token_trace": tokens, "trainer": Trainer(threads=1)}
    stages.measure_waste(tmp_path, families=families, recalls=(0.6, 0.9), **options)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert set(rows) == {"small", "large", "pairs", "pairs, one token at least"}
    for own in ("small", "large"):
        low, high = rows[own]["recall 0.6"], rows[own]["recall 0.9"]
        assert np.mean(low["fpr"]) < np.mean(high["fpr"])
        assert np.mean(low["waste"]) < np.mean(high["waste"]) < high["bound"]
        assert np.mean(low["waste"]) < np.mean(low["waste_at_least_one_token"])
    said = rows["pairs"]["FPR lower"]
    assert said["points"] == 4
    assert 4 <= said["pairs"] <= 6, "pairs that are alike count for neither"
    assert said["bound_violations"] == 0
    assert said["spearman"] > 0.5
    with pytest.raises(ValueError, match="compares predictors, got 1"):
        stages.measure_waste(tmp_path, families={"one": MLP()}, **options)
