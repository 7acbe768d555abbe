"""The rejection predictor: its probabilities by hand, its artifact, and the errors of a damaged one."""

import json
import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from serving.learned.rejection_predictor import HEADER, WEIGHTS, RejectionPredictor, load


def made(*hidden: int, threshold: float = 0.5) -> RejectionPredictor:
    draw = np.random.default_rng(3)
    widths = (4, *hidden, 1)
    layers = [
        (draw.normal(size=(b, a)).astype(np.float32), draw.normal(size=b).astype(np.float32))
        for a, b in pairwise(widths)
    ]
    mean, deviation = np.array([0.9, 0.8, 0.4, 2.0], np.float32), np.array([0.1, 0.2, 0.5, 0.4], np.float32)
    return RejectionPredictor(
        tuple(layers), mean, deviation, threshold, metrics={"fpr": 0.1}, made_from={"k": "8"}, acceptance=0.75,
        threshold_rule="a rule",
    )  # fmt: skip


def test_a_probability_is_the_output_of_the_layers() -> None:
    predictor, scores = made(3, 2), np.array([0.7, 0.5, 1.1, 2.2])
    x = (scores - predictor.mean) / predictor.std
    for weight, bias in predictor.layers[:-1]:
        x = np.maximum(weight @ x + bias, 0)
    weight, bias = predictor.layers[-1]
    expected = 1 / (1 + np.exp(-float((weight @ x + bias)[0])))
    assert predictor.probability(scores.tolist()) == pytest.approx(expected, rel=1e-4)


def test_a_batch_of_probabilities_equals_single_ones() -> None:
    predictor = made(16, 8)
    rows = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    assert predictor.probabilities(rows) == pytest.approx(
        [predictor.probability(row.tolist()) for row in rows], abs=1e-6
    )
    assert predictor.probabilities(rows[:0]).shape == (0,)


def test_large_logits_do_not_overflow() -> None:
    weight = np.full((1, 4), 1e6, np.float32)
    predictor = RejectionPredictor(
        ((weight, np.zeros(1, np.float32)),), np.zeros(4, np.float32), np.ones(4, np.float32), 0.5
    )
    assert predictor.probability([-1.0] * 4) == pytest.approx(0.0)
    assert predictor.probability([1.0] * 4) == 1.0


def test_a_saved_rejection_predictor_is_loaded(tmp_path: Path) -> None:
    predictor = made(8, 4, threshold=0.8)
    predictor.save(tmp_path)
    found = load(tmp_path)
    assert repr(found) == repr(predictor) == f"predictor 8-4 {predictor.digest[:12]} at 0.8"
    assert found.probability([0.5] * 4) == predictor.probability([0.5] * 4)
    assert (found.acceptance, found.threshold_rule, found.metrics, found.made_from) == (
        0.75,
        "a rule",
        {"fpr": 0.1},
        {"k": "8"},
    )


def test_a_predictor_is_identified_by_weights_and_threshold() -> None:
    predictor = made(8)
    predictor.probability([0.5] * 4)
    assert repr(pickle.loads(pickle.dumps(predictor))) == repr(predictor)
    (weight, bias), last = predictor.layers
    assert replace(predictor, layers=((weight + 1e-3, bias), last)).digest != predictor.digest
    assert repr(replace(predictor, threshold=0.6)) != repr(predictor)


def test_a_missing_predictor_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"there is no .*{HEADER}; policy.draft.scorer.path names"):
        load(tmp_path)
    made(4).save(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=f"there is no .*{WEIGHTS}"):
        load(tmp_path)


@pytest.mark.parametrize("name", [HEADER, WEIGHTS])
def test_a_truncated_predictor_file_is_named(tmp_path: Path, name: str) -> None:
    made(4).save(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:40])
    with pytest.raises(ValueError, match=f"predictor .*{name} cannot be read .*; build it again.*stage=train"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("features", ["confidence"], "it reads"),
        ("threshold", 1.5, "the threshold is 1.5"),
        ("acceptance", 2, "the served acceptance is 2.0"),
        ("layers", [4, 4, 1], "1.weight|2.weight"),
        ("sha256", "0" * 64, "was written for 000000000000"),
    ],
)
def test_a_predictor_header_that_contradicts_its_weights_is_refused(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    made(4).save(tmp_path)
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps({**header, field: value}))
    with pytest.raises(ValueError, match=f"{HEADER} cannot be read .*({said})"):
        load(tmp_path)


def test_layers_that_do_not_fit_each_other_are_refused() -> None:
    predictor = made(4)
    with pytest.raises(ValueError, match="one probability"):
        replace(predictor, layers=predictor.layers[:1])
    with pytest.raises(ValueError, match="weights of shape"):
        replace(predictor, layers=(made(5).layers[0], predictor.layers[1]))
    with pytest.raises(ValueError, match="std is not above 0"):
        replace(predictor, std=np.zeros(4, np.float32))
