"""What stands beside what in the exhibits of conf/: no conclusion from TBT alone, no quality without ROUGE-1, and a
paper's rule as printed beside our reading of it.
"""

import re
from pathlib import Path

import pytest

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
QUALITY, ROUGE_1 = "quality", "quality/rouge_1"
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


def metrics(exhibit):
    return {column["metric"] for column in exhibit["columns"] if "metric" in column}


@pytest.mark.parametrize("name", [name for name, exhibit in EXHIBITS.items() if TBT in metrics(exhibit)])
def test_service_time_end_to_end_and_cost_stand_beside_tbt(name):
    """TBT counts 0 between tokens that are shown at once, and leaves out the wait for the first."""
    found = metrics(EXHIBITS[name])
    assert SERVICE in found
    assert COST in found
    assert any(metric.startswith("latency/end_to_end_s/") for metric in found)


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
