"""Two requests, small enough to add up by hand."""

import pytest

from pipeline.report.records import Records
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import request, write

# Drafts four and is asked about them (two stand, one is corrected), then drafts two that are kept.
SPECULATED = request(
    "a", ["accepted", "accepted", "corrected", "device", "device"], [1.0, 1.0, 1.0, 1.2, 1.4],
    task="copy", slo="fast", slo_tokens_per_s=3.5, drafted=6, drafts_verified=4, drafts_accepted=2, drafts_unused=2,
    chunks=2, chunks_offloaded=1, chunks_verified=1, uplink_nbytes=100, downlink_nbytes=20, uplink_messages=1,
    cloud_forward_tokens=9, device_busy_s=0.6, cloud_busy_s=0.25,
    cloud_queue_s=0.125, device_energy_j=6.0, radio_energy_j=0.5, cloud_energy_j=50.0, quality=1.0, rouge_1=1.0,
)  # fmt: skip
# Arrives at 0.5, and its device writes three tokens alone.
ALONE = request(
    "b", ["device"] * 3, [0.75, 1.75, 2.5], task="sort", slo="slow", slo_tokens_per_s=1.0, arrived_s=0.5, ttft_s=0.25,
    drafted=3, chunks=3, device_busy_s=0.75, device_energy_j=2.0, radio_energy_j=0.0, cloud_energy_j=0.0,
    quality=0.0, rouge_1=0.5,
)  # fmt: skip


@pytest.fixture
def summary(tmp_path):
    return summarise(Records.read(write(tmp_path, [SPECULATED, ALONE])))


def test_latencies_are_those_of_the_two_requests(summary):
    assert list(summary.below("latency/ttft_s/").values()) == pytest.approx([0.625, 0.625, 0.925, 0.9925])
    # mean gaps: (0 + 0 + 0.2 + 0.2) / 4 and (1 + 0.75) / 2
    assert summary["latency/tbt_s/mean"] == pytest.approx((0.1 + 0.875) / 2)
    # all gaps, ranked: 0, 0, 0.2, 0.2, 0.75, 1
    assert summary["latency/itl_s/median"] == pytest.approx(0.2)
    assert summary["latency/end_to_end_s/mean"] == pytest.approx((1.4 + 2.0) / 2)
    assert summary["latency/cloud_queue_s/mean"] == 0.0625


def test_throughput_and_goodput_are_computed_from_the_two_requests(summary):
    # eight tokens from 0 to 2.5 s; a's speed is 5 in 1.4 s, b's 3 in 2 s: both above their classes
    assert summary["throughput/tokens_per_s"] == pytest.approx(8 / 2.5)
    assert summary["throughput/requests_per_s"] == pytest.approx(2 / 2.5)
    assert summary["throughput/verifications_per_s"] == pytest.approx(1 / 2.5)
    assert summary["throughput/goodput_tokens_per_s"] == pytest.approx(8 / 2.5)
    assert summary.below("slo/") == {
        "fast/requests": 1.0, "slow/requests": 1.0, "fast/violation_rate": 0.0, "slow/violation_rate": 0.0
    }  # fmt: skip


def test_goodput_excludes_requests_that_missed_their_slo(tmp_path):
    late = ALONE | {"slo_tokens_per_s": 2.0}
    summary = summarise(Records.read(write(tmp_path, [SPECULATED, late])))
    assert summary["throughput/goodput_tokens_per_s"] == pytest.approx(5 / 2.5)
    assert summary["throughput/slo_violation_rate"] == 0.5


def test_goodput_without_classes_is_of_complete_requests(tmp_path):
    free = {"slo": None, "slo_tokens_per_s": None}
    broken = ALONE | free | {"ending": "failed"}
    summary = summarise(Records.read(write(tmp_path, [SPECULATED | free, broken])))
    assert summary["throughput/goodput_tokens_per_s"] == pytest.approx(5 / 2.5)
    assert (summary["complete"], summary.below("slo/")) == (1, {})


def test_acceptance_counts_are_those_of_the_two_requests(summary):
    assert summary.below("speculation/") == {
        "drafted": 9, "verified": 4, "accepted": 2, "verifications": 1, "acceptance_rate": 0.5,
        "acceptance_length": 2.0, "acceptance_length_with_bonus": 3.0, "wasted_share": pytest.approx(2 / 9),
        "replaced": 0,
    }  # fmt: skip


def test_wasted_time_is_the_discarded_drafts_times_their_mean_duration(tmp_path):
    """Ten tokens drafted in 0.4 s, one of them dropped by a stop rule; two of four that were sent fell."""
    drafting = SPECULATED | {"drafted": 9, "discarded_tokens": 1, "draft_s": 0.4}
    waste = summarise(Records.read(write(tmp_path, [drafting]))).below("waste/")
    assert (waste["rejected_tokens"], waste["discarded_tokens"]) == (2.0, 1.0)
    assert waste["wdt_s"] == pytest.approx(2 * 0.04)
    assert waste["time_share"] == pytest.approx(0.2)


def test_offloaded_shares_are_those_of_the_two_requests(summary):
    assert summary["offloading/chunk_share"] == pytest.approx(1 / 5)
    assert summary["offloading/token_share"] == pytest.approx(3 / 8)
    assert summary.below("offloading/tokens_by_origin/") == {
        "device": 5, "offline": 0, "accepted": 2, "cloud_accepted": 0, "corrected": 1, "bonus": 0, "cloud": 0
    }  # fmt: skip


def test_bytes_busy_times_and_energy_are_added_up(summary):
    assert summary.below("resources/") == {
        "uplink_nbytes": 100, "downlink_nbytes": 20, "uplink_messages": 1, "cloud_forward_tokens": 9,
        "device_busy_s": pytest.approx(1.35), "cloud_busy_s": 0.25, "cloud_queue_s": 0.125,
        "device_j_per_token": 1.0, "cloud_j_per_token": 6.25, "device_energy_j": 8.0, "cloud_energy_j": 50.0,
        "radio_energy_j": 0.5, "radio_j_per_token": 0.0625, "device_total_energy_j": 8.5,
        "device_total_j_per_token": 1.0625,
        "cloud_busy_share": pytest.approx(0.25 / 2.5),
    }  # fmt: skip


def test_cost_under_both_readings(summary):
    assert summary["cost/w_verified"] == pytest.approx(5 / 8)
    assert summary["cost/w_generated"] == pytest.approx(1 / 8)
    assert summary["cost/verified_s"] == pytest.approx(0.4875 / 6 * 5 / 8)


def test_quality_is_averaged_over_requests_and_by_task(summary):
    assert (summary["quality/mean"], summary["quality/rouge_1"]) == (0.5, 0.75)
    assert summary.below("quality/by_task/") == {"copy": 1.0, "sort": 0.0}


def test_metrics_are_flat_numbers_that_are_known(summary):
    metrics = summary.metrics()
    assert metrics["latency/ttft_s/median"] == 0.625
    assert metrics["slo/fast/violation_rate"] == 0.0
    assert metrics["offloading/tokens_by_origin/corrected"] == 1.0
    assert all(isinstance(value, float) for value in metrics.values())


def test_without_drafts_energy_or_scores_their_metrics_are_unknown(tmp_path):
    lone = request("c", ["cloud"], [0.5], device_energy_j=None, cloud_energy_j=3.0)
    summary = summarise(Records.read(write(tmp_path, [lone], packing_factor=None)))
    assert summary["latency/tbt_s/mean"] is None
    assert summary["speculation/acceptance_rate"] is None
    assert summary["offloading/chunk_share"] is None
    assert summary["offloading/token_share"] == 1.0
    assert summary["resources/device_j_per_token"] is None
    assert summary["resources/radio_j_per_token"] is None
    assert summary["resources/device_total_j_per_token"] is None
    assert summary["resources/cloud_j_per_token"] == 3.0
    assert (summary["quality/mean"], summary["cost/verified_s"]) == (None, None)
    assert "speculation/acceptance_rate" not in summary.metrics()


def test_stalls_without_time_lines_are_unknown(tmp_path):
    unseen = {"link_stall_s": None, "cloud_stall_s": None, "cloud_residence_s": None}
    summary = summarise(Records.read(write(tmp_path, [SPECULATED | unseen, ALONE | unseen])))
    assert (summary["stalls/link_share"], summary["stalls/cloud_share"], summary["latency/verification_s/mean"]) == (
        None,
        None,
        None,
    )
    assert not any(name.startswith("stalls/") for name in summary.metrics())


def test_busy_periods_are_those_in_which_anything_was_under_way(summary, tmp_path):
    assert summary["throughput/busy_period_s"] == 2.5  # a from 0 to 1.4, b from 0.5 to 2.5
    later = ALONE | {"arrived_s": 10.0, "ended_s": 12.0}
    apart = summarise(Records.read(write(tmp_path / "apart", [SPECULATED, later])))
    assert apart["throughput/busy_period_s"] == pytest.approx((1.4 + 2.0) / 2)


def test_the_printed_latency_of_a_division_is_a_metric(tmp_path):
    partition = {"slowest_stage_s": 8.0, "communication_s": 0.5, "printed_latency_s": 8.5}
    found = summarise(Records.read(write(tmp_path, [SPECULATED], partition=partition)))
    assert found["partition/printed_latency_s"] == 8.5
    assert found.below("partition/") == partition


def test_metrics_of_tiers_are_flattened(tmp_path):
    tiers = {"nano": {"utilisation": 0.25, "blocks": 8.0}, "agx": {"utilisation": 0.5}}
    found = summarise(Records.read(write(tmp_path, [SPECULATED], tiers=tiers))).metrics()
    assert {name: value for name, value in found.items() if name.startswith("tiers/")} == {
        "tiers/nano/utilisation": 0.25, "tiers/nano/blocks": 8.0, "tiers/agx/utilisation": 0.5,
    }  # fmt: skip
