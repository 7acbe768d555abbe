"""What a contender meets at a place, and who may take part."""

from dataclasses import replace

import pytest

from serving.policy.slots.deadline_aware import DeadlineAware
from serving.policy.slots.slo_aware import SloAware
from serving.studies.winners.contest import Simulation, check_contenders, from_json, to_json
from serving.studies.winners.place import Grid, Place
from tests.serving.studies.winners.contest_setup import CONTENDERS, contest
from tests.support.conf_files import architecture
from tests.support.policies import policy

PLACE = Place(30.0, 0.6, "slow", 8)


def test_a_simulation_is_of_what_makes_a_difference() -> None:
    made = contest()
    assert made.simulation("cloud_decoding", PLACE, 4.0) == Simulation("cloud_decoding", 30.0, None, None, 8, 0.0)
    assert made.simulation("cloud_speculative", PLACE) == Simulation("cloud_speculative", 30.0, 0.6, None, 8, 0.0)
    assert made.simulation("device_drafts", PLACE) == Simulation("device_drafts", 30.0, 0.6, "slow", 8, 0.0)
    promising = replace(CONTENDERS["device_drafts"], scheduler=SloAware(max_num_seqs=8))
    aware = replace(made, contenders=made.contenders | {"aware": promising})
    assert aware.simulation("aware", PLACE, 4.0).tokens_per_s == 4.0
    assert made.simulation("device_drafts", PLACE, 4.0).tokens_per_s == 0.0


def test_a_scheduler_that_reads_deadlines_is_simulated_for_each_promise() -> None:
    aware = replace(CONTENDERS["device_drafts"], scheduler=DeadlineAware(max_num_seqs=8))
    made = replace(contest(), contenders=CONTENDERS | {"aware": aware})
    assert made.simulation("aware", PLACE, 4.0).tokens_per_s == 4.0


def test_the_setup_has_the_places_link_load_and_chips() -> None:
    made = contest()
    setup = made.setup_of(made.simulation("device_drafts", PLACE))
    assert (setup.network.delay_ms, setup.num_devices, setup.hardware.device) == (15.0, 8, made.devices["slow"])
    other = replace(made, drafters={"device_drafts": architecture("qwen3_1_7b")})
    assert other.setup_of(made.simulation("device_drafts", PLACE)).pair.device.timed_architecture.name == "qwen3_1_7b"


def test_a_shifted_acceptance_makes_drafts_pay_more() -> None:
    made = contest()
    low, high = (made.run(made.simulation("cloud_speculative", replace(PLACE, acceptance=a))) for a in (0.55, 0.9))
    assert high[0].mean_s_per_token < 0.9 * low[0].mean_s_per_token
    assert from_json(to_json(high)) == high


def test_contenders_that_change_the_text_are_refused() -> None:
    with pytest.raises(ValueError, match="contenders: synera changes the text, and here speed alone decides"):
        check_contenders({"sled": policy("sled"), "synera": policy("synera")}, {})
    with pytest.raises(ValueError, match="contenders: sled is named; a winner needs two"):
        check_contenders({"sled": policy("sled")}, {})
    with pytest.raises(ValueError, match="'hat' is no contender; there are cloud_decoding"):
        check_contenders(CONTENDERS, {"hat": architecture("qwen3_1_7b")})


def test_a_grid_has_all_combinations_and_is_sparse_where_a_place_takes_long() -> None:
    grid = Grid((0.0, 10.0, 20.0), (0.3, 0.6), (1, 64), sparse_from=64)
    places = list(grid.places(("a", "b")))
    assert len(places) == 2 * (3 * 2 + 2 * 1)
    assert [place.round_trip_ms for place in places if place.num_devices == 64] == [0.0, 20.0] * 2
    assert len(list(replace(grid, sparse_from=None).places(("a", "b")))) == 24


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (((), (0.3,), (1,)), "grid.round_trips_ms is"),
        (((0.0,), (0.6, 0.3), (1,)), "each above the one before"),
        (((-1.0,), (0.3,), (1,)), "0 or more"),
        (((0.0,), (1.0,), (1,)), "above 0 and below 1"),
        (((0.0,), (0.3,), (0,)), "1 device at least"),
    ],
)
def test_a_grid_out_of_range_is_refused(values: tuple[tuple[float, ...], ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Grid(*values)  # type: ignore[arg-type]
