import json
from collections import Counter
from dataclasses import asdict, replace

import pytest

from serving.core.keyed_random import key
from serving.hardware.fleet import Fleet, PowerModeSchedule, check_memory
from serving.hardware.latency import LinearLatency
from serving.hardware.testbed import Testbed as Bed  # pytest would collect a class named Test...
from tests.support.conf_files import architecture, bed, chip, fleet, link, names


@pytest.mark.parametrize("name", names("hardware"))
def test_every_configured_testbed_is_built(name):
    assert bed(name).device_fleets


def test_synera_s_testbed_is_an_orin_in_30w_and_an_a6000():
    found = bed("jetson_orin")
    assert (found.device_fleets[0].chip.name, found.device_fleets[0].mode_name) == ("jetson_agx_orin_32gb", "30W")
    assert found.cloud.chip.name == "rtx_a6000"
    check_memory(found.device_fleets[0], architecture("tinyllama_1_1b"), sessions=1, tokens=2048)
    check_memory(found.cloud, architecture("llama2_13b"), sessions=8, tokens=2048)


def test_hat_has_thirty_devices_in_three_groups_of_ten():
    found = bed("hat")
    chips = Counter(each.chip.name for each in found.assign_fleets(30))
    assert chips == {"jetson_agx_xavier_32gb": 20, "jetson_agx_orin_32gb": 10}
    groups = Counter(each.network.uplink_mbps for each in found.assign_fleets(30))
    assert groups == {80: 10, 60: 10, 40: 10}
    assert all(
        each.schedule.requests_per_mode == 5 and each.schedule.modes == tuple(each.chip.modes) for each in found.fleets
    )


def test_every_prefix_of_the_assigned_fleets_is_near_the_proportion():
    fleets = (fleet("raspberry_pi_5", count=3), fleet("raspberry_pi_4b", count=1), fleet("pixel_7", count=2))
    dealer = Bed(fleet("a100_80gb"), fleets=fleets)
    order = dealer.assign_fleets(60)
    for n in range(1, 61):
        for each in fleets:
            assert abs(sum(dealt is each for dealt in order[:n]) - n * each.count / 6) < 1
    assert dealer.assign_fleets(7) == order[:7]


def test_one_fleet_or_several_but_not_both():
    one = fleet("raspberry_pi_5")
    with pytest.raises(ValueError, match=r"hardware\.device.*hardware\.fleets.*, not neither"):
        Bed(one)
    with pytest.raises(ValueError, match="not both"):
        Bed(one, one, (one,))


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic():
    shape, orin = architecture("llama2_70b"), fleet("jetson_agx_orin_32gb")
    with pytest.raises(ValueError, match="Store the weights in fewer bits") as caught:
        check_memory(orin, shape, sessions=2, tokens=1000)
    weights, cache = 2 * shape.parameters() / 2**30, 2 * 1000 * 2 * 80 * 1024 * 2 / 2**30
    for part in ("llama2_70b", "(32.00 GB)", "fp16", f"weights {weights:.2f} GB", f"KV cache {cache:.2f} GB"):
        assert part in str(caught.value)
    assert "2 sessions x 1000 tokens" in str(caught.value)


def test_a_model_fits_with_fewer_bits_or_more_chips():
    shape = architecture("llama2_70b")
    check_memory(fleet("rtx_a6000", tensor_parallel=4), shape, sessions=4, tokens=2048)
    check_memory(fleet("rtx_a6000", precision="int4"), shape, sessions=4, tokens=2048)
    with pytest.raises(ValueError, match="into 2 x rtx_a6000"):
        check_memory(fleet("rtx_a6000", tensor_parallel=2), shape, sessions=4, tokens=2048)


def test_too_many_sessions_are_refused_with_other_advice():
    with pytest.raises(ValueError, match="Serve fewer or shorter sessions"):
        check_memory(fleet("rtx_a6000"), architecture("llama2_13b"), sessions=200, tokens=2048)


def test_a_chip_of_unknown_memory_refuses_nothing():
    check_memory(fleet("local"), architecture("llama2_70b"), sessions=100, tokens=4096)


def test_energy_counts_every_chip_of_a_node():
    assert fleet("a100_80gb", tensor_parallel=2).joules(3.0, idle_s=1.0) == pytest.approx(2 * (3 * 400 + 50))
    assert fleet("jetson_agx_orin_32gb").joules(1.0, mode="15W") == pytest.approx(15)
    assert fleet("local").joules(1.0) is None


def test_fitted_coefficients_are_used_by_name_and_the_roofline_where_there_are_none():
    wisp = fleet("a100_80gb", timing="wisp_table_12")
    assert wisp.latency(architecture("qwen3_32b")).c_s == pytest.approx(14.86e-3)
    drawn = wisp.latency(architecture("qwen3_14b"))
    assert replace(drawn, source="") == replace(fleet("a100_80gb").latency(architecture("qwen3_14b")), source="")
    assert drawn.source.endswith("(wisp_table_12 has no qwen3_14b)")


def test_a_profiled_chip_is_timed_by_its_profile(tmp_path):
    tiny = replace(architecture("llama_160m"), name="tiny")
    fit = LinearLatency(1e-5, 1e-9, 1e-8, 1e-3, layers=12, source="profile")
    (tmp_path / "latency.json").write_text(json.dumps({"source": "this machine", "latencies": {"tiny": asdict(fit)}}))
    profiled = Fleet(replace(chip("local"), profile=tmp_path), timing="profile")
    assert profiled.latency(tiny) == fit
    with pytest.raises(
        ValueError, match="this machine has no coefficients for llama2_7b, and chip local names no software"
    ):
        profiled.latency(architecture("llama2_7b"))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"mode": "50W"}, "has no mode '50W'"),
        ({"schedule": {"modes": ["30W", "25W"]}}, "has no mode '25W'"),
        ({"count": 0}, "count=0 must be at least 1"),
        ({"tensor_parallel": 0}, "tensor_parallel=0 must be at least 1"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; use one of fp32, fp16, int8, int4"),
        ({"timing": "wisp"}, "unknown timing 'wisp'; use one of roofline, profile"),
        ({"timing": "roofine", "tensor_parallel": 2}, "unknown timing 'roofine'; use one of roofline, profile"),
        ({"timing": "profile"}, r"timing=profile needs the chip's profile, .* set timing=roofline, or give the chip's"),
    ],
)
def test_impossible_fleets_are_refused(node, message):
    with pytest.raises(ValueError, match=message):
        fleet("jetson_agx_orin_32gb", **node)


def test_a_schedule_changes_modes_and_is_reproducible():
    schedule, stream = PowerModeSchedule(("MAXN", "15W", "30W"), requests_per_mode=5), key(1, "device 3")
    modes = [schedule.mode(stream, request) for request in range(300)]
    assert all(len(set(modes[i : i + 5])) == 1 for i in range(0, 300, 5))
    assert min(Counter(modes).values()) > 50
    assert modes == [schedule.mode(stream, request) for request in range(300)]
    cycle = replace(schedule, requests_per_mode=2, order="cycle")
    assert [cycle.mode(stream, request) for request in range(7)] == ["MAXN", "MAXN", "15W", "15W", "30W", "30W", "MAXN"]


def test_a_fleet_without_schedule_stays_in_its_mode():
    assert fleet("jetson_agx_orin_32gb", mode="15W").mode_at(key(0, "x"), 12) == "15W"
    assert fleet("jetson_agx_orin_32gb").mode_at(key(0, "x"), 12) == "30W"


def test_empty_schedules_are_refused():
    with pytest.raises(ValueError, match="modes is empty"):
        PowerModeSchedule(())
    with pytest.raises(ValueError, match="requests_per_mode=0"):
        PowerModeSchedule(("30W",), requests_per_mode=0)


def test_a_fleet_may_have_its_own_link():
    assert fleet("pixel_7", network={"uplink_mbps": 1, "downlink_mbps": 2}).network != link("lte")


def test_a_quantised_model_fits_where_the_unquantised_does_not():
    pi, shape = fleet("raspberry_pi_4b"), architecture("vicuna_7b")
    with pytest.raises(ValueError, match="vicuna_7b does not fit"):
        check_memory(pi, shape, sessions=1, tokens=256)
    check_memory(pi, shape.quantized("nf4"), sessions=1, tokens=256)


def test_quantising_a_quantised_model_again_is_refused():
    shape = architecture("tinyllama_1_1b").quantized("nf4")
    with pytest.raises(
        ValueError, match=r"_nf4 is quantised, and precision=int8 of raspberry_pi_5 .* set the hardware's"
    ):
        check_memory(fleet("raspberry_pi_5", precision="int8"), shape, sessions=1, tokens=256)


def test_coefficients_of_the_unquantised_model_do_not_time_the_quantised():
    found = fleet("a100_80gb", timing="wisp_section_4_4")
    whole = architecture("qwen3_32b")
    assert "roofline" not in found.latency(whole).source
    source = found.latency(whole.quantized("nf4")).source
    assert "roofline" in source
    assert source.endswith("(wisp_section_4_4 has no qwen3_32b_nf4)")
