from dataclasses import replace

import pytest

from serving.core.provenance import evidence_class
from serving.hardware.chip import Chip, PowerMode, SoftwareEfficiency, roofline
from serving.hardware.fleet import Fleet
from tests.support.conf_files import architecture, chip, names

CHIPS = names("hardware/chip")
ORINS = {name: (128 if "nx" in name or "nano" in name else 256) for name in CHIPS if "orin" in name}
MODES = {
    "jetson_agx_orin_32gb": {"MAXN": 0, "15W": 1, "30W": 2, "40W": 3},
    "jetson_agx_orin_64gb": {"MAXN": 0, "15W": 1, "30W": 2, "50W": 3},
    "jetson_orin_nx_16gb": {"MAXN": 0, "10W": 1, "15W": 2, "25W": 3, "40W": 4, "MAXN_SUPER": 0},
    "jetson_orin_nano_8gb": {"15W": 0, "7W": 1},
    "jetson_orin_nano_8gb_super": {"15W": 0, "25W": 1, "MAXN_SUPER": 2, "7W": 3},
    "jetson_agx_xavier_32gb": {
        "MAXN": 0, "10W": 1, "15W": 2, "30W_ALL": 3, "30W_6CORE": 4, "30W_4CORE": 5, "30W_2CORE": 6,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_of_a_chip_has_a_source(name):
    assert chip(name).name == name
    assert chip(name).unsourced() == ()


@pytest.mark.parametrize("name", CHIPS)
def test_every_source_belongs_to_a_given_figure(name):
    made = chip(name)
    for figure in made.sources:
        assert any(getattr(owner, figure, None) is not None for owner in (made, *made.modes.values())), figure


@pytest.mark.parametrize("name", MODES)
def test_jetsons_have_all_their_modes(name):
    made = chip(name)
    assert {key: mode.nvpmodel_id for key, mode in made.modes.items()} == MODES[name]
    for mode in made.modes.values():
        assert None not in (mode.gpu_mhz, mode.emc_mhz, mode.cpu_cores, mode.cpu_mhz, mode.tpcs, mode.power_w)


@pytest.mark.parametrize("name", ORINS)
def test_orin_peaks_follow_from_the_active_tpcs(name):
    for mode in chip(name).modes.values():
        sms_ghz = 2 * mode.tpcs * mode.gpu_mhz / 1000
        assert mode.fp16_tflops == pytest.approx(sms_ghz * 2.048, abs=0.01)
        assert mode.int8_tops == pytest.approx(sms_ghz * 4.096, abs=0.01)
        assert mode.fp32_tflops == pytest.approx(sms_ghz * 0.256, abs=0.001)
        assert mode.memory_gbps == pytest.approx(mode.emc_mhz * 2 * ORINS[name] / 8 / 1000, abs=0.1)


def test_headline_tops_are_not_used_for_the_roofline():
    orin = chip("jetson_agx_orin_32gb")
    assert orin.headline_tops == 200
    assert orin.mode("MAXN").int8_tops == pytest.approx(53.8, rel=0.02)


def test_chips_have_their_default_power_mode():
    assert chip("jetson_agx_orin_32gb").mode(None) == chip("jetson_agx_orin_32gb").modes["30W"]
    assert chip("jetson_agx_xavier_32gb").default_mode == "15W"


def test_an_unknown_mode_is_refused_with_the_chips_modes():
    with pytest.raises(ValueError, match=r"orin_32gb has no mode '50W'. Its modes: MAXN, 15W, 30W, 40W; default 30W"):
        chip("jetson_agx_orin_32gb").mode("50W")


def test_a_modes_source_precedes_the_chips():
    orin = chip("jetson_agx_orin_32gb")
    assert evidence_class(orin.source("gpu_mhz", "MAXN")) == "measured"
    assert evidence_class(orin.source("gpu_mhz", "30W")) == "datasheet"
    assert evidence_class(orin.source("fp16_tflops", "30W")) == "derived"
    assert evidence_class(orin.source("idle_w")) == "unverified"


def test_a_figure_without_source_is_found():
    bare = Chip(
        "x", {"a": PowerMode(power_w=5, sources={"power_w": "measured: by us"}), "b": PowerMode(power_w=6)}, "a", 4
    )
    assert set(bare.unsourced()) >= {"memory_gb", "b.power_w"}
    assert "a.power_w" not in bare.unsourced()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {"memory_gb": "someone told me"}}, "memory_gb: source 'someone told me' does not say what"),
        ({"sources": {"memroy_gb": "datasheet: x"}}, "speaks of 'memroy_gb', which it does not have"),
        ({"default_mode": "turbo"}, "has no mode 'turbo'. Its modes: a"),
        ({"default_software": "vllm"}, "names no software, so there is no roofline"),
        ({"idle_w": -1}, "idle_w=-1 must not be negative"),
        ({"modes": {"a": PowerMode(memory_gbps=0)}}, "^chip x, mode a: memory_gbps=0 must be above 0"),
        (
            {"modes": {"a": PowerMode(power_w=2)}, "idle_w": 5},
            "^chip x, mode a: power_w=2 is below the chip's idle_w=5",
        ),
    ],
)
def test_impossible_chips_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(Chip("x", {"a": PowerMode()}, "a"), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth_efficiency": 1.2}, r"bandwidth_efficiency=1.2 must be a share"),
        ({"quantized_bandwidth_efficiency": 0.0}, r"quantized_bandwidth_efficiency=0.0 must be a share"),
        ({"layer_overhead_s": -1e-3}, r"^chip x, software vllm: layer_overhead_s=-0.001 must not be negative"),
        ({"quantized_gbps_per_tflops": 0.0}, r"quantized_gbps_per_tflops=0.0 must be above 0; null: no limit"),
        ({"sources": {"all": "someone told me"}}, "software vllm, all: source 'someone told me' does not say what"),
    ],
)
def test_impossible_software_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Chip("x", {"a": PowerMode()}, "a", software={"vllm": replace(SoftwareEfficiency(0.5, 0.7), **change)})


def test_an_unknown_software_is_refused_with_those_that_the_chip_has_figures_for():
    message = r"rtx_a6000 has no figures for the software mlc. It has them for: .*llama_cpp, .*vllm. Choose one"
    with pytest.raises(ValueError, match=message):
        Fleet(chip("rtx_a6000"), software="mlc")


def test_unpacking_limits_weights_of_few_bits_in_low_power_modes_alone():
    mode, small = PowerMode(fp16_tflops=40, memory_gbps=200), PowerMode(fp16_tflops=10, memory_gbps=200)
    reached = SoftwareEfficiency(0.5, 0.8, 0.6, quantized_gbps_per_tflops=3.0)
    assert [reached.read_gbps(one, "fp16") for one in (mode, small)] == [160, 160]
    assert [reached.read_gbps(one, "int4") for one in (mode, small)] == [120, 30]


def test_a_chip_may_draw_as_much_as_it_does_idle():
    assert Chip("x", {"a": PowerMode(power_w=5)}, "a", idle_w=5).joules(None, 1.0, 1.0) == 10


@pytest.mark.parametrize(
    ("sources", "shown"),
    [
        ({}, "unverified: no source of compute_efficiency and bandwidth_efficiency"),
        ({"compute_efficiency": "measured: by us"}, "unverified: no source of bandwidth_efficiency"),
        ({"compute_efficiency": "measured: by us", "bandwidth_efficiency": "measured: by us"}, ""),
        ({"all": "measured: by us"}, "measured: by us"),
    ],
)
def test_a_roofline_without_a_source_says_so(sources, shown):
    reached = SoftwareEfficiency(0.5, 0.7, sources=sources)
    mine = Chip("mine", {"a": PowerMode(fp16_tflops=40, memory_gbps=200)}, "a", software={"vllm": reached})
    source = roofline(mine, None, architecture("llama2_7b"), "fp16").source
    assert source == "roofline of mine in mode a, llama2_7b, fp16, vllm" + (f" ({shown})" if shown else "")


def test_energy_is_the_budget_while_busy_and_idle_power_otherwise():
    orin = chip("jetson_agx_orin_32gb")
    assert orin.joules("15W", 2.0, idle_s=3.0) == pytest.approx(2 * 15 + 3 * orin.idle_w)
    assert orin.joules(None, 1.0) == pytest.approx(30)
    assert chip("local").joules(None, 1.0) is None
