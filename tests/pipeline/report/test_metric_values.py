"""Metrics of two requests whose counts are all different, so that a formula with a wrong part has another value."""

import pytest

from pipeline.report.records import Records, RequestRecord
from pipeline.report.summary import summarise
from tests.pipeline.report.serve_artifact import request, write

ORIGINS = ["device"] * 3 + ["accepted"] * 4 + ["corrected", "corrected", "bonus", "cloud"]
FIRST = {
    "arrived_s": 1.0, "started_s": 2.0, "ended_s": 25.0, "ttft_s": 3.0, "drafted": 29, "drafts_verified": 19,
    "drafts_accepted": 4, "drafts_replaced": 2, "drafts_unused": 15, "early_exit_tokens": 13, "layer_share_sum": 17.0,
    "lookahead_attempts": 10, "lookahead_position_hits": 6, "lookahead_hits": 3, "link_stall_s": 1.5,
    "cloud_stall_s": 4.0, "cloud_residence_s": 8.0, "chunks": 11, "chunks_offloaded": 7, "chunks_verified": 5,
    "uplink_nbytes": 500, "downlink_nbytes": 70, "uplink_messages": 9, "device_busy_s": 12.0, "cloud_busy_s": 2.5,
    "cloud_forward_tokens": 41, "cloud_queue_s": 0.75, "draft_s": 6.0, "discarded_tokens": 2, "device_energy_j": 31.0,
    "radio_energy_j": 5.0, "cloud_energy_j": 90.0,
}  # fmt: skip
SECOND = {
    "arrived_s": 3.0, "started_s": 3.0, "ended_s": 33.0, "ttft_s": 2.0, "drafted": 8, "drafts_verified": 4,
    "drafts_accepted": 1, "drafts_replaced": 1, "drafts_unused": 5, "early_exit_tokens": 2, "layer_share_sum": 7.0,
    "lookahead_attempts": 2, "lookahead_position_hits": 1, "lookahead_hits": 0, "link_stall_s": 0.5,
    "cloud_stall_s": 6.0, "cloud_residence_s": 3.0, "chunks": 4, "chunks_offloaded": 2, "chunks_verified": 1,
    "uplink_nbytes": 100, "downlink_nbytes": 30, "uplink_messages": 3, "device_busy_s": 9.0, "cloud_busy_s": 1.5,
    "cloud_forward_tokens": 20, "cloud_queue_s": 0.25, "draft_s": 2.0, "discarded_tokens": 0, "device_energy_j": 24.0,
    "radio_energy_j": 2.0, "cloud_energy_j": 30.0,
}  # fmt: skip
EXPECTED = {
    "throughput/verifications_per_s": 6 / 32, "throughput/tokens_per_s": 16 / 32, "speculation/drafted": 37,
    "speculation/verified": 23, "speculation/accepted": 5, "speculation/replaced": 3, "speculation/verifications": 6,
    "speculation/acceptance_rate": 5 / 23, "speculation/acceptance_length": 5 / 6,
    "speculation/acceptance_length_with_bonus": (5 + 4) / 6, "speculation/wasted_share": 20 / 37,
    "waste/rejected_tokens": 18 / 6, "waste/wdt_s": 18 * 8.0 / 39 / 6, "waste/time_share": 18 / 39,
    "waste/discarded_tokens": 2 / 6, "early_exit/token_share": 15 / 37, "early_exit/layer_share": 24 / 37,
    "lookahead/attempts": 12, "lookahead/position_hit_rate": 7 / 12, "lookahead/hit_rate": 3 / 12,
    "stalls/link_share": 2.0 / 53, "stalls/cloud_share": 10.0 / 53, "offloading/chunk_share": 9 / 15,
    "offloading/token_share": 11 / 16, "breakdown/device_s": 21.0 / 2, "breakdown/remote_s": (11.0 + 21.0) / 2,
    "breakdown/remote_s_per_call": 32.0 / 9, "breakdown/device_s_per_token": 21.0 / 10, "breakdown/cloud_tokens": 6 / 2,
    "resources/uplink_nbytes": 600, "resources/downlink_nbytes": 100, "resources/uplink_messages": 12,
    "resources/device_busy_s": 21.0, "resources/cloud_busy_s": 4.0, "resources/cloud_queue_s": 1.0,
    "resources/cloud_forward_tokens": 61, "resources/device_j_per_token": 55.0 / 16,
    "resources/radio_j_per_token": 7.0 / 16, "resources/device_total_j_per_token": 62.0 / 16,
    "resources/cloud_j_per_token": 120.0 / 16, "resources/device_energy_j": 55.0, "resources/radio_energy_j": 7.0,
    "resources/device_total_energy_j": 62.0, "resources/cloud_energy_j": 120.0,
    "latency/end_to_end_s/mean": (24.0 + 30.0) / 2, "latency/service_s_per_token/mean": (23.0 / 11 + 30.0 / 5) / 2,
    "latency/verification_s/mean": (8.0 / 5 + 3.0) / 2, "latency/cloud_queue_s/mean": 0.5,
}  # fmt: skip


def found(folder, **changes):
    first = request("a", ORIGINS, [4.0 + i for i in range(11)], **FIRST)
    origins = ["device", "device", "accepted", "cloud", "bonus"]
    second = request("b", origins, [5.0 + i for i in range(5)], **{**SECOND, **changes})
    return summarise(Records.read(write(folder, [first, second]))).metrics()


def test_every_metric_is_computed_from_its_own_counts(tmp_path):
    metrics = found(tmp_path)
    assert {key: metrics.get(key) for key in EXPECTED} == pytest.approx(EXPECTED)


@pytest.mark.parametrize(
    ("unknown", "metrics"),
    [
        ("device_energy_j", ["device_j_per_token", "device_energy_j", "device_total_j_per_token"]),
        ("radio_energy_j", ["radio_j_per_token", "radio_energy_j", "device_total_j_per_token"]),
        ("cloud_energy_j", ["cloud_j_per_token", "cloud_energy_j"]),
    ],
)
def test_energy_that_one_request_does_not_know_is_not_known_of_both(tmp_path, unknown, metrics):
    known = found(tmp_path, **{unknown: None})
    assert not {f"resources/{metric}" for metric in metrics} & known.keys()


def test_a_speed_is_promised_from_the_request_on():
    """It arrived at 5 s: three tokens until 8 s."""
    record = RequestRecord(**request("r", ["device"] * 3, [6.0, 7.0, 8.0], arrived_s=5.0))
    assert record.promised_tokens_per_s == 1.0


def test_each_ten_tokens_behind_the_first_are_timed():
    times = [float(i * i) for i in range(22)]
    assert RequestRecord(**request("r", ["device"] * 22, times)).decode_10_s == [100.0, 300.0]
