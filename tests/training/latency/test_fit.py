"""Coefficients come back from made-up timings, with intervals that hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from serving.hardware.latency import COEFFICIENTS, LinearLatency, batch_load
from tests.training.latency.made_up_timings import TRUE, made_up
from training.latency.fit import (
    design_matrix,
    fit_latency,
    fit_ordinary,
    non_negative_least_squares,
    ordinary_least_squares,
    relative_least_squares,
    score_fit,
)
from training.latency.grid import CATEGORIES, COMPUTE_RANDOM, MEMORY_RANDOM, MIXED, ProfilingOptions
from training.latency.timing import TimedRun, Timing
from training.latency.work import DRAFT_GRID

QUICK = ProfilingOptions(bootstraps=100)
CLOUD = tuple(name for name in COEFFICIENTS if name != "wake_s")
"""A batch is one forward, whose constant holds what waking up takes."""


def test_the_fit_finds_the_coefficients_behind_noisy_timings():
    found = fit_latency(made_up(0.02), QUICK)
    for name in CLOUD:
        low, high = found.intervals[name]
        assert found.coefficients[name] == pytest.approx(getattr(TRUE, name), rel=0.3), name
        assert low <= found.coefficients[name] <= high
        assert 0 < high - low < getattr(TRUE, name)
    assert found.held_out.r2 > 0.99
    assert 0.99 < found.held_out.adjusted_r2 < found.held_out.r2
    assert found.held_out.mape < 0.03
    assert (found.fitted.configurations, found.held_out.configurations) == (123, 50)
    assert found.folds.r2 > 0.99
    assert found.folds.mape == pytest.approx(found.fitted.mape, abs=0.01)


def test_without_noise_the_coefficients_are_recovered_exactly():
    found = fit_latency(made_up(), QUICK)
    assert found.coefficients == pytest.approx({name: getattr(TRUE, name) for name in COEFFICIENTS}, rel=1e-6)
    assert max(found.fitted_mape.values()) < 1e-9


def test_errors_are_reported_by_category():
    timings = made_up()
    for timing in timings:
        if timing.shape.held_out and timing.shape.category == MIXED:
            timing.runs[:] = [TimedRun(2 * run.wall_s, 2 * run.wall_s) for run in timing.runs]
    found = fit_latency(timings, QUICK)
    assert set(found.fitted_mape) == set(CATEGORIES)
    expected = {COMPUTE_RANDOM: 0, MEMORY_RANDOM: 0, MIXED: 0.5}
    assert found.held_out_mape == pytest.approx(expected, abs=1e-6)
    assert found.held_out.mape == pytest.approx(0.5 * 20 / 50, abs=1e-6)


def test_the_same_seed_gives_the_same_intervals():
    timings = made_up(0.02)
    assert fit_latency(timings, QUICK) == fit_latency(timings, QUICK)
    assert fit_latency(timings, QUICK).intervals != fit_latency(timings, replace(QUICK, seed=1)).intervals


def test_the_papers_fit_has_no_head_and_may_go_below_zero():
    found = fit_ordinary(made_up(0.02), QUICK)
    assert (found.coefficients["head_token_s"], found.coefficients["head_c_s"]) == (0, 0)
    assert found.held_out.r2 > 0.98
    x = np.array([[1.0, 0, 0, 1, 0], [2.0, 0, 0, 1, 0], [3.0, 0, 0, 1, 0]])
    assert ordinary_least_squares(x, np.array([1.0, 3.0, 5.0])) == pytest.approx([2, 0, 0, -1, 0])
    assert relative_least_squares(x, np.array([1.0, 3.0, 5.0])).min() == 0


def test_the_papers_fit_is_plain_least_squares_with_an_intercept():
    x, y = design_matrix(made_up(0.05))
    assert ordinary_least_squares(x, y)[:4] == pytest.approx(np.linalg.lstsq(x[:, :4], y)[0], rel=1e-6)


def test_the_passes_of_one_draft_each_cost_their_constant():
    timings = made_up()
    passes = (batch_load(8, [(0, 9)], 1), batch_load(8, [(9, 1)], 1), batch_load(8, [(10, 1)], 0))
    seconds = sum(TRUE.seconds(each) for each in passes)
    timings.append(Timing(timings[0].shape, passes, [TimedRun(seconds, seconds)]))
    assert fit_latency(timings, QUICK).fitted.mape == pytest.approx(0, abs=1e-6)


def test_least_squares_without_negative_coefficients_are_those_of_scipy():
    generator = np.random.default_rng(0)
    for _ in range(20):
        x, y = generator.normal(size=(15, 6)), generator.normal(size=15)
        assert non_negative_least_squares(x, y) == pytest.approx(nnls(x, y)[0], abs=1e-9)


def test_a_column_of_zeros_gets_coefficient_zero():
    x = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert non_negative_least_squares(x, np.array([2.0, 4.0, 6.0])).tolist() == pytest.approx([2, 0])


def test_of_equal_columns_the_first_gets_the_whole_coefficient():
    x = np.array([[1.0, 2.0, 2.0], [3.0, 2.0, 2.0], [7.0, 2.0, 2.0]])
    assert non_negative_least_squares(x, np.array([5.0, 7.0, 11.0])).tolist() == pytest.approx([1, 2, 0])


def test_the_wake_up_time_is_separated_from_the_constant_by_drafts_of_several_passes():
    """From drafts of one to eight passes on a device that wakes up before each draft."""
    true = LinearLatency(2e-5, 0, 0, 8e-4, layers=4, source="made up", head_token_s=1e-4, wake_s=9e-4)
    timings = []
    for shape in DRAFT_GRID.shapes(40, 12, 256, 0):
        (part,) = shape.sessions
        passes = [batch_load(4, [(part.cached_tokens, part.new_tokens)], min(1, part.num_outputs))]
        passes += [
            batch_load(4, [(part.cached_tokens + part.new_tokens + i, 1)], 1) for i in range(part.num_outputs - 1)
        ]
        seconds = true.total_seconds(passes, 4, 4)
        timings.append(Timing(shape, tuple(passes), [TimedRun(seconds, seconds)]))
    found = fit_latency(timings, QUICK)
    assert found.coefficients == pytest.approx({name: getattr(true, name) for name in COEFFICIENTS}, abs=1e-9)


def test_scores_of_a_fit_follow_their_definitions():
    x, y = np.array([[1.0], [2.0], [4.0], [5.0]]), np.array([1.0, 2.0, 5.0, 4.0])
    found = score_fit(x, y, np.array([1.0]))
    assert (found.r2, found.adjusted_r2) == (pytest.approx(0.8), pytest.approx(0.8))
    assert (found.rmse_s, found.mae_s, found.max_s) == (pytest.approx(0.5**0.5), 0.5, 1)
    assert found.mape == pytest.approx((0.2 + 0.25) / 4)
    assert score_fit(x[:1], y[:1], np.array([1.0])).adjusted_r2 is None


def test_the_constant_of_a_fit_is_no_predictor_of_its_adjusted_r2():
    """One predictor and a constant on four configurations: 1 - (1 - R2) (n - 1) / (n - 1 - 1); 0 is no coefficient."""
    slope = np.array([1.0, 2.0, 4.0, 5.0])
    x, y = np.stack([slope, np.ones(4), slope**2], axis=1), np.array([1.0, 2.0, 5.0, 4.0])
    found = score_fit(x, y, np.array([0.9, 0.3, 0.0]))
    assert found.r2 == pytest.approx(0.81)
    assert found.adjusted_r2 == pytest.approx(1 - 0.19 * 3 / 2)
    assert score_fit(x[:2], y[:2], np.array([0.9, 0.3, 0.0])).adjusted_r2 is None


def test_too_few_configurations_are_refused():
    some = made_up(fitted=12, held_out=6)
    with pytest.raises(
        ValueError, match=r"11 configurations to fit on and 6 held out are too few for 8 coeff.*12 and 2"
    ):
        fit_latency([timing for timing in some if timing is not next(t for t in some if not t.shape.held_out)], QUICK)


@pytest.mark.parametrize("folds", [12, 20])
def test_every_fold_has_two_configurations_though_the_budget_left_few(folds: int):
    found = fit_latency(made_up(fitted=12, held_out=6), replace(QUICK, folds=folds)).folds
    assert found.folds == 6
    assert found.r2 > 0.99


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("configurations", 11, "configurations=11 must be at least 12"),
        ("held_out", 5, "held_out=5 must be at least 6"),
        ("bootstraps", 10, "bootstraps=10 must be at least 100"),
        ("max_session_tokens", 64, "max_session_tokens=64 must be at least 128"),
        ("budget_s", 0.0, "budget_s=0.0 must be more than 0 seconds"),
    ],
)
def test_invalid_profiling_options_are_refused(option, value, message):
    with pytest.raises(ValueError, match=message):
        ProfilingOptions(**{option: value})
