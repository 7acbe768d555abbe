"""The capacity search on an imagined cloud whose violation rate is known, and isotonic regression."""

from dataclasses import dataclass, field

import pytest

from serving.studies.capacity.load_test import LoadTestResult
from serving.studies.capacity.search import CapacitySearch, isotonic_crossing, isotonic_regression, search_capacity
from serving.workload.slo import SloClass

ASKED = 400


@dataclass
class Cloud:
    """Serves `knee` devices in time, and 2 % of the answers more are late with each further one; `noise` by seed."""

    knee: int
    noise: dict[int, int] = field(default_factory=dict)
    heard: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, devices: int, seed: int) -> LoadTestResult:
        self.heard.append((devices, seed))
        rate = min(1.0, max(0.0, 0.02 * (devices - self.knee - self.noise.get(seed, 0))))
        return LoadTestResult(devices, seed, {"c": ASKED}, {"c": round(rate * ASKED)}, {}, {})


@pytest.mark.parametrize("knee", [1, 7, 64, 300])
def test_the_capacity_is_found_from_any_start(knee: int) -> None:
    found = search_capacity(Cloud(knee), CapacitySearch(epsilon=0.05, resolution=0.0, max_devices=600), 4.0)
    assert found.mean == pytest.approx(knee + 2.5, abs=0.1)
    assert found.capacity == knee + 2
    assert not found.hit_max_devices


def test_runs_without_answers_are_late_and_have_some_weight() -> None:
    def stuck(devices: int, seed: int) -> LoadTestResult:
        return LoadTestResult(devices, seed, {}, {}, {}, {})

    assert search_capacity(stuck, CapacitySearch(seeds=(0,)), 4.0).capacity == 0


def test_all_late_answers_count_as_the_share_at_which_a_run_may_end() -> None:
    """From 11 devices on all are late; a run may end at 15 %, so 5 % are a third of the way there."""

    def cliff(devices: int, seed: int) -> LoadTestResult:
        return LoadTestResult(devices, seed, {"c": ASKED}, {"c": ASKED * (devices > 10)}, {}, {})

    found = search_capacity(cliff, CapacitySearch(epsilon=0.05, resolution=0.0, seeds=(0,)), 4.0)
    assert found.mean == pytest.approx(10 + 1 / 3)


def test_a_search_may_count_late_rounds_in_place_of_late_answers() -> None:
    """Rounds are late from 20 devices on, answers from 50."""
    answers, rounds = Cloud(50), Cloud(20)

    def measured(devices: int, seed: int) -> LoadTestResult:
        late, slow = answers(devices, seed), rounds(devices, seed)
        return LoadTestResult(devices, seed, late.answers, late.violations, {}, {}, slow.answers, slow.violations)

    by_rounds = CapacitySearch(resolution=0.0, seeds=(0,), count_late="rounds")
    assert search_capacity(measured, by_rounds, 4.0).mean == pytest.approx(22.5)
    assert search_capacity(measured, CapacitySearch(resolution=0.0, seeds=(0,)), 4.0).mean == pytest.approx(52.5)
    assert (by_rounds.max_late_share, CapacitySearch().max_late_share) == (0.0, pytest.approx(0.15))


def test_late_rounds_of_a_promised_first_token_are_refused() -> None:
    promised = SloClass(name="c", tokens_per_s=4, ttft_s=1.0)
    CapacitySearch().check_countable([promised])
    with pytest.raises(ValueError, match="c promises a time to the first token"):
        CapacitySearch(count_late="rounds").check_countable([promised])


def test_a_search_takes_few_runs() -> None:
    cloud = Cloud(100)
    search_capacity(cloud, CapacitySearch(), 4.0)
    assert len(cloud.heard) == len(set(cloud.heard)) < 18


def test_differing_seeds_give_an_interval() -> None:
    found = search_capacity(Cloud(50, {0: -2, 1: 0, 2: 2}), CapacitySearch(resolution=0.0), 4.0)
    assert list(found.by_seed.values()) == pytest.approx([50.5, 52.5, 54.5])
    assert found.interval == pytest.approx((52.5 - 4.303 * 2 / 3**0.5, 52.5 + 4.303 * 2 / 3**0.5))
    assert search_capacity(Cloud(50), CapacitySearch(seeds=(4,)), 4.0).interval is None


def test_where_no_answer_may_be_late_the_capacity_is_the_most_devices_without_one() -> None:
    found = search_capacity(Cloud(50), CapacitySearch(epsilon=0.0, resolution=0.0), 4.0)
    assert found.capacity == 50
    assert not found.hit_max_devices


def test_a_cloud_that_meets_no_slo_has_capacity_0() -> None:
    found = search_capacity(Cloud(-30), CapacitySearch(), 4.0)
    assert found.capacity == 0


def test_a_capacity_search_ends_at_its_limit_with_a_note() -> None:
    found = search_capacity(Cloud(5000), CapacitySearch(max_devices=200), 4.0)
    assert found.capacity == 200
    assert found.hit_max_devices


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 1.0}, {"seeds": ()}, {"seeds": (1, 1)}, {"max_devices": 0}, {"resolution": 1.5}, {"warmup_s": -1.0}],
)
def test_invalid_capacity_searches_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        CapacitySearch(**wrong)  # type: ignore[arg-type]


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
