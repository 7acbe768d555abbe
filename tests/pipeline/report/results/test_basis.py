"""Which claims rest on the clock of a chip model, on batches that were never measured, on a seed."""

import pytest

from pipeline.config import sources
from pipeline.report.results.basis import DECLARED, Basis
from pipeline.report.results.kept import KeptResult, read_results, results_folder
from serving.metrics import definitions

SYNERA = ("hardware/jetson_orin", "hardware/chip/jetson_agx_orin_32gb", "hardware/chip/rtx_a6000")
WISP = ("hardware/wisp", "hardware/chip/a100_80gb", "hardware/chip/drafter_50")
RESULTS = {result.experiment: result for result in read_results(results_folder())}


def basis(*files, experiment="synera/x", **exhibit):
    node = {"title": "t", "rows": [], "claims": [], **exhibit}
    return Basis.of(KeptResult(experiment, node, dict.fromkeys(files, ""), "", (), "2026-11-24", 1))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("latency/tbt_s/mean", True),
        ("throughput/requests_per_s", True),
        ("sla/prefill_128_s/within_0.3", True),
        ("cost/usd_per_million_tokens", True),
        ("resources/device_j_per_token", True),
        ("tiers/agx/blocks", True),
        ("a number of a stage", True),
        ("quality", False),
        ("quality/by_task/choice", False),
        ("speculation/acceptance_rate", False),
        ("resources/uplink_nbytes", False),
        ("overhead/cloud_share", False),
    ],
)
def test_a_metric_rests_on_the_clock_of_a_chip_model_as_the_registry_says(metric, expected):
    assert basis(*SYNERA).rests_on_clock({"metric": metric}) is expected
    assert not basis("hardware/jetson_orin").rests_on_clock({"metric": metric})


def test_a_column_stands_for_its_metric():
    """The names of Fig. 15's and Fig. 14's columns are none of a metric."""
    on, off = basis(*SYNERA, "experiment/synera/fig15"), basis(*SYNERA, "experiment/synera/fig14")
    assert on.metrics["of unloaded, times"] == "latency/verification_s/mean"
    assert on.rests_on_clock({"metric": "of unloaded, times"})
    assert off.metrics["quality"] == "quality/mean"
    assert not off.rests_on_clock({"metric": "quality"})


def test_a_column_rests_on_what_it_is_compared_with(monkeypatch):
    """Quality knows no clock, and quality a second does."""
    columns = [
        {"name": "TBT", "metric": "latency/tbt_s/mean"},
        {"name": "quality a second", "metric": "quality", "relative": {"column": "TBT"}},
        {"name": "gain a second", "metric": "quality", "relative": {"groups": {"a": "b"}, "then": {"column": "TBT"}}},
        {"name": "gain", "metric": "quality", "relative": {"groups": {"a": "b"}}},
    ]
    read = sources.read_named
    own = {"experiment/synera/x": {sources.EXHIBIT: {"columns": columns}}}
    monkeypatch.setattr(sources, "read_named", lambda name: own.get(name) or read(name))
    found = basis(*SYNERA, "experiment/synera/x")
    on_clock = [column["name"] for column in columns if found.rests_on_clock({"metric": column["name"]})]
    assert on_clock == ["TBT", "quality a second", "gain a second"]


def test_coefficients_that_a_testbed_chooses_are_no_chip_model():
    """WISP's testbed times its A100 by Table 12; another chip, or timing=roofline in an experiment, does not."""
    devices = {"metric": "8 tokens/s"}
    assert not basis(*WISP).rests_on_clock(devices)
    assert basis(*WISP, "hardware/chip/jetson_agx_orin_64gb").rests_on_clock(devices)
    assert basis(*WISP, "experiment/wisp/slo").rests_on_clock(devices)
    assert not basis("hardware/local", "hardware/chip/local").rests_on_clock(devices)


def test_groups_are_told_apart_where_one_is_on_the_clock():
    found = basis(*WISP, experiment="wisp/table2")
    assert found.rests_on_clock({"group": "Qwen3-14B", "metric": "8 tokens/s"})
    assert not found.rests_on_clock({"group": "Qwen3-32B", "metric": "8 tokens/s"})


@pytest.mark.parametrize(
    ("experiment", "files", "group", "expected"),
    [
        ("synera/fig15", SYNERA, "budget 0.3", True),
        ("wisp/sensitivity", WISP, "roofline", True),
        ("wisp/sensitivity", WISP, "K 4", False),
        ("wisp/table2", WISP, "Qwen3-14B", True),
        ("wisp/table2", WISP, "Qwen3-32B", False),
        ("synera/fig11", SYNERA, "160m_13b", False),
    ],
)
def test_a_capacity_lacks_batches_where_its_chip_was_measured_with_one_session(experiment, files, group, expected):
    claim = {"group": group, "metric": "latency/verification_s/mean"}
    assert basis(*files, experiment=experiment).lacks_batches(claim) is expected


def test_a_capacity_on_a_chip_with_measured_batches_does_not_lack_them(monkeypatch):
    """vLLM on AGX Orin was measured with batches of up to 8; transformers on it with one session."""
    found = {"software": "vllm"}
    bed = {"cloud": {"chip": "jetson_agx_orin_32gb", **found}}
    read = sources.read_named
    monkeypatch.setattr(sources, "read_named", lambda name: bed if name == "hardware/jetson_orin" else read(name))
    claim = {"group": "budget 0.3", "metric": "throughput/requests_per_s"}
    assert not basis(*SYNERA, experiment="synera/fig15").lacks_batches(claim)
    bed["cloud"]["software"] = "transformers"
    assert basis(*SYNERA, experiment="synera/fig15").lacks_batches(claim)


@pytest.mark.parametrize(
    ("evidence", "default", "lacks"),
    [
        ("measured, batches 1 to 8", "second", False),
        ("measured, batches 1 to 8", None, True),
        ("estimated, batches 1 to 8", "second", True),
        ("measured, one session", "second", True),
    ],
)
def test_batches_count_where_they_were_measured_with_the_software_that_is_used(monkeypatch, evidence, default, lacks):
    software = {"first": {"sources": {"all": "measured, one session"}}, "second": {"sources": {"all": evidence}}}
    chip = {"software": software, "default_software": default}
    nodes = {"hardware/chip/rtx_a6000": chip, "hardware/jetson_orin": {"cloud": {"chip": "rtx_a6000"}}}
    monkeypatch.setattr(sources, "read_named", lambda name: nodes.get(name, {}))
    claim = {"group": "budget 0.3", "metric": "throughput/requests_per_s"}
    assert basis(*SYNERA, experiment="synera/fig15").lacks_batches(claim) is lacks


def test_a_metric_without_a_clock_lacks_no_batches():
    assert not basis(*SYNERA, experiment="synera/fig15").lacks_batches({"metric": "quality"})


def test_groups_that_an_exhibit_declares_lack_them_too():
    found = basis(unmeasured_batches=["g"])
    assert [found.lacks_batches({"group": group, "metric": "m"}) for group in ("g", "h")] == [True, False]


@pytest.mark.parametrize("experiment", DECLARED)
def test_a_declaration_is_of_a_kept_result_and_its_groups(experiment):
    groups = {row.get("group", "") for row in RESULTS[experiment].exhibit["rows"]}
    assert set(DECLARED[experiment].clock_groups or ()) <= groups
    assert DECLARED[experiment].reason


@pytest.mark.parametrize("experiment", [name for name, one in DECLARED.items() if one.repeats != "seeds"])
def test_what_is_declared_to_know_no_seed_has_none(experiment):
    cells = [
        column.get("measured") for row in RESULTS[experiment].exhibit["rows"] for column in row["columns"].values()
    ]
    assert {seed for cell in cells if isinstance(cell, dict) for seed in cell.get("by_replicate", ())} == {""}


def test_wisp_s_exhibits_on_its_own_coefficients_have_them_for_every_target():
    """A target without coefficients falls back on the roofline: its group must be declared."""
    fitted = sources.read_named("hardware/chip/a100_80gb")["fitted"]["wisp_table_12"]["latencies"]
    for name, result in RESULTS.items():
        claims = any(claim.get("reported") for claim in result.exhibit.get("claims", ()))
        if claims and not Basis.of(result).has_roofline and "hardware/wisp" in result.files:
            targets = {one for one in result.files if one.startswith("model/architecture/qwen3_")}
            without = targets - {f"model/architecture/{known}" for known in (*fitted, "qwen3_0_6b")}
            assert not without or (name in DECLARED and DECLARED[name].clock_groups), (name, without)


def test_every_metric_without_a_clock_is_defined():
    assert set(definitions.CLOCK_FREE) <= {metric.key for metric in definitions.METRICS}
