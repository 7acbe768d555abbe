"""Estimated and measured times of batches."""

import pytest

from serving.deployment.topology import Topology
from serving.hardware.estimator import Estimator
from serving.hardware.latency import LayerScale, LinearLatency
from serving.messages import ForwardWork, SequenceSlice, Span
from serving.metrics.batch_timing import BatchObserver, BatchTiming, batch_rows, estimator_errors
from serving.runtimes.emulated import simulate
from tests.support.fake_setup import models, queries, setup

SPAN = Span(0, 8, embedding=True, lm_head=True)
TENTH = Estimator(LinearLatency(0.010, 0.0, 0.0, 0.050, 8, "a test"), LayerScale(8, 8))


def batch(n: int, took_s: float) -> BatchTiming:
    work = ForwardWork(SPAN, (SequenceSlice("a", 7, n, tuple(range(n)), 0, "greedy"),), ("last",))
    return BatchTiming("cloud-0", work, 2.0, 2.0 + took_s)


def test_estimator_errors_are_computed_over_batches() -> None:
    """Expected 0.15, 0.25, 0.55 s."""
    listed = batch_rows([batch(10, 0.15), batch(20, 0.20), batch(50, 0.60)], lambda _: TENTH)
    assert [(row["num_tokens"], row["cached_tokens"], row["expected_s"]) for row in listed] == [
        (10, 7, pytest.approx(0.15)), (20, 7, pytest.approx(0.25)), (50, 7, pytest.approx(0.55)),
    ]  # fmt: skip
    found = estimator_errors(listed)
    assert found["batches"] == 3
    assert found["mape"] == pytest.approx((0 + 0.25 + 1 / 12) / 3)
    assert found["bias_s"] == pytest.approx(0.0)
    slower = estimator_errors(batch_rows([batch(10, 0.15), batch(20, 0.20), batch(50, 0.70)], lambda _: TENTH))
    assert slower["bias_s"] == pytest.approx((0.05 - 0.15) / 3)
    assert found["mae_s"] == pytest.approx(0.1 / 3)
    spread = sum((took - 0.95 / 3) ** 2 for took in (0.15, 0.20, 0.60))
    assert found["r2"] == pytest.approx(1 - 2 * 0.05**2 / spread)


def test_without_batches_there_are_no_estimator_errors() -> None:
    assert estimator_errors([]) == {}
    assert "r2" not in estimator_errors(batch_rows([batch(10, 0.15)], lambda _: TENTH))


def test_passes_of_devices_are_no_batches_of_the_cloud() -> None:
    watch = BatchObserver()
    for node in ("device-0", "hat.device-0", "cloud-0", "hat.cloud-0"):
        watch.work_done(node, batch(10, 0.15).work, (), 2.0, 2.15)
    assert [one.node for one in watch.batches] == ["cloud-0", "hat.cloud-0"]


def test_on_virtual_time_the_scheduler_expects_what_the_clock_takes() -> None:
    made, watch = setup("sled"), BatchObserver()
    simulate(made, models(), queries(6), observers=[watch])
    assert len(watch.batches) > 10
    assert {one.node for one in watch.batches} == {"cloud-0"}
    cast = Topology(made, models().cloud_layers)
    biased = Estimator.of(cast.cloud_latency("cloud-0"), LayerScale(cast.scale.layers, 2 * cast.scale.timed_layers))
    assert estimator_errors(batch_rows(watch.batches, lambda _: biased))["mape"] > 0.5
