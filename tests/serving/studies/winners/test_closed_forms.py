"""The closed forms by numbers made up by hand."""

from dataclasses import replace

import pytest

from serving.studies.winners.closed_forms import RoundTimes, capacity_factor, tokens_per_round

TIMES = RoundTimes(device_draft_s=0.010, cloud_draft_s=0.004, verify_s=0.022, decode_s=0.020, other_s=0.001)


def test_tokens_of_a_round() -> None:
    assert tokens_per_round(0.5, 1) == 1.5
    assert tokens_per_round(0.5, 3) == 1.875  # 1 + 0.5 + 0.25 + 0.125
    assert tokens_per_round(0.0, 4) == 1
    assert tokens_per_round(1.0, 4) == 5


def device_s_per_token(times: RoundTimes, acceptance: float, window: int, round_trip_s: float) -> float:
    """The device drafts, and waits for each verdict."""
    round_s = window * times.device_draft_s + round_trip_s + times.other_s + times.verify_s
    return round_s / tokens_per_round(acceptance, window)


def cloud_s_per_token(times: RoundTimes, acceptance: float, window: int) -> float:
    """The cloud drafts and verifies on one chip; tokens stream."""
    return (window * times.cloud_draft_s + times.verify_s) / tokens_per_round(acceptance, window)


def test_at_its_border_a_device_is_as_fast_as_a_cloud_that_decodes() -> None:
    border_s = TIMES.decoding_border_s(1.0, 3)
    assert border_s == pytest.approx(4 * 0.020 - 0.022 - 0.030 - 0.001)
    assert device_s_per_token(TIMES, 1.0, 3, border_s) == pytest.approx(TIMES.decode_s)
    assert TIMES.decoding_border_s(0.5, 3) == pytest.approx(1.875 * 0.020 - 0.053)
    assert TIMES.decoding_border_s(0.5, 3) < 0  # drafting never pays


def test_a_device_beats_a_cloud_that_drafts_only_if_it_drafts_faster() -> None:
    assert TIMES.colocated_border_s(0.7, 4) == pytest.approx(4 * (0.004 - 0.010) - 0.001)
    fast = RoundTimes(device_draft_s=0.002, cloud_draft_s=0.004, verify_s=0.022, decode_s=0.020)
    border_s = fast.colocated_border_s(0.7, 4)
    assert border_s == pytest.approx(0.008)
    assert device_s_per_token(fast, 0.7, 4, border_s) == pytest.approx(cloud_s_per_token(fast, 0.7, 4))


def test_a_server_that_drafts_no_more_carries_more_clients() -> None:
    assert capacity_factor(4, 0.005, 0.020) == 2
    assert capacity_factor(0, 0.005, 0.020) == 1


def test_a_prompt_on_the_device_takes_its_share_of_each_round() -> None:
    slow = replace(TIMES, device_prompt_s=0.080)
    border_s = slow.decoding_border_s(0.5, 3, answer_tokens=30)  # 16 rounds of 1.875 tokens: 5 ms of the prompt each
    assert border_s == pytest.approx(TIMES.decoding_border_s(0.5, 3) - 0.005)
    assert slow.decoding_border_s(0.5, 3) == TIMES.decoding_border_s(0.5, 3)
    assert slow.colocated_border_s(0.5, 3, 30) == pytest.approx(TIMES.colocated_border_s(0.5, 3) - 0.005)
