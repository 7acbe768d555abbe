"""Isotonic regression through points that are not monotone."""

import pytest

from serving.studies.capacity.search import isotonic_crossing, isotonic_regression


def test_decreasing_neighbours_are_pooled_to_their_weighted_mean() -> None:
    assert isotonic_regression([0.0, 0.4, 0.1, 0.5], [1, 1, 2, 1]) == pytest.approx([0.0, 0.2, 0.2, 0.5])
    assert isotonic_regression([3.0, 2.0, 1.0], [1, 1, 1]) == pytest.approx([2.0] * 3)


def test_the_crossing_is_interpolated_between_two_points() -> None:
    assert isotonic_crossing([10, 20, 30], [0.0, 0.0, 0.1], [1, 1, 1], 0.05) == pytest.approx(25)
    assert isotonic_crossing([10, 20, 30], [0.0, 0.05, 0.1], [1, 1, 1], 0.05) == pytest.approx(20)


def test_an_outlier_beyond_the_crossing_has_little_weight() -> None:
    places, rates = [10, 20, 30, 40], [0.0, 0.2, 0.04, 0.4]
    assert 10 < isotonic_crossing(places, rates, [1, 1, 1, 1], 0.05) < 20


@pytest.mark.parametrize(("rates", "place"), [([0.2, 0.3], 10), ([0.0, 0.01], 20)])
def test_a_curve_that_never_crosses_ends_at_its_last_point(rates: list[float], place: float) -> None:
    assert isotonic_crossing([10, 20], rates, [1, 1], 0.05) == place
