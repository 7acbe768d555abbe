"""What stands beside what in the exhibits of conf/: no conclusion from TBT alone, no quality without ROUGE-1."""

import re
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[4] / "conf" / "experiment"
FILES = {file.relative_to(CONF).as_posix(): file for file in CONF.rglob("*.yaml")}
EXHIBITS = {
    name: found["exhibit"]
    for name, file in FILES.items()
    if isinstance(found := yaml.safe_load(file.read_text(encoding="utf-8")), dict)
    and isinstance(found.get("exhibit"), dict)
    and "columns" in found["exhibit"]
}
TBT, SERVICE, COST = "latency/tbt_s/mean", "latency/service_s_per_token/mean", "cost/usd_per_million_tokens"
QUALITY, ROUGE_1 = "quality", "quality/rouge_1"
CLOUD_COST = re.compile(r"cost/(verified|generated)_s$")


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
