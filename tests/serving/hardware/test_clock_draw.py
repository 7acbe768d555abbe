"""Draws of the clock: which chips they change, by how much, and that all policies meet the same ones."""

import json
from dataclasses import replace
from math import exp

import pytest

from serving.hardware import testbed
from serving.hardware.clock_draw import as_json, drawn_testbed, pool_identities
from serving.hardware.error_pools import ERROR_LISTS, ClockErrors, split_pool_key
from serving.hardware.fleet import Fleet, PowerModeSchedule
from serving.hardware.latency import batch_load
from serving.hardware.roofline import TimeFactors
from serving.hardware.testbed import Tier
from tests.support.conf_files import CONF, architecture, chip

MODEL = architecture("tinyllama_1_1b")
DECODE, PREFILL = batch_load(MODEL.layers, [(512, 1)], 1), batch_load(MODEL.layers, [(0, 2048)])
ERRORS = ClockErrors(decode=(0.5,), prefill=(-0.25,), decode_unmeasured=(1.0,), prefill_unmeasured=(2.0,))
MEASURED, UNMEASURED = Fleet(chip("a100_80gb"), software="vllm"), Fleet(chip("rtx_a6000"), software="vllm")


def test_reading_and_what_the_process_takes_are_slowed_apart_from_computing():
    latency = MEASURED.latency(MODEL)
    slow_reads, slow_computing = latency.scaled(TimeFactors(read=2.0)), latency.scaled(TimeFactors(compute=2.0))
    assert slow_reads.seconds(DECODE) == pytest.approx(2 * latency.seconds(DECODE), rel=0.05)
    assert slow_computing.seconds(DECODE) == pytest.approx(latency.seconds(DECODE), rel=0.05)
    assert slow_computing.seconds(PREFILL) > 1.5 * latency.seconds(PREFILL)
    assert slow_reads.forward_s == 2 * latency.forward_s


def test_a_chip_that_was_not_measured_is_off_by_more():
    drawn = drawn_testbed(testbed.Testbed(cloud=MEASURED, device=UNMEASURED), ERRORS, 0)
    assert drawn.cloud.time_factors == TimeFactors(read=exp(0.5), compute=exp(-0.25))
    assert drawn.device.time_factors == TimeFactors(read=exp(1.0), compute=exp(2.0))
    ratio = drawn.cloud.latency(MODEL).linear_read_s / MEASURED.latency(MODEL).linear_read_s
    assert ratio == pytest.approx(exp(0.5))


def test_figures_that_no_held_out_row_checked_are_off_by_more():
    orin = chip("jetson_agx_orin_32gb")
    fitted = {name for name, own in orin.software.items() if own.sources["all"].startswith("measured")}
    assert "transformers" in fitted  # three rows of one model and source
    drawn = {
        name: drawn_testbed(testbed.Testbed(MEASURED, Fleet(orin, software=name)), ERRORS, 0).device.time_factors.read
        for name in fitted
    }
    assert {name for name, factor in drawn.items() if factor == exp(1.0)} == {"transformers"}
    assert {factor for name, factor in drawn.items() if name != "transformers"} == {exp(0.5)}


MODES = {"macbook_m1": {"llama_cpp": ["gpu", "gpu_7_core"]}}


def read_factor(fleet, modes=MODES):
    drawn = drawn_testbed(testbed.Testbed(MEASURED, fleet), replace(ERRORS, modes=modes), 0)
    return drawn.device.time_factors.read


def test_a_mode_without_a_row_is_off_by_more_whatever_is_known_of_the_chip_s_other_modes():
    m1 = chip("macbook_m1")
    assert read_factor(Fleet(m1, mode="gpu")) == exp(0.5)
    assert read_factor(Fleet(m1, mode="cpu")) == exp(1.0)
    assert read_factor(Fleet(m1, schedule=PowerModeSchedule(("gpu", "gpu_7_core")))) == exp(0.5)
    assert read_factor(Fleet(m1, schedule=PowerModeSchedule(("gpu", "cpu")))) == exp(1.0)
    assert read_factor(Fleet(m1, mode="cpu"), modes={}) == exp(0.5)  # a user's chip


def test_the_m1_s_cpu_has_no_row_in_conf():
    errors = ClockErrors.read(CONF / "hardware" / "measured" / "errors.json")
    fleets = [Fleet(chip("macbook_m1"), mode=mode) for mode in ("gpu", "cpu")]
    found = {name: pool.rpartition(" ")[0] for name, pool in pool_identities(fleets, errors).items()}
    assert found == {"macbook_m1 gpu llama_cpp": "another source", "macbook_m1 cpu llama_cpp": "another processor"}


def test_a_pool_is_another_if_one_of_its_errors_is():
    """That of a chip stays where the other pool alone changes."""
    fleets = [MEASURED, replace(UNMEASURED, schedule=PowerModeSchedule(("default",)))]
    before, after = (pool_identities(fleets, own) for own in (ERRORS, replace(ERRORS, prefill_unmeasured=(2.0, 2.1))))
    assert {name: before[name] == after[name] for name in before} == {
        "a100_80gb default vllm": True, "rtx_a6000 default vllm": False
    }  # fmt: skip
    assert split_pool_key("m1 cpu+gpu llama_cpp") == ("m1", ("cpu", "gpu"), "llama_cpp")


def test_fitted_coefficients_are_measurements_and_stay():
    coefficients = chip("a100_80gb").fitted
    fitted = Fleet(chip("a100_80gb"), timing=next(iter(coefficients)))
    known = architecture(next(iter(coefficients[fitted.timing].latencies)))
    drawn = drawn_testbed(testbed.Testbed(cloud=fitted, device=UNMEASURED), ERRORS, 0).cloud
    assert drawn.latency(known) == fitted.latency(known)
    assert drawn.latency(MODEL).seconds(DECODE) > 1.3 * fitted.latency(MODEL).seconds(DECODE)  # has no coefficients


def test_a_draw_has_the_same_chips_in_every_testbed_and_draws_differ():
    errors = replace(ERRORS, decode=tuple(i / 100 for i in range(50)), decode_unmeasured=tuple(range(50)))
    tiers = testbed.Testbed(
        fleets=(UNMEASURED, replace(UNMEASURED, count=2)), tiers={"edge": Tier(MEASURED, (UNMEASURED,))}
    )
    for draw in range(5):
        drawn, other = (
            drawn_testbed(tiers, errors, draw),
            drawn_testbed(testbed.Testbed(MEASURED, UNMEASURED), errors, draw),
        )
        assert {fleet.time_factors for fleet in drawn.fleets} == {other.device.time_factors}
        assert [fleet.time_factors for fleet in drawn.tiers["edge"].fleets] == [
            other.cloud.time_factors, other.device.time_factors
        ]  # fmt: skip
    assert len({drawn_testbed(tiers, errors, draw).fleets[0].time_factors for draw in range(20)}) > 10


def test_the_errors_of_conf_are_wider_where_nothing_was_measured():
    errors = ClockErrors.read(CONF / "hardware" / "measured" / "errors.json")
    assert len(errors.decode) > 50
    assert spread(errors.decode_unmeasured) > 1.3 * spread(errors.decode)


def spread(errors):
    return (sum(error**2 for error in errors) / len(errors)) ** 0.5


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        '{"modes": [1]}',
        '{"decode": [1]}',
        '{"decode": ["fast"]}',
        as_json({key: [] for key in ERROR_LISTS}),
    ],
)
def test_a_file_without_errors_is_named(tmp_path, text):
    (tmp_path / "errors.json").write_text(text)
    with pytest.raises(ValueError, match=r"errors\.json has no errors of the clock: "):
        ClockErrors.read(tmp_path / "errors.json")


def test_what_is_written_is_read(tmp_path):
    (tmp_path / "errors.json").write_text(as_json({name: list(getattr(ERRORS, name)) for name in ERROR_LISTS}, MODES))
    assert ClockErrors.read(tmp_path / "errors.json") == replace(ERRORS, modes=MODES)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"decode": []}', "[", json.dumps({**vars(ERRORS), "prefill": [float("inf")]})],
)
def test_a_file_without_errors_is_refused(tmp_path, text):
    (tmp_path / "errors.json").write_text(text)
    with pytest.raises(ValueError, match=r"errors of the clock|Expecting|Infinity"):
        ClockErrors.read(tmp_path / "errors.json")


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_factors_are_above_zero(factor):
    with pytest.raises(ValueError, match="above 0"):
        TimeFactors(read=factor)
