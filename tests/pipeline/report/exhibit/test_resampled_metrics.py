import numpy as np
import pytest

from pipeline.report.exhibit import resampled_metrics
from pipeline.report.records import Records
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import drawn


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records.read(drawn(tmp_path_factory.mktemp("serve"), share=0.5))


def test_measures_are_what_the_summary_says(records):
    metrics = summarise(records).metrics()
    checked = 0
    for metric, expected in metrics.items():
        found = resampled_metrics.resampled_metric(metric)
        if found is None:
            continue
        own = float(found.combine(np.sum([found.sums(request) for request in records.requests], axis=0)))
        factor = expected / own if metric.startswith(("cost/", "resources/")) and own else 1.0
        assert own * factor == pytest.approx(expected), metric
        assert factor == pytest.approx(_factor(metric, len(records.requests))), metric
        checked += 1
    assert checked > 20


def _factor(metric: str, n: int) -> float:
    """The packing factor of a cost; the number of requests of a total."""
    if metric in ("cost/verified_s", "cost/generated_s"):
        return 1 / 6
    return n if metric.startswith("resources/") and not metric.endswith("_j_per_token") else 1.0


def test_every_metric_of_a_summary_is_known(records):
    assert [name for name in summarise(records).metrics() if not resampled_metrics.is_known_metric(name)] == []
    assert resampled_metrics.is_known_metric("quality/by_task/any")
    assert resampled_metrics.is_known_metric("stage/thresholds/alpha")
    assert not resampled_metrics.is_known_metric("latency/tbt/mean")


def test_percentiles_and_numbers_of_stages_are_not_resampled():
    assert resampled_metrics.resampled_metric("latency/tbt_s/p99") is None
    assert resampled_metrics.resampled_metric("stage/thresholds/alpha") is None
