"""A hot chip: its curve, the latencies that follow, and what is refused."""

import pytest

from serving.core.provenance import evidence_class
from serving.hardware.fleet import Fleet
from serving.hardware.heat import SustainedSpeed, slowed
from serving.hardware.latency import LinearLatency, batch_load
from tests.support.conf_files import architecture, chip, names

SOURCE = "measured: by us"
MODEL = architecture("tinyllama_1_1b")
LOADS = [batch_load(MODEL.layers, [(512, 1)], 1), batch_load(MODEL.layers, [(0, 500)], 1)]


def test_a_chip_sustains_the_end_of_its_curve():
    curve = SustainedSpeed(((0, 1), (60, 0.9), (300, 0.5)), SOURCE)
    assert curve.share == 0.5
    assert curve.described == "50% of the cold speed after 300 s of load (measured: by us)"


@pytest.mark.parametrize("load", LOADS)
def test_a_hot_phone_takes_longer_by_its_share(load):
    cold, hot = (Fleet(chip("pixel_7"), heat=heat, precision="int4").latency(MODEL) for heat in ("cold", "sustained"))
    assert hot.seconds(load) == pytest.approx(cold.seconds(load) / 0.82)
    assert hot.source == f"{cold.source}, hot: 82% of the cold speed"


def test_fitted_coefficients_are_slowed_alike():
    fitted = LinearLatency(1e-3, 1e-6, 1e-6, 2e-3, MODEL.layers, "ours", session_s=1e-3, wake_s=1e-2, forward_s=1e-3)
    assert slowed(fitted, 0.5).seconds(LOADS[0]) == pytest.approx(2 * fitted.seconds(LOADS[0]))
    assert slowed(fitted, 0.5).layers == fitted.layers


def test_cold_is_the_default_and_changes_nothing():
    phone = Fleet(chip("pixel_7"), precision="int4")
    assert phone.heat == "cold"
    assert "hot" not in phone.latency(MODEL).source


def test_the_curves_of_conf_have_sources():
    curves = {name: made for name in names("hardware/chip") if (made := chip(name).sustained)}
    assert set(curves) == {"pixel_7"}
    assert {evidence_class(curve.source) for curve in curves.values()} == {"derived"}


def test_a_chip_without_a_curve_cannot_be_hot():
    with pytest.raises(ValueError, match=r"fleet of rtx_a6000: heat=sustained needs .* none is known; set heat=cold"):
        Fleet(chip("rtx_a6000"), heat="sustained")
    with pytest.raises(ValueError, match=r"unknown heat 'warm'; use one of cold, sustained"):
        Fleet(chip("pixel_7"), heat="warm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ((), r"must begin with \[0, 1\]"),
        (((0, 1),), "at least one more"),
        (((0, 0.9), (60, 0.8)), "must begin with"),
        (((0, 1), (60, 0.9), (60, 0.8)), r"\[60, 0.8\] must be later than 60 s"),
        (((0, 1), (60, 0)), "above 0 and at most 1"),
        (((0, 1), (60, 1.1)), "above 0 and at most 1"),
    ],
)
def test_a_curve_that_is_none_is_refused(points, problem):
    with pytest.raises(ValueError, match=problem):
        SustainedSpeed(points, SOURCE)


def test_a_curve_needs_evidence():
    with pytest.raises(ValueError, match="does not say what its evidence is"):
        SustainedSpeed(((0, 1), (60, 0.5)), "phones get hot")
