"""What stands beside what in the exhibits of conf/: no conclusion from TBT alone, no time without a cost or a reason,
no quality without ROUGE-1, and a paper's rule as printed beside our reading of it.
"""

import re
from pathlib import Path

import pytest

from pipeline.report.exhibit.schema import full_metric_name
from pipeline.report.summary import QUALITY
from tests.support.conf_files import read_yaml

CONF = Path(__file__).parents[4] / "conf" / "experiment"
FILES = {file.relative_to(CONF).as_posix(): file for file in CONF.rglob("*.yaml")}
EXHIBITS = {
    name: found["exhibit"]
    for name, file in FILES.items()
    if isinstance(found := read_yaml(file), dict)
    and isinstance(found.get("exhibit"), dict)
    and "columns" in found["exhibit"]
}
TBT, SERVICE, COST = "latency/tbt_s/mean", "latency/service_s_per_token/mean", "cost/usd_per_million_tokens"
TIMES = ("latency/service_s_per_token/", "latency/end_to_end_s/")
ROUGE_1 = "quality/rouge_1"
CLOUD_COST = re.compile(r"cost/(verified|generated)_s$")
PRINTED = {
    "synera/table4.yaml": {"+variant/synera/method": {"synera_percentile", "edgefm_whole_answer"}},
    "synera/fig14.yaml": {"policy.offload.calibration": {"percentile"}},
    "hat/_delay_by_rate.yaml": {"+variant/hat/method": {"hat_printed_chunks"}},
    "hat/device_time.yaml": {"+variant/hat/method": {"hat_printed_chunks"}},
    "hat/table5.yaml": {"+variant/hat/ablation": {"pc_printed", "sd_pc_pd_printed"}},
}
"""Experiment -> what it sweeps -> the rules as printed: Synera's percentile of importance, EdgeFM-LLM's perplexity of
the whole answer, HAT's Eq. 3 without a least chunk. WISP's printed scheduler is `+policy=wisp` itself.
"""


COST_PAGE = Path(__file__).parents[4] / "docs" / "cost.md"
WITHOUT_PRICE = COST_PAGE.read_text(encoding="utf-8").split("### Tables without a price")[1].split("\n## ")[0]
LISTED = re.findall(r"`([a-z_]+/\w+)`", "".join(re.findall(r"^\|([^|]*)\|", WITHOUT_PRICE, re.MULTILINE)))
"""The experiments in the first column of the list of docs/cost.md."""


def metrics(exhibit):
    """A column without a metric shows the one that it is named after."""
    return {full_metric_name(column.get("metric") or column["name"]) for column in exhibit["columns"]}


def experiments(name):
    """The experiment of a file; of one that is no experiment, those that have their columns from it."""
    stem = name.removesuffix(".yaml")
    if not Path(stem).name.startswith("_"):
        return [stem]
    return [
        heir
        for file, node in ((file, read_yaml(path)) for file, path in FILES.items())
        if f"/experiment/{stem}" in node.get("defaults", ()) and file not in EXHIBITS
        for heir in experiments(file)
    ]


def test_columns_without_a_metric_are_seen():
    assert QUALITY in metrics(EXHIBITS["beyond/delay_text.yaml"])
    assert QUALITY in metrics(EXHIBITS["real/long_prompts.yaml"])
    assert sorted(experiments("hyperion/_latency_by_tasks.yaml")) == ["hyperion/fig5", "hyperion/fig6"]


@pytest.mark.parametrize("name", [name for name, exhibit in EXHIBITS.items() if TBT in metrics(exhibit)])
def test_service_time_end_to_end_and_cost_stand_beside_tbt(name):
    """TBT counts 0 between tokens that are shown at once, and leaves out the wait for the first."""
    found = metrics(EXHIBITS[name])
    assert SERVICE in found
    assert COST in found
    assert any(metric.startswith("latency/end_to_end_s/") for metric in found)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, exhibit in EXHIBITS.items()
        if COST not in (found := metrics(exhibit)) and any(metric.startswith(TIMES) for metric in found)
    ],
)
def test_a_time_without_a_cost_is_in_the_list_of_the_cost_page(name):
    assert set(experiments(name)) <= set(LISTED)


def test_what_the_cost_page_lists_has_no_cost():
    assert [name for name in LISTED if COST in metrics(EXHIBITS.get(f"{name}.yaml", {"columns": ()}))] == []
    assert {f"{name}.yaml" for name in LISTED} <= FILES.keys()


@pytest.mark.parametrize("name", [name for name, exhibit in EXHIBITS.items() if QUALITY in metrics(exhibit)])
def test_rouge_1_stands_beside_quality(name):
    assert ROUGE_1 in metrics(EXHIBITS[name])


@pytest.mark.parametrize(
    "name", [name for name, exhibit in EXHIBITS.items() if any(map(CLOUD_COST.match, metrics(exhibit)))]
)
def test_synera_s_cost_stands_in_its_exhibits_with_both_times_of_a_token(name):
    assert name.startswith("synera/")
    found = metrics(EXHIBITS[name])
    assert {metric.replace("_s", "_service_s") for metric in found if CLOUD_COST.match(metric)} <= found
    assert COST in found


@pytest.mark.parametrize("name", PRINTED)
def test_rules_as_printed_have_rows_of_their_own(name):
    swept = read_yaml(FILES[name])["hydra"]["sweeper"]["params"]
    for choice, printed in PRINTED[name].items():
        assert printed <= set(str(swept[choice]).split(","))
