import pytest

from pipeline.report.statistics import Percentiles, percentile


def test_percentiles_of_known_values():
    spread = Percentiles.of([4.0, None, 1.0, 2.0, 3.0, 5.0])
    assert spread == Percentiles(3.0, 3.0, pytest.approx(4.6), pytest.approx(4.96))


def test_one_value_is_all_of_its_percentiles():
    assert Percentiles.of([2.5]) == Percentiles(2.5, 2.5, 2.5, 2.5)


def test_no_values_have_no_percentiles():
    assert Percentiles.of([None, None]) is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 10.0), (0.25, 12.5), (0.5, 15.0), (1.0, 20.0)])
def test_percentiles_interpolate(share, value):
    assert percentile([10.0, 20.0], share) == value
