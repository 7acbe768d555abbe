"""The registry of metrics: what it defines is computed, resampled, printed, logged and shown, from one entry."""

import io
import json

import numpy as np
import pytest

from pipeline.report import comparison, job
from pipeline.report.context import JobContext
from pipeline.report.exhibit import Exhibit
from pipeline.report.exhibit.schema import ExhibitColumn, RowTemplate
from pipeline.report.exhibit.sweep import SweepExhibit
from pipeline.report.mlflow_store import Tracking
from pipeline.report.records import Records
from pipeline.report.summary import smooth_metric, summarise
from pipeline.report.table import plain_lines
from pipeline.search.study import create_objective
from serving.metrics import definitions
from serving.metrics.batch_timing import estimator_errors
from serving.metrics.definitions import METRICS, Distribution, MetricSpec, Ratio
from tests.pipeline.report.serve_artifact import drawn

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records.read(drawn(tmp_path_factory.mktemp("serve"), share=0.5))


def test_one_entry_is_a_new_metric_everywhere(monkeypatch, tmp_path, tracking):
    """In a job's summary, its table, MLflow, job.json, a sweep's table and an exhibit, with an interval."""
    new = MetricSpec(
        "link/uplink_nbytes_per_token", "B", "Uplink bytes over tokens of the text.",
        Ratio("uplink_nbytes", "num_tokens"), "lower", name="uplink bytes a token", heading="B/token",
    )  # fmt: skip
    monkeypatch.setattr(definitions, "METRICS", (*METRICS, new))
    monkeypatch.setattr(definitions, "COMPARED", (*definitions.COMPARED, new.key))
    monkeypatch.setattr(definitions, "HEADLINE", (*definitions.HEADLINE, new.key))
    context = JobContext(tmp_path / "sweep" / "0", tracking, {"policy": {"name": "synera"}}, ("policy=synera",))
    done = job.report_job(drawn(tmp_path / "serve"), context, io.StringIO())
    value = done.summary[new.key]
    requests = done.records.requests
    assert value == sum(one.uplink_nbytes for one in requests) / sum(len(one.tokens) for one in requests)
    assert f"uplink bytes a token  {value:.2f} B\n" in done.text
    assert tracking.connect()[0].get_run(done.result.run_id).data.metrics[new.key] == value
    assert json.loads((context.folder / "job.json").read_text())["metrics"][new.key] == value
    rows = comparison.compare_jobs(tmp_path / "sweep")
    assert "B/token" in "\n".join(plain_lines(comparison.comparison_parts(rows)))
    exhibit = Exhibit("ours", (ExhibitColumn("bytes", new.key),), RowTemplate("{policy}"))
    made = SweepExhibit(exhibit).write(rows, tmp_path)
    assert made.metrics["exhibit/synera/bytes"] == value
    measured = json.loads((tmp_path / "exhibit.json").read_text())["rows"][0]["columns"]["bytes"]["measured"]
    assert measured["low"] < measured["value"] < measured["high"]


def test_new_percentiles_with_a_name_are_a_row_of_the_latency_table(monkeypatch, tmp_path):
    new = MetricSpec("latency/draft_s", "s", "Drafting of a request.", Distribution("draft_s"), name="drafting")
    monkeypatch.setattr(definitions, "METRICS", (*METRICS, new))
    context = JobContext(tmp_path / "job", Tracking(uri="none"), {})
    done = job.report_job(drawn(tmp_path / "serve"), context, io.StringIO())
    assert any(line.startswith("drafting  ") for line in done.text.splitlines())
    assert done.summary["latency/draft_s/p99"] is not None


def test_formulas_name_attributes_of_a_request(records):
    request = records.requests[0]
    names: set[str] = set()
    for formula in (metric.formula for metric in METRICS if not isinstance(metric.formula, str)):
        for one in {"attribute", "attributes", "by", "part", "whole"} & formula.__dataclass_fields__.keys():
            found = getattr(formula, one)
            names |= {found} if isinstance(found, str) else set(found)
    assert [name for name in sorted(names - {""}) if not hasattr(request, name)] == []


def test_every_metric_has_a_key_of_its_own_a_unit_and_a_meaning():
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    assert [metric.key for metric in METRICS if not metric.meaning.endswith(".")] == []
    assert [key for key in definitions.COMPARED if not (found := definitions.find(key)) or not found.heading] == []
    assert [key for key in definitions.PAGE if not definitions.metric(key).label] == []


UNITS_IN_KEYS = {"s": ("_s", "_s_per_token"), "share": ("_share", "_rate"), "tokens/s": "tokens_per_s",
                 "J/token": "_j_per_token", "B": "_nbytes", "score": "",
                 "USD/M tokens": "usd_per_million_tokens"}  # fmt: skip


@pytest.mark.parametrize("key", definitions.HEADLINE)
def test_a_headline_metric_names_its_unit(key):
    metric = definitions.find(key)
    assert metric.key.endswith(UNITS_IN_KEYS[metric.unit])


def test_every_number_of_a_summary_has_a_definition(records):
    assert [key for key in summarise(records).metrics() if definitions.find(key) is None] == []
    assert definitions.find("quality/by_task/any").key == "quality/by_task/*"
    assert definitions.find("stage/thresholds/alpha").key == "stage/*"
    assert definitions.find("latency/tbt/mean") is None
    with pytest.raises(KeyError, match="latency/tbt/mean"):
        summarise(records)["latency/tbt/mean"]


@pytest.mark.parametrize("name", ["prefill_128_s", "decode_10_s"])
def test_of_shares_within_a_time_the_higher_is_better_and_of_times_the_lower(records, name):
    known = summarise(records).metrics()
    share, time = f"sla/{name}/within_0.5", f"sla/{name}/p50"
    assert {share, time} <= known.keys()
    assert [(one.better, one.style) for one in map(definitions.find, (share, time))] == [
        ("higher", "%"), ("lower", "ms")
    ]  # fmt: skip
    assert definitions.find(f"sla/{name}") is None
    assert {f"sla/{name}/p*", f"sla/{name}/within_*"} <= {one.key for one in METRICS}
    assert create_objective((share, time)).directions == ("maximize", "minimize")


def test_every_error_of_the_estimator_has_a_definition():
    batches = [{"begin_s": 0.0, "end_s": n, "expected_s": 1.0, "num_tokens": 1} for n in (1.0, 2.0)]
    defined = {metric.key for metric in METRICS if metric.key.startswith("estimator/")}
    assert {f"estimator/{name}" for name in estimator_errors(batches)} == defined


def test_what_is_resampled_is_what_the_summary_says(records):
    metrics = summarise(records).metrics()
    checked = 0
    for key, expected in metrics.items():
        found = smooth_metric(key)
        if found is None:
            continue
        own = float(found.combine(*np.sum([found.sums(request) for request in records.requests], axis=0)))
        assert own * _factor(key, len(records.requests)) == pytest.approx(expected), key
        checked += 1
    assert checked > 40


def _factor(key: str, num_requests: int) -> float:
    """The packing factor of a cost; the number of requests of a total."""
    if isinstance(definitions.find(key).formula, definitions.CloudCost):
        return 1 / 6
    return num_requests if isinstance(definitions.find(key).formula, definitions.Total) else 1.0


@pytest.mark.parametrize(
    "key", ["latency/tbt_s/p99", "stage/thresholds/alpha", "throughput/tokens_per_s", "no/such", "requests"]
)
def test_percentiles_rates_counts_and_numbers_of_stages_are_not_resampled(key):
    assert smooth_metric(key) is None
