"""Figures that stand in for what was not measured, on rows of processors where both were measured."""

from dataclasses import replace
from functools import cache

import pytest

from tests.support.conf_files import CONF, architecture, chip, names
from training.latency import clock
from training.latency.published_speeds import PublishedSpeed, read_speeds
from training.latency.speed_fit import SpeedFit

MEASURED = CONF / "hardware" / "measured"
NANO, PHONE = (
    "jetson_orin_nano llama_cpp decode, as on jetson_agx_orin",
    "pixel_7 llama_cpp decode, as on raspberry_pi_5",
)


@cache
def rows_of(file: str) -> tuple[PublishedSpeed, ...]:
    chips = {name: chip(name) for name in names("hardware/chip")}
    models = {name: architecture(name) for name in names("model/architecture")}
    return tuple(read_speeds(MEASURED / file, chips, models))


def llama_cpp() -> list[PublishedSpeed]:
    """On boards alone: a fit of those takes a fifth of the time."""
    boards = [one for one in rows_of("speeds.csv") if one.silicon.startswith(("jetson", "raspberry"))]
    return [one for one in boards if one.software == "llama_cpp"]


def slowed(speeds: list[PublishedSpeed], silicon: str, factor: float) -> list[PublishedSpeed]:
    return [replace(one, seconds=one.seconds * factor) if one.silicon == silicon else one for one in speeds]


@pytest.fixture(scope="module")
def found() -> dict[str, clock.Cells]:
    return clock.stand_in_rows(SpeedFit(llama_cpp()), llama_cpp(), rows_of("relatives.csv"))


def test_a_boards_rows_are_predicted_by_a_fit_without_them(found):
    """A fit that had seen them would be slower where they are slower, and its error smaller than by arithmetic."""
    slow = slowed(llama_cpp(), "jetson_orin_nano", 2)
    again = clock.stand_in_rows(SpeedFit(slow), slow, ())
    assert again[NANO]["bias"] == pytest.approx((1 + found[NANO]["bias"]) / 2 - 1, rel=1e-3)


def test_slower_rows_of_the_stand_in_slow_what_it_stands_in_for(found):
    slow = slowed(llama_cpp(), "jetson_agx_orin", 2)
    assert clock.stand_in_rows(SpeedFit(slow), slow, ())[NANO]["bias"] > found[NANO]["bias"] + 0.3


def test_rows_of_a_relative_check_the_chip_and_are_not_fitted_to(found):
    """A Pixel 6a is measured at a third to a half of the speed that the Pixel 7 is charged with."""
    assert found[PHONE]["rows"] == 3
    assert -0.75 < found[PHONE]["bias"] < -0.4
    assert PHONE not in clock.stand_in_rows(SpeedFit(llama_cpp()), llama_cpp(), ())


def test_every_relative_has_a_source_a_licence_and_the_machine_that_was_measured():
    assert all(one.source and one.licence and " on a " in one.note for one in rows_of("relatives.csv"))
